"""Several sources of one task as one: their grids, times and parameters may differ, their fields may not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.axis_order import in_order, reordered
from ups.data.source import AS_PARAMETER, UNUSED, Source, SourceFacts, View
from ups.data.splits import parts_of
from ups.data.units import units_of_all
from ups.types import Array, ConfigError, DataError, Grid, Param, Params, TaskSpec, Trajectory, counted, few

# Names of numbers that tell runs apart, and are no parameters of what is simulated.
LABELS = re.compile(
    r"(^|_)(seed|id|uuid|timestamp)$|^(created|index|number|((run|case|sample|simulation|trajectory)(_?(index|number))?))$",
    re.IGNORECASE,
)
SIZE = re.compile(r"\(\d+(?: [×x] \d+)*\)")  # of an array, as notes say it


def same_task(sources: Sequence[Source]) -> TaskSpec:
    """The task that several sources are of, with the parameters of all; DataError where fields or units differ."""
    first = sources[0].task
    params = {p.name: p for p in first.parameters}
    for source in sources[1:]:
        task = in_order(source.task, first)
        if task.fields == first.fields and task.mask != first.mask:
            bare = source if first.mask else sources[0]
            raise DataError(
                f"{bare.path}: has no mask, and others of {first.name} have one; add `mask: mask` to the task of both."
            )
        if (task.fields, task.inputs, task.ndim, task.mask) != (first.fields, first.inputs, first.ndim, first.mask):
            raise DataError(
                f"{source.path}: holds {', '.join(task.channels + task.given)} on {counted(task.ndim, 'axis')}, but "
                f"{sources[0].path} of the same task {first.name} holds {', '.join(first.channels + first.given)} on "
                f"{first.ndim}; give them different tasks."
            )
        check_dynamics(task, first)
        for p in task.parameters:
            old = params.setdefault(p.name, p)
            if bool(old.choices) != bool(p.choices):
                raise DataError(
                    f"{source.path}: its {p.name} is a word in one file of {first.name} and not in another."
                )
            params[p.name] = dataclasses.replace(old, choices=tuple(dict.fromkeys((*old.choices, *p.choices))))
    for name in _differing(sources):
        params[name] = Param(name, sources[0].offered[name], "stated in the file")
    units_of_all(sources)
    return dataclasses.replace(first, parameters=tuple(params.values()))


def check_dynamics(task: TaskSpec, other: TaskSpec) -> None:
    """ConfigError where two data sets of one task do not say the same of how its states go on."""
    for key, value in vars(task.dynamics).items():
        if value != (theirs := getattr(other.dynamics, key)):
            raise ConfigError(
                f"{task.name}: `{key}` is {value} of one of its data sets and {theirs} of another; say the same of "
                "all, or give them different tasks."
            )


def _differing(sources: Sequence[Source]) -> list[str]:
    """The numbers that all sources offer and none has as a parameter, and that differ between them; what tells runs
    apart, as seeds do, is none."""
    first, *others = sources
    everywhere = [name for name in first.offered if all(name in source.offered for source in others)]
    values = {name: {source.offered[name] for source in sources} for name in everywhere if not LABELS.search(name)}
    stated = {p.name for source in sources for p in source.task.parameters}
    return [name for name, distinct in values.items() if len(distinct) > 1 and name not in stated]


def renamed(source: Source, task: TaskSpec) -> Source:
    """The same source as one of `task`, whose parameters may be among the numbers that it offers, and whose axes may
    stand in another order."""
    source = reordered(source, task)
    whole = with_params_of(source, task)
    if whole is not source:
        names = [name for name in source.offered if name not in whole.offered]
        what = "is a parameter" if len(names) == 1 else "are parameters"
        way = f"`ignore: [{names[0]}]` in the task leaves {'it' if len(names) == 1 else names[0]} out"
        whole.notes = (*whole.notes, f"of the numbers among the attributes {few(names)} {what}; {way}")
    return whole if whole.task == task else View(whole, task=task)


def with_params_of(source: Source, task: TaskSpec) -> Source:
    """The same source with those of the numbers that it offers as parameters that `task` has."""
    stated = {p.name for p in source.task.parameters} & set(source.params_of(0)) if source.offered else set()
    names = [p.name for p in task.parameters if p.name in source.offered and p.name not in stated and not p.choices]
    return _Told(source, {name: source.offered[name] for name in names}) if names else source


class _Told(View):
    """Another source with some of the numbers that it offers as parameters."""

    def __init__(self, source: Source, params: Params) -> None:
        left = {name: value for name, value in source.offered.items() if name not in params}
        unnamed = {**source.unnamed, **{name: name for name in params}}
        super().__init__(source, params={**source.params, **params}, offered=left, unnamed=unnamed)
        self._told = dict(params)

    def params_of(self, index: int) -> Params:
        return {**self.source.params_of(index), **self._told}


class Joined(Source):
    """Several sources of one task, one after the other; their grids, times and parameters may differ.

    An id is `<name>/<id>`: the names are given, or those of the files without their suffix; `ids` gives them whole.
    """

    def __init__(self, path: Path, parts: Sequence[Source], names: Sequence[str] = (), ids: Sequence[str] = ()) -> None:
        task, first = same_task(parts), parts[0]
        parts = [renamed(part, task) for part in parts]
        if not ids:
            names = names or stems(path, [part.path for part in parts])
            ids = [f"{label}/{name}" for label, part in zip(names, parts, strict=True) for name in part.ids]
        common = {k: v for k, v in first.params.items() if all(part.params.get(k) == v for part in parts)}
        labels = [_label(path, part.path) for part in parts]
        notes, problems = ([*_remarks(parts, labels, kind)] for kind in ("notes", "problems"))
        everywhere = {k: v for k, v in parts[0].offered.items() if all(part.offered.get(k) == v for part in parts)}
        notes += _left_over(parts, everywhere)
        stated = [frozenset(part.params_of(0)) for part in parts]
        for name in sorted(frozenset().union(*stated)):
            silent = [
                part.path.name for part, names_there in zip(parts, stated, strict=True) if name not in names_there
            ]
            problems += [f"{few(silent)}: do not say {name}, which other files do"] if silent else []
        facts = SourceFacts(
            task=task,
            params=common,
            grid=first.grid,
            times=first.times,
            ids=tuple(ids),
            notes=tuple(notes),
            problems=tuple(problems),
            units=units_of_all(parts),
            offered=everywhere,
            unplaced=tuple(dict.fromkeys(name for part in parts for name in part.unplaced)),
            unnamed={name: key for part in parts for name, key in part.unnamed.items()},
        )
        super().__init__(path, facts)
        self.parts, self.nan_is_mask = tuple(parts), any(part.nan_is_mask for part in parts)
        self.channels_apart = all(part.channels_apart for part in parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def _locate(self, index: int) -> tuple[Source, int]:
        """The part that holds a sample, and its place there."""
        index = self._position(index)
        which = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.parts[which], index - int(self._starts[which])

    def _values(self, index: int, frames: slice) -> Array:
        part, at = self._locate(index)
        return part.read(at, frames)

    def _inputs(self, index: int) -> Array:
        part, at = self._locate(index)
        return part.inputs(at)

    def beside(self, index: int) -> range:
        part, at = self._locate(index)
        there, shift = part.beside(at), self._position(index) - at
        return range(there.start + shift, there.stop + shift)

    def _values_of(self, samples: range, frames: slice) -> Array:
        part, at = self._locate(samples[0])
        return part.read_several(range(at, at + len(samples)), frames)

    def read_into(self, samples: Sequence[int], frames: slice, into: Array) -> bool:
        """Where all of them are of one part."""
        part, first = self._locate(samples[0])
        shift = samples[0] - first
        inside = shift <= min(samples) and max(samples) < shift + len(part)
        return inside and part.read_into([sample - shift for sample in samples], frames, into)

    def _inputs_of(self, samples: range) -> Array:
        part, at = self._locate(samples[0])
        return part.inputs_of(range(at, at + len(samples)))

    def __getitem__(self, index: int) -> Trajectory:
        part, at = self._locate(index)
        return dataclasses.replace(part[at], id=self.ids[index])

    def params_of(self, index: int) -> Params:
        part, at = self._locate(index)
        return part.params_of(at)

    def times_of(self, index: int) -> Array:
        part, at = self._locate(index)
        return part.times_of(at)

    def grid_of(self, index: int) -> Grid:
        part, at = self._locate(index)
        return part.grid_of(at)

    def attributes(self) -> dict[str, Any]:
        return self.parts[0].attributes()

    def files(self) -> list[Path]:
        return list(dict.fromkeys(path for part in self.parts for path in part.files()))

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _left_over(parts: Sequence[Source], everywhere: Mapping[str, float]) -> list[str]:
    """Notes on the numbers that parts offer, that nobody asks for, and that are not the same in all of them."""
    names = dict.fromkeys(name for part in parts for name in part.offered if name not in everywhere)
    missing = [name for name in names if not all(name in part.offered for part in parts)]
    labels = [name for name in names if name not in missing]
    notes = [f"{UNUSED} ({few(missing)}), for not all files have {_them(missing)}"] if missing else []
    reason = f"for {'it tells' if len(labels) == 1 else 'they tell'} runs apart"
    return notes + ([f"{UNUSED} ({few(labels)}), {reason}; {AS_PARAMETER.format(labels[0])}"] if labels else [])


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _remarks(parts: Sequence[Source], labels: Sequence[str], kind: str) -> Iterator[str]:
    """The notes or problems of all parts; those that not all parts have begin with the names of their files. Notes
    that differ in the size of an array alone are joined."""
    places: dict[str, dict[str, str]] = {}
    for part, label in zip(parts, labels, strict=True):
        for text in getattr(part, kind):
            places.setdefault(SIZE.sub("()", text), {})[label] = text
    for files in places.values():
        sizes = dict.fromkeys(files.values())
        text = next(iter(sizes))
        text = SIZE.sub(lambda match: f"{match[0][:-1]} and other sizes)", text, count=1) if len(sizes) > 1 else text
        yield text if len(files) == len(set(labels)) and len(parts) > 1 else f"{few(files)}: {text}"


def _label(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) and path != folder else path.name


def stems(folder: Path, paths: Sequence[Path]) -> list[str]:
    """The names of files without their suffix; below their folder where two are called the same, or where its folders
    say what is for training and what for testing."""
    short = [path.stem for path in paths]
    base = folder.absolute()
    longer = [path.absolute().with_suffix("") for path in paths]
    names = [p.relative_to(base).as_posix() if p.is_relative_to(base) else str(p) for p in longer]
    return short if len(set(short)) == len(short) and parts_of(names) is None else names
