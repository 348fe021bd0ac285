"""Stays: how long ranks stayed in phases that come once per start; time limits learn from it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.parsing import read_json

LONGEST = 1e9
PHASES = ("start", "idle", "save", "validate", "judge")


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
        for phase in PHASES if isinstance(known, dict) else ():
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
        if phase in PHASES:
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
