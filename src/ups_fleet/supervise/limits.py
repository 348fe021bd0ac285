"""Time limits: how long a rank may stay in a phase, learnt from how long it took before."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from ups.config import Config
from ups.files import write_atomic
from ups.heartbeat import PHASES, Beat
from ups.parsing import read_json

LONGEST = 1e9
ONCE = ("start", "idle", "save", "validate", "judge")


class Stays:
    """The longest silence in each phase, kept in the run folder; `path` None: in memory only.

    Only what this machine took with as many ranks counts: another one may be slower. A silence that ended as a hang is
    noted too, so that a limit which was too short is not so twice.
    """

    def __init__(self, path: Path | None = None, ranks: int = 1) -> None:
        self._path, self._where = path, f"{os.uname().nodename}, {ranks} ranks"
        self._all: dict[str, Any] = read_json(path) if path else {}
        known: Any = self._all.get(self._where)
        self._phases: dict[str, list[float]] = {}  # by phase: the longest silence, how often one was taken for a hang
        for phase in ONCE if isinstance(known, dict) else ():
            values = known.get(phase)
            if isinstance(values, list) and len(values) == 2 and all(_possible(value) for value in values):
                self._phases[phase] = [float(value) for value in values]
        self._written = json.dumps(self._phases)

    def longest(self, phase: str) -> float:
        """Seconds; 0 for a phase that was never left."""
        return self._phases.get(phase, [0.0, 0.0])[0]

    def slack(self, phase: str) -> float:
        """How many times longer a rank may do nothing in a phase: doubled each time that this was taken for a hang."""
        return float(2 ** min(int(self._phases.get(phase, [0.0, 0.0])[1]), 6))

    def note(self, phase: str, seconds: float, hang: bool = False) -> None:
        if phase in ONCE:
            longest, hangs = self._phases.get(phase, [0.0, 0.0])
            self._phases[phase] = [max(longest, round(seconds, 1)), hangs + hang]

    def save(self) -> None:
        """Keep what is new; a disk that does not take it costs only patience."""
        text = json.dumps(self._phases)
        if self._path is None or text == self._written:
            return
        self._written = text
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)  # and no folder of a run: that one may have been taken away
            write_atomic(self._path, json.dumps({**self._all, self._where: self._phases}, indent=1) + "\n")


def _possible(value: object) -> bool:
    """Whether it is a number of seconds, or of hangs, that a run can have had."""
    return isinstance(value, int | float) and 0 <= value < LONGEST


GAP = 1.0  # seconds without a look above which the watching itself has paused
ENOUGH = 3  # times that a phase must have been seen before its limit is learnt
EARLIER = 5  # times the floor: no limit that is learnt from other starts is shorter


class Limits(Config):
    """Time limits in seconds; a process that exceeds one counts as hung.

    Once a phase was seen three times after warm-up, its limit is `factor` times its longest duration so far, but
    never below `floor` nor above the ceiling of the phase. Phases that come once (start, idle, save, validate, judge)
    learn from earlier starts of the same run too; a phase that was never seen has only its ceiling. In the first steps,
    in which memory is allocated and kernels are compiled and captured, `first` is the ceiling.
    """

    factor: float = Field(default=10, gt=1)
    """How many times its longest duration so far a phase may take."""
    floor: float = Field(default=30, gt=0)
    """No learnt limit is shorter than this."""
    start: float = Field(default=900, gt=0)
    """From the start of a process to its first phase: imports, reading data, building the model."""
    first: float = Field(default=1800, gt=0)
    """One phase of the first steps."""
    phase: float = Field(default=600, gt=0)
    """One phase of any later step."""
    save: float = Field(default=1800, gt=0)
    """Writing a checkpoint."""
    validation: float = Field(default=3600, gt=0)
    """One validation."""
    judge: float = Field(default=7200, gt=0)
    """Judging a finished run."""
    idle: float = Field(default=7200, gt=0)
    """Waiting for something outside the run."""
    still: float = Field(default=40, gt=0)
    """A rank that does nothing at all for this long counts as hung, whatever its phase."""
    grace: float = Field(default=120, ge=0)
    """From a request to stop until the last rank has left."""
    echo: float = Field(default=2, ge=0)
    """From the first failure until all ranks are stopped: time for the others to report what they saw."""
    teardown: float = Field(default=30, ge=0)
    """From a recorded success until the last rank has left."""
    attempts: int = Field(default=3, ge=1)
    """The run gives up after this many starts in a row without a newer verified checkpoint."""
    rejoin: float = Field(default=900, gt=0)
    """How long a machine that has lost the others keeps looking for them."""

    def ceiling(self, phase: str, warm: bool) -> float:
        """The longest stay that is ever allowed."""
        named = {
            "start": self.start,
            "save": self.save,
            "validate": self.validation,
            "judge": self.judge,
            "idle": self.idle,
        }
        return named.get(phase, max(self.first, self.phase) if warm else self.phase)

    def of(self, beat: Beat | None, stays: Stays | None = None) -> float:
        """How long a rank whose last beat is `beat` may stay silent."""
        phase, warm = (beat.phase, beat.warm) if beat else ("start", True)
        ceiling = self.ceiling(phase, warm)
        if beat and not warm and beat.seen[index := PHASES.index(phase)] >= ENOUGH:
            return min(max(self.floor, self.factor * beat.longest[index]), ceiling)
        longest = stays.longest(phase) if stays else 0.0
        return min(max(EARLIER * self.floor, self.factor * longest), ceiling) if longest else ceiling


class Silence:
    """How long each rank has been silent, by this process's own clock: no other clock is trusted.

    `whole`: all ranks of the job are seen; otherwise those seen may be waiting for one that is not.
    A gap in the watching itself (this process was stopped, the machine slept) is nobody's silence and is not counted.
    """

    def __init__(
        self,
        limits: Limits,
        whole: bool = True,
        clock: Callable[[], float] = time.monotonic,
        stays: Stays | None = None,
    ) -> None:
        self._limits, self._whole, self._clock, self._last = limits, whole, clock, clock()
        self._heard: dict[int, tuple[int, int, float]] = {}
        self._phases: dict[int, str] = {}
        self._stays = stays or Stays()

    def look(self, ranks: Iterable[int], beats: dict[int, Beat]) -> None:
        """Note who has moved since the last look."""
        now = self._clock()
        if now - self._last > GAP:
            lost = now - self._last
            self._heard = {rank: (pid, count, at + lost) for rank, (pid, count, at) in self._heard.items()}
        self._last = now
        for rank in ranks:
            beat = beats.get(rank)
            latest = (beat.pid, beat.count) if beat else (0, 0)
            before = self._heard.get(rank)
            if before is None or before[:2] != latest:
                if before is not None:
                    self._stays.note(self._phases[rank], self._last - before[2])
                self._heard[rank] = (*latest, now)
                self._phases[rank] = beat.phase if beat else "start"

    def silent(self, rank: int) -> float:
        """Seconds without a beat."""
        heard = self._heard.get(rank)
        return self._last - heard[2] if heard else 0.0

    def overdue(self, ranks: Iterable[int], beats: dict[int, Beat]) -> list[int]:
        """Ranks that are over their limit. One that waits for a busy peer is excused: the peer's limit counts."""
        present = list(ranks)
        waiting = [rank for rank in present if rank in beats and beats[rank].waiting]
        judged = [rank for rank in present if rank not in waiting] or waiting
        if judged is waiting:
            limits = self._limits
            patience = self._limit if self._whole else lambda beat: limits.ceiling(beat.phase, beat.warm)
            late = [rank for rank in waiting if self.silent(rank) > patience(beats[rank])]
            return late if len(late) == len(waiting) else []
        return [rank for rank in judged if self.silent(rank) > self._limit(beats.get(rank))]

    def _limit(self, beat: Beat | None) -> float:
        return self._limits.of(beat, self._stays)
