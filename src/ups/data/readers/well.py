"""The Well's files, read lazily: each describes its own fields, grid, boundaries and parameters."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.hdf5 import Hdf5Source, dataset, has, naming_damage, open_file, values_at
from ups.data.joined import Joined
from ups.data.source import Facts, Reader, Remarks, Source, is_uniform
from ups.later import h5py
from ups.types import Array, DataError, Domain, Field, Param, Storage, TaskSpec

SUFFIXES = (".hdf5", ".h5")


@dataclass(frozen=True)
class StoredField:
    """Where a field lies: its data set, and which of its axes (sample, time, one per dimension) are really stored."""

    field: Field
    name: str
    by_sample: bool
    by_time: bool
    by_dim: tuple[bool, ...]

    def read(self, file: Any, index: int, frames: slice, shape: tuple[int, ...]) -> Array:
        """`(T', *S, channels)`, the squeezed axes expanded again; T' is 1 for a field that is constant in time."""
        stored = values_at(file[self.name], *(index,) * self.by_sample, *(frames,) * self.by_time)
        steps = stored.shape[0] if self.by_time else 1
        cells = tuple(n if varies else 1 for n, varies in zip(shape, self.by_dim, strict=True))
        channels = len(self.field.channels)
        return np.broadcast_to(stored.reshape(steps, *cells, channels), (steps, *shape, channels))


class WellSource(Hdf5Source):
    """One file of The Well. Fields that vary in time are the values; the others are inputs."""

    def __init__(
        self, path: Path, facts: Facts, fields: tuple[StoredField, ...], scalars: Mapping[str, Array], times: Array
    ) -> None:
        """`scalars` hold one or `samples` values each, `times` is `(1, T)` or `(samples, T)`."""
        super().__init__(path, facts)
        self._fields = tuple(stored for stored in fields if stored.by_time)
        self._constant = tuple(stored for stored in fields if not stored.by_time)
        self._scalars, self._times = scalars, times

    def params_of(self, index: int) -> dict[str, float | str]:
        at = self._position(index)
        return {**self.params, **{name: float(values[at % len(values)]) for name, values in self._scalars.items()}}

    def times_of(self, index: int) -> Array:
        times: Array = self._times[self._position(index) % len(self._times)]
        return times

    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        return np.concatenate([stored.read(file, index, frames, self.domain.shape) for stored in self._fields], axis=-1)

    def _given(self, file: Any, index: int) -> Array:
        if not self._constant:
            return super()._given(file, index)
        parts = [stored.read(file, index, slice(None), self.domain.shape)[0] for stored in self._constant]
        return np.concatenate(parts, axis=-1)


def is_well(path: Path) -> bool:
    """Whether a path is an HDF5 file with The Well's groups, a folder of .hdf5 files, or a data set with its splits."""
    if not os.path.isdir(path):
        return has(path, "dimensions", "t0_fields")
    try:
        return (path / "data").is_dir() or any(p.suffix in SUFFIXES for p in path.iterdir())
    except OSError:
        return False


def open_well(path: Path, split: str | None = None) -> Source:
    """A file; a folder of files; or a data set `<base>/<name>` together with the name of one of its splits.

    A split that is not there is an error: no other split ever stands in for it.
    """
    if not os.path.isdir(path):
        return _open_file(path)
    if split is None and (path / "data").is_dir():
        splits = ", ".join(sorted(p.name for p in (path / "data").iterdir() if p.is_dir()))
        raise DataError(
            f"{path}: is a data set with the splits {splits or '(none)'}; name the folder data/<split> in it."
        )
    folder = path if split is None else path / "data" / split
    if not folder.is_dir():
        raise DataError(f"{path}: has no split '{split}', the folder data/{split} is missing; fetch it.")
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES)
    if not files:
        raise DataError(f"{folder}: holds no .hdf5 file; fetch the data or name another folder.")
    return Joined(folder, [_open_file(file) for file in files])


READER = Reader(is_well, lambda path, tasks, definition: open_well(path))  # noqa: ARG005  (a Well file describes itself)


def _open_file(path: Path) -> WellSource:
    remarks = Remarks()
    with naming_damage(path, "its header"), open_file(path) as file:
        samples = int(np.max(_attribute(file, "n_trajectories")))
        names = _words(_attribute(_group(file, "dimensions"), "spatial_dims"))
        axes = tuple(_axis(file, name, remarks) for name in names)
        own_times = _times(file, samples)
        fields = tuple(_fields(file, names, (samples, own_times.shape[1]), tuple(map(len, axes))))
        scalars = _scalars(file, samples, remarks)
        params = _params(file, scalars, remarks)
        periodic = _periodic(file, names, remarks)
        name = str(file.attrs.get("dataset_name", path.stem))
        grid = str(file.attrs.get("grid_type", "cartesian"))
    if grid != "cartesian":
        remarks.notes.append(f"the grid is {grid}; its coordinates are given as they are")
    values = tuple(stored.field for stored in fields if stored.by_time)
    inputs = tuple(stored.field for stored in fields if not stored.by_time)
    if not values or samples == 0:
        raise DataError(f"{path}: holds no {'sample' if values else 'field that varies in time'}; fetch it again.")
    times = own_times[0]
    bounds = tuple(_bounds(axis) for axis in axes)
    task = TaskSpec(
        name=name,
        title=name.replace("_", " "),
        fields=values,
        bounds=bounds,
        periodic=periodic,
        resolution=len(axes[0]),
        end=float(times[-1] - times[0]),
        frames=len(times),
        storage=Storage(kind="well", pattern=""),
        parameters=tuple(Param(key, value, "stated in the file") for key, value in params.items()),
        inputs=inputs,
        steady=len(times) == 1,
    )
    ids = tuple(f"{i:06d}" for i in range(samples))
    domain = Domain(axes, periodic, bounds)
    facts = Facts(task, params, domain, times, ids, tuple(remarks.notes), tuple(remarks.problems))
    return WellSource(path, facts, fields, scalars, own_times)


def _fields(file: Any, names: tuple[str, ...], outer: tuple[int, int], shape: tuple[int, ...]) -> Iterator[StoredField]:
    """The fields of tensor rank 0, 1 and 2, each data set's shape checked against its flags."""
    for rank in range(3):
        group = file.get(f"t{rank}_fields", {})
        for name in _words(group.attrs.get("field_names", list(group))) if group else ():
            node = group.get(name)
            if not isinstance(node, h5py.Dataset):
                raise DataError(f"{file.filename}: data set 't{rank}_fields/{name}' is missing; fetch the file again.")
            by_sample, by_time = bool(_attribute(node, "sample_varying")), bool(_attribute(node, "time_varying"))
            by_dim = tuple(bool(flag) for flag in np.atleast_1d(_attribute(node, "dim_varying")))
            if len(by_dim) != len(names):
                raise DataError(
                    f"{file.filename}: dim_varying of '{name}' has {len(by_dim)} flags for {len(names)} axes."
                )
            stored = zip((*outer, *shape), (by_sample, by_time, *by_dim), strict=True)
            components = node.shape[node.ndim - rank :] if node.ndim >= rank else (0,) * rank
            expected = [n for n, varies in stored if varies] + list(components)
            dataset(group, name, expected, "the axes that vary, then the components")
            yield StoredField(_field(name, names, components), node.name, by_sample, by_time, by_dim)


def _field(name: str, axes: tuple[str, ...], components: tuple[int, ...]) -> Field:
    """A channel per component, row by row: `velocity_x`, or `stress_xy`; numbered where components are not axes."""
    labels = [axes if n == len(axes) else tuple(map(str, range(n))) for n in components]
    channels = tuple("_".join(filter(None, (name, "".join(label)))) for label in itertools.product(*labels))
    return Field(name, channels, len(components))


def _axis(file: Any, name: str, remarks: Remarks) -> Array:
    """Coordinates along one axis, uniform or not; where they vary, those of the first sample and time."""
    node = _group(file, "dimensions").get(name)
    if not isinstance(node, h5py.Dataset) or node.ndim == 0 or 0 in node.shape:
        raise DataError(f"{file.filename}: data set 'dimensions/{name}' is missing or empty; fetch the file again.")
    if node.ndim > 1:
        remarks.notes.append(f"the coordinates {name} vary; those of the first sample and time are given for all")
    return np.asarray(node[(0,) * (node.ndim - 1)], np.float64)


def _times(file: Any, samples: int) -> Array:
    """`(1, T)`, or `(samples, T)` where each sample has its own times."""
    node = _group(file, "dimensions").get("time")
    if not isinstance(node, h5py.Dataset) or 0 in node.shape or node.shape[:-1] not in ((), (samples,)):
        raise DataError(f"{file.filename}: data set 'dimensions/time' is missing or misshapen; fetch the file again.")
    return np.atleast_2d(np.asarray(node[:], np.float64))


def _scalars(file: Any, samples: int, remarks: Remarks) -> dict[str, Array]:
    """Each scalar as `(1,)`, or `(samples,)` where it varies; one that varies in time is left out, with a note."""
    group = file.get("scalars", {})
    result: dict[str, Array] = {}
    for name in _words(group.attrs.get("field_names", list(group))) if group else ():
        node = group.get(name)
        if not isinstance(node, h5py.Dataset):
            remarks.problems.append(f"scalar {name} is announced but missing")
        elif node.attrs.get("time_varying", False):
            remarks.notes.append(f"scalar {name} varies in time and is not given as a parameter")
        elif node.size != (samples if node.attrs.get("sample_varying", False) else 1):
            remarks.problems.append(f"scalar {name} has {node.size} values for {samples} samples")
        else:
            result[name] = np.asarray(node[()], np.float64).reshape(-1)
    return result


def _params(file: Any, scalars: Mapping[str, Array], remarks: Remarks) -> dict[str, float | str]:
    """Simulation parameters of the root and scalars that hold for every sample."""
    params: dict[str, float | str] = {k: float(v[0]) for k, v in scalars.items() if len(v) == 1}
    for name in _words(file.attrs.get("simulation_parameters", [])):
        value = np.atleast_1d(file.attrs[name]) if name in file.attrs else np.zeros(0)
        if value.size != 1:
            remarks.notes.append(f"simulation parameter {name} has {value.size} values and is not given as a parameter")
        elif value.dtype.kind in "OSU":
            params[name] = _words(value)[0]
        else:
            number = float(value[0])
            if name in scalars and not np.allclose(scalars[name], number, rtol=1e-5):
                remarks.problems.append(f"attribute {name} says {number:g} but scalar {name} says {scalars[name][0]:g}")
            params[name] = number
    return params


def _periodic(file: Any, names: tuple[str, ...], remarks: Remarks) -> tuple[bool, ...]:
    """An axis is periodic if PERIODIC is the only boundary kind stated for it."""
    kinds: dict[str, set[str]] = {name: set() for name in names}
    for node in file.get("boundary_conditions", {}).values():
        for name in _words(_attribute(node, "associated_dims")):
            kinds.setdefault(name, set()).add(_words(_attribute(node, "bc_type"))[0].upper())
    for name in names:
        stated = " and ".join(sorted(kinds[name]))
        remarks.notes.append(f"the boundary in {name} is {stated or 'not stated'}")
        if "PERIODIC" in kinds[name] and len(kinds[name]) > 1:
            remarks.problems.append(f"the boundary in {name} is said to be {stated}")
    return tuple(kinds[name] == {"PERIODIC"} for name in names)


def _bounds(axis: Array) -> tuple[float, float]:
    """Half a cell beyond the outermost centres of a uniform axis; otherwise the outermost coordinates themselves."""
    lo, hi = float(axis.min()), float(axis.max())
    half = (hi - lo) / (len(axis) - 1) / 2 if len(axis) > 1 and is_uniform(axis.astype(np.float32)) else 0.0
    return lo - half, hi + half


def _group(file: Any, name: str) -> Any:
    node = file.get(name)
    if not isinstance(node, h5py.Group):
        raise DataError(f"{file.filename}: group '{name}' is missing; fetch the file again.")
    return node


def _attribute(node: Any, name: str) -> Any:
    if name not in node.attrs:
        raise DataError(f"{node.file.filename}: attribute {name} of '{node.name}' is missing; fetch the file again.")
    return node.attrs[name]


def _words(value: Any) -> tuple[str, ...]:
    """Strings, however HDF5 stored them."""
    return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(value))
