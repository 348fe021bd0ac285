"""Disturbs what is around a run: its clock, neighbours, memory, log, output, processes, and what others left behind."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pickle
import random
import resource
import signal
import sys
import termios
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ups.lazy_imports import torch
from ups.rundir import RunDir
from ups_fleet.fault_tests.case import CaseDir, Disturbance, Press, first_start, print_to
from ups_fleet.fault_tests.privileges import MemoryGroup
from ups_fleet.supervise.children import fork
from ups_fleet.supervise.fault_plan import SIGNALS
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.forked import close_inherited, default_signals
from ups_fleet.supervise.launchers.launcher import read_pids
from ups_fleet.supervise.proc import alive, children, stat_of
from ups_fleet.supervise.start_dir import StartDir

HOURS = 3 * 3600.0
ROOM = 2 << 30  # bytes that a capped rank may take: more than an allocator may have kept; they are not touched

_kept_open: list[Any] = []  # as long as this process lives


def beside(place: CaseDir, work: Callable[[], None]) -> None:
    """Do `work` in a process beside a run, a child of nobody in it, that prints to a file of its own."""

    def detached() -> None:
        print_to(place.beside)
        os.setsid()
        default_signals()
        close_inherited()
        work()

    fork(lambda: _forget(fork(detached))).wait()


def _forget(_: object) -> None:
    """Nobody waits for it here."""


@dataclass(frozen=True)
class Environment(Disturbance):
    """Variables that other launchers have left behind."""

    variables: tuple[tuple[str, str], ...]

    def command(self, place: CaseDir) -> None:  # noqa: ARG002
        os.environ.update(self.variables)


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.path}'",)


def bomb(path: Path) -> bytes:
    """A pickle that makes a file when somebody loads it."""
    return pickle.dumps(Bomb(path))


NESTED = Environment((("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "another")))
STALE = Environment((("RANK", "1"), ("WORLD_SIZE", "4")))
ADDRESS = Environment((("MASTER_ADDR", "198.51.100.7"), ("MASTER_PORT", "1"), ("LOCAL_WORLD_SIZE", "8")))


@dataclass(frozen=True)
class SecondRun(Disturbance):
    """Another process works in the same run folder."""

    def command(self, place: CaseDir) -> None:
        place.run.folder.mkdir()
        run = RunDir(place.run.folder)
        run._hold()
        _kept_open.append(run)

    def mend(self, place: CaseDir) -> None:
        """The lock is gone with the command; so is the folder, as nothing was ever run in it."""
        place.run.lock.unlink()
        place.run.folder.rmdir()


@dataclass(frozen=True)
class BadLog(Disturbance):
    """A log that is always full, or no file."""

    full: bool

    def start(self, start: RankStart, place: CaseDir) -> None:  # noqa: ARG002
        if not place.run.metrics.exists():
            place.run.metrics.symlink_to("/dev/full") if self.full else place.run.metrics.mkdir()


@dataclass(frozen=True)
class WrongClock(Disturbance):
    """The wall clock of a rank, or with None of the supervisor, is hours off or jumps."""

    whose: int | None
    how: str

    def command(self, place: CaseDir) -> None:  # noqa: ARG002
        if self.whose is None:
            shift_clock(self.how)

    def rank(self, rank: int) -> Press:
        if self.whose == rank:
            shift_clock(self.how)
        return super().rank(rank)


@dataclass(frozen=True)
class SlowRank(Disturbance):
    """A rank whose every loss takes twice as long as a whole step of it does."""

    whose: int

    def rank(self, rank: int) -> Press:
        return _Slow() if rank == self.whose else super().rank(rank)


class _Slow:
    """The pressing of a slow rank."""

    def __init__(self) -> None:
        self.rested = time.monotonic()

    def __call__(self, step: int, samples: int) -> None:  # noqa: ARG002
        time.sleep(min(0.5, max(0.04, 2 * (time.monotonic() - self.rested))))
        self.rested = time.monotonic()


def shift_clock(how: str) -> None:
    """This process's wall clock is hours `ahead`, hours `behind`, or the one and the other in turn (`jumps`)."""
    offsets = {"ahead": (HOURS,), "behind": (-HOURS,), "jumps": (HOURS, -HOURS)}[how]
    turn, names, true, whole = itertools.cycle(offsets), time, time.time, time.time_ns
    setattr(names, "time", lambda: true() + next(turn))  # noqa: B010  (another's name)
    setattr(names, "time_ns", lambda: whole() + int(1e9 * next(turn)))  # noqa: B010


@dataclass(frozen=True)
class CappedMemory(Disturbance):
    """A rank runs out of memory: from a step on it really allocates some while its address space is really limited.

    Once, and far too much; or, with `most`, at every step, so much that `most` samples are too many and half are not.
    """

    whose: int
    step: int
    python: bool
    most: int = 0

    def rank(self, rank: int) -> Press:
        return Cap(self.step, self.python, self.most) if rank == self.whose else super().rank(rank)


class Cap:
    """The pressing of a rank whose memory is capped."""

    def __init__(self, step: int, python: bool, most: int) -> None:
        self.step, self.python, self.most, self.over = step, python, most, False

    def __call__(self, step: int, samples: int) -> None:
        if step < self.step or self.over:
            return
        self.over = not self.most
        size = int(1.5 * ROOM * samples / self.most) if self.most else 2 * ROOM
        with _limited(ROOM):
            bytearray(size) if self.python else torch.empty(size, dtype=torch.uint8)


@contextlib.contextmanager
def _limited(room: int) -> Iterator[None]:
    """This process gets no more than `room` bytes beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@dataclass(frozen=True)
class Starved(Disturbance):
    """A process that hardly gets the processor. `whom`: a rank, `all` of them, or the `supervisor`."""

    whom: str

    def start(self, start: RankStart, place: CaseDir) -> None:
        supervisor = os.getpid()
        beside(place, lambda: self._follow(start, supervisor))

    def _follow(self, start: RankStart, supervisor: int) -> None:
        """Disturb them until the ranks are gone."""
        random_numbers, seen = random.Random(repr(self)), False
        while alive(supervisor):
            living = {rank: pid for rank, pid in read_pids(start.files).items() if alive(pid)}
            if seen and not living:
                return
            seen = seen or bool(living)
            pids = [pid for rank, pid in living.items() if self.whom in ("all", str(rank))]
            self.disturb([supervisor] if self.whom == "supervisor" else pids, random_numbers)
            time.sleep(0.1)

    def disturb(self, pids: list[int], random_numbers: random.Random) -> None:
        """Make life hard for them, for a moment."""
        raise NotImplementedError


@dataclass(frozen=True)
class Pulses(Starved):
    """Stopped again and again, each time for a while that is no hang."""

    def disturb(self, pids: list[int], random_numbers: random.Random) -> None:
        for number, seconds in ((signal.SIGSTOP, random_numbers.uniform(0.05, 0.4)), (signal.SIGCONT, 0.0)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(seconds)


@dataclass(frozen=True)
class Crowd(Starved):
    """A rank at nice 19 on one core, which somebody else has half of the time."""

    def rank(self, rank: int) -> Press:
        if str(rank) == self.whom:
            os.nice(19)
            os.sched_setaffinity(0, {_core(rank)})
        return super().rank(rank)

    def disturb(self, pids: list[int], random_numbers: random.Random) -> None:  # noqa: ARG002
        os.sched_setaffinity(0, {_core(int(self.whom))})
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass


def _core(rank: int) -> int:
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


@dataclass(frozen=True)
class Struck(Disturbance):
    """A signal to the parent of a rank, when the rank comes to a point.

    `helpless`: to all parents, so that none of them can act any more; then their supervisor is killed.
    """

    how: str
    point: str
    whose: int

    def at(self, point: str, rank: int) -> None:
        if (point, rank) != (self.point, self.whose) or not first_start():
            return
        if self.how != "helpless":
            os.kill(os.getppid(), SIGNALS[self.how])
            return
        for pid in read_pids(StartDir(Path(os.environ["UPS_RUN"]))).values():
            with contextlib.suppress(OSError, IndexError):
                os.kill(int(stat_of(pid)[1]), signal.SIGSTOP)
        os.kill(int(os.environ["UPS_SUPERVISOR"]), signal.SIGKILL)


@dataclass(frozen=True)
class Streams(Disturbance):
    """Where a run prints to is, or becomes after some seconds, of no use."""

    how: str
    seconds: float

    def streams(self, place: CaseDir) -> None:
        if self.how == "terminal":
            self._hung_up()
        elif self.how == "reader leaves":
            self._left_alone()
        elif self.how.endswith("full"):
            super().streams(place)
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            if self.how == "full":
                os.dup2(1, 2)
        else:
            super().streams(place)
            self._close()

    def _close(self) -> None:
        """Close streams, as if this process had been started without them."""
        names: Any = sys
        os.close(1)
        names.stdout = names.__stdout__ = None
        if self.how == "closed":
            os.close(2)
            names.stderr = names.__stderr__ = None

    def _left_alone(self) -> None:
        """Both go into a pipe; its reader reads for a while and leaves."""
        reading, writing = os.pipe()
        self._held(reading, writing)
        for number in (1, 2):
            os.dup2(writing, number)
        os.close(writing)

    def _hung_up(self) -> None:
        """Both are a terminal of this process's own, which somebody else holds and closes after a while."""
        master, slave = os.openpty()
        self._held(master, slave)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in (0, 1, 2):
            os.dup2(slave, number)
        os.close(slave)

    def _held(self, end: int, other: int) -> None:
        """Let somebody who is nobody's child in the run read for a while at an end, and leave with it."""

        def read() -> None:
            os.close(other)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.set_blocking(end, False)
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    os.read(end, 1 << 16)
                time.sleep(0.01)

        fork(lambda: _forget(fork(read))).wait()
        os.close(end)


LIMIT = 512 << 20  # bytes of a rank, beyond what it shares with the process it is a copy of
SMALL, LARGE = 16 << 20, 16 << 30  # what is left to a group that is to be starved, and what is as good as no limit


def _group(place: str, kind: str) -> MemoryGroup:
    """The control group of a case, named by its folder."""
    return MemoryGroup(f"ups-lab-{kind}-{zlib.crc32(place.encode())}")


@dataclass(frozen=True)
class KilledRank(Disturbance):
    """The kernel kills a rank whenever it takes `most` samples at once, and not with half as many."""

    needs: ClassVar[tuple[str, ...]] = ("memory control groups",)
    whose: int
    most: int

    def prepare(self, place: CaseDir) -> None:
        os.environ["UPS_LAB_GROUP"] = str(place.folder)
        _group(str(place.folder), "rank").create(LIMIT)

    def rank(self, rank: int) -> Press:
        if rank != self.whose:
            return super().rank(rank)
        _group(os.environ["UPS_LAB_GROUP"], "rank").add(os.getpid())

        def press(step: int, samples: int) -> None:  # noqa: ARG001
            if samples >= self.most:
                bytearray(b"\1") * 2 * LIMIT  # written, so that it is really there

        return press

    def problems(self, place: CaseDir) -> list[str]:
        _group(str(place.folder), "rank").remove()
        return []


@dataclass(frozen=True)
class KilledWorker(Disturbance):
    """The kernel kills a worker that loads the data of a rank, in its first start, in the rank's own control group."""

    needs: ClassVar[tuple[str, ...]] = ("memory control groups",)
    whose: int

    def prepare(self, place: CaseDir) -> None:
        _group(str(place.folder), "worker").create(LARGE)

    def start(self, start: RankStart, place: CaseDir) -> None:
        if start.attempt == 1:
            supervisor, group = os.getpid(), _group(str(place.folder), "worker")
            beside(place, lambda: self._follow(start, group, supervisor))

    def _follow(self, start: RankStart, group: MemoryGroup, supervisor: int) -> None:
        """Put the rank into the group, wait for its first worker, and then take all the memory that is left.

        The kernel chooses by what a process holds and by a score, which counts in parts of the group's limit: a file
        in memory, which belongs to no process, makes that large.
        """
        group.add(os.getpid())
        file, rank = os.memfd_create("ballast"), None
        for _ in range(LIMIT // SMALL):
            os.write(file, bytes(SMALL))
        while alive(supervisor):
            if rank is None:
                rank = read_pids(start.files).get(self.whose)
                if rank is not None:
                    group.add(rank)
            workers = [pid for one in (children(rank) if rank else []) for pid in children(one) if _serves(one, pid)]
            if rank and workers:
                _starve(group, rank, workers[0])
                return
            time.sleep(0.005)

    def problems(self, place: CaseDir) -> list[str]:
        _group(str(place.folder), "worker").remove()
        return []


def _serves(server: int, worker: int) -> bool:
    """Whether one is the server from which workers are forked, and the other a worker."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{server}/cmdline").read_bytes()
        return b"multiprocessing.forkserver" in words and Path(f"/proc/{worker}/cmdline").read_bytes() == words
    return False


def _starve(group: MemoryGroup, rank: int, victim: int) -> None:
    """Take memory in the group until the kernel kills, and have it choose the victim; then leave it in peace."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{rank}/oom_score_adj").write_text("0")
        Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    group.create(group.used() + SMALL)
    taken = bytearray(b"\1") * (2 * SMALL)
    end = time.monotonic() + 5
    while alive(victim) and time.monotonic() < end:
        time.sleep(0.01)
    group.create(LARGE)
    del taken
