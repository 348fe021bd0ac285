"""The process that feeds the mirrors of a run; keeps one process at work for each of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ups.files import write_atomic
from ups.rundir import RunDir
from ups_fleet.supervise.rank_parent import die_with_parent
from ups_fleet.tracking import feed
from ups_fleet.tracking.log_reader import whole_lines
from ups_fleet.tracking.mirror import MirrorReceipt, RunFacts
from ups_fleet.tracking.secrets import hiding

LOOK = 0.2  # seconds between two looks at the processes
PAUSE, LONGEST = 1.0, 60.0  # seconds before one that failed is started again; doubled each time
PATIENCE = 120.0  # seconds without a row sent, while there are some, after which one counts as hung
LOG = 8192  # bytes that are kept of what a library prints
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")  # the last line of a traceback


class Forked:
    """A copy of this process that feeds one mirror, in a group of its own, with a pipe to it and one from it."""

    def __init__(self, folder: Path, name: str, owner: int) -> None:
        theirs, self.input = os.pipe()
        self.output, spoken = os.pipe()
        os.set_blocking(self.output, False)
        self.process = multiprocessing.get_context("fork").Process(
            target=_feed, args=(folder, name, owner, os.getpid(), theirs, spoken)
        )
        self.process.start()
        for pipe in (theirs, spoken):
            os.close(pipe)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it works."""
        return self.process.exitcode

    def heard(self) -> Iterator[bytes]:
        """What it has printed since."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.output, 1 << 16):
                yield piece

    def end_input(self) -> None:
        """Tell it that the run is over."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """End it and all it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        self.end_input()
        os.close(self.output)


def _feed(folder: Path, name: str, owner: int, courier: int, heard: int, spoken: int) -> None:
    os.setsid()
    die_with_parent(signal.SIGKILL, courier)
    for pipe, number in ((heard, 0), (spoken, 1), (spoken, 2)):
        os.dup2(pipe, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # those to the others
    sys.exit(feed.main(folder, name, owner))


@dataclass
class Feeder:
    """Keeps one mirror fed: its process is started again after every end but the right one."""

    folder: RunDir
    name: str
    owner: int
    hide: Callable[[bytes], bytes]
    process: Forked | None = None
    finished: bool = False
    failures: int = 0
    due: float = 0.0  # when it is to be started
    position: int = 0
    moved: float = 0.0  # when it last sent something
    printed: bytes = b""  # the end of what it has printed, without secrets
    over: bool = False  # the run is

    @property
    def receipt(self) -> Path:
        return self.folder.tracking(f"{self.name}.json")

    def look(self, now: float) -> None:
        """Start it if that is due; see whether it has ended, hangs or has said something."""
        if self.process is None:
            if not self.finished and now >= self.due:
                self._start(now)
            return
        code = self.process.code
        for piece in self.process.heard():
            self.printed = self.hide(self.printed + piece)[-LOG:]
        if code is None:
            if self._hangs(now):
                self.stop()
                self._failed(now, f"it has sent nothing for {PATIENCE:.0f} s")
            return
        self.stop()
        if code == feed.AGAIN:
            self.due = now
        elif code == feed.BUSY or (code == 0 and self._has_all()):
            self.finished = True
        else:
            lines = [line for line in self.printed.decode(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if ERROR.match(line)] or lines or [f"it ended with code {code}"]
            self._failed(now, errors[-1].strip())

    def end(self) -> None:
        """The run has ended: what is left is sent at once, and then how it ended."""
        self.over, self.due = True, 0.0
        if self.process is not None:
            self.process.end_input()

    def stop(self) -> None:
        """End its process."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def _start(self, now: float) -> None:
        self.position, self.moved, self.printed = -1, now, b""
        self.process = Forked(self.folder.folder, self.name, self.owner)
        if self.over:
            self.process.end_input()

    def _failed(self, now: float, reason: str) -> None:
        self.failures += 1
        self.due = now + min(PAUSE * 2 ** (self.failures - 1), LONGEST)
        receipt = MirrorReceipt.read(self.receipt)
        receipt.trouble = reason[:500]
        with contextlib.suppress(OSError):  # the disk may be full; it is tried again
            receipt.write(self.receipt)
            write_atomic(self.folder.tracking(f"{self.name}.log"), self.printed)
        self.finished = self.over  # once more after the end, and no further

    def _has_all(self) -> bool:
        return MirrorReceipt.read(self.receipt).position >= whole_lines(self.folder.metrics)

    def _hangs(self, now: float) -> bool:
        position = MirrorReceipt.read(self.receipt).position
        if self.over or position != self.position or position >= whole_lines(self.folder.metrics):
            self.position, self.moved = position, now  # after the end files are sent, and the courier has its limit
        return now - self.moved > PATIENCE


def carry(facts: RunFacts, names: tuple[str, ...], limit: float, over: Callable[[float], bool]) -> None:
    """Keep the mirrors fed until the run is over (`over(seconds)` waits for that) and they know how it ended, for no
    more than `limit` seconds after its end."""
    folder, hide = facts.run, hiding(os.environ)
    feeders = [Feeder(folder, name, facts.owner, hide) for name in names]
    deadline = float("inf")
    try:
        while not all(feeder.finished for feeder in feeders) and time.monotonic() < deadline:
            for feeder in feeders:
                feeder.look(time.monotonic())
            if deadline < float("inf"):
                time.sleep(LOOK)
            elif over(LOOK):
                deadline = time.monotonic() + limit
                for feeder in feeders:
                    feeder.end()
    finally:
        for feeder in feeders:
            feeder.stop()


def main(folder: Path, owner: int, limit: float, names: tuple[str, ...]) -> None:
    """The courier of the run in `folder`; the end of its standard input says that the run is over."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if not owner:  # of a run that is over: whoever wanted it sent waits for that
        die_with_parent(signal.SIGKILL, os.getppid())
    facts = RunFacts.read(folder, owner)
    carry(facts, names, limit, lambda seconds: bool(select.select([0], [], [], seconds)[0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), tuple(sys.argv[4:]))
