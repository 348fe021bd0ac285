"""The errors of a run on its test trajectories, by task: from trajectories.json, or of older runs from results.json."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from ups.eval.intervals import number, with_interval
from ups.eval.trajectories import PerTrajectory, main_rows
from ups.eval.trajectories import read as read_trajectories
from ups.parsing import parse_json, read_text
from ups.run_files import RESULTS, TRAJECTORIES
from ups.types import OURS, PERSISTENCE, DataError

LARGEST = 2**26
HARDLY = 0.95  # of the error of no forecast: what has more is not learnt


@dataclass(frozen=True)
class TaskError:
    """The headline of one task: nRMSE with its 95 % interval over `n` trajectories. `exam` names the question: the
    same trajectories under the same protocol; empty where the run has not recorded which trajectories they were."""

    task: str
    value: float
    low: float
    high: float
    n: int
    protocol: str
    exam: str = ""
    persistence: float | None = None
    verdict: str = ""

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
        """The verdict in a few words, nothing where it is `learnt`; of older runs it is known by the error alone."""
        if self.verdict:
            words = self.verdict.partition(":")[0].partition(" (")[0]
            return "" if words == "learnt" else words if words.startswith("learnt") else words.lower()
        idle = 1.0 if self.persistence is None else min(1.0, self.persistence)  # a forecast of zero has 1
        return "" if self.value <= HARDLY * idle else "not learnt"


def errors_of(folder: Path) -> dict[str, TaskError]:
    """The error of each task; a DataError where the run has none that can be read."""
    try:
        rows = read_trajectories(folder)
    except DataError as error:
        older = None if (folder / TRAJECTORIES).exists() else _older(folder)
        if older is None:
            raise error from None
        return older
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
    )


def exam_of(row: PerTrajectory) -> str:
    """A name for the question that a row answers: equal for equal trajectories, whatever their order."""
    words = "\n".join((row.protocol, *sorted(row.marks)))
    return hashlib.sha256(words.encode()).hexdigest()[:8] if all(row.marks) else ""


def _older(folder: Path) -> dict[str, TaskError] | None:
    """What results.json says; None where it is not there or damaged."""
    errors: dict[str, TaskError] = {}
    still: dict[str, float] = {}
    try:
        for row in parse_json(read_text(folder / RESULTS, LARGEST, stored=True)):
            if (row["metric"], row["mode"], row["axis"]) != ("nrmse", "strict", ""):
                continue
            task, (value, low, high) = str(row["task"]), (float(row[name]) for name in ("value", "low", "high"))
            if row["predictor"] == OURS and task not in errors:
                errors[task] = TaskError(task, value, low, high, int(row["n"]), str(row["protocol"]))
            elif row["predictor"] == PERSISTENCE:
                still.setdefault(task, value)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return {task: replace(error, persistence=still.get(task)) for task, error in errors.items()}
