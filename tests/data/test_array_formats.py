"""Arrays in files: what `open_source` reads is what was written, whatever the format, the order of axes, the dtype."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from ups.data import Source, open_source
from ups.data.write_well import write_data_set
from ups.definition import Definition
from ups.types import Array, DataError

AXES = {"sample": 3, "time": 4, "x": 5, "y": 6, "channel": 2}
DTYPES = ("<f4", ">f4", "<f8", ">f8", "<f2", "<i2", ">i4", "?")


class Written:
    """A random data set: values by the canonical order (sample, time, x, y, channel), and how they are laid out."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        self.dims = [name for name in draw(st.permutations([*AXES])) if name in ("time", "x") or draw(st.booleans())]
        self.lengths = {name: AXES[name] if name in self.dims else 1 for name in AXES}
        self.space = [name for name in self.dims if name in "xy"]
        self.dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        values = rng.standard_normal(tuple(self.lengths[name] for name in AXES)) * 100
        self.values = (values > 0 if self.dtype.kind == "b" else values).astype(self.dtype)
        self.masked = self.dtype.kind == "f" and draw(st.booleans())
        if self.masked:
            self.values[:, :, 1] = np.nan
        self.dt = rng.uniform(0.1, 2, self.lengths["sample"]) if draw(st.booleans()) else np.full(1, 0.5)
        self.nu = rng.uniform(0.1, 2, self.lengths["sample"])
        self.axes = {name: rng.uniform(0.1, 2) * np.arange(self.lengths[name]) + 3 for name in self.space}
        if draw(st.booleans()):
            self.axes["x"] = self.axes["x"][::-1]
        self.force = rng.standard_normal((self.lengths["x"], self.lengths["y"])).astype("f4")

    @property
    def times(self) -> Array:
        """`(N, T)`, or `(T,)` where all samples have the same or there is but one."""
        times = np.arange(4) * self.dt[:, None] + 1
        return times if len(self.dt) > 1 else times[0]

    @property
    def stored(self) -> Array:
        """The values as they lie in a file."""
        gone = tuple(i for i, name in enumerate(AXES) if name not in self.dims)
        left = [name for name in AXES if name in self.dims]
        return self.values.squeeze(gone).transpose([left.index(name) for name in self.dims])

    @property
    def arrays(self) -> dict[str, Array]:
        force = self.force if "y" in self.space else self.force[:, 0]
        force = force.T if self.space == ["y", "x"] else force
        nu = self.nu if "sample" in self.dims else self.nu[0]
        return {"values": self.stored, "t": self.times, "nu": np.asarray(nu), "force": force, **self.axes}

    @property
    def definition(self) -> Definition:
        channels = ("a", "b")[: self.lengths["channel"]]
        return Definition("random", dims=tuple(self.dims), fields={"w": channels}, inputs={"force": ("force",)})

    def check(self, source: Source, dtype: Any = None, order: list[int] | None = None) -> None:
        """What is read equals what was written; space in the order of `dims`."""
        swap = self.space == ["y", "x"]
        flip = self.axes["x"][0] > self.axes["x"][-1]
        rows = order or range(len(self.values))
        assert len(source) == len(self.values)
        for i, row in enumerate(rows):
            values, force = self.values[row].astype(np.float64), self.force
            values, force = (values[:, ::-1], force[::-1]) if flip else (values, force)
            values, force = (values.swapaxes(1, 2), force.T) if swap else (values, force)
            shape = tuple(self.lengths[name] for name in self.space)
            values, force = values.reshape(4, *shape, -1), force.reshape(shape)
            np.testing.assert_array_equal(source.read(i), values.astype(dtype) if dtype else values)
            np.testing.assert_array_equal(source.read(i, slice(1, 4, 2)), source.read(i)[1:4:2])
            np.testing.assert_array_equal(source.inputs(i)[..., 0], force)
            np.testing.assert_array_equal(source.times_of(i), np.atleast_2d(self.times)[row % len(self.dt)])
            assert source.params_of(i) == {"nu": self.nu[row]}
            if self.masked:
                counts = source.inputs(i)[..., source.task.given.index("mask")]
                np.testing.assert_array_equal(counts, np.isfinite(values[0]).all(-1))
        for axis, name in zip(source.grid.coordinates, self.space, strict=True):
            np.testing.assert_array_equal(axis, np.sort(self.axes[name]))
        assert source.task.axes == tuple(self.space)
        assert bool(source.task.mask) is self.masked


def npz(path: Path, data: Written) -> tuple[Path, Definition | None]:
    np.savez(path / "a.npz", **data.arrays)
    return path / "a.npz", data.definition


def packed(path: Path, data: Written) -> tuple[Path, Definition | None]:
    np.savez_compressed(path / "a.npz", **data.arrays)
    return path / "a.npz", data.definition


def channels_apart(path: Path, data: Written) -> tuple[Path, Definition | None]:
    arrays = data.arrays
    values = arrays.pop("values")
    at = data.dims.index("channel") if "channel" in data.dims else None
    names = data.definition.fields["w"]
    arrays |= {name: values if at is None else values.take(i, at) for i, name in enumerate(names)}
    np.savez(path / "a.npz", **arrays)
    return path / "a.npz", data.definition


def pt(path: Path, data: Written) -> tuple[Path, Definition | None]:
    native = {k: np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))) for k, a in data.arrays.items()}
    torch.save({name: torch.from_numpy(array) for name, array in native.items()}, path / "a.pt")
    return path / "a.pt", data.definition


def mat(path: Path, data: Written) -> tuple[Path, Definition | None]:
    arrays = {k: a.astype("f4") if a.dtype == np.float16 else a for k, a in data.arrays.items()}
    savemat(path / "a.mat", arrays)
    return path / "a.mat", data.definition


def mat73(path: Path, data: Written) -> tuple[Path, Definition | None]:
    with h5py.File(path / "a.mat", "w", userblock_size=512) as file:
        for name, array in data.arrays.items():
            kind = "logical" if array.dtype.kind == "b" else "double"
            file[name] = np.atleast_2d(array.astype("u1" if kind == "logical" else array.dtype)).T
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
    with (path / "a.mat").open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")
    return path / "a.mat", data.definition


def netcdf(path: Path, data: Written) -> tuple[Path, Definition | None]:
    arrays, dims = data.arrays, [*data.dims]
    variables = {"w": (dims, arrays["values"]), "force": ([d for d in dims if d in "xy"], arrays["force"])}
    variables["nu"] = (["sample"] if "sample" in dims else [], arrays["nu"])
    variables["t" if data.times.ndim > 1 else "time"] = (["sample", "time"][2 - data.times.ndim :], data.times)
    with h5py.File(path / "a.nc", "w") as file:
        for name in dims:
            file[name] = data.axes.get(
                name, data.times if name == "time" and data.times.ndim == 1 else np.arange(AXES[name])
            )
            if name not in data.axes and (name != "time" or data.times.ndim > 1):
                file[name].make_scale("This is a netCDF dimension but not a netCDF variable.   3")
            else:
                file[name].make_scale(name)
        for name, (axes, array) in variables.items():
            if name in file:
                continue
            file[name] = array
            for i, axis in enumerate(axes):
                file[name].dims[i].attach_scale(file[axis])
    fields = {"w": data.definition.fields["w"]}
    return path / "a.nc", Definition("random", fields=fields, dims=tuple(d for d in dims))


def hdf5(path: Path, data: Written) -> tuple[Path, Definition | None]:
    arrays, places = data.arrays, {"values": "sol/u", "t": "grid/t", "x": "grid/x"}
    with h5py.File(path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[places.get(name, name)] = array
    return path / "a.h5", Definition(
        "random",
        dims=tuple(data.dims),
        fields=data.definition.fields,
        inputs={"force": ("force",)},
        datasets={"values": "/sol/u", "time": "/grid/t", "x": "/grid/x"},
    )


WRITERS = {f.__name__: f for f in (npz, packed, channels_apart, pt, mat, mat73, netcdf, hdf5)}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_what_is_read_is_what_was_written_in_any_format_and_again_after_import(
    name: str, draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data, folder = Written(draw.draw), tmp_path_factory.mktemp(name)
    path, definition = WRITERS[name](folder, data)
    source = open_source(path, {}, definition)
    assert source.problems == ()
    data.check(source)
    ids = [*reversed(source.ids)]
    parts = {"train": ids[:1], "test": ids[1:]}
    imported = open_source(write_data_set(source, folder, "again", parts), {})
    data.check(imported, np.float32, [*reversed(range(len(source)))])
    assert imported.task.fields == source.task.fields
    assert imported.task.bounds == source.task.bounds


@pytest.mark.parametrize("machine", ["<", ">"])
def test_matrices_of_matlab_4_are_read(machine: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 6))
    path = tmp_path / "a.mat"
    if machine == "<":
        savemat(path, {"u": values, "x": np.arange(6.0), "note": "text", "n": np.ones((2, 2), "i2")}, format="4")
    else:  # as machines wrote it whose numbers begin with the highest byte
        with path.open("wb") as file:
            for name, matrix in {"u": values, "x": np.arange(6.0)[None]}.items():
                header = struct.pack(">5i", 1000, *matrix.shape, 0, len(name) + 1)
                file.write(header + name.encode() + b"\0" + matrix.astype(">f8").tobytes("F"))
    definition = Definition("matrix", dims=("time", "x"), fields={"u": ("u",)})
    with open_source(path, {}, definition) as source:
        np.testing.assert_array_equal(source.read(0)[..., 0], values)
        np.testing.assert_array_equal(source.grid.coordinates[0], np.arange(6.0))
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(DataError, match="the file is damaged"):
        open_source(path, {}, definition).read(0)
