"""Checks before any work that gates can be decided: their tasks, their metrics, and the champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ups.eval.gates import LAW, boundable, metric_of
from ups.eval.metrics import METRICS
from ups.physics.laws import laws_of
from ups.rundir import RunDir
from ups.types import ConfigError, TaskSpec, nearest


def require_measurable(
    bounds: Mapping[str, Mapping[str, float]], tasks: Sequence[tuple[TaskSpec, tuple[bool, ...]]]
) -> None:
    """ConfigError for a gate on a task that the run does not have, or on a metric that its evaluation does not give.

    `tasks` come with which of their axes are periodic in the data.
    """
    known = {task.name: (task, periodic) for task, periodic in tasks}
    for name, wanted in bounds.items():
        if name not in known:
            hint = nearest(name, known, f"its tasks are {', '.join(known)}.")
            raise ConfigError(f"gates.{name}: this run has no task '{name}'; {hint}")
        task, periodic = known[name]
        laws = [law.name for law in laws_of(task, periodic)]
        for metric in wanted:
            record = metric_of(metric)
            if record in METRICS and METRICS[record].larger_is_better:
                raise ConfigError(f"gates.{name}.{metric}: is better when it is larger, and a gate is an upper bound.")
            if record.startswith(LAW) and record.removeprefix(LAW) not in laws:
                there = [*boundable(), *laws]
                hint = nearest(metric, there, f"its metrics are {', '.join(there)}.")
                raise ConfigError(f"gates.{name}.{metric}: the evaluation of {name} gives no '{metric}'; {hint}")


def champion_folder(champion: str, own: Path) -> RunDir:
    """The folder of a champion; ConfigError where it is no run, has no simulator, or is the run itself."""
    folder = Path(champion)
    if folder.resolve() == own.resolve():
        raise ConfigError(f"gates.champion: {champion} is this very run; name another, or leave it out.")
    run = RunDir(folder)
    if not run.config.is_file():
        raise ConfigError(f"gates.champion: {champion} is not a run folder (it has no config.yaml); check the path.")
    if not run.artifact("simulator").is_file():
        raise ConfigError(f"gates.champion: {champion} has no simulator, for its training has not finished; finish it.")
    return run
