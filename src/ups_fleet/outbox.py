"""The outbox of a run: what is sent elsewhere while it goes on, by processes of their own that never hold it up."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import select
import signal
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ups_fleet.secrets import hiding
from ups_fleet.supervise.children import Child, Program, end_session, finish, fork, start
from ups_fleet.supervise.proc import end_all, identity, is_mine, owned, seen_by
from ups_fleet.supervise.rank_parent import die_with_parent

VARIABLE = "UPS_COURIER"  # by which the couriers of a folder are found
DONE, AGAIN, BUSY = 0, 75, 76  # exit codes of a sender: all is sent; start me again; another process sends this
LOOK = 0.2  # seconds between two looks at the senders
PAUSE = 1.0  # seconds before one that failed is started again; doubled each time
LOG = 8192  # bytes that are kept of what a library prints
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")  # the last line of a traceback


def input_ended(seconds: float) -> bool:
    """Whether the standard input, to which nobody writes, has ended; waited for so long."""
    return bool(select.select([0], [], [], seconds)[0])


class Line:
    """What a sender has of its courier: it says that it gets on, and hears that the run is over."""

    def __init__(self) -> None:
        self.moved = mmap.mmap(-1, 8)
        self.beat()

    def beat(self) -> None:
        """Something was sent, or there was nothing to send."""
        struct.pack_into("d", self.moved, 0, time.monotonic())

    def silent(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - float(struct.unpack_from("d", self.moved)[0])

    def over(self, seconds: float) -> bool:
        """Whether the run has ended, or nobody carries it out any more; waited for so long."""
        return input_ended(seconds)


class Sender(ABC):
    """Sends what a run leaves to one place. `send` is called in a process of its own, which may be killed at any
    moment and is started again: whatever it raises, or hangs at, costs the run nothing. So what was sent must be known
    from the run's folder, or from the place itself."""

    patience: ClassVar[float]  # seconds without a beat, after which it counts as hung
    patience_after: ClassVar[float] = math.inf  # the same once the run is over
    tries: ClassVar[int] = 1  # once the run is over
    longest: ClassVar[float] = 60.0  # seconds before one that failed is started again, at most

    @abstractmethod
    def send(self, line: Line) -> int:
        """Send what there is until the run is over; one of the codes."""

    def whole(self) -> bool:
        """Whether all is sent, once `send` has said so."""
        return True

    @abstractmethod
    def troubled(self, reason: str, printed: bytes) -> None:
        """Write down why it has failed, and the end of what it has printed; an OSError is for the next time."""


@dataclass
class Post:
    """Keeps one sender at work: its process is started again after every end but the right one."""

    sender: Sender
    hide: Callable[[bytes], bytes]
    child: Child | None = None
    finished: bool = False
    failures: int = 0
    due: float = 0.0  # when it is to be started
    printed: bytes = b""  # the end of what it has printed, without secrets
    left: int = -1  # tries, once the run is over

    def look(self, now: float) -> None:
        """Start it if that is due; see whether it has ended, hangs or has said something."""
        if self.child is None:
            if not self.finished and now >= self.due:
                self._start()
            return
        code = self.child.poll()
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.output, 1 << 16):
                self.printed = self.hide(self.printed + piece)[-LOG:]
        patience = self.sender.patience if self.left < 0 else self.sender.patience_after
        if code is None:
            if self.line.silent() > patience:
                self.stop()
                self._failed(now, f"nothing was sent for {patience:.0f} s")
            return
        self.stop()
        if code == AGAIN:
            self.due = now
        elif code == BUSY or (code == DONE and self.sender.whole()):
            self.finished = True
        else:
            lines = [line for line in self.printed.decode(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if ERROR.match(line)] or lines or [f"it ended with code {code}"]
            self._failed(now, errors[-1].strip())

    def end(self) -> None:
        """The run has ended: what is left is sent at once, and then how it ended."""
        self.left, self.due = self.sender.tries, 0.0
        self._end_input()

    def stop(self) -> None:
        """End its process and all it has started."""
        if self.child is not None:
            end_session(self.child)
            self._end_input()
            os.close(self.output)
            self.child = None

    def _start(self) -> None:
        heard, self.input = os.pipe()
        self.output, spoken = os.pipe()
        os.set_blocking(self.output, False)
        self.line, self.printed, courier = Line(), b"", os.getpid()

        def work() -> None:
            os.setsid()
            die_with_parent(signal.SIGKILL, courier)
            for pipe, number in ((heard, 0), (spoken, 1), (spoken, 2)):
                os.dup2(pipe, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # those to the others
            sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
            code = self.sender.send(self.line)
            sys.stdout.flush()
            os._exit(code)  # without waiting for threads of a library

        self.child = fork(work)
        for pipe in (heard, spoken):
            os.close(pipe)
        if self.left >= 0:
            self._end_input()

    def _end_input(self) -> None:
        if self.child is not None and self.input >= 0:
            os.close(self.input)
            self.input = -1

    def _failed(self, now: float, reason: str) -> None:
        self.failures += 1
        self.due = now + min(PAUSE * 2 ** (self.failures - 1), self.sender.longest)
        with contextlib.suppress(OSError):  # the disk may be full; it is tried again
            self.sender.troubled(reason[:500], self.printed)
        self.left -= self.left > 0
        self.finished = self.left == 0


def carry(senders: Sequence[Sender], limit: float, over: Callable[[float], bool]) -> None:
    """Keep senders at work until the run is over (`over(seconds)` waits for that) and they have sent the rest, for no
    more than `limit` seconds after its end."""
    hide, deadline = hiding(os.environ), math.inf
    posts = [Post(sender, hide) for sender in senders]
    try:
        while not all(post.finished for post in posts) and time.monotonic() < deadline:
            for post in posts:
                post.look(time.monotonic())
            if deadline < math.inf:
                time.sleep(LOOK)
            elif over(LOOK):
                deadline = time.monotonic() + limit
                for post in posts:
                    post.end()
    finally:
        for post in posts:
            post.stop()


def be_courier(senders: Sequence[Sender], limit: float) -> None:
    """All that the program of a courier does; the end of its standard input says that the run is over."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    carry(senders, limit, input_ended)


def courier_of(folder: Path, module: str, *words: str) -> Program:
    """Start a program that is a courier of the run in `folder`."""
    own = {**os.environ, VARIABLE: str(folder.resolve())}
    return start([sys.executable, "-m", module, str(folder.resolve()), *words], env=own, fed=True)


@contextlib.contextmanager
def sending(begin: Callable[[], Program | None], wait: float) -> Iterator[None]:
    """While the block runs a courier, which `begin` starts where one can be had, sends what the run leaves; afterwards
    it has `wait` seconds for the rest. Nothing that it does reaches the block."""
    courier = begin()
    try:
        yield
    finally:
        if courier is None or courier.poll() is not None:  # there was none to be had, or somebody has killed it
            courier = begin()
        if courier is not None:
            finish(courier, wait)


def couriers_of(folder: Path) -> list[int]:
    """This user's processes on this machine that send what the run in `folder` leaves."""
    place, here = str(folder.resolve()), identity(folder)
    pids = [pid for pid in owned(VARIABLE, place) if is_mine(Path(f"/proc/{pid}"))]
    return [pid for pid in pids if identity(seen_by(pid, place)) == here]


def end_couriers(folder: Path) -> None:
    """End the couriers of a run that this process holds now: who has started them was killed."""
    end_all(lambda: couriers_of(folder))
