"""The Well's files, read lazily: each describes its own fields, grid, boundaries and parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.axes import bounds_of
from ups.data.hdf5 import Hdf5Source, flavour, naming_damage, open_file
from ups.data.joined import Joined
from ups.data.readers import well_header as header
from ups.data.readers.arrays import Columns, ColumnSource, plain
from ups.data.readers.assemble import param_of
from ups.data.readers.well_header import StoredField
from ups.data.sample_blocks import side_by_side
from ups.data.source import Reader, Remarks, Source, SourceFacts, numbered
from ups.definition import Definition, TaskFacts
from ups.parsing import parse_json
from ups.types import Array, DataError, Field, Grid, Storage, TaskSpec

SUFFIXES = (".hdf5", ".h5")
SPLITS = ("train", "valid", "test")


class WellSource(ColumnSource, Hdf5Source):
    """One file of The Well. Fields that vary in time are the values; the others are inputs.

    Args:
        path: The file.
        facts: What its header says.
        stored: Where its fields and times lie.
    """

    nan_is_mask = True

    def __init__(self, path: Path, facts: SourceFacts, stored: Stored) -> None:
        super().__init__(path, facts)
        self._columns, self._fields, self._constant = stored.columns, stored.values, stored.inputs

    def times_of(self, index: int) -> Array:
        times: Array = self._columns.times[self._position(index) % len(self._columns.times)]
        return times

    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        return side_by_side([stored.read(file, index, frames, self.grid.shape) for stored in self._fields])

    def _given(self, file: Any, index: int) -> Array:
        if not self._constant:
            return super()._given(file, index)
        given = [stored.read(file, index, slice(None), self.grid.shape) for stored in self._constant]
        return np.array(side_by_side(given)[0])


@dataclass(frozen=True)
class Stored:
    """What lies where in a file.

    Args:
        values: The fields that are predicted.
        inputs: The fields that are given.
        columns: Times and parameters, the same for all samples or one per sample.
    """

    values: tuple[StoredField, ...]
    inputs: tuple[StoredField, ...]
    columns: Columns


def is_well(path: Path) -> bool:
    """Whether a path is an HDF5 file with The Well's groups, a folder of such files, or a data set with its splits."""
    if not os.path.isdir(path):
        return flavour(path) == "well"
    try:
        files = [file for _, files in _splits(path) for file in files[:1]] or _files(path)[:1]
    except OSError:
        return False
    return bool(files) and flavour(files[0]) == "well"


def open_well(path: Path, split: str | None = None, tasks: Mapping[str, TaskSpec] | None = None) -> Source:
    """A source over data in The Well's layout.

    Args:
        path: A file, a folder of files, or a data set: a folder `<base>/<name>` with its splits in `data/train`,
            `data/valid` and `data/test`.
        split: One of a data set's splits. None: all, and ids begin with the split of a sample, as `train/`.
        tasks: The built-in tasks by name: a file that ups wrote may say which it is of.

    Raises:
        DataError: A file is damaged, or there is none; a split is missing, for which no other ever stands in.
    """
    if not os.path.isdir(path):
        return _open_file(path, tasks or {})
    if split is None and (splits := _splits(path)):
        named = [(name, _open_file(file, tasks or {})) for name, files in splits for file in files]
        ids = [f"{name}/{part.path.stem}/{i}" for name, part in named for i in part.ids]
        return Joined(path, [part for _, part in named], ids=ids)
    folder = path if split is None else path / "data" / split
    if not folder.is_dir():
        raise DataError(f"{path}: has no split '{split}', the folder data/{split} is missing; fetch it.")
    files = _files(folder)
    if not files:
        raise DataError(f"{folder}: holds no .hdf5 file; fetch the data or name another folder.")
    return Joined(folder, [_open_file(file, tasks or {}) for file in files])


READER = Reader(
    is_well,
    lambda path, tasks, definition: open_well(path, tasks=tasks),  # noqa: ARG005  (a Well file describes itself)
    suffixes=SUFFIXES,
)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)


def _splits(path: Path) -> list[tuple[str, list[Path]]]:
    """The splits of a data set that hold files, with these."""
    folders = [(name, path / "data" / name) for name in SPLITS]
    return [(name, files) for name, folder in folders if folder.is_dir() and (files := _files(folder))]


def _open_file(path: Path, tasks: Mapping[str, TaskSpec]) -> WellSource:
    remarks = Remarks()
    with naming_damage(path, "its header"), open_file(path) as file:
        samples = int(np.max(header.attribute(file, "n_trajectories")))
        names = header.words(header.attribute(header.group_of(file, "dimensions"), "spatial_dims"))
        axes = tuple(header.axis(file, name, remarks) for name in names)
        shape, own_times = tuple(map(len, axes)), header.times(file, samples)
        fields = tuple(header.fields(file, names, (samples, own_times.shape[1], *shape)))
        fields += tuple(header.boundary_masks(file, names, shape))
        columns = Columns(own_times, _parameters(file, samples, remarks))
        periodic = header.boundaries(file, names, remarks)
        (name,) = header.words(file.attrs.get("dataset_name", path.stem))
        (kind,) = header.words(file.attrs.get("grid_type", "cartesian"))
        written = _written(file)
    if kind != "cartesian":
        remarks.notes.append(f"the grid is {kind}; its coordinates are given as they are")
    values, inputs = (tuple(f for f in fields if f.in_time is moving) for moving in (True, False))
    if not values or samples == 0:
        raise DataError(f"{path}: holds no {'sample' if values else 'field that varies in time'}; fetch it again.")
    equation = tasks.get(written.equation)
    stored = Stored(_ordered(values, written.fields), _ordered(inputs, written.inputs), columns)
    times = own_times[0]
    bounds = tuple(written.bounds.get(axis, bounds_of(x)) for axis, x in zip(names, axes, strict=True))
    task = TaskSpec(
        name=name,
        title=written.title or name.replace("_", " "),
        fields=_grouped(stored.values, written.fields),
        bounds=bounds,
        periodic=periodic,
        resolution=len(axes[0]),
        end=float(times[-1] - times[0]),
        frames=len(times),
        storage=Storage(kind="well", pattern=""),
        parameters=tuple(param_of(key, values) for key, values in columns.params.items()),
        inputs=_grouped(stored.inputs, written.inputs),
        steady=len(times) == 1,
        mask=written.mask,
        axes=names,
    )
    facts = TaskFacts(written, task, equation)  # what was written was said by a user
    task = replace(task, equation=equation.name if equation else "", dynamics=facts.dynamics, **facts.laws)
    ids = numbered(path, samples)
    common = {key: plain(v[0]) for key, v in columns.params.items() if len(v) == 1}
    grid = Grid.along(axes, periodic, bounds)
    return WellSource(
        path, SourceFacts(task, common, grid, times, ids, (*remarks.notes,), (*remarks.problems,)), stored
    )


def _parameters(file: Any, samples: int, remarks: Remarks) -> dict[str, Array]:
    """Scalars, simulation parameters and values on boundaries: one value each, or one per sample."""
    own = header.scalars(file, samples, remarks)
    stated = header.simulation_parameters(file, samples, own, remarks)
    return {**own, **stated, **header.boundary_values(file, samples)}


def _written(file: Any) -> Definition:
    """What a file that was written here says of its task beyond The Well's format; nothing for any other."""
    return Definition.from_plain(parse_json(str(file.attrs.get("ups_definition", "{}"))))


def _ordered(stored: Sequence[StoredField], groups: Mapping[str, tuple[str, ...]]) -> tuple[StoredField, ...]:
    """The fields in the order of the channels of their task; as they lie in the file where no task is stated."""
    order = [channel for group in groups.values() for channel in group]
    ranked = sorted(stored, key=lambda f: order.index(f.field.channels[0]) if f.field.channels[0] in order else -1)
    return tuple(ranked if order else stored)


def _grouped(stored: Iterable[StoredField], groups: Mapping[str, tuple[str, ...]]) -> tuple[Field, ...]:
    """The fields of the task: scalars that were stored one by one are put together again."""
    fields = [f.field for f in stored]
    if not groups or {c for f in fields for c in f.channels} != {c for group in groups.values() for c in group}:
        return tuple(fields)
    ranks = {f.channels: f.rank for f in fields}
    return tuple(Field(name, channels, ranks.get(channels, 0)) for name, channels in groups.items())
