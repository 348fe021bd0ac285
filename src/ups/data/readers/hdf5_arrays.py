"""Arrays in any HDF5 file: read by position where they lie in one piece; the task says what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.hdf5 import Handle, mapped, naming_damage, open_file, values_at
from ups.data.hdf5_safety import check_data_set
from ups.data.joined import Joined
from ups.data.readers.arrays import Store, Variable, Where, is_small
from ups.data.readers.assemble import open_arrays
from ups.data.readers.hdf5_groups import each_a_trajectory, grouped
from ups.data.source import Source
from ups.definition import SPELLINGS, Definition
from ups.later import h5py
from ups.types import Array, TaskSpec


class Hdf5Store(Store):
    """The data sets of one file, or of a `group` of it; stores of one file may share a `handle`. `backwards`: the axes
    of each are seen in the other order, as MATLAB's are."""

    def __init__(self, path: Path, backwards: bool = False, group: str = "/", handle: Handle | None = None) -> None:
        super().__init__(path)
        self._handle, self._backwards, self._group = handle or Handle(path), backwards, group

    def read(self, key: str, where: Where) -> Array:
        file = self._handle.file()
        node = file[self._group][key]
        if self._backwards:
            return part(node, where[::-1]).T
        return part(node, where)

    def close(self) -> None:
        self._handle.close()


def part(node: Any, where: Where) -> Array:
    """`node[where]`: by its place in the file if it is places, then at most one part of an axis, then whole axes."""
    used = len(where)
    while used and where[used - 1] == slice(None):
        used -= 1
    slices = [i for i, at in enumerate(where[:used]) if isinstance(at, slice)]
    if node.dtype.kind not in "fiu":
        return np.asarray(node[where])
    if slices in ([], [used - 1]) and used:
        return values_at(node, *where[:used])
    return np.array(mapped(node)[where])


def open_hdf5_arrays(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over the data sets of a file, in whatever groups, as `dims`, `fields` and `datasets` of the task say;
    where these are names inside of groups, each group is read by itself."""
    with naming_damage(path, "its header"), open_file(path) as file:
        variables = [
            Variable(key, key, node.shape, node.dtype, attributes=_units(node), content=small(node))
            for key, node in data_sets(file)
        ]
        groups = grouped(path, variables, definition)
        numbers = {name: _numbers(file[name], definition) for name in groups}
    if not groups:
        return open_arrays(Hdf5Store(path), variables, definition)
    inside = {f"{name}/{key}" for name, held in groups.items() for key in held}
    beside = {v.name: dataclasses.replace(v, key=f"/{v.key}") for v in variables if v.key not in inside}
    handle = Handle(path)
    parts = {
        name: open_arrays(
            Hdf5Store(path, group=name, handle=handle),
            list({**numbers[name], **beside, **held}.values()),
            definition,
        )
        for name, held in groups.items()
    }
    ids = [name if len(part) == 1 else f"{name}/{number}" for name, part in parts.items() for number in part.ids]
    source = Joined(path, list(parts.values()), ids=ids)
    source.notes = (*((each_a_trajectory(list(parts)),) if len(parts) > 1 else ()), *source.notes)
    return source


def _numbers(group: Any, definition: Definition) -> dict[str, Variable]:
    """The attributes of a group that are single numbers: parameters of what lies in it."""
    axes = {*definition.layout, *SPELLINGS}
    attributes = {name: np.asarray(group.attrs[name]) for name in group.attrs if name.lower() not in axes}
    numbers = {name: value for name, value in attributes.items() if value.dtype.kind in "iuf" and value.size == 1}
    return {name: Variable(name, name, (), value.dtype, content=value.reshape(())) for name, value in numbers.items()}


def _units(node: Any) -> dict[str, str]:
    return {"units": word(node.attrs["units"])} if h5py.h5a.exists(node.id, b"units") else {}


def word(value: Any) -> str:
    """Text of an attribute, however it is stored; "" for one that holds nothing."""
    value = value.item() if isinstance(value, (np.ndarray, np.generic)) and np.size(value) == 1 else value
    nothing = getattr(value, "shape", ()) is None
    return "" if nothing else value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def small(node: Any) -> Array | None:
    """All of a data set that can be but a coordinate or a parameter; None for any other."""
    check_data_set(node)
    return np.asarray(node[()]) if is_small(node.shape) and readable(node) else None


def readable(node: Any) -> bool:
    """Whether a data set holds numbers or words: no references, no lists of any length, no records."""
    return node.dtype.kind in "biufcSU" or h5py.check_string_dtype(node.dtype) is not None


def data_sets(file: Any) -> Iterator[tuple[str, Any]]:
    """Every data set with its path in the file."""
    nodes: list[tuple[str, Any]] = []
    file.visititems(lambda key, node: nodes.append((key, node)))
    sets = ((key, node) for key, node in nodes if isinstance(node, h5py.Dataset))
    return ((key, node) for key, node in sets if node.shape is not None and readable(node))
