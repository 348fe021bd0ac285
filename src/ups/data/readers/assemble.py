"""Sorts variables with named axes into fields, inputs, parameters and coordinates, as one source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.axes import NO_TIMES, grid_and_flips, read_words, says_where, spacing, times_of
from ups.data.readers.array_dims import (
    MASK,
    NUMBERS,
    TAKEN,
    VALUES,
    axes_by_definition,
    axes_by_name,
    check_named,
    clock_among,
    fields_named,
    listed,
    moving_input,
    named_inputs,
    renamed,
)
from ups.data.readers.arrays import ARRAY, OFFERED, ArraySource, ArrayStore, Columns, Variable, naming_fault, plain
from ups.data.readers.attributes import stated_beside
from ups.data.readers.points import Geometry, check_points, geometry_among
from ups.data.source import Remarks, Source, SourceFacts, numbered
from ups.data.units import stated
from ups.definition import CHANNEL, SAMPLE, SPELLINGS, TIME, Definition, fields_of
from ups.types import ARRAYS, Array, DataError, Grid, Param, Storage, TaskSpec, few

DT = "dt"


@dataclass
class Parts:
    """The variables of a file by what they are for; `fields` and `inputs` in the order of their channels."""

    fields: list[Variable]
    inputs: list[Variable]
    params: list[Variable]
    coordinates: dict[str, Variable]
    field_groups: dict[str, tuple[str, ...]]
    input_groups: dict[str, tuple[str, ...]]


def open_arrays(
    store: ArrayStore, variables: Sequence[Variable], definition: Definition, *, named: bool = False
) -> Source:
    """A source over the arrays of a file; `named` says that the file names their axes, otherwise the task does."""
    path, remarks = store.path, Remarks()
    known = renamed(variables, definition)
    remarks.notes += _ignored_in_vain(variables, definition)
    check_named(path, known, definition)
    arrays = [v for v in known if v.kind == ARRAY]
    geometry = geometry_among(store, known, definition)
    if geometry is not None:
        definition = definition if named else geometry.layout(definition)
        arrays = [v for v in arrays if v.name not in geometry.names]
    arrays = (axes_by_name if named else axes_by_definition)(path, arrays, definition, remarks, _count(geometry))
    parts = _sorted(store, arrays, definition, remarks)
    taken = {v.name for v in (*parts.fields, *parts.inputs, *parts.params)}
    parts.params += stated_beside(known, arrays, taken, remarks)
    space = _space(parts, definition)
    sizes = _sizes(path, [*parts.fields, *parts.inputs, *parts.params, *parts.coordinates.values()])
    shape = tuple(sizes[name] for name in space)
    if 0 in sizes.values():
        raise DataError(f"{path}: {next(n for n, size in sizes.items() if not size)} has length 0; write it again.")
    stored, params = _read(store, parts, remarks)
    places = _Places.of(store, known, geometry, space, shape, stored, parts, definition, remarks)
    frames, clock = sizes.get(TIME, 1), stored.get(TIME) if TIME in sizes else None
    offered = _offered(store, known, {*params, *taken}, remarks)
    dt = _spacing(clock, params, offered, definition, remarks) if frames > 1 else definition.dt
    times = times_of(frames, clock, dt, remarks, path)
    first = np.atleast_2d(times)[0]
    spec = TaskSpec(
        name=definition.name or path.stem,
        title=(definition.name or path.stem).replace("_", " "),
        fields=fields_of(parts.field_groups, places.grid.ndim),
        bounds=places.grid.bounds,
        periodic=places.grid.periodic,
        resolution=shape[0],
        end=float(first[-1] - first[0]),
        frames=frames,
        storage=Storage(kind=ARRAYS, pattern=""),
        parameters=tuple(param_of(name, values) for name, values in params.items()),
        inputs=fields_of(parts.input_groups, places.grid.ndim),
        steady=frames == 1,
        mask=_mask(parts, definition),
        axes=places.axes,
        domain=places.grid.domain,
    )
    facts = SourceFacts(
        task=spec,
        params={name: plain(values[0]) for name, values in params.items() if (values == values[0]).all()},
        grid=places.grid,
        times=first,
        ids=numbered(path, sizes.get(SAMPLE, 1)),
        notes=tuple(remarks.notes),
        problems=tuple(remarks.problems),
        units=_units(parts, definition, frames),
        offered=offered,
        unplaced=places.unplaced,
        unnamed={v.name: v.key for v in parts.params if v.name in params and not definition.names(v.name)},
    )
    fields, inputs = (tuple(replace(v, content=None) for v in chosen) for chosen in (parts.fields, parts.inputs))
    return ArraySource(store, facts, Columns(times, params), fields, inputs, space, places.flipped)


def _count(geometry: Geometry | None) -> int:
    """How many points there are; 0 where there is a grid."""
    return 0 if geometry is None else geometry.count


@dataclass(frozen=True)
class _Places:
    """Where the values of a file lie, the names of the axes, those stored from high to low, and those of which nothing
    says where they lie."""

    grid: Grid
    axes: tuple[str, ...]
    flipped: frozenset[str] = frozenset()
    unplaced: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        store: ArrayStore,
        variables: Sequence[Variable],
        geometry: Geometry | None,
        space: tuple[str, ...],
        shape: tuple[int, ...],
        stored: Mapping[str, Array],
        parts: Parts,
        definition: Definition,
        remarks: Remarks,
    ) -> _Places:
        """Those of fields of a `shape` along the axes in `space`; DataError where coordinates contradict it."""
        if geometry is None:
            used, placed = {v.name for v in parts.fields}, {*parts.coordinates, *definition.bounds}
            sizes = dict(zip(space, shape, strict=True))
            check_points(store, variables, space, sizes, used, placed)
            grid, flipped = grid_and_flips(space, shape, stored, definition.bounds, remarks, store.path)
            unplaced = tuple(n for n in space if n not in definition.bounds and not says_where(stored.get(n)))
            return cls(grid, space, flipped, unplaced)
        if shape != (geometry.count,):
            raise DataError(
                f"{store.path}: {few(sorted(geometry.names))} say where {geometry.count} values lie, and the fields "
                f"have {' × '.join(map(str, shape))}; give as many, and say in `dims` which axis is that of points."
            )
        return cls(geometry.points(definition, remarks), geometry.axes)


def _read(store: ArrayStore, parts: Parts, remarks: Remarks) -> tuple[dict[str, Array], dict[str, Array]]:
    """The values of coordinates and of parameters, by name."""
    for v in (v for v in (*parts.coordinates.values(), *parts.params) if v.dtype.kind == "c"):
        raise complex_values(store.path, v.words)
    with naming_fault(store.path, "its coordinates"):
        stored = {name: _whole(store, v) for name, v in parts.coordinates.items()}
        params = {v.name: _column(store, v) for v in parts.params}
    words = {name: values for name, values in stored.items() if values.dtype.kind in "OSTU"}
    return stored | {name: read_words(name, values, remarks, store.path) for name, values in words.items()}, params


def _ignored_in_vain(variables: Sequence[Variable], definition: Definition) -> list[str]:
    """A note on names that the task ignores, and that nothing has."""
    there = {name for v in variables for name in (v.name, v.key.strip("/"))}
    strange = [name for name in definition.ignore if name.strip("/") not in there]
    return [f"nothing is called {', '.join(strange)}, which the task ignores"] if strange else []


def _spacing(
    clock: Array | None, params: dict[str, Array], offered: dict[str, float], definition: Definition, remarks: Remarks
) -> Array | float | None:
    """The time between frames. A number called dt says it, and is taken from the parameters."""
    attribute = offered.pop(DT, None)
    own = params.pop(DT) if DT in params and params[DT].dtype.kind == "f" else attribute
    dt = spacing(clock, own, definition.dt, remarks)
    if clock is None and definition.dt is None and attribute is not None and own is attribute:
        remarks.notes.append(f"{NO_TIMES}; frames are taken to be {attribute:g} apart, as the attribute {DT} says")
    return dt


def _offered(
    store: ArrayStore, variables: Sequence[Variable], taken: Collection[str], remarks: Remarks
) -> dict[str, float]:
    """The numbers that are parameters where they are asked for, by name; of two of one name the first."""
    first: dict[str, tuple[Variable, float]] = {}
    for v in (v for v in variables if v.kind == OFFERED and v.name not in taken):
        value = float(plain(_column(store, v)[0]))
        other, held = first.setdefault(v.name, (v, value))
        if other is not v and held != value:
            remarks.notes.append(f"attribute {v.key} is not used: {other.key} is called so too, with another value")
    return {name: value for name, (_, value) in first.items()}


def _units(parts: Parts, definition: Definition, frames: int) -> dict[str, str]:
    """The units that a file names, by channel, parameter and axis; not of what the task says in their place."""
    known = {v.name: v for v in parts.params if v.name not in definition.parameters}
    known |= {name: v for name, v in parts.coordinates.items() if name not in definition.bounds}
    if frames == 1:
        known.pop(TIME, None)
    for variables, groups in ((parts.fields, parts.field_groups), (parts.inputs, parts.input_groups)):
        each = [v for v in variables for _ in range(v.channels)]
        known |= zip([c for group in groups.values() for c in group], each, strict=False)
    units = {name: stated(v.attributes.get("units", ""), name == TIME) for name, v in known.items()}
    return {name: unit for name, unit in units.items() if unit}


def _mask(parts: Parts, definition: Definition) -> str:
    """The input that says which cells count: the one the task names, or one of truth values that is called `mask`."""
    names = [c for group in parts.input_groups.values() for c in group]
    truths = [v.name for v in parts.inputs if v.dtype.kind == "b" or str(v.attributes.get("dtype")) == "bool"]
    return next((c for c in names if c == definition.mask or (c == MASK and c in truths)), "")


def param_of(name: str, values: Sequence[Any] | Array) -> Param:
    """A parameter as a file states it: a number, or a word out of those that occur."""
    words = tuple(dict.fromkeys(str(plain(v)) for v in values)) if isinstance(plain(values[0]), str) else ()
    return Param(name, plain(values[0]), "stated in the file", choices=words, encoded=bool(words))


def _sorted(store: ArrayStore, variables: Sequence[Variable], definition: Definition, remarks: Remarks) -> Parts:
    """Predicted is what has space and time, given what has space alone, a parameter what has neither."""
    path, axes = store.path, {name for v in variables for name in v.dims} - {SAMPLE, TIME, CHANNEL, ""}
    parts = Parts([], [], [], {}, {}, {})
    coordinates = _coordinates(variables, axes, definition)
    clock = clock_among([v for axis, v in coordinates if axis == TIME])
    spatial: list[Variable] = []
    for v in variables:
        real = [name for name in v.dims if name]
        axis = next((axis for axis, other in coordinates if other is v), None)
        if axis == TIME and v is not clock:
            remarks.notes.append(f"array {v.words} is not used: the times are those of {clock.key if clock else ''}")
        elif axis is not None:
            if len(real) > 1 and axis != TIME:
                raise DataError(f"{path}: {v.words} differs from sample to sample; write each grid to its own file.")
            parts.coordinates[axis] = v
        elif _numbers_samples(store, v):
            way = f"`datasets: {{OTHER: {v.key}}}` in the task makes it one"
            remarks.notes.append(f"array {v.words} {NUMBERS}; {way}")
        elif set(real) & axes:
            spatial.append(v)
        elif set(real) <= {SAMPLE} and v.dtype.kind in "biufUSOT":
            parts.params.append(v)
        else:
            remarks.notes.append(f"array {v.words} is not used: it has no axis of space")
    for v in (v for v in spatial if v.dtype.kind == "c"):
        raise complex_values(path, v.words)
    wanted = {*fields_named(definition), *named_inputs(definition)}
    for v in (v for v in spatial if not v.is_number and v.name in wanted):
        raise DataError(f"{path}: {v.words} holds {_kind_of(v)}, not numbers; write it as an array of numbers.")
    spatial = [v for v in spatial if v.is_number]
    moving = [v for v in spatial if TIME in v.dims]
    named = set(named_inputs(definition))
    for v in (v for v in moving if v.name in named and v.shape[v.dims.index(TIME)] > 1):
        raise moving_input(path, v)
    given = named | {MASK}
    steady = [v for v in spatial if v.name not in given] if not moving else []
    parts.field_groups = _choose(path, definition.fields, moving or steady, parts.fields, remarks, needed=True)
    rest = [v for v in spatial if v not in parts.fields and TIME not in v.dims]
    parts.input_groups = _choose(path, definition.inputs, rest, parts.inputs, remarks, needed=False)
    mask = next((v for v in rest if v.name == (definition.mask or MASK) and v not in parts.inputs), None)
    if mask is not None:
        parts.inputs.append(mask)
        parts.input_groups[mask.name] = (mask.name,)
    return parts


def _kind_of(v: Variable) -> str:
    return {"S": "text", "U": "text", "O": "Python objects", "M": "dates"}.get(
        v.dtype.kind, f"values of type {v.dtype}"
    )


def complex_values(path: Path, words: str) -> DataError:
    """The error of an array of complex numbers."""
    return DataError(f"{path}: {words} is complex; write its real and imaginary part as two channels.")


def _coordinates(
    variables: Sequence[Variable], axes: Collection[str], definition: Definition
) -> list[tuple[str, Variable]]:
    """What may be the coordinates of an axis of space, or the times, with the name of that axis."""
    claimed, pairs = {*fields_named(definition), *named_inputs(definition)}, []
    for v in variables:
        real = [name for name in v.dims if name]
        axis = TIME if SPELLINGS.get(v.name.lower()) == TIME else v.name
        if axis in (*axes, TIME) and v.name not in claimed and axis in real and set(real) <= {axis, SAMPLE}:
            pairs.append((axis, v))
    return pairs


def _numbers_samples(store: ArrayStore, v: Variable) -> bool:
    """Whether an array called like the axis of samples counts them or names them. By a whole word: whole numbers, or
    words. By a letter, as parameters are too: one whole number after the other, or words that differ."""
    real = {name for name in v.dims if name}
    if SPELLINGS.get(v.name.lower()) != SAMPLE or not real <= {SAMPLE}:
        return False
    with naming_fault(store.path, v.key):
        values = np.atleast_1d(_content(store, v))
    letter = len(v.name) == 1
    if letter and len(values) == 1:
        return False
    if not v.is_number:
        return not letter or len(set(values.tolist())) == len(values)
    numbers = values.astype(np.float64)
    return bool((numbers == np.round(numbers)).all() and (not letter or (np.diff(numbers) == 1).all()))


def _choose(
    path: Path,
    groups: Mapping[str, tuple[str, ...]],
    variables: Sequence[Variable],
    chosen: list[Variable],
    remarks: Remarks,
    needed: bool,
) -> dict[str, tuple[str, ...]]:
    """Put the variables of `groups` into `chosen`, in their order; without groups all, each a field of its own."""
    if not variables and needed:
        raise DataError(f"{path}: holds no array with axes of space; check the file, or `dims` in the task.")
    if not groups:
        chosen += variables
        return {v.name: _channel_names(v) for v in variables}
    by_name = {v.name: v for v in variables}
    whole: list[Variable] = []
    for field, channels in groups.items():
        if all(c in by_name and by_name[c].channels == 1 for c in channels):
            chosen += [by_name[c] for c in channels]
        elif field in by_name and by_name[field].channels == len(channels):
            chosen.append(by_name[field])
        elif needed or field != MASK:
            total = sum(map(len, groups.values()))
            whole = [v for v in (by_name.get(VALUES), *variables) if v is not None and v.channels == total][:1]
            if chosen or not whole:
                raise DataError(
                    f"{path}: holds {listed(variables)}, nothing with the channels {', '.join(channels)} of {field}; "
                    "correct the fields of the task, or say with `datasets` where they lie."
                )
            if whole[0].name != VALUES:
                remarks.notes.append(f"array {whole[0].words} {TAKEN} {', '.join(sum(groups.values(), ()))}")
            break
    chosen += whole
    unused = [v.words for v in variables if v not in chosen and v.name != MASK]
    remarks.notes += [f"array {words} is not used; the task does not name it" for words in unused]
    held = {v.name for v in chosen}
    return {f: tuple(c) for f, c in groups.items() if whole or f in held or set(c) <= held}


def _channel_names(variable: Variable) -> tuple[str, ...]:
    count = variable.channels
    return (variable.name,) if count == 1 else tuple(f"{variable.name}_{i}" for i in range(count))


def _space(parts: Parts, definition: Definition) -> tuple[str, ...]:
    """The axes of space in the order of the task, otherwise in that of the largest array."""
    there = {name for v in parts.fields for name in v.dims} - {SAMPLE, TIME, CHANNEL, ""}
    if set(definition.space) == there:
        return definition.space
    largest = max(parts.fields, key=lambda v: len(v.dims))
    order = [name for name in largest.dims if name in there]
    return tuple(order + sorted(there - set(order)))


def _sizes(path: Path, variables: Sequence[Variable]) -> dict[str, int]:
    """The length of each axis, on which all variables must agree."""
    sizes: dict[str, tuple[int, Variable]] = {}
    for v in variables:
        for name, n in zip(v.dims, v.shape, strict=True):
            if name in ("", CHANNEL):
                continue
            length, other = sizes.setdefault(name, (n, v))
            if n != length:
                raise DataError(f"{path}: {v.words} and {other.words} differ in the length of {name}; check the file.")
    return {name: n for name, (n, _) in sizes.items()}


def _whole(store: ArrayStore, v: Variable) -> Array:
    """A small variable, its meaningless axes dropped, time after sample."""
    values = _content(store, v)
    real = [name for name in v.dims if name]
    values = values.T if real == [TIME, SAMPLE] else values
    return values if values.dtype.kind in "OSTU" else v.decoded(values)


def _content(store: ArrayStore, v: Variable) -> Array:
    """All of a variable but its meaningless axes."""
    where = tuple(slice(None) if name else 0 for name in v.dims)
    return store.read(v.key, where) if v.content is None else v.content[where]


def _column(store: ArrayStore, v: Variable) -> Array:
    """A parameter: one value, or one per sample."""
    values = np.atleast_1d(_content(store, v))
    if v.is_number:
        return v.decoded(values).astype(np.float64)
    return np.asarray([plain(value) if isinstance(value, (bytes, str)) else str(value) for value in values.tolist()])
