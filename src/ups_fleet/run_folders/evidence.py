"""Reads a run's folder without trusting it: the end of its log, budgets, checkpoints, heartbeats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ups.engine.checkpoint.manifest import MANIFEST, listing
from ups.eval.learning import stage_of
from ups.files import holder
from ups.heartbeat import Beat
from ups.heartbeat import read as read_beat
from ups.parsing import Row, end_of, number_of, read_text, rows_in
from ups.rundir import RunDir
from ups_fleet.supervise.proc import identity, is_mine, of_runs, seen_by
from ups_fleet.supervise.start_dir import StartDir

TRAIN = "train"  # the phase whose steps the log tells


@dataclass(frozen=True)
class TrainingPlace:
    """Where a training was when something was last written of it. `logged`: by a row of the log; a heartbeat knows no
    stage, so before the first row its step may be of the stage before."""

    stage: str
    step: int
    time: float
    logged: bool = True


@dataclass(frozen=True)
class Phase:
    """The phase that a run was in when its record was last written to. `under_way`: it had not ended; `broken_off`: it
    had not, or had failed. `part` is the stage that was trained."""

    name: str
    time: float
    under_way: bool
    broken_off: bool = False
    part: str = ""


@dataclass(frozen=True)
class StageBudget:
    """What a stage is trained for."""

    steps: int | None = None
    seconds: float | None = None


class LivingProcesses:
    """The living processes of this machine's runs, looked up once for many folders."""

    def __init__(self) -> None:
        self.by_folder = of_runs()

    def starts(self, folder: Path) -> list[StartDir]:
        """The folders, in memory, of what runs now for a run."""
        here = identity(folder)
        ranks = {} if here is None else self.by_folder.get(here, {})
        return [StartDir(seen_by(pid, variables["UPS_RUN"])) for pid, variables in sorted(ranks.items())]


def last_rows(log: Path) -> Iterator[Row]:
    """The last rows of a log, newest first."""
    return rows_in(reversed(end_of(log).splitlines()))


def place_of(rows: Iterable[Row]) -> TrainingPlace | None:
    """Where the training was when the newest of these rows was written."""
    for row in rows:
        stage, step, time = stage_of(row), row.get("step"), number_of(row.get("time"))
        if stage and isinstance(step, int) and time is not None and math.isfinite(time):
            return TrainingPlace(one_line(stage), step, time)
    return None


def phases_of(folder: RunDir) -> Iterator[Row]:
    """The last rows of the record of a run's phases, newest first; none where it keeps no such record."""
    return last_rows(folder.journal)


def phase_of(folder: RunDir) -> Phase | None:
    """Where a run is among its phases, or was when it was killed."""
    for row in phases_of(folder):
        name, time = row.get("phase"), number_of(row.get("clock"))
        if isinstance(name, str) and time is not None and math.isfinite(time):
            under_way, part = row.get("event") == "begin", one_line(str(row.get("part") or ""), 40)
            return Phase(one_line(name, 40), time, under_way, under_way or row.get("result") == "failed", part)
    return None


def training_place(folder: RunDir, phase: Phase | None) -> TrainingPlace | None:
    """Where the training of a run is, or was. The log knows nothing yet of a stage that has only begun."""
    place = place_of(last_rows(folder.metrics))
    begun = phase is not None and phase.name == TRAIN and phase.broken_off and bool(phase.part)
    if phase is not None and begun and (place is None or place.stage != phase.part):
        return TrainingPlace(phase.part, 0, phase.time, logged=False)
    return place


def budget_of(folder: RunDir, stage: str) -> StageBudget:
    """What the config gives a stage. Read from its lines, as `dump` writes them: a parser takes a hundred times as
    long, and there may be a thousand runs."""
    try:
        text = read_text(folder.config, stored=True)
    except (OSError, ValueError):
        return StageBudget()
    section = re.search(rf"^{re.escape(stage)}:\n((?:  .*\n)*)", text, re.M)
    train = re.search(r"^  train:\n((?:    .*\n)*)", section[1], re.M) if section else None
    values = dict(re.findall(r"^    (steps|seconds): ([\d.e+]+)$", train[1], re.M)) if train else {}
    try:
        steps, seconds = values.get("steps"), values.get("seconds")
        return StageBudget(int(steps) if steps else None, float(seconds) if seconds else None)
    except ValueError:
        return StageBudget()


def checkpoints_of(folder: RunDir) -> dict[str, int]:
    """The step of each stage's newest published checkpoint. It had all its files when it got its name; a resume
    verifies them, and goes back to an older one where they are damaged."""
    steps = {}
    try:
        for stage in (path for path in folder.checkpoints().iterdir() if path.is_dir()):
            newest = next((path for path in listing(stage) if (path / MANIFEST).is_file()), None)
            if newest is not None:
                steps[stage.name] = int(newest.name.removeprefix("step-"))
    except OSError:
        return steps
    return steps


def beats_of(starts: list[StartDir]) -> dict[int, Beat]:
    """The last heartbeat of each rank, by rank."""
    beats: dict[int, Beat] = {}
    for start in starts:
        for path in start.folder.glob("heartbeat-*"):
            beat = read_beat(path)
            if beat is not None and (beat.rank not in beats or beat.count > beats[beat.rank].count):
                beats[beat.rank] = beat
    return beats


def starts_of(pid: int, alive: bool) -> list[StartDir]:
    """What a supervisor of this machine keeps in memory, by its number, or has left there when it was killed: then
    nobody holds it, and another process of the same number is not taken for it."""
    starts = [StartDir(folder) for folder in StartDir.parent().glob(f"ups-{pid}-*") if is_mine(folder)]
    return [start for start in starts if (holder(start.lock) is not None) == alive]


def one_line(text: str, most: int = 300) -> str:
    """Words that a stranger may have written, fit for a line of a table."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[:most]} …"


def json_problem(path: Path, problem: Exception) -> str:
    """Why a file of a run says nothing, in words."""
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return f"{path.name} cannot be read ({one_line(str(reason), 120)})"
