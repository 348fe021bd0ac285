"""The log that is always on: one JSON object per line, appended and flushed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from ups.rundir import RunDir
from ups.tracking.tracker import Tracker, Values, to_stderr


class Jsonl(Tracker):
    """Appends `{"step": …, "time": …, **values}` to metrics.jsonl, each line in one write; non-finite numbers become
    null."""

    place = RunDir(Path()).metrics.name

    def __init__(self, folder: Path, say: Callable[[str], None] = to_stderr) -> None:
        super().__init__(folder, say)
        self.torn = True  # begin on a line of our own if a killed run left half of one
        self.handle: int | None = None

    def write(self, step: int, values: Values) -> None:
        row = {"step": step, "time": round(time.time(), 3), **{name: _plain(value) for name, value in values.items()}}
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        if self.handle is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        if self.torn and self._ends_torn():
            line = b"\n" + line
        self.torn = True
        if os.write(self.handle, line) < len(line):
            raise OSError(28, "the disk is full")
        self.torn = False

    def finish(self, ending: str) -> None:  # noqa: ARG002  (verdict.json says how a run ended)
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def _ends_torn(self) -> bool:
        assert self.handle is not None
        size = os.fstat(self.handle).st_size
        return size > 0 and os.pread(self.handle, 1, size - 1) != b"\n"


def _plain(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
