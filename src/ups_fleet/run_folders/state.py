"""The true state of a run, from evidence alone: its lock and sign of life, its verdict, its log, its checkpoints."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ups.parsing import read_json, read_record
from ups.presence import Presence, look
from ups.run_files import is_run
from ups.rundir import RunDir
from ups.types import DataError, duration
from ups_fleet.run_folders.errors import TaskError, Validation, errors_of, validation_of
from ups_fleet.run_folders.evidence import (
    TRAIN,
    LivingProcesses,
    Phase,
    StageBudget,
    TrainingPlace,
    beats_of,
    budget_of,
    checkpoints_of,
    json_problem,
    one_line,
    phase_of,
    starts_of,
    training_place,
)

Word = Literal[
    "running",
    "finished",
    "gate missed",
    "paused",
    "failed",
    "stopped",
    "dead",
    "unclear",
    "unreadable",
    "empty",
    "foreign",
]
COMPLETE: tuple[Word, ...] = ("finished", "gate missed")  # simulator, numbers and report are there
WELL: tuple[Word, ...] = ("finished", "paused")  # all that was asked for is done
ENDED: tuple[Word, ...] = (*COMPLETE, "paused", "failed", "stopped", "dead")  # nobody writes it, for sure
STOPPED = ("PREEMPTED", "INTERRUPTED")
NOT_RUNS: tuple[Word, ...] = ("empty", "foreign")


@dataclass(frozen=True)
class RunState:
    """A run as its folder shows it. `sentence` says all of it; `seconds` were spent on training, over all starts.

    `stage`, `step` and `of` say where the training is or was (`of` None: its budget is a time); `changed` is the wall
    clock of the last sign of life.
    """

    folder: Path
    word: Word
    sentence: str
    name: str = ""
    stage: str = ""
    step: int | None = None
    of: int | None = None
    resumable: bool = False
    host: str = ""
    seconds: float | None = None
    device: str = ""
    changed: float = 0.0
    errors: Mapping[str, TaskError] = field(default_factory=dict)  # on test trajectories
    validation: Validation | None = None

    @property
    def line(self) -> str:
        """The state and its sentence, and a sentence that says no more than the state but once."""
        return self.sentence if self.sentence.rstrip(".") == self.word else f"{self.word}: {self.sentence}"

    @property
    def error(self) -> float:
        """The mean error over all tasks, to sort by; infinite where there is none."""
        values = [e.value for e in self.errors.values()]
        return sum(values) / len(values) if values else math.inf

    def to_dict(self) -> dict[str, Any]:
        """The state as plain values, as JSON can hold them."""
        facts = {name: getattr(self, name) for name in ("name", "word", "sentence", "stage", "step", "of", "resumable")}
        facts |= {"host": self.host, "seconds": self.seconds, "device": self.device, "changed": self.changed}
        errors = {
            task: {"nrmse": _plain(e.value), "low": _plain(e.low), "high": _plain(e.high), "n": e.n, "exam": e.exam}
            for task, e in self.errors.items()
        }
        return {"folder": str(self.folder), **facts, "errors": errors}


def state_of(folder: Path, processes: LivingProcesses | None = None, name: str = "") -> RunState:
    """The state of the run in a folder; never an exception, whatever lies there."""
    run = RunDir(folder)
    blank = RunState(folder, "unreadable", "", name or folder.name)
    try:
        names = set(os.listdir(folder))
        if (other := _no_run(run, names, blank)) is not None:
            return other
        presence = look(run.lock)
        return _state(run, names, presence, processes or LivingProcesses(), blank)
    except FileNotFoundError:
        return replace(blank, word="empty", sentence="there is no such folder.")
    except OSError as error:
        return replace(blank, sentence=f"cannot be read ({error.strerror or error}).")


def _no_run(run: RunDir, names: set[str], blank: RunState) -> RunState | None:
    """What a folder is that holds no run; None where it holds one."""
    if is_run(names):
        return None
    shown = {name for name in names if not name.startswith(".")}
    if not shown and (run.lock.name not in names or not look(run.lock).alive):
        return replace(blank, word="empty", sentence="nothing lies here.")
    if not shown:
        return replace(blank, word="running", sentence="a run is just being begun here.")
    gone = [path.name for path in (run.config, run.environment) if path.name not in names]
    left = names & {run.verdict.name, run.checkpoints().name, run.logs.name}
    what = f" (its {' and '.join(gone)} {'are' if len(gone) > 1 else 'is'} gone)" if left else ""
    return replace(blank, word="foreign", sentence=f"holds files and is no run folder{what}.")


def _state(run: RunDir, names: set[str], presence: Presence, processes: LivingProcesses, blank: RunState) -> RunState:
    phase = phase_of(run)
    place = training_place(run, phase)
    checkpoints = {} if run.stages.name in names else checkpoints_of(run)
    state = replace(blank, changed=_changed(run, place), **_cost(run, checkpoints))
    if place is not None:
        budget = budget_of(run, place.stage)
        state = replace(state, stage=place.stage, step=place.step, of=budget.steps)
    presence = _with_log(presence, place)
    starts = processes.starts(run.folder)
    if not starts and presence.held and presence.writer is not None and presence.writer.here:
        starts = starts_of(presence.writer.pid, alive=True)
    if presence.alive or (starts and not presence.elsewhere):
        return _running(state, presence, _beat(beats_of(starts)), place, phase)
    if presence.held and presence.elsewhere and presence.writer is not None:
        host, age = presence.writer.host, ago(presence.age or 0.0)
        words = f"not known: {host} holds its lock, but its last sign of life is {age} old; look on {host}."
        return replace(state, word="unclear", sentence=words, host=host)
    if run.verdict.name in names:
        return _ended(state, run)
    return _dead(state, run, presence, place, phase, names, checkpoints)


def _with_log(presence: Presence, place: TrainingPlace | None) -> Presence:
    """Whoever writes the log gives a sign of life too."""
    if presence.age is None or place is None or presence.writer is None:
        return presence
    written = max(0.0, time.time() - place.time)
    return replace(presence, age=min(presence.age, written)) if place.time >= presence.writer.began else presence


def _running(
    state: RunState, presence: Presence, beat: tuple[int, str] | None, place: TrainingPlace | None, phase: Phase | None
) -> RunState:
    writer = presence.writer
    where = ""
    if writer is not None and not writer.here:
        seen = "" if presence.held else ", whose lock is not seen here"
        where = f" on {writer.host}{seen} (sign of life {ago(presence.age or 0.0)} ago)"
    elif writer is not None and not presence.held:
        where = " (its lock is gone, its processes are there)"
    state = replace(state, word="running", host="" if writer is None else writer.host)
    began = 0.0 if writer is None else writer.began
    if phase is not None and phase.under_way and phase.name != TRAIN and phase.time >= began:
        return replace(state, sentence=f"phase {phase.name}{where}.")
    if beat is not None and beat[1] in ("judge", "idle"):
        return replace(state, sentence=f"judging what was trained{where}.")
    if place is None or place.time < began:
        state = replace(state, step=None, stage="") if place is None else state
        goes_on = f", to go on from about {at(state)}" if place is not None else ""
        return replace(state, sentence=f"starting, or making data{goes_on}{where}.")
    if beat is not None and place.logged and beat[0] > place.step and (state.of is None or beat[0] <= state.of):
        state = replace(state, step=beat[0])
    return replace(state, sentence=f"{at(state)}{where}.")


def _ended(state: RunState, run: RunDir) -> RunState:
    """A run that says itself how it ended."""
    try:
        verdict = read_record(run.verdict)
    except (OSError, ValueError) as error:
        words = f"ended, but how is not known: {json_problem(run.verdict, error)}; --resume it."
        return replace(state, word="unclear", sentence=words, resumable=True)
    ending, cause = one_line(str(verdict.get("verdict", ""))), one_line(str(verdict.get("cause", "")))
    if ending == "SUCCESS":
        return _finished(state, run)
    if ending.startswith("GATE"):
        state = _finished(state, run)
        return replace(state, word="gate missed", sentence=cause or "a gate was missed.")
    if ending == "PAUSED":
        words = cause or "ended after the phase that was asked for; --resume goes on."
        return replace(state, word="paused", sentence=words, resumable=True, errors=_errors(run))
    if ending in STOPPED:
        where = f" at {at(state)}" if state.step is not None else " before its first step"
        return replace(state, word="stopped", sentence=f"stopped on request{where}; --resume goes on.", resumable=True)
    if not ending:
        words = f"ended, but how is not known: {run.verdict.name} names no ending; --resume it."
        return replace(state, word="unclear", sentence=words, resumable=True)
    return replace(state, word="failed", sentence=f"{ending}: {cause}", resumable=ending != "USER")


def _finished(state: RunState, run: RunDir) -> RunState:
    state = replace(state, validation=validation_of(run))
    try:
        errors = errors_of(run.folder)
    except DataError as error:
        words = f"finished, but its errors are not there: {one_line(str(error))}"
        return replace(state, word="finished", sentence=words)
    missing = "" if run.artifact("simulator").is_file() else "finished, but its simulator is gone: --resume it."
    return replace(state, word="finished", sentence=missing or "finished.", errors=errors)


def _errors(run: RunDir) -> Mapping[str, TaskError]:
    """The errors of a run that may have been judged."""
    try:
        return errors_of(run.folder)
    except DataError:
        return {}


def _dead(
    state: RunState,
    run: RunDir,
    presence: Presence,
    place: TrainingPlace | None,
    phase: Phase | None,
    names: set[str],
    checkpoints: Mapping[str, int],
) -> RunState:
    """A run that nobody writes and that has said no word about its end: it was killed."""
    left = starts_of(presence.writer.pid, alive=False) if presence.writer is not None and presence.writer.here else []
    beat = _beat(beats_of(left))
    if beat and place and place.logged and beat[0] > place.step and (state.of is None or beat[0] <= state.of):
        state = replace(state, step=beat[0])
    how = ""
    if presence.writer is not None and presence.elsewhere:
        how = f" (no sign of life from {presence.writer.host} for {ago(presence.age or 0.0)})"
    if not read_json(run.environment).get("fingerprint"):
        words = f"dead before it had begun{how}; run it again with --overwrite."
        return replace(state, word="dead", sentence=words)
    if phase is not None and phase.under_way and phase.name != TRAIN:
        last = _newest(run, checkpoints)
        begin = f" from step {checkpoints[last]} of stage {last}" if last else ""
        return replace(
            state, word="dead", sentence=f"dead in phase {phase.name}{how}; resumable{begin}.", resumable=True
        )
    trains = phase is not None and phase.under_way  # again, for all other phases were named above
    if not trains and names & {run.results.name, run.stages.name}:
        words = f"dead after its training, before its verdict{how}; resumable."
        return replace(state, word="dead", sentence=words, resumable=True)
    if state.step is None and not checkpoints:
        return replace(state, word="dead", sentence=f"dead before its first step{how}; resumable.", resumable=True)
    if not state.stage or checkpoints.get(state.stage, -1) > (state.step or 0):  # its log is gone, or older
        last = _newest(run, checkpoints)
        state = replace(state, stage=last, step=checkpoints[last], of=budget_of(run, last).steps)
    step = checkpoints.get(state.stage)
    begin = f"from step {step}" if step is not None else "from the beginning of the stage"
    return replace(state, word="dead", sentence=f"dead at {at(state)}{how}; resumable {begin}.", resumable=True)


def _newest(run: RunDir, checkpoints: Mapping[str, int]) -> str:
    """The stage whose checkpoints were written last; empty where there is none."""
    return max(checkpoints, key=lambda stage: (run.checkpoints(stage).stat().st_mtime, stage), default="")


def at(state: RunState) -> str:
    """Where a training is, in words."""
    total = f" of {state.of}" if state.of is not None else ""
    return f"step {state.step}{total} of stage {state.stage}"


def ago(seconds: float) -> str:
    """A time span in whole seconds, or in a larger unit."""
    return duration(round(seconds), digits=2)


def _beat(beats: Mapping[int, Any]) -> tuple[int, str] | None:
    """Step and phase of the rank that is behind."""
    first = min(beats.values(), key=lambda beat: (beat.step, beat.rank), default=None)
    return None if first is None else (int(first.step), str(first.phase))


def _cost(run: RunDir, checkpoints: Mapping[str, int]) -> dict[str, Any]:
    """Seconds of training over all starts, and on what. Of a stage that is not finished its newest checkpoint tells."""
    facts = read_json(run.environment)
    spent = [row.get("seconds") for row in read_json(run.stages).values() if isinstance(row, dict)]
    spent = spent or [_checkpoint_seconds(run, stage, step) for stage, step in checkpoints.items()]
    known = [float(value) for value in spent if isinstance(value, int | float)]
    return {"seconds": sum(known) if known else None, "device": one_line(str(facts.get("device") or ""), 40)}


def _checkpoint_seconds(run: RunDir, stage: str, step: int) -> float | None:
    value = read_json(run.checkpoints(stage) / f"step-{step:09d}" / "facts.json").get("seconds")
    return float(value) if isinstance(value, int | float) else None


def _changed(run: RunDir, place: TrainingPlace | None) -> float:
    """When the run was last written to."""
    times = [0.0 if place is None else place.time]
    for path in (run.verdict, run.metrics, run.environment, run.config, run.folder):
        try:
            status = path.stat()
        except OSError:
            continue
        times.append(status.st_mtime if stat.S_ISREG(status.st_mode) or not any(times) else 0.0)
    return max(times)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


__all__ = ["COMPLETE", "ENDED", "NOT_RUNS", "WELL", "RunState", "StageBudget", "ago", "at", "state_of"]
