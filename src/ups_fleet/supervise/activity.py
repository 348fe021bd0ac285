"""What a process and its descendants do, as /proc shows it: processor time, bytes moved, what they wait for."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from ups_fleet.supervise.proc import descendants, stat_of

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
