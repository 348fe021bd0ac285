"""The log that is always on: one JSON object per line, appended and flushed; it never raises into the training."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ups.rundir import RunDir
from ups.types import counted

Values = Mapping[str, float | str]


def to_stderr(sentence: str) -> None:
    """Say something where nobody else does."""
    print(sentence, file=sys.stderr, flush=True)


class Jsonl:
    """Appends `{"step": …, "time": …, **values}` to metrics.jsonl, each line in one write; non-finite numbers become
    null. Values are named `<stage>/<name>`. A resumed run appends, and where a step is there twice, the later is true.

    A line that the disk refuses is counted in `lost` and said once; the next is tried again.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = to_stderr) -> None:
        self.path, self.say, self.lost = RunDir(folder).metrics, say, 0
        self.torn = True  # begin on a line of our own if a killed run left half of one
        self.handle: int | None = None

    def log(self, step: int, values: Values) -> None:
        """Write the values of a step; when it returns, a kill of the process no longer loses them."""
        try:
            self._write(step, values)
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                self.say(f"{self.path}: cannot be written ({error.strerror or error}); training goes on without it.")

    def close(self) -> None:
        """Let go of the file, and say how many lines were lost."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
        if self.lost:
            self.say(f"{self.path}: {counted(self.lost, 'line')} could not be written.")

    def _write(self, step: int, values: Values) -> None:
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

    def _ends_torn(self) -> bool:
        assert self.handle is not None
        size = os.fstat(self.handle).st_size
        return size > 0 and os.pread(self.handle, 1, size - 1) != b"\n"


def _plain(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
