"""The errors of a run: on test trajectories, by task; on validation trajectories, by which settings are chosen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.eval.intervals import number, with_interval
from ups.eval.nrmse import over_tasks
from ups.eval.trajectories import PerTrajectory, main_rows
from ups.eval.trajectories import read as read_trajectories
from ups.parsing import read_json
from ups.rundir import RunDir
from ups.types import OURS, PERSISTENCE


@dataclass(frozen=True)
class TaskError:
    """The headline of one task: nRMSE with its 95 % interval over `n` trajectories, their median and VRMSE. `exam`
    names the question: the same trajectories under the same protocol."""

    task: str
    value: float
    low: float
    high: float
    n: int
    protocol: str
    exam: str = ""
    persistence: float | None = None
    verdict: str = ""
    median: float = math.nan
    vrmse: float = math.nan

    @property
    def words(self) -> str:
        return with_interval(self.value, self.low, self.high, self.n)

    @property
    def briefly(self) -> str:
        """The number alone, and what it must not be taken for: an error of something learnt, or of whole rollouts."""
        remarks = [self._verdict] if self._verdict else []
        remarks += [f"protocol {self.protocol.split()[0]}"] * (not self.protocol.startswith("A"))
        return number(self.value) + (f" ({', '.join(remarks)})" if remarks else "")

    @property
    def _verdict(self) -> str:
        """The verdict in a few words, nothing where it is `learnt`."""
        words = self.verdict.partition(":")[0].partition(" (")[0]
        return "" if words == "learnt" else words if words.startswith("learnt") else words.lower()


def errors_of(folder: Path) -> dict[str, TaskError]:
    """The error of each task; a DataError where the run has none that can be read."""
    rows = read_trajectories(folder)
    ours = main_rows(rows, OURS)
    still = {row.task: row.value for row in main_rows(rows, PERSISTENCE).values()}
    return {task: _error_of(row, still.get(task)) for task, row in ours.items()}


def _error_of(row: PerTrajectory, persistence: float | None) -> TaskError:
    return TaskError(
        task=row.task,
        value=row.value,
        low=row.low,
        high=row.high,
        n=len(row.nrmse),
        protocol=row.protocol,
        exam=exam_of(row),
        persistence=persistence,
        verdict=row.verdict,
        median=row.median,
        vrmse=row.vrmse,
    )


def exam_of(row: PerTrajectory) -> str:
    """A name for the question that a row answers: equal for equal trajectories, whatever their order."""
    words = "\n".join((row.protocol, *sorted(row.marks)))
    return hashlib.sha256(words.encode()).hexdigest()[:8]


# What stages measure in physical space. A critic's guess is no error of a simulator.
MEASURES = ("nRMSE", "CRPS", "reconstruction")


@dataclass(frozen=True)
class Validation:
    """The error of the weights that were kept. `measure` names it, or several where tasks differ in it; `value` is the
    geometric mean over tasks, as stages score themselves."""

    measure: str
    value: float


def validation_of(run: RunDir) -> Validation | None:
    """The error of each task that the last stage has measured in physical space; None where none has."""
    errors: dict[str, tuple[str, float]] = {}
    for outcome in read_json(run.stages).values():
        if isinstance(outcome, dict):
            errors |= {task: (measure, value) for task, measure, value in _measured(outcome)}
    if not errors:
        return None
    measures = " and ".join(dict.fromkeys(measure for measure, _ in errors.values()))
    values = [value for _, value in errors.values()]
    if not all(map(math.isfinite, values)):
        return Validation(measures, math.inf)
    return Validation(measures, over_tasks(values))


def _measured(outcome: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Task, measure and value of what the validation of the best step has found."""
    history = outcome.get("history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    best = next((row for row in reversed(rows) if row.get("step") == outcome.get("best_step")), {})
    for key, value in best.items():
        task, _, measure = key.rpartition(" ")
        if task and measure in MEASURES and isinstance(value, int | float):
            yield task, measure, float(value)
