"""The Well reader against files written here by hand: tensor ranks, squeezed axes, boundaries, parameters, splits."""

import pickle
import tracemalloc

import h5py
import numpy as np
import pytest

from sparse_files import sparse_data_set
from ups.data import open_source
from ups.data.readers.well import open_well
from ups.jobs.inspect import describe
from ups.physics import TASKS
from ups.types import ConfigError, DataError

RNG = np.random.default_rng(1)
B, T, W, H = 3, 4, 5, 6
FLAGS = {"sample_varying": True, "time_varying": True, "dim_varying": [True, True]}


def numbers(*shape):
    return RNG.standard_normal(shape).astype("f4")


def well(path, fields, *, scalars=None, boundaries=None, axes=None, time=None, grid="cartesian", **root):
    """`fields` are (rank, name, array, flags) and `boundaries` (name, axes, kind); flags default to all varying."""
    axes = axes or {"x": np.arange(W, dtype="f4"), "y": np.arange(H, dtype="f4") / 2}
    with h5py.File(path, "w") as file:
        file.attrs.update({"dataset_name": "toy_flow", "grid_type": grid, "n_spatial_dims": len(axes)})
        file.attrs.update({"n_trajectories": B, "simulation_parameters": list(root), **root})
        dims = file.create_group("dimensions")
        dims.attrs["spatial_dims"] = list(axes)
        for name, axis in {"time": np.arange(T, dtype="f4") if time is None else time, **axes}.items():
            dims[name] = axis
            dims[name].attrs.update({"sample_varying": np.ndim(axis) > 1, "time_varying": False})
        for rank in range(3):
            group = file.create_group(f"t{rank}_fields")
            mine = [f for f in fields if f[0] == rank]
            group.attrs["field_names"] = [name for _, name, _, _ in mine]
            for _, name, array, flags in mine:
                group[name] = array
                group[name].attrs.update({**FLAGS, **flags})
        group = file.create_group("scalars")
        group.attrs["field_names"] = list(scalars or {})
        for name, (value, flags) in (scalars or {}).items():
            group[name] = value
            group[name].attrs.update({"sample_varying": False, "time_varying": False, **flags})
        group = file.create_group("boundary_conditions")
        for name, where, kind in boundaries or []:
            group.create_group(name).attrs.update({"associated_dims": where, "bc_type": kind})
    return path


@pytest.fixture
def flow(tmp_path):
    data = {"density": numbers(B, T, W, H), "velocity": numbers(B, T, W, H, 2), "stress": numbers(B, T, W, H, 2, 2)}
    fields = [(rank, name, array, {}) for rank, (name, array) in enumerate(data.items())]
    edges = [("x_periodic", ["x"], "PERIODIC"), ("y_wall", ["y"], "WALL")]
    return well(tmp_path / "toy.hdf5", fields, boundaries=edges, Reynolds=100.0, forcing="kolmogorov"), data


def test_fields_of_every_tensor_rank_become_named_channels(flow):
    path, data = flow
    source = open_source(path, {})
    assert source.task.name == "toy_flow"
    assert [(f.name, f.rank) for f in source.task.fields] == [("density", 0), ("velocity", 1), ("stress", 2)]
    assert source.task.channels == (
        *("density", "velocity_x", "velocity_y"),
        *("stress_xx", "stress_xy", "stress_yx", "stress_yy"),
    )
    sample = source[1]
    assert sample.values.shape == (T, W, H, 7)
    np.testing.assert_array_equal(sample.values[..., 0], data["density"][1])
    np.testing.assert_array_equal(sample.values[..., 1:3], data["velocity"][1])
    np.testing.assert_array_equal(sample.values[..., 4], data["stress"][1, ..., 0, 1])
    np.testing.assert_array_equal(source.read(2, slice(1, 3)), source.read(2)[1:3])
    assert sample.inputs.shape == (W, H, 0)
    assert (sample.task.storage.kind, sample.task.frames, sample.task.dt) == ("well", T, 1.0)


def test_boundary_kinds_decide_periodicity_per_axis(flow):
    source = open_source(flow[0], {})
    assert source.grid.periodic == source.task.periodic == (True, False)
    assert "the boundary in y is WALL" in source.notes


def test_contradicting_boundaries_are_a_problem_and_an_unstated_one_is_not_periodic(tmp_path):
    edges = [("a", ["x"], "PERIODIC"), ("b", ["x"], b"OPEN")]
    path = well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], boundaries=edges)
    source = open_source(path, {})
    assert source.grid.periodic == (False, False)
    assert source.problems == ("the boundary in x is said to be OPEN and PERIODIC",)
    assert "the boundary in y is not stated" in source.notes


def test_simulation_parameters_are_numbers_or_words(flow):
    assert open_source(flow[0], {}).params == {"Reynolds": 100.0, "forcing": "kolmogorov"}


def test_text_of_a_fixed_length_as_other_languages_write_it_is_text(flow):
    """Fortran, C and MATLAB store characters, which h5py reads as bytes."""
    path, _ = flow
    with open_source(path, {}) as wanted:
        facts = (wanted.task, wanted.params, wanted.notes)

    def as_characters(_, node):
        for key, value in node.attrs.items():
            if isinstance(value, str):
                node.attrs[key] = np.bytes_(value)

    with h5py.File(path, "a") as file:
        as_characters("", file)
        file.visititems(as_characters)
        assert isinstance(file.attrs["dataset_name"], np.bytes_)
    source = open_source(path, {})
    assert (source.task, source.params, source.notes) == facts


def test_an_axis_of_one_cell_has_a_box_in_which_it_lies(tmp_path):
    axes = {"x": np.array([0.25], "f4"), "y": np.arange(H, dtype="f4")}
    source = open_source(well(tmp_path / "a.hdf5", [(0, "c", numbers(B, T, 1, H), {})], axes=axes), {})
    assert source.grid.bounds == ((-0.25, 0.75), (-0.5, H - 0.5))
    assert "x from -0.25 to 0.75" in describe(source.path)


def test_uniform_axes_are_cell_centres_of_a_box(flow):
    grid = open_source(flow[0], {}).grid
    assert grid.bounds == ((-0.5, 4.5), (-0.25, 2.75))
    assert grid.shape == (W, H)


@pytest.mark.parametrize("squeezed", ["sample", "time", "x", "y", "sample and time", "sample and x", "all"])
def test_axes_that_do_not_vary_are_expanded_again(tmp_path, squeezed):
    gone = {"sample", "time", "x", "y"} if squeezed == "all" else set(squeezed.split(" and "))
    lengths = {"sample": B, "time": T, "x": W, "y": H}
    for rank in (0, 1, 2):
        stored = numbers(*(n for axis, n in lengths.items() if axis not in gone), *(2,) * rank)
        flags = {
            "sample_varying": "sample" not in gone,
            "time_varying": "time" not in gone,
            "dim_varying": [axis not in gone for axis in ("x", "y")],
        }
        fields = [(0, "u", numbers(B, T, W, H), {}), (rank, "f", stored, flags)]
        source = open_source(well(tmp_path / f"{rank}.hdf5", fields), {})
        full = stored.reshape(*(1 if axis in gone else n for axis, n in lengths.items()), 2**rank)
        full = np.broadcast_to(full, (B, T, W, H, 2**rank))
        for i in range(B):
            if "time" in gone:
                assert source.task.inputs[0].rank == rank
                np.testing.assert_array_equal(source.inputs(i), full[i, 0])
            else:
                at = source.task.channels.index("f" if rank == 0 else f"f_{'x' * rank}")
                values = source.read(i, slice(1, None, 2))
                np.testing.assert_array_equal(values[..., at : at + 2**rank], full[i, 1::2])


def test_a_scalar_is_a_parameter_of_all_samples_or_of_each(tmp_path):
    scalars = {
        "Rayleigh": (np.float32(1e6), {}),
        "Prandtl": (np.array([0.5, 1.0, 2.0]), {"sample_varying": True}),
        "clock": (np.zeros((B, T)), {"sample_varying": True, "time_varying": True}),
    }
    path = well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], scalars=scalars, Rayleigh=1e6)
    source = open_source(path, {})
    assert source.params == {"Rayleigh": 1e6}
    assert source[2].params == {"Rayleigh": 1e6, "Prandtl": 2.0}
    assert {p.name for p in source.task.parameters} == {"Rayleigh", "Prandtl"}
    assert source.problems == ()
    assert "scalar clock varies in time and is not given as a parameter" in source.notes


def test_a_scalar_may_be_a_word_and_one_that_is_neither_word_nor_number_is_a_problem(tmp_path):
    scalars = {
        "forcing": ("kolmogorov", {}),
        "medium": (np.array([b"air", b"water", b"air"]), {"sample_varying": True}),
        "odd": (np.zeros((), [("a", "f4")]), {}),
        "material": ("steel", {}),
    }
    path = well(
        tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], scalars=scalars, forcing="kolmogorov", material=3.0
    )
    source = open_source(path, {})
    assert source[1].params == {"forcing": "kolmogorov", "medium": "water", "material": "steel"}
    (medium,) = [p for p in source.task.parameters if p.name == "medium"]
    assert (medium.choices, medium.encoded) == (("air", "water"), True)
    assert source.problems == (
        "scalar odd holds [('a', '<f4')], neither numbers nor words, and is no parameter",
        "attribute material says 3 but scalar material says steel",
    )


def test_axes_that_do_not_vary_may_also_have_length_one(tmp_path):
    fields = [(0, "u", numbers(B, T, W, H), {})]
    for name, shape, flags in (
        ("a", (1, 1, W, 1), {"sample_varying": False, "time_varying": False, "dim_varying": [True, False]}),
        ("b", (B, T, 1, H), {"dim_varying": [False, True]}),
        ("c", (1, T, W, H), {"sample_varying": False}),
    ):
        fields.append((0, name, numbers(*shape), flags))
    source = open_source(well(tmp_path / "a.hdf5", fields), {})
    for i in range(B):
        np.testing.assert_array_equal(source.inputs(i)[..., 0], np.broadcast_to(fields[1][2][0, 0], (W, H)))
        expected = [np.broadcast_to(fields[k][2][min(i, fields[k][2].shape[0] - 1)], (T, W, H)) for k in (0, 2, 3)]
        np.testing.assert_array_equal(source.read(i, slice(1, 3)), np.stack(expected, -1)[1:3])


def test_truth_values_are_read_as_numbers_and_a_boundary_inside_is_an_input(tmp_path):
    wall, solid = RNG.random((W, H)) > 0.5, RNG.random((B, W, H)) > 0.5
    flags = {"time_varying": False}
    path = well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {}), (0, "solid", solid, flags)])
    with h5py.File(path, "a") as file:
        group = file.create_group("boundary_conditions/maze")
        group.attrs.update({"associated_dims": ["x", "y"], "bc_type": "WALL"})
        group["mask"] = wall
        for name, at in (("low", 0), ("high", -1)):
            group = file.create_group(f"boundary_conditions/{name}")
            group.attrs.update({"associated_dims": ["y"], "bc_type": "OPEN" if at else "WALL"})
            group["mask"] = np.arange(H) == at % H
    source = open_source(path, {})
    assert source.task.given == ("solid", "maze_mask")
    np.testing.assert_array_equal(source.inputs(1), np.stack([solid[1], wall], -1).astype("f4"))
    assert "the boundary in y is OPEN and WALL (OPEN at the upper end, WALL at the lower end)" in source.notes


def test_parameters_and_boundary_values_may_have_a_value_per_sample(tmp_path):
    path = well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], nu=np.array([1.0, 2.0, 3.0]), odd=[1.0, 2.0])
    with h5py.File(path, "a") as file:
        group = file.create_group("boundary_conditions/inlet")
        group.attrs.update({"associated_dims": ["x"], "bc_type": "WALL", "sample_varying": True})
        group["values"] = np.array([[5.0], [6.0], [7.0]])
    source = open_source(path, {})
    assert source.params_of(1) == {"nu": 2.0, "inlet_value": 6.0}
    assert [p.name for p in source.task.parameters] == ["nu", "inlet_value"]
    assert any("odd has 2 values for 3 samples" in note for note in source.notes)


def test_a_scalar_that_contradicts_the_attribute_is_a_problem(tmp_path):
    scalars = {"Rayleigh": (np.float32(2e6), {})}
    path = well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], scalars=scalars, Rayleigh=1e6)
    assert open_source(path, {}).problems == ("attribute Rayleigh says 1e+06 but scalar Rayleigh says 2e+06",)


def test_times_may_differ_from_sample_to_sample(tmp_path):
    time = np.arange(T) * np.array([[1.0], [2.0], [3.0]])
    source = open_source(well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], time=time), {})
    np.testing.assert_array_equal(source[2].times, [0, 3, 6, 9])


def test_a_logarithmic_polar_grid_is_given_as_it_is(tmp_path):
    axes = {"log_r": np.geomspace(1, 100, W), "theta": np.linspace(0, 3, H)}
    path = well(tmp_path / "a.hdf5", [(0, "u", numbers(B, T, W, H), {})], axes=axes, grid="spherical")
    source = open_source(path, {})
    np.testing.assert_array_equal(source.grid.coordinates[0], axes["log_r"])
    assert source.grid.bounds[0] == (1.0, 100.0)
    assert source.grid.bounds[1] == pytest.approx((-0.3, 3.3))
    assert any("spherical" in note for note in source.notes)
    assert any("the log_r axis is not uniform" in problem for problem in source.problems)


def test_a_three_dimensional_file_has_three_components(tmp_path):
    axes = {name: np.arange(4.0) for name in "xyz"}
    flags = {"dim_varying": [True] * 3}
    path = well(tmp_path / "a.hdf5", [(1, "v", numbers(B, T, 4, 4, 4, 3), flags)], axes=axes)
    source = open_source(path, {})
    assert source.task.channels == ("v_x", "v_y", "v_z")
    assert source.read(0).shape == (T, 4, 4, 4, 3)


def test_a_slice_of_a_huge_file_costs_a_slice(tmp_path):
    path = well(tmp_path / "a.hdf5", [], axes={"x": np.arange(512.0), "y": np.arange(512.0)}, time=np.arange(1000.0))
    with h5py.File(path, "a") as file:
        file.attrs["n_trajectories"] = 50
        node = sparse_data_set(file["t0_fields"], "u", (50, 1000, 512, 512))  # never written: a sparse file of 52 GB
        node.attrs.update(FLAGS)
        file["t0_fields"].attrs["field_names"] = ["u"]
    tracemalloc.start()
    assert open_source(path, {}).read(49, slice(998, 1000)).shape == (2, 512, 512, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "toy_flow" / "data" / "train"
    folder.mkdir(parents=True)
    for name, nu in (("b", 2.0), ("a", 1.0)):
        well(folder / f"{name}.hdf5", [(0, "u", numbers(B, T, W, H), {})], nu=nu, g=9.0)
    return tmp_path / "toy_flow"


def test_the_files_of_a_split_are_one_source_in_the_order_of_their_names(base):
    source = open_well(base, "train")
    assert len(source) == 2 * B
    assert source.ids[:1] + source.ids[-1:] == ("a/000000", "b/000002")
    assert source.params == {"g": 9.0}
    assert [source[i].params["nu"] for i in (0, 2, 3, -1)] == [1.0, 1.0, 2.0, 2.0]
    with h5py.File(base / "data/train/b.hdf5") as file:
        np.testing.assert_array_equal(source[4].values[..., 0], file["t0_fields/u"][1])
    assert open_source(base / "data" / "train", {}).ids == source.ids
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(4), source.read(4))
    source.close()
    with pytest.raises(IndexError):
        source.read(6)


def test_a_missing_split_is_an_error_and_no_other_stands_in(base):
    with pytest.raises(DataError, match="has no split 'test'"):
        open_well(base, "test")
    (base / "data" / "valid").mkdir()
    with pytest.raises(DataError, match=r"holds no \.hdf5 file"):
        open_well(base, "valid")


def test_a_data_set_is_one_source_whose_ids_begin_with_the_split(base):
    (base / "stats.yaml").write_text("mean: {u: 0.0}\n")
    for split in ("test", "valid"):
        (base / "data" / split).mkdir()
        well(base / "data" / split / "c.hdf5", [(0, "u", numbers(B, T, W, H), {})], nu=3.0, g=9.0)
    source = open_source(base, {})
    assert [source.ids[i] for i in (0, 3, 6, 9)] == [
        *("train/a/000000", "train/b/000000"),
        *("valid/c/000000", "test/c/000000"),
    ]
    assert (source.params_of(9)["nu"], source.params) == (3.0, {"g": 9.0})


def test_files_of_different_grids_are_joined_each_with_its_own(base):
    axes = {"x": np.arange(8.0), "y": np.arange(2.0)}
    well(base / "data/train/c.hdf5", [(0, "u", numbers(B, 2, 8, 2), {})], axes=axes, time=np.arange(2.0), nu=1.0, g=9.0)
    source = open_well(base, "train")
    assert [source.grid_of(i).shape for i in (0, 5, 6)] == [(W, H), (W, H), (8, 2)]
    assert source.grid_of(0) == source.grid_of(5)
    assert (source.read(6).shape, source[6].grid.shape) == ((2, 8, 2, 1), (8, 2))


def test_files_of_different_fields_are_not_joined(base):
    well(base / "data/train/c.hdf5", [(0, "w", numbers(B, T, W, H), {})])
    with pytest.raises(DataError, match="give them different tasks"):
        open_well(base, "train")


def test_a_well_file_may_have_another_name_but_not_another_equation(flow):
    source = open_source(flow[0], TASKS, "my_flow")
    assert (source.task.name, source.task.equation) == ("my_flow", "")
    with pytest.raises(ConfigError, match="but burgers1d has u on 1"):
        open_source(flow[0], TASKS, "burgers1d")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda file: file.attrs.pop("n_trajectories"), "attribute n_trajectories of '/' is missing"),
        (lambda file: file["dimensions"].pop("x"), "'dimensions/x' is missing"),
        (lambda file: file["dimensions"].pop("time"), "'dimensions/time' is missing"),
        (lambda file: file["t1_fields"].pop("velocity"), "'t1_fields/velocity' is missing"),
        (lambda file: file["t0_fields/density"].attrs.pop("time_varying"), "attribute time_varying"),
        (lambda file: file["t0_fields/density"].attrs.update(dim_varying=[True]), "has 1 flag for 2 axes"),
        (lambda file: file["t0_fields/density"].attrs.update(sample_varying=False), r"'t0_fields/density' is 3 × 4"),
        (lambda file: file.attrs.update(n_trajectories=4), r"'t0_fields/density' is 3 × 4 × 5 × 6, where 4 × 4 × 5"),
        (lambda file: file.attrs.update(ups_complete=False), "is unfinished"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(flow, damage, match):
    with h5py.File(flow[0], "a") as file:
        damage(file)
    with pytest.raises(DataError, match=match):
        open_source(flow[0], {})
