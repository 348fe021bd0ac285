"""evaluation.json: the error of each test trajectory and what was said of them, so that gates are decided again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ups.eval.gates import Gate, SampleErrors, against
from ups.eval.report import Report
from ups.eval.results import TaskResult
from ups.eval.rollout import Evaluation
from ups.files import sha256
from ups.rundir import RunDir
from ups.verdict import read_json

ABOUT = (
    "nRMSE of each test trajectory by task, and of a champion on the same; `data`: SHA-256 of the files they are of."
)
Digests = Callable[[str], Sequence[str]]  # what says which trajectories a task has


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation leaves for later. `champions` are other runs' errors on the trajectories of this one, by their
    folder; `simulator` is the SHA-256 of what was judged, `headline` and `remarks` are what was shown."""

    simulator: str
    tasks: Mapping[str, SampleErrors]
    champions: Mapping[str, Mapping[str, Any]]
    headline: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, report: Report, folder: RunDir, champion: str, digests: Digests) -> Evaluated:
        """What is to be kept of a report."""
        tasks = {name_of(task): errors_of(task.ours.evaluation, digests) for task in report.tasks}
        theirs = {
            name_of(task): errors_of(task.champion.evaluation, digests)
            for task in report.tasks
            if task.champion is not None
        }
        champions: dict[str, Mapping[str, Any]] = {}
        if champion:
            made_by = sha256(RunDir(Path(champion)).artifact("simulator"))
            champions = {champion: {"simulator": made_by, "tasks": theirs}}
        artifact = folder.artifact("simulator")
        headline = report.headline() if report.tasks else ()
        return cls(sha256(artifact) if artifact.is_file() else "", tasks, champions, headline, report.said())

    def write(self, folder: RunDir) -> None:
        folder.write(folder.evaluation, {"about": ABOUT, **_encoded(asdict(self))})

    @classmethod
    def read(cls, folder: RunDir) -> Evaluated | None:
        """What a run's evaluation has left; None where there is nothing, or nothing that can be read."""
        values = read_json(folder.evaluation)
        try:
            tasks = {name: _errors(row) for name, row in values["tasks"].items()}
            champions = {
                who: {"simulator": row["simulator"], "tasks": {name: _errors(r) for name, r in row["tasks"].items()}}
                for who, row in values["champions"].items()
            }
            headline = tuple(tuple(map(str, row)) for row in values["headline"])
            return cls(str(values["simulator"]), tasks, champions, headline, tuple(map(str, values["remarks"])))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def name_of(task: TaskResult) -> str:
    return task.ours.evaluation.task.name


def errors_of(e: Evaluation, digests: Digests) -> SampleErrors:
    """The errors of an evaluation, each with the id of its trajectory."""
    return SampleErrors(e.split, e.steps, e.ids, tuple(digests(e.task.name)), tuple(map(float, e.per_sample())))


def champion_gates(champion: str, mine: Evaluated) -> tuple[tuple[Gate, ...], tuple[str, ...]]:
    """The gate of each task that a champion knows too; and the tasks whose errors of it are not known yet."""
    place = RunDir(Path(champion))
    theirs, judged = Evaluated.read(place), mine.champions.get(champion, {})
    artifact = place.artifact("simulator")
    current = sha256(artifact) if artifact.is_file() else ""
    here = judged.get("tasks", {}) if judged.get("simulator") == current else {}
    gates, unknown = [], []
    for task, ours in mine.tasks.items():
        own = theirs.tasks.get(task) if theirs is not None and theirs.simulator == current else None
        if own is not None and own.same_trajectories(ours):
            gates.append(against(champion, task, ours, own))
        elif task in here:
            note = "it was judged on other test trajectories, so its simulator was judged on these"
            note += ", some of which it may have been trained on"
            gates.append(against(champion, task, ours, here[task], note))
        elif not here:
            unknown.append(task)
    return tuple(gates), tuple(unknown)


def _errors(row: Mapping[str, Any]) -> SampleErrors:
    values = tuple(float(value) for value in row["nrmse"])
    words = (str(row["split"]), int(row["frames"]), tuple(map(str, row["ids"])), tuple(map(str, row["data"])))
    return SampleErrors(*words, values)


def _encoded(value: Any) -> Any:
    """JSON has no infinity: such numbers are words that `float` reads."""
    if isinstance(value, dict):
        return {key: _encoded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
