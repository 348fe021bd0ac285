"""Formats of plain arrays: their own rules, folders of them, masks, and one sentence for what cannot be read."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from scipy.io import netcdf_file

from ups.data import open_source, open_together
from ups.data.readers.memory import open_memory
from ups.definition import Definition
from ups.physics import TASKS
from ups.types import ConfigError, DataError

RNG = np.random.default_rng(5)
FLOW = Definition("flow", dims=("sample", "time", "x", "channel"), fields={"w": ("u", "v")})
ONE = Definition("flow", dims=("time", "x"), fields={"u": ("u",)})

NO_DATE = np.array(["NaT", "2001-01-31", "2001-02-01"], "datetime64[D]")


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f4")


def save(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def scaled(file: Any, name: str, values: Any, dims: tuple[str, ...], **attributes: Any) -> None:
    file[name] = values
    for i, dim in enumerate(dims):
        file[name].dims[i].attach_scale(file[dim])
    file[name].attrs.update(attributes)


@pytest.fixture
def climate(tmp_path: Path) -> Path:
    """A netCDF file as models of the weather write it: packed numbers, a fill value, CF attributes, odd names."""
    with h5py.File(tmp_path / "climate.nc", "w") as file:
        for name, values, attributes in (
            ("when", np.arange(3, dtype="i4") * 6, {"units": "hours since 1990-01-01"}),
            ("lat", np.array([60.0, 30.0, 0.0, -30.0]), {"axis": "Y", "bounds": "lat_bnds"}),
            ("rlon", np.arange(5.0), {"axis": "X"}),
            ("bnds", np.arange(2), {}),
        ):
            file[name] = values
            file[name].make_scale(name)
            file[name].attrs.update(attributes)
        packed = np.arange(60, dtype="i2").reshape(3, 4, 5)
        packed[:, 1, 2] = -999
        fill = {"_FillValue": np.int16(-999), "scale_factor": 0.5, "add_offset": 10.0}
        scaled(file, "tas", packed, ("when", "lat", "rlon"), **fill)
        scaled(file, "orography", numbers(4, 5), ("lat", "rlon"))
        scaled(file, "lat_bnds", numbers(4, 2), ("lat", "bnds"))
        file["co2"] = 420.0
    return tmp_path / "climate.nc"


def test_a_netcdf_file_needs_no_definition(climate: Path) -> None:
    source = open_source(climate, TASKS)
    assert (source.task.channels, source.task.given, source.task.axes) == (
        ("tas",),
        ("orography", "mask"),
        ("lat", "rlon"),
    )
    assert (source.params, source.times.tolist(), source.problems) == ({"co2": 420.0}, [0, 6, 12], ())
    assert source.grid.coordinates[0].tolist() == [-30, 0, 30, 60]
    values = source.read(0)[..., 0]
    assert values[0, 3, 0] == 10.0
    assert values[1, 0, 4] == 0.5 * (20 + 15 + 4) + 10
    assert np.isnan(values[:, 2, 2]).all()
    assert source.inputs(0)[..., 1].sum() == 19


def test_variables_are_grouped_renamed_and_chosen_by_a_definition(tmp_path: Path) -> None:
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        for name, n in {"nrun": 2, "time": 3, "x": 4, "y": 5}.items():
            file.createDimension(name, n)
        for name in ("uvel", "vvel", "rho"):
            file.createVariable(name, ">f4", ("nrun", "time", "x", "y"))[:] = numbers(2, 3, 4, 5)
    with pytest.raises(DataError, match="whose dimension 'nrun' is unknown; say what it is"):
        open_source(tmp_path / "a.nc", TASKS)
    task = Definition(fields={"velocity": ("u", "v")}, datasets={"u": "uvel", "v": "vvel", "sample": "nrun"})
    source = open_source(tmp_path / "a.nc", TASKS, task)
    assert [(f.name, f.rank) for f in source.task.fields] == [("velocity", 1)]
    assert any("array rho (2 × 3 × 4 × 5) is not used" in note for note in source.notes)
    with netcdf_file(tmp_path / "a.nc", mmap=False) as file:
        expected = np.stack([file.variables[name][1] for name in ("uvel", "vvel")], -1)
    np.testing.assert_array_equal(source.read(1), expected)


def test_records_of_a_classic_netcdf_file_are_found(tmp_path: Path) -> None:
    data = {"a": numbers(3, 5), "b": numbers(3, 5).astype("f8")}
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.createVariable("flag", "i1", ("time",))[:] = np.arange(3)
        for name, values in data.items():
            file.createVariable(name, values.dtype, ("time", "x"))[:] = values
    source = open_source(tmp_path / "a.nc", TASKS)
    np.testing.assert_array_equal(source.read(0), np.stack([*data.values()], -1))


@pytest.mark.oracle
def test_files_of_xarray_are_read_as_xarray_reads_them(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    data = xarray.Dataset(
        {
            "u": (("sample", "time", "y", "x"), np.where(RNG.random((4, 6)) > 0.9, np.nan, numbers(3, 5, 4, 6))),
            "solid": (("y", "x"), RNG.random((4, 6)) > 0.5),
            "nu": ("sample", [0.1, 0.2, 0.3]),
            "kind": ("sample", ["a", "b", "a"]),
        },
        coords={"x": np.arange(6) * 0.5, "y": np.arange(4.0), "time": np.arange(5) * 0.1},
    )
    paths = {tmp_path / f"{kind}.nc": kind for kind in ("NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT")}
    packed = {"u": {"dtype": "i2", "scale_factor": 1e-3, "_FillValue": -32768, "zlib": True}}
    for path, kind in paths.items():
        data.to_netcdf(path, format=kind, encoding=packed if kind == "NETCDF4" else {})
    stores = {tmp_path / f"{version}.zarr": version for version in (2, 3)}
    for path, version in stores.items():
        if pytest.importorskip("zarr"):
            data.to_zarr(path, zarr_format=version)
    for path in (*paths, *stores):
        source = open_source(path, TASKS)
        truth = xarray.open_dataset(path) if path in paths else xarray.open_zarr(path)
        for i in range(3):
            np.testing.assert_allclose(source.read(i)[..., 0], truth["u"][i].values, atol=1e-6)
            np.testing.assert_array_equal(source.inputs(i)[..., 0], data["solid"].values)
            assert source.params_of(i)["nu"] == [0.1, 0.2, 0.3][i]
        assert source.task.mask == ("mask" if np.isnan(data["u"]).any() else "")
        np.testing.assert_allclose(source.times, np.arange(5) * 0.1)


@pytest.mark.oracle
def test_a_netcdf_file_of_wide_numbers_is_read(tmp_path: Path) -> None:
    netcdf4 = pytest.importorskip("netCDF4")
    values = numbers(3, 5)
    with netcdf4.Dataset(tmp_path / "a.nc", "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.createVariable("flag", "u2", ("time",))[:] = np.arange(3)
        file.createVariable("u", "f4", ("time", "x"))[:] = values
        file.createVariable("count", "i8", ("time", "x"))[:] = np.arange(15).reshape(3, 5)
    source = open_source(tmp_path / "a.nc", TASKS)
    np.testing.assert_array_equal(source.read(0), np.stack([values, np.arange(15.0).reshape(3, 5)], -1))


def test_a_lone_array_of_another_name_is_taken_for_the_fields_and_that_is_said(tmp_path: Path) -> None:
    source = open_source(save(tmp_path / "a.npz", w=numbers(3, 8)), TASKS, ONE)
    assert (source.task.channels, source.notes[0]) == (("u",), "array w (3 × 8) is taken to hold u")


def test_a_folder_is_one_source_of_files_that_differ_in_grid_length_and_parameters(tmp_path: Path) -> None:
    for i, (frames, cells) in enumerate(((3, 8), (5, 8), (3, 16))):
        save(tmp_path / "set" / ("train" if i else "test") / f"{i}.npz", u=numbers(frames, cells), nu=float(i))
    (tmp_path / "set" / "README.md").write_text("not data")
    source = open_source(tmp_path / "set", TASKS, ONE)
    assert source.ids == ("test/0", "train/1", "train/2")
    assert [source.read(i).shape for i in range(3)] == [(3, 8, 1), (5, 8, 1), (3, 16, 1)]
    assert [source[i].grid.shape for i in range(3)] == [(8,), (8,), (16,)]
    assert [source.params_of(i) for i in range(3)] == [{"nu": 0.0}, {"nu": 1.0}, {"nu": 2.0}]
    assert source.grid_of(0) == source.grid_of(1)
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.read(2), source.read(2))
    save(tmp_path / "set" / "x.npz", u=numbers(3, 8, 2, 2))
    with pytest.raises(DataError, match=r"set/x\.npz: array u \(3 × 8 × 2 × 2\) does not have the axes"):
        open_source(tmp_path / "set", TASKS, ONE)


def measured(path: Path, frames: int = 3, **units: str) -> Path:
    """A netCDF file of one trajectory, whose variables name their units."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with netcdf_file(path, "w") as file:
        for name, n in {"time": frames, "x": 4}.items():
            file.createDimension(name, n)
            file.createVariable(name, "f8", (name,))[:] = np.arange(n)
        file.createVariable("T", "f4", ("time", "x"))[:] = numbers(frames, 4)
        file.createVariable("height", "f4", ("x",))[:] = numbers(4)
        file.createVariable("wind", "f8", ())[...] = 3.0
        for name, unit in units.items():
            file.variables[name].units = unit
    return path


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("T", "K", "degC"),
        ("T", "mPa", "MPa"),
        ("height", "m", "km"),
        ("wind", "m s-1", "km/h"),
        ("x", "m", "km"),
        ("time", "hours since 1990-01-01", "days since 1990-01-01"),
    ],
)
def test_files_of_one_set_in_different_units_are_refused(tmp_path: Path, name: str, first: str, second: str) -> None:
    measured(tmp_path / "run" / "a.nc")
    one, other = (measured(tmp_path / "run" / f"{k}.nc", **{name: unit}) for k, unit in (("b", first), ("c", second)))
    words = [text.partition(" since")[0] for text in (first, second)]
    with pytest.raises(DataError) as error:
        open_source(tmp_path / "run", TASKS)
    assert str(error.value) == (
        f"{other}: its {name} is in '{words[1]}', but in {one} of the same task it is in '{words[0]}'; write both in "
        "one unit, or correct the attribute `units` that is wrong."
    )
    with pytest.raises(DataError, match=f"its {name} is in"):
        open_together(tmp_path, [one, other], TASKS, Definition())
    assert open_source(other, TASKS).units == {name: words[1]}


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("time", ("hours since 1990-01-01", "h", "Hours since 2001-01-01", "hr")),
        ("T", ("K", "kelvin", "Kelvin", "degK", "°K", "-", "")),
        ("T", ("degC", "celsius", "deg C", "degrees_Celsius", "C")),
        ("T", ("J kg-1 K-1", "J/(kg K)", "J/kg/K")),
        ("wind", ("m s-1", "m/s", "m s**-1", "m.s-1", "meters per second")),
        ("x", ("degrees_east", "degree")),
        ("height", ("1", "dimensionless", "m/m")),
    ],
)
def test_one_unit_in_any_spelling_is_one_and_no_unit_goes_with_any(
    tmp_path: Path, name: str, spellings: tuple[str, ...]
) -> None:
    measured(tmp_path / "run" / "none.nc")
    for i, unit in enumerate(spellings):
        path = measured(tmp_path / "run" / f"{i}.nc")
        with netcdf_file(path, "a") as file:
            file.variables[name].units = unit.encode()
    assert len(open_source(tmp_path / "run", TASKS)) == len(spellings) + 1


def test_what_the_task_says_in_the_place_of_files_may_be_in_any_unit(tmp_path: Path) -> None:
    measured(tmp_path / "run" / "a.nc", wind="m/s", x="m")
    measured(tmp_path / "run" / "b.nc", wind="km/h", x="km")
    task = Definition("flow", parameters={"wind": 1.0}, bounds={"x": (0.0, 4.0)})
    assert open_source(tmp_path / "run", TASKS, task).params == {"wind": 1.0}


def test_units_of_plain_hdf5_files_are_compared_too(tmp_path: Path) -> None:
    for name, unit in (("a", b"K"), ("b", h5py.Empty("S1")), ("c", "degC")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["u"] = numbers(3, 4)
            file["u"].attrs["units"] = unit
    with pytest.raises(DataError, match=r"c\.h5: its u is in 'degC', but in .*a\.h5 of the same task it is in 'K'"):
        open_source(tmp_path, TASKS, ONE)


@pytest.mark.parametrize(("samples", "frames", "said"), [(5, 5, True), (5, 4, False), (1, 1, False)])
def test_as_many_values_as_samples_and_frames_are_said_to_be_read_as_parameters(
    tmp_path: Path, samples: int, frames: int, said: bool
) -> None:
    drive = np.arange(float(samples))
    path = save(tmp_path / "a.npz", w=numbers(samples, frames, 4, 2), drive=drive, n=drive)
    source = open_source(path, TASKS, FLOW)
    assert [source.params_of(i)["drive"] for i in range(samples)] == drive.tolist()
    notes = [note.split(",")[0] for note in source.notes if "one value per frame" in note]
    assert notes == [f"drive ({samples}) is read as a parameter of each sample"] * said
    memory, values = {"w": numbers(samples, frames, 4, 2)}, {"drive": drive}
    for source, noted in (
        (open_memory({**memory, **values}, FLOW, {}), said),
        (open_memory(memory, FLOW, {}, values), 0),
    ):
        assert source.params_of(samples - 1) == {"drive": samples - 1}
        assert any("one value per frame" in note for note in source.notes) == noted


def test_a_folder_of_parameters_that_are_not_stated_everywhere_is_a_problem(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", u=numbers(3, 8), nu=1.0)
    save(tmp_path / "b.npz", u=numbers(3, 8))
    assert open_source(tmp_path, TASKS, ONE).problems == ("b.npz: do not say nu, which other files do",)


def test_hundreds_of_files_open_in_a_moment_and_few_stay_open(tmp_path: Path) -> None:
    for i in range(300):
        with h5py.File(tmp_path / f"{i:03d}.h5", "w") as file:
            file["u"] = np.full((3, 8), i, "f4")
    start = time.process_time()
    source = open_source(tmp_path, TASKS, ONE)
    assert [float(source.read(i)[0, 0, 0]) for i in range(300)] == [*range(300)]
    assert time.process_time() - start < 60
    assert len(list(Path("/proc/self/fd").iterdir())) < 280


def test_nan_in_fixed_places_is_a_mask_and_nan_that_moves_a_problem(tmp_path: Path) -> None:
    values = numbers(3, 4, 8, 2)
    values[1, :, 2:4, 1] = np.nan
    source = open_source(save(tmp_path / "a.npz", values=values), TASKS, FLOW)
    assert (source.task.mask, source.task.given, source.problems) == ("mask", ("mask",), ())
    assert source.inputs(0)[..., 0].tolist() == [1] * 8
    assert source.inputs(1)[..., 0].tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    np.testing.assert_array_equal(source.read(1), values[1])
    values[1, 2:, 5] = np.nan
    source = open_source(save(tmp_path / "b.npz", values=values), TASKS, FLOW)
    assert source.problems == ("NaN moves in time in sample 000001; only NaN in fixed places is a mask",)


def test_an_input_with_frames_is_refused_where_the_file_names_its_axes(tmp_path: Path) -> None:
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        for name, n in {"time": 3, "x": 4}.items():
            file.createDimension(name, n)
        for name in ("u", "f"):
            file.createVariable(name, "f4", ("time", "x"))[:] = numbers(3, 4)
    with pytest.raises(DataError, match=r"f \(3 × 4\) changes in time, and such inputs are not supported yet"):
        open_source(tmp_path / "a.nc", TASKS, Definition(inputs={"f": ("f",)}))


@pytest.mark.parametrize(
    ("words", "times", "unit"),
    [
        (["2001-01-31", "2001-02-01", "2001-02-02"], np.array([0.0, 1, 2]), "days"),
        ([b"2001-01-31T18:00Z", b"2001-02-01T00:00Z", b"2001-02-01T06:00Z"], 60 * np.array([0.0, 6, 12]), "minutes"),
        (["0.5", " 1", "1.5"], np.array([0.5, 1, 1.5]), ""),
    ],
)
def test_times_may_be_stored_as_text(tmp_path: Path, words: list[Any], times: Any, unit: str) -> None:
    source = open_source(save(tmp_path / "a.npz", values=numbers(2, 3, 8, 2), t=words), TASKS, FLOW)
    np.testing.assert_array_equal(source.times - (source.times[0] if unit else 0), times)
    assert (f"the times are dates, which are counted in {unit}" in source.notes) is bool(unit)


def test_a_mask_may_be_given_as_truth_values_under_its_name(tmp_path: Path) -> None:
    solid, values = RNG.random((3, 8)) > 0.5, numbers(3, 4, 8, 2)
    source = open_source(save(tmp_path / "a.npz", values=values, mask=solid), TASKS, FLOW)
    assert (source.task.mask, source.inputs(2)[..., 0].tolist()) == ("mask", solid[2].astype(float).tolist())
    task = Definition(**{**vars(FLOW), "mask": "fluid"})
    source = open_source(save(tmp_path / "b.npz", values=values, fluid=solid[0].astype("i4")), TASKS, task)
    assert (source.task.mask, source.inputs(2)[..., 0].tolist()) == ("fluid", solid[0].astype(float).tolist())
    with pytest.raises(ConfigError, match="has no input 'fluid', which the task speaks of"):
        open_source(save(tmp_path / "c.npz", values=values), TASKS, task)


def test_without_coordinates_cells_are_square_and_frames_one_apart_unless_the_task_says_so(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", values=numbers(3, 8, 4))
    plain = Definition("a", dims=("time", "x", "y"), fields={"u": ("u",)})
    source = open_source(path, TASKS, plain)
    assert (source.grid.bounds, source.times.tolist()) == (((0.0, 1.0), (0.0, 0.5)), [0, 1, 2])
    assert any("no times are stored; frames are taken to be 1 apart" in note for note in source.notes)
    told = Definition(**{**vars(plain), "dt": 0.1, "bounds": {"x": (-1.0, 1.0), "y": (0.0, 3.0)}, "periodic": ("y",)})
    source = open_source(path, TASKS, told)
    assert (source.grid.bounds, source.grid.periodic) == (((-1.0, 1.0), (0.0, 3.0)), (False, True))
    np.testing.assert_allclose(source.grid.coordinates[0], (np.arange(8) + 0.5) / 4 - 1)
    np.testing.assert_allclose(source.times, [0, 0.1, 0.2])
    assert source.task.dt == pytest.approx(0.1)


def test_arrays_without_time_are_steady_solutions(tmp_path: Path) -> None:
    task = Definition("darcy", dims=("sample", "x", "y"), fields={"u": ("u",)}, inputs={"a": ("a",)})
    u, a = numbers(3, 8, 4), numbers(3, 8, 4)
    source = open_source(save(tmp_path / "a.npz", u=u, a=a), TASKS, task)
    assert (source.task.steady, source.read(1).shape, source.times.tolist()) == (True, (1, 8, 4, 1), [0])
    np.testing.assert_array_equal(source.inputs(1)[..., 0], a[1])


def test_a_steady_file_with_named_axes_needs_to_be_told_what_is_given(tmp_path: Path) -> None:
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        for name, n in {"sample": 2, "x": 4}.items():
            file.createDimension(name, n)
        for name in ("u", "a"):
            file.createVariable(name, "f4", ("sample", "x"))[:] = numbers(2, 4)
    assert open_source(tmp_path / "a.nc", TASKS).task.channels == ("u", "a")
    source = open_source(tmp_path / "a.nc", TASKS, Definition(inputs={"a": ("a",)}))
    assert (source.task.channels, source.task.given) == (("u",), ("a",))


def test_words_are_parameters_that_the_network_is_told(tmp_path: Path) -> None:
    source = open_source(save(tmp_path / "a.npz", values=numbers(3, 4, 8, 2), gas=["air", "argon", "air"]), TASKS, FLOW)
    (gas,) = source.task.parameters
    assert (gas.choices, gas.encoded, source.params_of(1)) == (("air", "argon"), True, {"gas": "argon"})


@pytest.mark.parametrize(
    ("arrays", "task", "match"),
    [
        (
            {"values": numbers(2, 3, 8)},
            Definition("a"),
            r"holds values \(2 × 3 × 8\), and nothing says what their axes",
        ),
        ({"values": numbers(2, 3)}, FLOW, r"array values \(2 × 3\) does not have the axes sample, time, x, channel"),
        ({"values": numbers(2, 3, 8, 3)}, FLOW, "and 2 channels; correct `dims` or `fields`"),
        ({"values": numbers(2, 3, 8, 2), "t": [0, 2, 1]}, FLOW, "times do not increase"),
        ({"values": numbers(2, 3, 8, 2), "t": [0, np.nan, 1]}, FLOW, "a time is missing or not finite"),
        ({"values": numbers(2, 3, 8, 2), "t": NO_DATE}, FLOW, "a time is missing or not finite"),
        ({"values": numbers(2, 3, 8, 2), "t": NO_DATE.astype(str)}, FLOW, "a time is missing or not finite"),
        ({"values": numbers(2, 3, 8, 2), "x": [0, 2, 1, 3, 4, 5, 6, 7]}, FLOW, "x neither increase nor decrease"),
        ({"values": numbers(2, 3, 8, 2), "t": [0, 1, 2, 3]}, FLOW, r"array t \(4\) is called like an axis of length 3"),
        ({"values": numbers(2, 3, 8, 2), "x": np.arange(9)}, FLOW, r"array x \(9\) is called like .* of length 8"),
        (
            {"values": numbers(2, 3, 8, 2), "t": ["dawn", "noon", "dusk"]},
            FLOW,
            "the coordinates time are words, such as 'dawn'; write them as numbers or as dates such as 2001-",
        ),
        ({"values": numbers(2, 3, 8, 2), "x": [*"abcdefgh"]}, FLOW, "x are words, such as 'a'; write them as numbers."),
        ({"values": numbers(2, 3, 8, 2) * 1j}, FLOW, "is complex|does not have"),
        ({"values": np.array([{}, {}])}, FLOW, "holds Python objects, not numbers"),
        ({"values": numbers(0, 3, 8, 2)}, FLOW, "sample has length 0"),
        ({"u": numbers(2, 3, 8), "v": numbers(2, 3, 9)}, FLOW, r"array v \(2 × 3 × 9\) does not have the axes"),
        (
            {"values": numbers(2, 3, 8, 2), "f": numbers(2, 3, 8)},
            Definition(**{**vars(FLOW), "inputs": {"f": ("f",)}}),
            r"the input f \(2 × 3 × 8\) changes in time, and such inputs are not supported yet; spread it over",
        ),
        (
            {"values": numbers(2, 3, 8, 2), "fx": numbers(2, 3)},
            Definition(**{**vars(FLOW), "inputs": {"f": ("fx",)}}),
            r"the input fx \(2 × 3\) changes in time, and such inputs are not supported yet",
        ),
        (
            {"values": numbers(2, 3, 8, 2)},
            Definition(**{**vars(FLOW), "datasets": {"u": "/sol"}}),
            "has no array '/sol'",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_one_sentence(tmp_path: Path, arrays: Any, task: Definition, match: str) -> None:
    path = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=match) as caught:
        open_source(path, TASKS, task)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    torch.save({"model": Path("/")}, tmp_path / "a.pt")
    with pytest.raises(DataError, match="holds Python objects that are not tensors, which are not opened"):
        open_source(tmp_path / "a.pt", TASKS, FLOW)


def test_tensors_may_lie_within_others_and_in_half_precision(tmp_path: Path) -> None:
    values = torch.randn(2, 3, 8, 2)
    torch.save({"data": {"values": values.bfloat16()}, "nu": [1.0, 2.0], "g": 9.81}, tmp_path / "a.pt")
    task = Definition(**{**vars(FLOW), "datasets": {"values": "data/values"}})
    source = open_source(tmp_path / "a.pt", TASKS, task)
    np.testing.assert_array_equal(source.read(1), values[1].bfloat16().float().numpy())
    assert source.params_of(1) == {"nu": 2.0, "g": 9.81}


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", b"x,u\n0,1\n", "a table of text; write its arrays with numpy.savez"),
        ("a.zip", b"PK\x03\x04....", "a zip archive; unpack it"),
        ("a.png", b"\x89PNG....", "a PNG picture, not data"),
        ("a.safetensors", b"....", "a trained simulator; roll it out with `ups rollout`"),
        ("a.yaml", b"plan: [codec]\n", "is a config; run it with `ups run`"),
        ("a.xdmf", b"<Xdmf/>", "name the HDF5 file beside it"),
        ("a.npz", b"not a zip", "is not an HDF5 file, nor anything else"),
        ("run/config.yaml", b"a: 1", ""),
    ],
)
def test_another_kind_of_file_says_what_it_is_and_which_command_takes_it(
    tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    if name.startswith("run/"):
        (path.parent / "environment.json").write_text("{}")
        path, match = path.parent, "is a run folder; `ups rollout` and `ups evaluate` take it"
    with pytest.raises(DataError, match=match):
        open_source(path, TASKS)


def test_fields_of_a_zarr_store_are_in_one_order_whichever_array_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without consolidated metadata, zarr names arrays as their reads end: one store had two orders of channels."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for i, name in enumerate("bca"):
        group.create_array(name, data=np.full((2, 3, 8), i, np.float32), dimension_names=("sample", "time", "x"))
    named = list(zarr.Group.arrays(group))
    for order in (named, named[::-1]):
        monkeypatch.setattr(zarr.Group, "arrays", lambda _, order=order: iter(order))
        source = open_source(tmp_path / "a.zarr", TASKS)
        assert source.task.channels == ("a", "b", "c")
        np.testing.assert_array_equal(source.read(0)[0, 0], [2, 0, 1])


def test_a_zarr_store_without_the_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"pip install 'universal-physics-stack\[formats\]'"):
        open_source(tmp_path / "a.zarr", TASKS)


def test_a_plain_hdf5_file_is_read_where_the_task_says_its_arrays_lie(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sol/u"], file["grid/x"], file["t"], file["meta/re"] = (
            numbers(2, 3, 8),
            np.arange(8.0),
            np.arange(3.0),
            [1, 2],
        )
    datasets = {"u": "/sol/u", "x": "/grid/x", "time": "/t", "re": "/meta/re"}
    task = Definition("flow", dims=("sample", "time", "x"), fields={"u": ("u",)}, datasets=datasets)
    source = open_source(tmp_path / "a.h5", TASKS, task)
    assert (source.params_of(1), source.grid.bounds) == ({"re": 2.0}, ((-0.5, 7.5),))
    with pytest.raises(DataError, match=r"holds .*sol/u \(2 × 3 × 8\).*my.yaml with `dims:.*`datasets:"):
        open_source(tmp_path / "a.h5", TASKS)


def test_boundary_values_are_parameters_by_side_or_inputs_along_it() -> None:
    rng = np.random.default_rng(0)
    arrays = {"u": rng.random((3, 5, 8, 6)), "inlet": rng.random((3, 6)), "left": np.arange(3.0)}
    dims = {"u": ("sample", "time", "x", "y"), "inlet": ("sample", "y"), "left": ("sample",)}
    source = open_memory(arrays, Definition(name="duct"), dims)
    assert (source.task.given, source.params_of(2)) == (("inlet",), {"left": 2.0})
    np.testing.assert_array_equal(source.inputs(1)[..., 0], np.broadcast_to(arrays["inlet"][1], (8, 6)))


@pytest.mark.parametrize("series", [27, 1, 64, 5])
def test_one_trajectory_stays_one_whatever_series_lie_beside_it(tmp_path: Path, series: int) -> None:
    rho = numbers(27, 64)
    arrays = {"rho": rho, "t": np.arange(27.0), "inflow": numbers(series), "A": 0.1}
    task = Definition("traffic", dims=("sample", "time", "x", "channel"), fields={"rho": ("rho",)})
    with open_source(save(tmp_path / "a.npz", **arrays), TASKS, task) as source:
        assert (len(source), source[0].values.shape, source.params["A"]) == (1, (27, 64, 1), 0.1)
        assert np.array_equal(source[0].values[..., 0], rho)
        assert ("inflow" in source.params) == (series == 1)
        assert any("inflow" in note for note in source.notes) == (series > 1)


def groups_file(path: Path, *, inside: str = "") -> tuple[Path, dict[str, Any]]:
    """Three trajectories of different lengths, a group each, and their grid beside them."""
    truth = {f"traj_{i}": numbers(4 + i, 8, 2) for i in range(3)}
    with h5py.File(path, "w") as file:
        file["mesh/x"] = (np.arange(8) + 0.5) / 4
        for i, (name, values) in enumerate(truth.items()):
            group = file.create_group(f"{inside}{name}")
            group["u"], group["v"], group["t"] = values[..., 0], values[..., 1], 0.5 * np.arange(len(values))
            group["derived/u"] = values[..., 0] ** 2
            group.attrs["nu"], group.attrs["who"], group.attrs["x"] = 0.1 * i, "me", 3
    return path, truth


@pytest.mark.parametrize("inside", ["", "all/of/them/"])
@pytest.mark.parametrize("axes", [("time", "x"), ("sample", "time", "x", "channel")])
def test_a_group_per_trajectory_is_read_as_one_each(tmp_path: Path, inside: str, axes: tuple[str, ...]) -> None:
    path, truth = groups_file(tmp_path / "g.h5", inside=inside)
    task = Definition("flow", dims=axes, fields={"w": ("u", "v")}, datasets={"x": "mesh/x"})
    with open_source(path, TASKS, task) as source:
        assert source.ids == tuple(f"{inside}{name}" for name in truth)
        assert source.files() == [path]
        assert source.grid.bounds == ((0.0, 2.0),)
        again = pickle.loads(pickle.dumps(source))
        for i, values in enumerate(truth.values()):
            assert np.array_equal(source[i].values, values)
            assert np.array_equal(again.read(i, slice(1, 3)), values[1:3])
            assert source.params_of(i) == {"nu": pytest.approx(0.1 * i), "x": 3.0}  # a number is no axis
            assert source.times_of(i)[-1] == 0.5 * (3 + i)
        assert any("each of its 3 groups" in note for note in source.notes)
        again.close()


def test_groups_whose_arrays_have_other_names_are_named_inside_of_them_and_a_torn_group_is_refused(
    tmp_path: Path,
) -> None:
    path, truth = groups_file(tmp_path / "g.h5")
    with h5py.File(path, "r+") as file:
        del file["mesh"]
    task = Definition("flow", dims=("time", "x"), fields={"a": ("a",)})
    with pytest.raises(DataError, match=r"holds 3 groups \(traj_0, traj_1, traj_2\) with .*nothing of the field a in"):
        open_source(path, TASKS, task)
    named = Definition("flow", dims=("time", "x"), fields={"a": ("a",)}, datasets={"a": "v"})
    with open_source(path, TASKS, named) as source:
        assert np.array_equal(source[2].values[..., 0], truth["traj_2"][..., 1])
    whole = Definition("flow", dims=("time", "x"), fields={"a": ("a",)}, datasets={"a": "traj_1/v"})
    with open_source(path, TASKS, whole) as source:
        assert len(source) == 1
        assert np.array_equal(source[0].values[..., 0], truth["traj_1"][..., 1])
    with h5py.File(path, "r+") as file:
        del file["traj_1/v"]
    with pytest.raises(DataError, match=r"its group traj_1 lacks w, which traj_0 has"):
        open_source(path, TASKS, Definition("flow", dims=("time", "x"), fields={"w": ("u", "v")}))


def test_objects_in_a_file_of_arrays_are_left_out_where_the_task_ignores_them_and_never_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", u=np.zeros((3, 4, 8)), meta=np.array([{}, print], dtype=object))
    dims = ("sample", "time", "x")
    with pytest.raises(DataError, match=r"meta holds Python objects, .*, or leave it out with `ignore: \[meta\]`"):
        open_source(tmp_path / "o.npz", TASKS, Definition("w", dims=dims))
    with open_source(tmp_path / "o.npz", TASKS, Definition("w", dims=dims, ignore=("meta",))) as source:
        assert (source.task.channels, len(source)) == (("u",), 3)
        assert not any("meta" in note for note in source.notes)
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match="is a pipe or a device, and no file"):
        open_source(tmp_path / "pipe.npz", TASKS)


def test_trajectories_of_different_lengths_in_one_file_are_told_where_to_go(tmp_path: Path) -> None:
    tensors = [torch.zeros(3 + i, 8) for i in range(3)]
    ragged = np.empty(3, object)
    ragged[:] = [tensor.numpy() for tensor in tensors]
    np.savez(tmp_path / "a.npz", u=ragged)
    torch.save(tensors, tmp_path / "b.pt")
    torch.save({"u": tensors, "x": torch.arange(8)}, tmp_path / "c.pt")
    kinds = {"a.npz": "u holds Python objects", "b.pt": "it is a list of 3 tensors", "c.pt": "u is a list of 3 tensors"}
    for name, kind in kinds.items():
        with pytest.raises(
            DataError, match=f"{kind}.* each trajectory to a file of its own, all in one folder"
        ) as error:
            open_source(tmp_path / name, {}, Definition("u", dims=("time", "x"), fields={"u": ("u",)}))
        assert "\n" not in str(error.value)
