"""Passes on a process's log while it grows, and reads its end and the code line of a fatal signal."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

LONG = 1 << 20  # bytes of a log that are looked at
# One line, which grows with all that is imported and says nothing; it stands behind the stacks.
MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
FATAL = "Fatal Python error"


class LogRelay:
    """Passes on what is new in a log, no bytes where nothing is; `relay` None: nothing."""

    def __init__(self, path: Path, relay: Callable[[bytes], None] | None) -> None:
        self._path, self._relay, self._shown = path, relay, 0

    def show(self) -> None:
        if self._relay is None:
            return
        text = b""
        with contextlib.suppress(OSError), self._path.open("rb") as log:
            log.seek(self._shown)
            text = log.read()
        self._shown += len(text)
        self._relay(text)


def tail(path: Path, limit: int = 8000) -> str:
    """The last `limit` bytes of a text file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def log_tail(path: Path, limit: int = 8000) -> str:
    """The end of a log. After a fatal signal: the stacks, that of the thread which the signal met first."""
    before, mark, fatal = MODULES.sub("", tail(path, LONG)).rpartition(FATAL)
    if not mark:
        return fatal[-limit:]
    head, *stacks = (mark + fatal).split("\n\n")
    stacks.sort(key=lambda stack: not stack.startswith("Current thread"))
    return before[-limit // 4 :] + "\n\n".join((head, *stacks))[:limit]


def innermost_line(text: str) -> str:
    """The innermost Python line of the stacks in a text, as `, in FUNCTION (FILE, line N)`; empty without a stack."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if "most recent call first" in line]
    current = next((i for i in starts if lines[i].startswith("Current thread")), starts[-1] if starts else None)
    if current is None or current + 1 >= len(lines):
        return ""
    file, _, function = lines[current + 1].strip().removeprefix("File ").partition(" in ")
    return f", in {function} ({file.rpartition('/')[2].replace(chr(34), '')})" if function else ""
