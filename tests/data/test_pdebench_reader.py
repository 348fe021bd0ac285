"""The PDEBench reader against files written here by hand: every layout and every trap of the published ones."""

import re
import time
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from sparse_files import sparse_data_set
from ups.data import open_source
from ups.data import source as source_module
from ups.data.duplicates import copies, ends_of
from ups.data.readers.pdebench_names import match_name
from ups.physics import TASKS
from ups.types import ConfigError, DataError

RNG = np.random.default_rng(0)


def centres(n, lo=0.0, hi=1.0):
    return (lo + (np.arange(n) + 0.5) * (hi - lo) / n).astype("f4")


def numbers(*shape):
    return RNG.standard_normal(shape).astype("f4")


def write(path, datasets, **attrs):
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update(attrs)
    return path


def advection(folder, name="1D_Advection_Sols_beta0.4.hdf5", *, n=3, nt=5, nx=8, extra=1, lo=0.0, hi=1.0, **attrs):
    data = {
        "tensor": numbers(n, nt, nx),
        "x-coordinate": centres(nx, lo, hi),
        "t-coordinate": np.append(np.linspace(0, 2, nt), [3.0] * extra).astype("f4"),
    }
    return write(folder / name, data, **attrs), data["tensor"]


def groups(folder, name, keys, shape, axes, config=None):
    path = folder / name
    with h5py.File(path, "w") as file:
        for key in keys:
            file[f"{key}/data"] = numbers(*shape)
            for letter, axis in axes.items():
                file[f"{key}/grid/{letter}"] = axis
            if config is not None:
                file[key].attrs["config"] = config
    return path


def incompressible(folder, name="ns_incom_inhom_2d_512-7.h5", *, n=2, nt=6, nx=4, velocity=None, **attrs):
    data = {
        "velocity": numbers(n, nt, nx, nx, 2) if velocity is None else velocity,
        "particles": numbers(n, nt, nx, nx, 1),
        "force": numbers(n, nx, nx, 2),
        "t": np.tile(np.arange(nt, dtype="f4") * 0.005, (n, 1)),
    }
    return write(folder / name, data, **attrs), data


def test_array_layout_gives_time_first_and_one_channel_last(tmp_path):
    path, tensor = advection(tmp_path, beta=0.4)
    with open_source(path, TASKS) as source:
        assert (source.task.name, source.params, len(source)) == ("advection1d", {"beta": 0.4}, 3)
        assert source.ids == ("000000", "000001", "000002")
        assert source.problems == ()
        sample = source[1]
        np.testing.assert_array_equal(sample.values, tensor[1][..., None])
        assert sample.values.dtype == np.float32
        assert sample.inputs.shape == (8, 0)
        assert (sample.grid.shape, sample.grid.periodic, sample.grid.bounds) == ((8,), (True,), ((0.0, 1.0),))
        np.testing.assert_array_equal(source[-1].values, source[2].values)


def test_fields_layout_stacks_channels_in_the_order_of_the_task(tmp_path):
    data = {name: numbers(2, 4, 6) for name in ("Vx", "pressure", "density")}
    data |= {"x-coordinate": centres(6, -1, 1), "t-coordinate": np.linspace(0, 1.25, 5, dtype="f4")}
    path = write(tmp_path / "1D_CFD_Shock_Eta1.e-8_Zeta1.e-8_trans_Train.hdf5", data)
    source = open_source(path, TASKS)
    assert source.params == {"eta": 1e-8, "zeta": 1e-8, "init": "Shock", "boundary": "trans"}
    assert source.grid.periodic == (False,)
    assert source.grid.bounds == ((-1.0, 1.0),)
    expected = np.stack([data["density"][1], data["pressure"][1], data["Vx"][1]], axis=-1)
    np.testing.assert_array_equal(source.read(1), expected)
    np.testing.assert_array_equal(source.read(1, slice(1, None, 2)), expected[1::2])


def test_two_dimensional_fields_layout_keeps_x_before_y(tmp_path):
    data = {name: numbers(2, 3, 4, 6) for name in ("density", "pressure", "Vx", "Vy")}
    data |= {"x-coordinate": centres(4), "y-coordinate": centres(6), "t-coordinate": np.linspace(0, 1, 3, dtype="f4")}
    path = write(tmp_path / "2D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_512_Train.hdf5", data, M=1.0)
    source = open_source(path, TASKS)
    assert source.read(0).shape == (3, 4, 6, 4)
    np.testing.assert_array_equal(source.read(1)[..., 3], data["Vy"][1])
    assert source.grid.shape == (4, 6)
    assert source.problems == ()


def test_groups_layout_reads_a_group_per_sample(tmp_path):
    axes = {"x": centres(4, -1, 1), "y": centres(4, -1, 1), "t": np.linspace(0, 5, 3, dtype="f4")}
    path = groups(tmp_path, "2D_diff-react_NA_NA.h5", ["0000", "0001"], (3, 4, 4, 2), axes)
    source = open_source(path, TASKS)
    assert source.ids == ("0000", "0001")
    assert source.task.channels == ("activator", "inhibitor")
    with h5py.File(path) as file:
        np.testing.assert_array_equal(source.read(1, slice(1, 3)), file["0001/data"][1:3])
    assert source.grid.bounds == ((-1.0, 1.0), (-1.0, 1.0))


def test_incompressible_layout_gives_velocity_then_particles_and_the_force_as_input(tmp_path):
    path, data = incompressible(tmp_path, config="NU: 0.01\n", latestIndex=5)
    source = open_source(path, TASKS)
    sample = source[1]
    np.testing.assert_array_equal(sample.values[..., :2], data["velocity"][1])
    np.testing.assert_array_equal(sample.values[..., 2:], data["particles"][1])
    np.testing.assert_array_equal(sample.inputs, data["force"][1])
    np.testing.assert_allclose(sample.times, np.arange(6) * 0.005, rtol=1e-6)
    assert sample.grid.bounds == ((0.0, 1.0), (0.0, 1.0))
    np.testing.assert_allclose(sample.grid.coordinates[0], [0.125, 0.375, 0.625, 0.875])


def test_1_a_slice_of_a_50_gb_file_costs_a_slice(tmp_path):
    path = tmp_path / "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("density", "pressure", "Vx", "Vy"):  # never written: a sparse file of 55 GB
            sparse_data_set(file, name, (10000, 21, 128, 128))
        file["x-coordinate"] = file["y-coordinate"] = centres(128)
        file["t-coordinate"] = np.linspace(0, 1.05, 22, dtype="f4")
    tracemalloc.start()
    began = time.process_time()
    source = open_source(path, TASKS)
    opened = time.process_time() - began
    assert source.read(9999, slice(3, 5)).shape == (2, 128, 128, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert opened < 10.0
    assert peak < 8 * 2**20


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes through Linux's /proc")
def test_1_a_read_of_k_frames_reads_the_bytes_of_k_frames(tmp_path):
    path, tensor = advection(tmp_path, n=16, nt=64, nx=4096)

    def bytes_read():
        return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])

    source = open_source(path, TASKS)
    source.read(0, slice(0, 1))
    before = bytes_read()
    source.read(5, slice(10, 14))
    cost = bytes_read() - before
    assert 4 * 4096 * 4 <= cost < 4 * 4096 * 4 + 64 * 1024 < tensor.nbytes / 100


@pytest.mark.parametrize(("extra", "noted"), [(0, False), (1, True)])
def test_2_the_t_axis_may_have_one_entry_more_than_there_are_frames(tmp_path, extra, noted):
    path, _ = advection(tmp_path, extra=extra)
    source = open_source(path, TASKS)
    np.testing.assert_allclose(source.times, [0, 0.5, 1, 1.5, 2])
    assert any("one entry more" in note for note in source.notes) is noted


@pytest.mark.parametrize("extra", [2, -1])
def test_2_any_other_t_axis_is_refused(tmp_path, extra):
    path, _ = advection(tmp_path, extra=max(extra, 0))
    with h5py.File(path, "a") as file:
        t = file["t-coordinate"][: 5 + extra]
        del file["t-coordinate"]
        file["t-coordinate"] = t
    with pytest.raises(DataError, match=rf"t axis has {5 + extra} entries for 5 frames"):
        open_source(path, TASKS)


def test_3_the_file_name_is_the_truth_and_a_contradicting_attribute_is_a_problem(tmp_path):
    path, _ = advection(tmp_path, beta=2.0)
    source = open_source(path, TASKS)
    assert source.params == {"beta": 0.4}
    assert source.problems == ("attribute beta says 2.0 but the file name says 0.4",)


def test_3_an_attribute_in_float32_does_not_contradict_the_name(tmp_path):
    path, _ = advection(tmp_path, beta=np.float32(0.4))
    assert open_source(path, TASKS).problems == ()


def test_3_an_attribute_speaks_where_the_name_is_silent(tmp_path):
    path, _ = advection(tmp_path, "mine.hdf5", beta=np.array([0.7]))
    source = open_source(path, TASKS, "advection1d")
    assert source.params == {"beta": 0.7}


def test_3_a_parameter_said_nowhere_is_left_out_with_a_note(tmp_path):
    path, _ = advection(tmp_path, "mine.hdf5")
    source = open_source(path, TASKS, "advection1d")
    assert source.params == {}
    assert "neither the file name nor an attribute says beta" in source.notes


def test_3_an_impossible_parameter_is_a_problem(tmp_path):
    path, _ = advection(tmp_path, "1D_Burgers_Sols_Nu-0.1.hdf5", Nu=-0.1)
    assert open_source(path, TASKS).problems == ("nu is -0.1, which is not above 0",)


def test_4_group_keys_are_sorted_as_strings(tmp_path):
    axes = {"x": centres(4), "t": np.linspace(0, 500, 3, dtype="f4")}
    path = groups(tmp_path, "1D_diff-sorp_NA_NA.h5", ["10", "9", "2"], (3, 4, 1), axes)
    assert open_source(path, TASKS).ids == ("10", "2", "9")


@pytest.mark.parametrize(
    ("name", "task", "params"),
    [
        ("1D_CFD_Rand_Eta1.e-8_Zeta1.e-8_periodic_Train.hdf5", "cfd1d", {"eta": 1e-8, "boundary": "periodic"}),
        ("1D_CFD_Rand_Eta0.1_Zeta0.1_trans_Train.hdf5", "cfd1d", {"eta": 0.1, "zeta": 0.1, "boundary": "trans"}),
        ("2D_CFD_Turb_M0.1_Eta1e-08_Zeta1e-08_periodic_512_Train.hdf5", "cfd2d", {"eta": 1e-8, "mach": 0.1}),
        ("1D_Burgers_Sols_Nu0.001.hdf5", "burgers1d", {"nu": 0.001}),
        ("ReacDiff_Nu0.5_Rho10.0.hdf5", "reacdiff1d", {"nu": 0.5, "rho": 10.0}),
        ("ReacDiff_react_Nu10.0_Rho1.0.hdf5", "reacdiff1d", {"nu": 10.0, "rho": 1.0}),
        ("2D_DarcyFlow_beta100.0_Train.hdf5", "darcy2d", {"beta": 100.0}),
        ("1D_diff-sorp_NA_NA.h5", "diffsorp1d", {}),
        ("2D_diff-react_NA_NA.h5", "reacdiff2d", {}),
        ("2D_rdb_NA_NA.h5", "swe2d", {}),
        ("ns_incom_inhom_2d_512-274.h5", "nsincom2d", {}),
        ("Sod6.hdf5", "cfd1d", {}),
        ("KH_M01_dk10_Re1e3.hdf5", "cfd2d", {}),
    ],
)
def test_5_published_names_tell_the_task_and_its_parameters_in_either_spelling(name, task, params):
    fits = match_name(name, TASKS)
    assert list(fits) == [task]
    found = fits[task].stated
    read = {key: type(value)(found[key]) for key, value in params.items()}
    assert read == params


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0)])
def test_6_the_box_comes_from_the_coordinates(tmp_path, bounds):
    path, _ = advection(tmp_path, "1D_Burgers_Sols_Nu0.01.hdf5", nx=1024, lo=bounds[0], hi=bounds[1])
    source = open_source(path, TASKS)
    assert source.grid.bounds == (bounds,)
    assert ("x spans (-1, 1), not the usual (0, 1)" in source.notes) is (bounds[0] == -1)


def test_7_darcy_has_one_frame_at_time_zero_and_its_coefficient_as_input(tmp_path):
    data = {
        "tensor": numbers(3, 1, 4, 6),
        "nu": numbers(3, 4, 6),
        "x-coordinate": centres(4),
        "y-coordinate": centres(6),
    }
    path = write(tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5", data, beta=1.0)
    source = open_source(path, TASKS)
    sample = source[2]
    assert (sample.values.shape, sample.inputs.shape, sample.times.tolist()) == ((1, 4, 6, 1), (4, 6, 1), [0.0])
    np.testing.assert_array_equal(sample.values[0, ..., 0], data["tensor"][2, 0])
    np.testing.assert_array_equal(sample.inputs[..., 0], data["nu"][2])
    assert (source.notes, source.problems) == ((), ())


def test_8_the_resolution_comes_from_the_shape_not_from_the_name(tmp_path):
    path, _ = incompressible(tmp_path, nx=4)
    source = open_source(path, TASKS)
    assert source.grid.shape == (4, 4)
    assert "the file name says 512 cells per axis, there are 4" in source.notes


def test_9_nan_trajectories_are_found_block_by_block(tmp_path, monkeypatch):
    path, _ = advection(tmp_path, n=4, nt=7)
    with h5py.File(path, "a") as file:
        file["tensor"][1, 6, 3] = np.nan
        file["tensor"][3, 0, 0] = np.inf
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 8 * 8 * 2)
    source = open_source(path, TASKS)
    assert [len(block) for block in source_module.blocks(source, 0)] == [2, 2, 2, 1]
    finite = [all(np.isfinite(block).all() for block in source_module.blocks(source, i)) for i in range(4)]
    assert finite == [True, False, True, False]


def test_10_duplicates_are_named_within_and_across_files(tmp_path):
    velocity = numbers(2, 6, 4, 4, 2)
    first, data = incompressible(tmp_path, "ns_incom_inhom_2d_512-51.h5", velocity=velocity)
    second, _ = incompressible(tmp_path, "ns_incom_inhom_2d_512-53.h5", velocity=velocity)
    with h5py.File(second, "a") as file:
        file["particles"][1], file["force"][1] = data["particles"][0], data["force"][0]
        file["velocity"][1] = velocity[0]
    sources = [open_source(p, TASKS) for p in (first, second)]
    assert len({each.whole for each in ends_of(sources[0])}) == 2
    (same,) = copies(each for source in sources for each in ends_of(source))
    assert [each.label for each in same] == [f"{first.name}:000000", f"{second.name}:000001"]


def test_the_attribute_of_our_generator_names_the_task(tmp_path):
    path, _ = advection(tmp_path, "anything.h5", ups_task="advection1d", ups_complete=True, beta=1.0)
    source = open_source(path, TASKS)
    assert (source.task.name, source.params) == ("advection1d", {"beta": 1.0})


def test_a_file_that_does_not_say_its_task_asks_for_it(tmp_path):
    path, _ = advection(tmp_path, "data.hdf5")
    with pytest.raises(DataError, match=r"holds .*tensor \(3 × 5 × 8\).*neither its name nor an attribute.*--task"):
        open_source(path, TASKS)
    assert open_source(path, TASKS, "burgers1d").task.name == "burgers1d"


def test_a_file_that_is_no_known_task_gets_the_nearest_name(tmp_path):
    path, _ = advection(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'burgers1d'"):
        open_source(path.rename(path.with_name("mine.hdf5")), TASKS, "burger1d")


def test_a_task_may_have_another_name_and_keeps_its_equation(tmp_path):
    path, _ = advection(tmp_path)
    task = open_source(path, TASKS, "my_waves").task
    assert (task.name, task.equation) == ("my_waves", "advection1d")


def test_a_task_that_contradicts_the_name_or_the_attribute_is_a_problem(tmp_path):
    path, _ = advection(tmp_path, ups_task="advection1d")
    problems = open_source(path, TASKS, "burgers1d").problems
    assert any("ups_task says advection1d" in p for p in problems)
    assert any("file name is one of advection1d" in p for p in problems)


def test_an_unstated_boundary_is_not_taken_for_periodic(tmp_path):
    data = {name: numbers(1, 3, 4) for name in ("density", "pressure", "Vx")}
    data |= {"x-coordinate": centres(4), "t-coordinate": np.linspace(0, 1, 3, dtype="f4")}
    source = open_source(write(tmp_path / "Sod3.hdf5", data), TASKS)
    assert source.grid.periodic == (False,)
    assert "neither the file name nor an attribute says boundary" in source.notes


def test_a_config_that_is_not_yaml_is_a_problem_and_the_file_is_still_read(tmp_path):
    axes = {"x": centres(4), "t": np.linspace(0, 500, 3, dtype="f4")}
    path = groups(tmp_path, "1D_diff-sorp_NA_NA.h5", ["0000"], (3, 4, 1), axes, config="a: [1")
    source = open_source(path, TASKS)
    assert source.problems == ("attribute config of /0000 is not YAML",)
    assert source.read(0).shape == (3, 4, 1)


def test_a_t_axis_that_is_not_uniform_is_a_problem(tmp_path):
    path, _ = advection(tmp_path)
    with h5py.File(path, "a") as file:
        file["t-coordinate"][1] = 0.6
    assert open_source(path, TASKS).problems == ("the t axis is not uniform",)


def test_numbers_keep_their_precision_and_come_in_native_byte_order(tmp_path):
    path, tensor = advection(tmp_path)
    with h5py.File(path, "a") as file:
        del file["tensor"]
        file["tensor"] = tensor.astype(">f8")
    values = open_source(path, TASKS).read(0)
    assert values.dtype == np.float64
    assert values.dtype.isnative
    np.testing.assert_array_equal(values[..., 0], tensor[0])
