"""The log that is always on: one JSON object per line, appended and flushed; it never stops a training."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Values = Mapping[str, float | str]


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Jsonl:
    """Appends `{"step": …, "time": …, **values}`, each line in one write; non-finite numbers become null.

    A run that was resumed may hold a step twice: the later line is the true one. Where the disk refuses, it says so
    once, drops the line, counts it in `lost` and tries again with the next; closing says how many were lost.
    """

    def __init__(self, path: Path, say: Callable[[str], None] = _to_stderr) -> None:
        self.path, self.say = path, say
        self.lost = 0
        self.torn = True  # begin on a line of our own if a killed run left half of one
        self.handle: int | None = None

    def log(self, step: int, values: Values) -> None:
        row = {"step": step, "time": round(time.time(), 3), **{name: _plain(value) for name, value in values.items()}}
        try:
            self._append((json.dumps(row, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            self.lost += 1
            self.torn = True
            if self.lost == 1:
                self.say(f"{self.path}: cannot be written ({error.strerror}); training goes on without this log.")

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
        if self.lost:
            self.say(f"{self.path}: {self.lost} line{'s'[: self.lost - 1]} could not be written.")

    def _append(self, line: bytes) -> None:
        if self.handle is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        if self.torn and self._ends_torn():
            line = b"\n" + line
        if os.write(self.handle, line) < len(line):
            raise OSError(28, "the disk is full")
        self.torn = False

    def _ends_torn(self) -> bool:
        assert self.handle is not None
        size = os.fstat(self.handle).st_size
        return size > 0 and os.pread(self.handle, 1, size - 1) != b"\n"


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, in order; half a line, as a killed run leaves it, is passed over."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _plain(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
