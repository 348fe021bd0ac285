"""Fits data to a simulator: finds the task that it knows, the fields it was trained on, frames at its time step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ups.data import Joined, Source, open_source, renamed
from ups.data.axis_order import reordered, reordering
from ups.data.readers.array_dims import TAKEN
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories, alike
from ups.definition import Definition, definition_from, definition_of, is_file_name
from ups.models import Simulator
from ups.physics import TASKS
from ups.progress import Say
from ups.run.data.datasets import DataSet, check_axes, unsaid
from ups.types import ARRAYS, ConfigError, DataError, Params, UpsError, counted


def definitions_of(run: Path, simulator: Simulator) -> tuple[Definition, ...]:
    """The definitions of the files of training, each under the name of its task, as the simulator says them."""
    try:
        definitions = [Definition.from_plain(content) for content in simulator.provenance.get("definitions", ())]
    except (TypeError, ValueError, AttributeError):
        raise DataError(f"{run}: what its simulator says of the files of training is damaged; save it again.") from None
    left = [name for name in simulator.codec.tasks if name not in {definition.name for definition in definitions}]
    named = [
        definition if definition.name else dataclasses.replace(definition, name=left[0])
        for definition in definitions
        if definition.name in simulator.codec.tasks or (not definition.name and len(left) == 1)
    ]
    return tuple(map(partial(_agreed, named), named))


def _agreed(definitions: Sequence[Definition], definition: Definition) -> Definition:
    """A definition with the parameters that hold for all files of its task, and not for one of several entries."""
    others = [other.parameters for other in definitions if other.name == definition.name]
    common = {k: v for k, v in definition.parameters.items() if all(each.get(k) == v for each in others)}
    return dataclasses.replace(definition, parameters=common)


def open_for(
    simulator: Simulator, path: Path, task: str | None, trained: Sequence[Definition] = (), say: Say = unsaid
) -> Source:
    """A file to be put to a simulator. `task` is a name, or a YAML file with a definition, by which it is read then.

    Otherwise it is read by that one of the definitions `trained` (see `definitions_of`) that fits it. A file of another
    format that describes itself speaks for itself; and so does one that none fits, as far as it can, which is said.
    """
    if task and is_file_name(task):
        return _plainly(simulator, path, definition_from(task), say)
    with ExitStack() as opened:  # all that is opened to choose; the source opens its file again when it is read
        return _best_reading(simulator, path, task, trained, say, opened)


def _best_reading(
    simulator: Simulator, path: Path, task: str | None, trained: Sequence[Definition], say: Say, opened: ExitStack
) -> Source:
    """A file as `open_for` reads it where no definition is named. All sources are closed with `opened`."""
    try:
        itself = opened.enter_context(open_source(path, TASKS, task))
    except UpsError:
        itself = None
    described = itself if itself is not None and itself.task.storage.kind != ARRAYS else None
    name = task or (described.task.name if described is not None else "")
    own = [definition for definition in trained if name in ("", definition.name)]
    kinds = {simulator.codec.task(definition.name).storage.kind for definition in own}
    if described is not None and described.task.storage.kind not in kinds:
        return described
    readings, faults = _readings(path, own, opened)
    if tasks := dict.fromkeys(reading.source.task.name for reading in readings):
        if len(tasks) > 1:
            raise ConfigError(f"{path}: could hold {' or '.join(tasks)}; say which with --task.")
        source, remarks = readings[0].source, readings[0].remarks
    else:
        remarks = [_misfit(path, fault) for fault in faults[:1]]
        try:
            source = _plainly(simulator, path, Definition(name=task or ""), remarks.append, own)
        except UpsError as error:
            raise (faults or [error])[0] from None
    for remark in remarks:
        say(remark)
    return source


@dataclass(frozen=True)
class FittedReading:
    """A file read by a definition of training, with remarks; `sure` where its arrays are certainly those meant."""

    source: Source
    remarks: list[str]
    sure: bool


def _readings(
    path: Path, trained: Sequence[Definition], opened: ExitStack
) -> tuple[list[FittedReading], list[UpsError]]:
    """A file by each of the definitions that fit it, those alone that are sure where there are such; and why others do
    not. Where arrays do not lie where `datasets` looks for them, they may have the names of the task."""
    readings, faults = [], []
    for definition in trained:
        variants = [definition, dataclasses.replace(definition, datasets={})]
        for i, variant in enumerate(variants[: 1 + bool(definition.datasets)]):
            try:
                reading = _as_trained(path, variant, opened)
            except UpsError as error:
                faults.append(error)
                continue
            before = [_misfit(path, faults[-1])] if i else []
            readings.append(dataclasses.replace(reading, remarks=before + reading.remarks, sure=reading.sure and not i))
            break
    sure = [reading for reading in readings if reading.sure]
    return sure or readings, faults


def _as_trained(path: Path, definition: Definition, opened: ExitStack) -> FittedReading:
    """A file by the definition of the files of training. What it says itself of parameters and of its box holds."""
    source = opened.enter_context(open_source(path, TASKS, dataclasses.replace(definition, parameters={})))
    # Attributes that the task asks for become parameters where the source is put to the simulator, in `fitting`.
    attributes = {name: value for name, value in source.offered.items() if name in definition.parameters}
    stated = {**attributes, **source.params_of(0)}
    remarks = [
        f"{path}: its {name} is {stated[name]}, and the files of training were read with {value}."
        for name, value in definition.parameters.items()
        if name in stated and stated[name] != value
    ]
    missing = {name: value for name, value in definition.parameters.items() if name not in stated}
    bounds = {axis: ends for axis, ends in definition.bounds.items() if _within(source, axis)}
    if missing or bounds != definition.bounds:
        whole = dataclasses.replace(definition, parameters=missing, bounds=bounds)
        source = opened.enter_context(open_source(path, TASKS, whole))
    taken = [f"{path}: {note}." for note in source.notes if TAKEN in note]
    return FittedReading(source, remarks + taken, not taken)


def _within(source: Source, axis: str) -> bool:
    """Whether the coordinates of an axis reach to the ends that its definition gives it, to a cell."""
    at = source.task.axes.index(axis)
    cells, (low, high) = source.grid.coordinates[at], source.grid.bounds[at]
    return max(abs(float(cells[0]) - low), abs(float(cells[-1]) - high)) <= (high - low) / len(cells)


def _plainly(
    simulator: Simulator, path: Path, definition: Definition, say: Say, trained: Sequence[Definition] = ()
) -> Source:
    """A file by a definition, often but a name; arrays that describe nothing themselves are read as the task of that
    name that the simulator knows, or the only one it knows, with the `dt` of training where they have no times."""
    try:
        return open_source(path, TASKS, definition)
    except UpsError as fault:
        known = list(simulator.codec.tasks)
        name = definition.name or (known[0] if len(known) == 1 else "")
        alone = definition == Definition(name=definition.name)
        if definition.dims or name not in known or not (alone or isinstance(fault, DataError)):
            raise
        dt = next((d.dt for d in trained if d.name == name), definition.dt)
        changes: dict[str, Any] = {"bounds": {}, "datasets": definition.datasets, "dt": dt}
        own = dataclasses.replace(definition_of(simulator.codec.task(name)), **changes)
        try:
            source = open_source(path, TASKS, own)
        except UpsError:
            raise fault from None
    if source.task.storage.kind == ARRAYS:
        say(f"{path}: its arrays are read as [{', '.join(own.dims)}] of {name}; --task my.yaml says otherwise.")
        for note in source.notes:
            say(f"{path}: {note}.")
    return source


def _misfit(path: Path, fault: UpsError) -> str:
    """That a file is not read as those of training, and why: what is wrong, without what to do."""
    cause = str(fault).removeprefix(f"{path}: ").partition(";")[0].rstrip(".")
    return f"{path}: is not laid out as the files of training were ({cause})."


def fitting(simulator: Simulator, source: Source, params: Params, ahead: int, say: Say = unsaid) -> Source:
    """The source to read, of a task that the simulator knows; refused in a sentence where the two do not fit.

    `params` stand in for what the source says of its parameters. `ahead` frames are wanted after those given. `say` is
    told which parameters of the source the simulator does not know.
    """
    name = source.task.name
    if name not in simulator.codec.tasks:
        known = ", ".join(simulator.codec.tasks)
        raise ConfigError(
            f"{source.path}: holds {name}, which the simulator was not trained on; it knows {known} (--task says that "
            "it is one of these)."
        )
    spec = simulator.codec.task(name)
    if note := reordering(source.task, spec):
        say(f"{source.path}: {note}")
    source = reordered(source, spec)
    if source.task.channels != spec.channels or source.grid.ndim != spec.ndim:
        ours, theirs = ", ".join(spec.channels), ", ".join(source.task.channels)
        raise DataError(
            f"{source.path}: has the fields {theirs} on {counted(source.grid.ndim, 'axis')}, but the simulator was "
            f"trained on {ours} on {spec.ndim}; give it data with these."
        )
    check_axes(source)
    if source.task.mask and not spec.mask:
        _check_counting(source)
    if source.task.given != spec.given:
        ours, theirs = (", ".join(names) or "nothing" for names in (spec.given, source.task.given))
        raise DataError(f"{source.path}: is given {theirs}, but the simulator was trained with {ours} given.")
    if unknown := [name for name in source.params_of(0) if name not in {p.name for p in spec.parameters}]:
        say(f"{source.path}: its {', '.join(unknown)} is not used, for the simulator was trained without it.")
    # The simulator's own task: what it is told of parameters comes in the order in which it was trained on them.
    source = renamed(source, spec).assuming(params)
    if spec.steady:
        return source
    every = spaced(source, simulator.ranges()[name]["dt"][0], None).time
    # What is judged comes after as many frames of each task; what is continued needs those alone that are looked at.
    needed = simulator.context + ahead if ahead else simulator.looks_back(name)
    frames = len(source.times[::every])
    if frames < needed:
        raise DataError(
            f"{source.path}: has {counted(frames, 'frame')} at the trained spacing in time, and {needed} are needed; "
            "give it longer trajectories."
        )
    return source


def _check_counting(source: Source) -> None:
    """DataError where cells of a sample do not count: for a simulator that was trained without a mask."""
    place = source.task.given.index(source.task.mask)
    for i, name in enumerate(source.ids):
        counts = source.inputs(i)[..., place] > 0.5
        if not counts.all():
            missing = counts.size - int(counts.sum())
            raise DataError(
                f"{source.path}: {missing} of {counts.size} cells of sample {name} do not count (NaN in its first "
                "frame, or 0 in its mask), but the simulator was trained on whole frames; mend that sample, or leave "
                "it out."
            )


def predicted_in(source: Source) -> list[str]:
    """A sentence for each file of a source that holds what a simulator predicted."""
    sentences = []
    for part in source.parts if isinstance(source, Joined) else (source,):
        made = part.attributes()
        if "ups_simulator" in made:
            first = counted(int(made.get("ups_given_frames", 0)), "frame")
            what = "its frames are" if part.task.steady else f"what follows its first {first} is"
            truth = "what a simulator predicted, and no truth to judge one by"
            sentences.append(f"{part.path} was written by `ups rollout`: {what} {truth}.")
    return sentences


def each_spaced(
    source: Source, ids: Sequence[str], dt: float, data: DataSet | None, thin: int = 1
) -> list[Trajectories]:
    """Samples of a source as trajectories, each with the frames that lie `dt` apart by its own times; those of most
    cells first."""
    groups: dict[Reduction, list[str]] = {}
    place = {name: i for i, name in enumerate(source.ids)}
    for name in ids:
        groups.setdefault(spaced(source, dt, data, thin, place[name]), []).append(name)
    parts = [part for reduction, names in groups.items() for part in alike(source, names, reduction)]
    return sorted(parts, key=lambda part: -math.prod(part.shape))


def spaced(source: Source, dt: float, data: DataSet | None, thin: int = 1, sample: int = 0) -> Reduction:
    """The frames of a sample that lie `dt` apart, as nearly as its own allow, from where training began on."""
    clock = source.times_of(sample)
    if len(clock) < 2 or dt <= 0:
        return Reduction(space=thin)
    own = float(clock[1] - clock[0])
    start = 0
    if data is not None and (first := data.first.config.reduce.start):
        times = data.first.source.times
        start = round(float(times[first] - times[0]) / own)
    return Reduction(time=max(1, round(dt / own)), space=thin, start=start)
