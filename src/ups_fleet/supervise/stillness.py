"""Ranks that do nothing at all, seen long before the limit of their phase is over."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from ups.heartbeat import Beat
from ups_fleet.supervise.limits import GAP, Limits
from ups_fleet.supervise.proc import descendants, stat_of, state_of

TICKS = os.sysconf("SC_CLK_TCK")
ACCELERATOR = re.compile(r"/dev/(nvidia\d|kfd|dri/render|accel|habana|neuron)")


@dataclass(frozen=True)
class ProcessWork:
    """What a process and its descendants have done so far. Only differences mean something."""

    seconds: float = 0.0  # of processor time
    moved: int = 0  # bytes read and written, wherever from and to


@dataclass(frozen=True)
class Threads:
    """What a process and its descendants are about. `stopped`: descendants that are stopped or traced."""

    runs: bool = False  # a thread has a core or waits for one
    disk: bool = False  # a thread waits for a disk or a driver
    stopped: tuple[int, ...] = ()


def work_of(pid: int) -> ProcessWork:
    """Children that have ended count through their parent, so the sums never fall while the tree is whole."""
    seconds, moved = 0.0, 0
    for one in (pid, *descendants(pid)):
        if fields := stat_of(one):
            seconds += sum(map(int, fields[11:15])) / TICKS
            moved += _moved(one)
    return ProcessWork(seconds, moved)


def threads_of(pid: int) -> Threads:
    states: set[str] = set()
    stopped = []
    for one in (pid, *descendants(pid)):
        own = {fields[0] for name in _threads(one) if (fields := stat_of(f"{one}/task/{name}"))}
        states |= own
        if one != pid and own & {"T", "t"}:
            stopped.append(one)
    return Threads("R" in states, "D" in states, tuple(stopped))


def storage_bytes() -> int:
    """Bytes that the disks and the network of this machine have moved: what a wait for storage may be for."""
    total = 0
    for line in _lines("/proc/diskstats"):
        words = line.split()
        total += 512 * sum(int(words[i]) for i in (5, 9, 17) if len(words) > i)
    for line in _lines("/proc/net/dev")[2:]:
        words = line.partition(":")[2].split()
        total += int(words[0]) + int(words[8])
    return total


def lock_waiters() -> set[int]:
    """Processes that wait for a file lock of another process."""
    lines = [line.split() for line in _lines("/proc/locks")]
    return {int(words[5]) for words in lines if len(words) > 5 and words[1] == "->" and words[5].isdecimal()}


def waits_for_lock(pid: int, waiters: Set[int]) -> bool:
    """Whether a process or a descendant is one of those."""
    return bool(waiters) and not waiters.isdisjoint({pid, *descendants(pid)})


def has_accelerator(pid: int) -> bool:
    """Whether a process has a GPU or the like open: its work may then be where /proc does not show it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if ACCELERATOR.match(os.readlink(f"/proc/{pid}/fd/{name}")):
                    return True
    return False


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _moved(pid: int) -> int:
    """Bytes through read and write calls, and from and to disks; 0 where that may not be seen."""
    values = [line.split(":") for line in _lines(f"/proc/{pid}/io")]
    return sum(int(value) for name, value in values if name in ("rchar", "wchar", "read_bytes", "write_bytes"))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


LOOK = 1.0  # seconds between two looks
# What threads that only look after things may take: a share of a core, bytes per second, and this much on top.
CORE, BYTES = 0.005, 512
ONCE = ProcessWork(0.05, 4096)
STORAGE = 128 * 1024  # bytes between two looks above which disks and network are at work
GPU = 5  # times the window for a rank that has a GPU: its host thread may sleep while that computes
STOPPED = {"T": "its process is stopped", "t": "its process is traced"}


@dataclass
class WatchedRank:
    """A rank since the moment it last did something."""

    beat: tuple[int, int]
    since: float
    waits: bool  # for a peer or for a lock
    state: str = ""
    work: ProcessWork | None = None  # done until the first look after that moment
    threads: Threads = field(default_factory=Threads)
    busy: bool = False  # the last look saw it work, and not only beat


class Stillness:
    """Which ranks have done nothing for `limits.still` seconds by this process's clock, without gaps in the watching.

    Nothing is: no beat, practically no processor time and no bytes, by it and all its descendants, and no thread that
    has a core or waits for one. One that waits for a disk or a driver is still only while disks and network rest too.
    One that waits for a lock or a peer is excused, and one whose peers work: it may be waiting for them. A stopped or
    traced process is still whatever else holds. `slack(phase)` multiplies the window.
    """

    def __init__(
        self,
        limits: Limits,
        whole: bool = True,
        slack: Callable[[str], float] = lambda phase: 1.0,  # noqa: ARG005
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._whole, self._slack, self._clock = limits, whole, slack, clock
        self._last = self._looked = clock()
        self._stored = 0
        self._watched: dict[int, WatchedRank] = {}
        self.at_disk: dict[int, float] = {}  # seconds that ranks have waited for storage that works

    def look(self, pids: Mapping[int, int], beats: Mapping[int, Beat]) -> None:
        """Note who has done something; to be called often, so that a gap is seen as one."""
        now = self._clock()
        if now - self._last > GAP:
            for watched in self._watched.values():
                watched.since += now - self._last
            self._looked += now - self._last
        self._last = now
        if now - self._looked < LOOK:
            return
        self._looked = now
        stored = storage_bytes()
        storage_rests, self._stored = stored - self._stored < STORAGE, stored
        waiters = lock_waiters()
        for rank in self._watched.keys() - pids.keys():
            del self._watched[rank]
        for rank, pid in pids.items():
            beat = beats.get(rank)
            count = (beat.pid, beat.count) if beat else (pid, 0)
            waits = beat is not None and beat.waiting
            known = self._watched.get(rank)
            if known is None or known.beat != count:
                self._watched[rank] = WatchedRank(count, now, waits)
                self.at_disk.pop(rank, None)
            else:
                known.waits = waits or waits_for_lock(pid, waiters)
                self._compare(rank, pid, known, storage_rests)

    def _compare(self, rank: int, pid: int, watched: WatchedRank, storage_rests: bool) -> None:
        before, watched.state, now = watched.state, state_of(pid), self._last
        if watched.state in STOPPED:
            watched.busy = False
            watched.since = watched.since if before in ("", watched.state) else now
            return
        work, elapsed = work_of(pid), now - watched.since
        if watched.work is None:  # whether it works is known only at the next look
            watched.work, watched.since = work, now
            return
        old = watched.work
        seconds, moved = work.seconds - old.seconds, work.moved - old.moved
        busy = seconds > ONCE.seconds + CORE * elapsed or moved > ONCE.moved + BYTES * elapsed
        busy = busy or min(seconds, moved) < 0 or before in STOPPED  # a child has left; or it is stopped no longer
        if not busy:
            watched.threads = threads_of(pid)
            busy = watched.threads.runs
        if not busy and watched.threads.disk and not storage_rests:
            self.at_disk[rank] = self.at_disk.get(rank, 0.0) + elapsed
            busy = True
        elif busy:
            self.at_disk.pop(rank, None)
        watched.busy = busy
        watched.work = work if busy else old
        watched.since = now if busy else watched.since

    def seconds_still(self, rank: int) -> float:
        """Seconds that a rank has done nothing."""
        return self._looked - self._watched[rank].since if rank in self._watched else 0.0

    def overdue(self, pids: Mapping[int, int], beats: Mapping[int, Beat], complete: bool = True) -> dict[int, str]:
        """Ranks that do nothing and wait for nobody, each with what it does instead.

        `complete`: all ranks of this machine have begun; otherwise others may be waiting for one that has not.
        """
        known = {rank: self._watched[rank] for rank in pids if rank in self._watched}
        stopped = [rank for rank, w in known.items() if w.state in STOPPED]
        if stopped or not complete:  # whoever else is still may be waiting for these
            return {
                rank: STOPPED[known[rank].state] for rank in stopped if self.seconds_still(rank) > self._limits.still
            }
        judged = [rank for rank, w in known.items() if not w.waits and not self._awake_and_idle(rank, beats.get(rank))]
        if not judged and self._whole:  # all wait, and nobody is left to wait for
            judged = [rank for rank in known if not self._awake_and_idle(rank, beats.get(rank))]
        late = [rank for rank in judged if self.seconds_still(rank) > self._window(rank, pids[rank], beats.get(rank))]
        if late != judged or any(w.busy and not w.waits for w in known.values()):
            return {}
        return {rank: _words(known[rank].threads) for rank in late}

    def _awake_and_idle(self, rank: int, beat: Beat | None) -> bool:
        """Whether it waits for something outside, and says so again and again."""
        return beat is not None and beat.phase == "idle" and self.seconds_still(rank) <= self._limits.still

    def _window(self, rank: int, pid: int, beat: Beat | None) -> float:
        phase = beat.phase if beat else "start"
        if not self._whole and phase == "start":  # it may be waiting for another machine
            return self._limits.start
        window = self._limits.still * self._slack(phase)
        return GPU * window if self.seconds_still(rank) > window and has_accelerator(pid) else window


def _words(threads: Threads) -> str:
    if threads.disk:
        return "waiting for a disk or a driver while no disk moves"
    words = "using no processor time and moving no bytes"
    return f"{words}, and its process {threads.stopped[0]} is stopped" if threads.stopped else words
