"""Disturbs what is around a run: its clock, neighbours, memory, log, and what others have left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ups.rundir import RunDir
from ups_fleet.fault_tests.case import CaseDir, Disturbance, Press
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.launchers.forked import close_inherited, default_signals, fork
from ups_fleet.supervise.launchers.launcher import read_pids
from ups_fleet.supervise.proc import alive

HOURS = 3 * 3600.0
ROOM = 2 << 30  # bytes that a capped rank may take: more than an allocator may have kept; they are not touched

_kept_open: list[Any] = []  # as long as this process lives


def beside(place: CaseDir, work: Callable[[], None]) -> None:
    """Do `work` in a process beside a run, a child of nobody in it, that prints to a file of its own."""

    def detached() -> None:
        output = os.open(place.beside, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
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
    """From a step on a rank really allocates memory while its address space is really limited.

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
    """At nice 19 on one core, which somebody else has half of the time."""

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
