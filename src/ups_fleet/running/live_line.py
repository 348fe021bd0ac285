"""The line at the foot of a terminal that says, second by second, where a run is."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable

from ups.run.journal import read_journal
from ups.rundir import RunDir

EVERY = 1.0  # seconds of silence before it is drawn, and between two drawings


class LiveLine:
    """One line of a terminal that is drawn over and over. The caller calls `draw` while it waits, and `clear` before it
    prints anything else; without a terminal both do nothing. There is no thread, for ranks are forked from this
    process."""

    def __init__(self, words: Callable[[], str]) -> None:
        self._words, self._drawn, self._next = words, False, time.monotonic() + EVERY
        self._terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self) -> None:
        """Show the current words, at most once in `EVERY` seconds."""
        if self._terminal and time.monotonic() >= self._next:
            words = self._words()[: shutil.get_terminal_size().columns - 1]
            self._write(f"\r\x1b[2K{words}")
            self._drawn, self._next = True, time.monotonic() + EVERY

    def clear(self) -> None:
        """Make room for what is to stay on the terminal."""
        if self._drawn:
            self._write("\r\x1b[2K")
        self._drawn, self._next = False, time.monotonic() + EVERY

    def before(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """A function that makes room for a sentence, then calls `say` with it."""

        def cleared(sentence: str) -> None:
            self.clear()
            say(sentence)

        return cleared

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the stream of whoever called may be closed or full
            sys.stderr.write(text)
            sys.stderr.flush()


def phase_of(run: RunDir) -> str:
    """The phase that a run is in and for how long, as its journal says."""
    row = (read_journal(run.journal) or [{}])[-1]
    if row.get("event") != "begin":  # what has ended is written down, and what comes next has not begun
        return "going on" if row.get("phase") not in (None, "check") else "starting"
    clock = row.get("clock")
    seconds = f"for {max(0.0, time.time() - clock):.0f} s" if isinstance(clock, float) else ""
    return " ".join(filter(None, (f"phase {row.get('phase')}", str(row.get("part") or ""), seconds)))
