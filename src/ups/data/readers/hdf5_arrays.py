"""Arrays in any HDF5 file: read by position where they lie in one piece; the task says what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.hdf5 import Handle, mapped, naming_damage, open_file, values_at
from ups.data.hdf5_safety import check_chunks, check_data_set
from ups.data.joined import LABELS, Joined
from ups.data.readers.arrays import OFFERED, PARAMETER, ArrayStore, Variable, Where, is_small
from ups.data.readers.assemble import open_arrays
from ups.data.readers.attributes import number, numbers_of, offered
from ups.data.readers.hdf5_groups import each_a_trajectory, grouped, slashes
from ups.data.source import Source
from ups.definition import Definition
from ups.lazy_imports import h5py
from ups.types import Array, TaskSpec, few


class Hdf5Store(ArrayStore):
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
    check_chunks(node, where)
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
        nodes = _nodes(file)
        variables = [
            Variable(key, key, node.shape, _number_format(node), attributes=_units(node), content=small(node))
            for key, node in nodes
            if _is_data(node)
        ]
        groups = grouped(path, variables, definition)
        own, common = _numbers([("", file), *nodes], groups)
        notes = _on_arrays(file, variables)
    if not groups:
        source = open_arrays(Hdf5Store(path), [*variables, *common], definition)
        source.notes = (*source.notes, *notes)
        return source
    inside = {f"{name}/{key}" for name, held in groups.items() for key in held}
    beside = {v.name: dataclasses.replace(v, key=f"/{v.key}") for v in variables if v.key not in inside}
    handle = Handle(path)
    parts = {
        name: open_arrays(
            Hdf5Store(path, group=name, handle=handle),
            [*{**beside, **held}.values(), *own[name], *common],
            definition,
        )
        for name, held in groups.items()
    }
    ids = [name if len(part) == 1 else f"{name}/{number}" for name, part in parts.items() for number in part.ids]
    source = Joined(path, list(parts.values()), ids=ids)
    source.notes = (*((each_a_trajectory(list(parts)),) if len(parts) > 1 else ()), *source.notes, *notes)
    return source


def _numbers(
    nodes: Sequence[tuple[str, Any]], groups: Collection[str]
) -> tuple[dict[str, list[Variable]], list[Variable]]:
    """The numbers among the attributes of groups: of each one that is a trajectory, and of those in it, its parameters,
    but for those that tell trajectories apart; of the file itself and all other groups, what may be parameters of all.
    """
    own: dict[str, list[Variable]] = {name: [] for name in groups}
    common: list[Variable] = []
    for key, node in ((key, node) for key, node in nodes if isinstance(node, h5py.Group)):
        held = numbers_of(node)
        above = next((key[:at] for at in (*slashes(key), len(key)) if key[:at] in own), None)
        if above is None:
            common += offered(held, key)
            continue
        inside = key[len(above) + 1 :]
        own[above] += [
            number(name, value, inside, OFFERED if LABELS.search(name) else PARAMETER)
            for name, value in held.items()
            if np.isfinite(value).all() or not LABELS.search(name)
        ]
    return own, common


def _on_arrays(file: Any, variables: Sequence[Variable]) -> list[str]:
    """A note on numbers among the attributes of data sets, which may be meant for parameters."""
    held = [(v.key.rpartition("/")[2], number.name) for v in variables for number in offered(numbers_of(file[v.key]))]
    arrays, names = (few(dict.fromkeys(pair[i] for pair in held)) for i in (0, 1))
    way = "to be parameters, write them as attributes of the file, or of a trajectory's group"
    return [f"numbers among the attributes of {arrays} are not used ({names}); {way}"] if held else []


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
    return ((key, node) for key, node in _nodes(file) if _is_data(node))


def _nodes(file: Any) -> list[tuple[str, Any]]:
    """Every data set and group with its path in the file."""
    nodes: list[tuple[str, Any]] = []
    file.visititems(lambda key, node: nodes.append((key, node)))
    return nodes


def _is_data(node: Any) -> bool:
    return isinstance(node, h5py.Dataset) and node.shape is not None and (readable(node) or is_complex(node))


def is_complex(node: Any) -> bool:
    """Whether a data set holds complex numbers as records of two, as MATLAB and others write them."""
    return node.dtype.names is not None and tuple(map(str.lower, node.dtype.names)) == ("real", "imag")


def _number_format(node: Any) -> np.dtype[Any]:
    return np.dtype("c16") if is_complex(node) else node.dtype
