"""How data are put to a simulator: a task it knows, the fields it was trained on, frames at its spacing in time."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

from ups.data import Source, open_source, renamed
from ups.data.trajectories import Reduction
from ups.definition import Definition, definition_from, definition_of
from ups.models import Simulator
from ups.physics import TASKS
from ups.run.datasets import DataSet
from ups.types import ConfigError, DataError, Params, UpsError, counted


def open_for(simulator: Simulator, path: Path, task: str | None) -> Source:
    """A file to be put to a simulator. `task` is a name, or a YAML file that describes it; arrays that describe nothing
    themselves are read as the task of that name that the simulator knows, or the only one it knows."""
    definition = definition_from(task) if task else Definition()
    try:
        return open_source(path, TASKS, definition)
    except DataError:
        known = list(simulator.codec.tasks)
        name = definition.name or (known[0] if len(known) == 1 else "")
        if definition.dims or name not in known:
            raise
        own = dataclasses.replace(definition_of(simulator.codec.task(name)), bounds={}, datasets=definition.datasets)
        with suppress(UpsError):
            return open_source(path, TASKS, own)
        raise


def fitting(simulator: Simulator, source: Source, params: Params, ahead: int) -> Source:
    """The source to read, of a task that the simulator knows; refused in a sentence where the two do not fit.

    `params` stand in for what the source says of its parameters. `ahead` frames are wanted after those given.
    """
    name = source.task.name
    if name not in simulator.codec.tasks:
        known = ", ".join(simulator.codec.tasks)
        raise ConfigError(
            f"{source.path}: holds {name}, which the simulator was not trained on; it knows {known} (--task says that "
            "it is one of these)."
        )
    spec = simulator.codec.task(name)
    if source.task.channels != spec.channels or source.domain.ndim != spec.ndim:
        ours, theirs = ", ".join(spec.channels), ", ".join(source.task.channels)
        raise DataError(
            f"{source.path}: has the fields {theirs} on {counted(source.domain.ndim, 'axis')}, but the simulator was "
            f"trained on {ours} on {spec.ndim}; give it data with these."
        )
    if source.task.given != spec.given:
        ours, theirs = (", ".join(names) or "nothing" for names in (spec.given, source.task.given))
        raise DataError(f"{source.path}: is given {theirs}, but the simulator was trained with {ours} given.")
    # The simulator's own task: what it is told of parameters comes in the order in which it was trained on them.
    source = renamed(source, spec).assuming(params)
    if spec.steady:
        return source
    every = spaced(source, simulator.ranges()[name]["dt"][0], None).time
    # What is judged comes after as many frames of each task; what is continued needs those alone that are looked at.
    needed = simulator.context + ahead if ahead else simulator.operator.config.looks_back(name)
    frames = len(source.times[::every])
    if frames < needed:
        raise DataError(
            f"{source.path}: has {counted(frames, 'frame')} at the trained spacing in time, and {needed} are needed; "
            "give it longer trajectories."
        )
    return source


def spaced(source: Source, dt: float, data: DataSet | None, thin: int = 1) -> Reduction:
    """The frames of a source that lie `dt` apart, as nearly as its own allow, from where training began on; judged by
    its first sample, and every sample is thinned alike."""
    if len(source.times) < 2 or dt <= 0:
        return Reduction(space=thin)
    own = float(source.times[1] - source.times[0])
    start = 0
    if data is not None and (first := data.first.config.reduce.start):
        times = data.first.source.times
        start = round(float(times[first] - times[0]) / own)
    return Reduction(time=max(1, round(dt / own)), space=thin, start=start)
