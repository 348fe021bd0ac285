"""Names the axes of arrays: by the user's `dims`, or by the names that the file itself has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ups.data.readers.arrays import ARRAY, PARAMETER, Variable
from ups.data.source import Remarks, is_uniform
from ups.definition import CHANNEL, SAMPLE, SPELLINGS, TIME, Definition
from ups.types import DataError

VALUES, MASK = "values", "mask"
SPACE = (
    "x",
    "y",
    "z",
    "lat",
    "lon",
    "latitude",
    "longitude",
    "r",
    "theta",
    "phi",
    "height",
    "depth",
    "level",
    "lev",
    "point",
    "points",
    "node",
    "nodes",
)
SAMPLES = ("case", "member", "ensemble", "realization", "run", "simulation")
EXAMPLE = "`dims: [sample, time, x, y, channel]` and `fields: {velocity: [u, v]}`"

# What a note says of values whose axis nothing names, and of an array that nothing but its shape speaks for.
AS_MANY, TAKEN = "for there are as many frames as samples", "is taken to hold"
NUMBERS = "numbers the samples and is no parameter"

Dims = tuple[str, ...]


def renamed(variables: Iterable[Variable], definition: Definition) -> list[Variable]:
    """The variables under the names that the task has for them, without those that it ignores; a number among
    attributes that is asked for, by its place or by its name alone, is a parameter, and one that is called as an array
    is not what is asked for."""
    names = {key.strip("/"): name for name, key in definition.datasets.items()}
    ignored = {key.strip("/") for key in definition.ignore}
    left = [v for v in variables if not ignored & {v.key.strip("/"), v.name}]
    arrays, numbers = ([v for v in left if (v.kind == ARRAY) is whole] for whole in (True, False))
    taken = {v.key.strip("/") for v in arrays}
    parameters: list[Variable] = []
    others: list[Variable] = []
    for v in numbers:
        key = next((key for key in (v.key.strip("/"), v.name) if key in names and key not in taken), None)
        if key is None:
            others.append(v)
        else:
            parameters.append(dataclasses.replace(v, name=names[key], kind=PARAMETER))
    # What is asked for comes first: of two numbers of one name the first is used.
    return [*(dataclasses.replace(v, name=names.get(v.key.strip("/"), v.name)) for v in arrays), *parameters, *others]


def check_named(path: Path, variables: Sequence[Variable], definition: Definition) -> None:
    """Every array that the task says where to find is there; a parameter may be a number among attributes."""
    arrays = [v for v in variables if v.kind == ARRAY]
    keys = {v.key.strip("/") for v in arrays} | {dim for v in arrays for dim in v.dims}
    numbers = {v.name for v in variables if v.kind == PARAMETER}
    spread = {*fields_named(definition), *named_inputs(definition), *definition.space, *SPELLINGS}
    for name, key in definition.datasets.items():
        if key.strip("/") not in keys and (name not in numbers or name in spread):
            raise DataError(
                f"{path}: has no array '{key}', where the task looks for {name}; it holds {listed(arrays)}."
            )


def listed(variables: Sequence[Variable]) -> str:
    """The arrays of a file with their shapes, for a sentence."""
    return ", ".join(v.words for v in variables[:8]) + (", …" if len(variables) > 8 else "") or "no array"


# Files that name no axes


def axes_by_definition(
    path: Path, variables: Sequence[Variable], definition: Definition, remarks: Remarks, points: int = 0
) -> list[Variable]:
    """The arrays of a file that names no axes, with the axes that `dims` gives them; those of no use are left out. The
    axis of space is that of so many `points`, where their number is known."""
    layout = definition.layout
    if definition.dims and not definition.space:
        raise DataError(
            f"{path}: `dims: [{', '.join(definition.dims)}]` names no axis of space, and data without one, as those of "
            "ordinary differential equations, cannot be learnt by ups; name the axis of space if there is one."
        )
    if not definition.space or len(set(layout)) != len(layout):
        raise DataError(
            f"{path}: holds {listed(variables)}, and nothing says what their axes mean; say it in a file my.yaml with "
            f"{EXAMPLE}, each axis once, and name that file with --task."
        )
    channels = _channels_by_array(variables, definition)
    sizes: dict[str, int] = dict.fromkeys(definition.space, points) if points else {}
    chosen: dict[str, Variable] = {}
    for variable in (v for v in variables if v.name in channels):
        count = channels[variable.name]
        options = [_without(layout), _without(layout, SAMPLE)] if count != 1 else []
        options += [_without(layout, *gone) for gone in ((CHANNEL,), (CHANNEL, SAMPLE))] if count in (None, 1) else []
        options += [_without(layout), _without(layout, SAMPLE)] if count == 1 else []
        dims = axes_that_fit(variable.shape, options, {**sizes, **({CHANNEL: count} if count else {})})
        if dims is None:
            raise DataError(_misfit(path, variable, definition, count))
        chosen[variable.name] = dataclasses.replace(variable, dims=dims)
        sizes |= {name: n for name, n in zip(dims, variable.shape, strict=True) if name not in (CHANNEL, "")}
    named = set(named_inputs(definition))
    # Fields without an axis of samples are one trajectory, whatever lies beside them: a series has a value per frame.
    lengths = {SAMPLE: 1, **sizes} if chosen else sizes
    rest = [v for v in variables if v.name not in chosen]
    clock = clock_among([v for v in rest if _is_time(v.name) and _beside(v, layout, lengths, named | {MASK})])
    for variable in rest:
        spare = clock is not None and variable is not clock and _is_time(variable.name)
        dims = _beside(variable, layout, lengths, named | {MASK}, spare)
        if dims is None:
            if not spare:
                _check_no_axis(path, variable, rest, sizes, definition)
            if variable.name in named:
                raise _no_input(path, variable, layout, sizes)
            remarks.notes.append(f"array {variable.words} is not used; the task does not name it")
        else:
            chosen[variable.name] = dataclasses.replace(variable, dims=dims)
            remarks.notes += _either(variable, dims, sizes)
            remarks.notes += _doubtful_times(path, variable, dims, sizes)
    return list(chosen.values())


def _channels_by_array(variables: Sequence[Variable], definition: Definition) -> dict[str, int | None]:
    """The arrays that hold what is predicted, and the channels each must have (None: any number)."""
    names = {v.name: v for v in variables}
    if not definition.fields:
        taken = {*named_inputs(definition), MASK}
        least = len(definition.space) + (TIME in definition.layout)
        held = [v for v in variables if v.is_number or v.dtype.kind == "c"]  # what is complex is refused by name
        large = [v for v in held if v.name not in taken and len(v.shape) >= least]
        return {v.name: None for v in large if not _is_axis(v.name, definition) or len(v.shape) > 2}
    result: dict[str, int | None] = {}
    missing: list[str] = []
    for field, channels in definition.fields.items():
        if len(channels) == 1 or all(c in names for c in channels):
            own = [c for c in channels if c in names] or [field] * (field in names)
            result |= dict.fromkeys(own, 1)
            missing += [field] if not own else []
        elif field in names:
            result[field] = len(channels)
        else:
            missing.append(field)
    if missing and not result:
        total = sum(map(len, definition.fields.values()))
        numbers = [v for v in variables if v.is_number and not _is_axis(v.name, definition)]
        largest = max(numbers, key=lambda v: len(v.shape), default=None)
        whole = VALUES if VALUES in names else largest.name if largest is not None else ""
        return {whole: total} if whole else {}
    return result


def _is_axis(name: str, definition: Definition) -> bool:
    return name in definition.space or _is_time(name)


def _is_time(name: str) -> bool:
    return SPELLINGS.get(name.lower()) == TIME


def clock_among(variables: Sequence[Variable]) -> Variable | None:
    """The one that holds the times: by its whole name, else its letter, else the capital, as of temperatures."""
    return min(variables, key=lambda v: (v.name.lower() == "t", v.name == "T"), default=None)


def _beside(
    variable: Variable, layout: Dims, sizes: Mapping[str, int], given: set[str], spare: bool = False
) -> Dims | None:
    """The axes of a coordinate, an input or a parameter; None for an array that is none of these. `spare`: it is called
    like time, but another array holds the times."""
    name, one = variable.name, (SAMPLE,) if SAMPLE in layout else ()
    axis = SPELLINGS.get(name.lower(), name)
    # MATLAB has no vectors: an axis of length 1 means nothing here.
    if axis in layout and axis not in (SAMPLE, CHANNEL) and not spare:
        return axes_that_fit(variable.shape, [(axis,), (*one, axis)] if axis == TIME else [(axis,)], sizes, loose=True)
    if name in given:
        options = [_without(layout, TIME, *gone) for gone in ((), (CHANNEL,), (SAMPLE,), (CHANNEL, SAMPLE))]
        return axes_that_fit(variable.shape, options, sizes, loose=True)
    return axes_that_fit(variable.shape, [one, ()], sizes, loose=True)


def named_inputs(definition: Definition) -> tuple[str, ...]:
    """What a task may call the arrays of its inputs, its mask among them."""
    names = tuple(name for group, channels in definition.inputs.items() for name in (group, *channels))
    return (*names, *filter(None, (definition.mask,)))


def fields_named(definition: Definition) -> tuple[str, ...]:
    """What a task may call the arrays of what is predicted."""
    return tuple(name for field, channels in definition.fields.items() for name in (field, *channels))


def moving_input(path: Path, variable: Variable) -> DataError:
    """The error of an input that has frames."""
    return DataError(
        f"{path}: the input {variable.words} changes in time, and such inputs are not supported yet; spread it over "
        "the grid as one of `fields` and put its known values back after each step of a rollout "
        "(docs/howto-use-your-data.md#forcing-that-changes-in-time), or keep one frame of it."
    )


def _no_input(path: Path, variable: Variable, layout: Dims, sizes: Mapping[str, int]) -> DataError:
    """The error of an array that the task calls an input, and that does not have the axes of one."""
    frames = [tuple(name for name in dims if name in layout) for dims in ((SAMPLE, TIME), (TIME,))]
    gone = ((), (CHANNEL,), (SAMPLE,), (CHANNEL, SAMPLE))
    options = [*(_without(layout, *names) for names in gone), *frames]  # on the grid, or the same all over it
    if sizes.get(TIME, 1) > 1 and axes_that_fit(variable.shape, options, sizes, loose=True):
        return moving_input(path, variable)
    grid = " × ".join(str(sizes.get(name, "?")) for name in _without(layout, SAMPLE, TIME, CHANNEL))
    return DataError(f"{path}: the input {variable.words} does not lie on the grid of {grid} cells; give it on that.")


def _either(variable: Variable, dims: Dims, sizes: Mapping[str, int]) -> list[str]:
    """A note on values that are taken for one per sample, where as many are one per frame."""
    column = {name for name in dims if name} == {SAMPLE} and SPELLINGS.get(variable.name.lower()) != SAMPLE
    if not column or not 1 < sizes.get(SAMPLE, 0) == sizes.get(TIME):
        return []
    return [
        f"{variable.words} is read as a parameter of each sample, but could be one value per frame as well, {AS_MANY}; "
        f"if it is, leave it out, or spread it over the grid as one of `fields`"
    ]


def _doubtful_times(path: Path, variable: Variable, dims: Dims, sizes: Mapping[str, int]) -> list[str]:
    """A note on times called T that could be temperatures of samples; DataError where they are not even uniform."""
    alone = variable.name == "T" and {name for name in dims if name} == {TIME}
    if not alone or not 1 < sizes.get(SAMPLE, 0) == sizes.get(TIME):
        return []
    ways = f"`datasets: {{time: {variable.key}}}` says the one, `datasets: {{OTHER: {variable.key}}}` the other"
    numbers = np.ravel(variable.content) if variable.content is not None and variable.is_number else None
    if numbers is not None and not is_uniform(numbers.astype(np.float64)):
        raise DataError(
            f"{path}: array {variable.words} could be the times or a parameter of each sample, {AS_MANY}; {ways}."
        )
    return [f"{variable.words} is read as the times, but could be a parameter of each sample, {AS_MANY}; {ways}"]


def _check_no_axis(
    path: Path, variable: Variable, beside: Sequence[Variable], sizes: Mapping[str, int], definition: Definition
) -> None:
    """DataError for coordinates or times of another number than the values have: without them all would be guessed."""
    axis = SPELLINGS.get(variable.name.lower(), variable.name)
    length = sizes.get(axis)
    if length is None or not variable.is_number:
        return
    count = max(variable.shape, default=1)
    held = {SPELLINGS.get(v.name.lower(), v.name): max(v.shape, default=1) for v in beside if v is not variable}
    fit = [
        name for name, n in sizes.items() if name != axis and n == count != length and held.get(name) in (None, length)
    ]
    swap = {axis: fit[0], fit[0]: axis} if fit and definition.dims else {}
    spelled = dict(zip(definition.layout, definition.dims, strict=True))
    order = ", ".join(spelled[swap.get(name, name)] for name in definition.layout)
    raise DataError(
        f"{path}: array {variable.words} is called like an axis of length {length}, but does not have that many "
        "values; "
        + (f"if the axes are in another order, say `dims: [{order}]`, which fits; else " if swap else "")
        + f"give one for each, or, if it is something else, call it otherwise: `datasets: {{OTHER: {variable.key}}}`."
    )


def _without(layout: Dims, *gone: str) -> Dims:
    return tuple(name for name in layout if name not in gone)


def axes_that_fit(
    shape: tuple[int, ...], options: Sequence[Dims], sizes: Mapping[str, int], loose: bool = False
) -> Dims | None:
    """The first of `options` that a shape has; `loose` ignores axes of length 1."""
    for dims in options:
        if len(dims) == len(shape) and all(sizes.get(name, n) == n for name, n in zip(dims, shape, strict=True)):
            return dims
    if not loose:
        return None
    for dims in options:
        long = [n for n in shape if n != 1]
        wanted = [name for name in dims if sizes.get(name, 0) != 1]
        if len(long) == len(wanted) and all(sizes.get(name, n) == n for name, n in zip(wanted, long, strict=True)):
            left = iter(wanted)
            return tuple(next(left) if n != 1 else "" for n in shape)
    return None


def _misfit(path: Path, variable: Variable, definition: Definition, count: int | None) -> str:
    channels = f" and {count} channels" if count and count > 1 else ""
    return (
        f"{path}: array {variable.words} does not have the axes {', '.join(definition.layout)}{channels}; correct "
        "`dims` or `fields` in the task."
    )


# Files that name their axes


def axes_by_name(
    path: Path,
    variables: Sequence[Variable],
    definition: Definition,
    remarks: Remarks,
    points: int = 0,  # noqa: ARG001  (the file says which axis is theirs)
) -> list[Variable]:
    """The arrays of a file that names its axes, with these names made ours; those of no use are left out."""
    attributes = {v.name: v.attributes for v in variables}
    renaming = {key.strip("/"): name for name, key in definition.datasets.items()}
    bounds = {str(v.attributes.get("bounds", "")) for v in variables}
    auxiliary = {name for v in variables for name in str(v.attributes.get("coordinates", "")).split()}
    roles: dict[str, str] = {}
    for dim in {dim for v in variables for dim in v.dims}:
        role = role_of(dim, attributes.get(dim, {}), definition)
        roles[dim] = SPELLINGS.get(renaming.get(dim, "").lower(), renaming[dim]) if dim in renaming else role
    chosen, strange = [], []
    for variable in variables:
        dims = tuple(roles[dim] for dim in variable.dims)
        if variable.key in bounds or (variable.key in auxiliary and len(dims) > 1):
            continue
        if variable.dims == (variable.key,) and dims == (SAMPLE,):
            remarks.notes.append(f"array {variable.words} {NUMBERS}")
            continue
        if "" in dims:
            strange.append(f"{variable.words}, whose dimension '{variable.dims[dims.index('')]}' is unknown")
            continue
        chosen.append(dataclasses.replace(variable, name=_coordinate(variable, roles), dims=dims))
    if strange and not any(len(v.dims) > 1 for v in chosen):
        raise DataError(
            f"{path}: holds {strange[0]}; say what it is in a file my.yaml, `datasets: {{sample: NAME}}` or "
            f"`dims: [time, NAME]`, and name that file with --task."
        )
    remarks.notes += [f"array {words} is not used" for words in strange]
    return chosen


def _coordinate(variable: Variable, roles: Mapping[str, str]) -> str:
    """A variable called like a dimension is its coordinate and is called like its axis."""
    return roles[variable.name] if roles.get(variable.name) else variable.name


def role_of(dim: str, attributes: Mapping[str, object], definition: Definition) -> str:
    """What a dimension is: sample, time, channel, the name of an axis of space, or "" where nothing tells."""
    word = dim.lower()
    if word in SPELLINGS:
        return SPELLINGS[word]
    if dim in definition.space:
        return dim
    axis = str(attributes.get("axis", "")).upper()
    if axis == "T" or " since " in str(attributes.get("units", "")) or attributes.get("standard_name") == "time":
        return TIME
    if axis in ("X", "Y", "Z") or word in SPACE:
        return dim
    return SAMPLE if word in SAMPLES else ""
