"""Decides whether lack of memory ended a rank that could not say so itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from ups.host_memory import KernelKills, address_space, full
from ups.shortage import last_words
from ups_fleet.supervise.launchers.launcher import Exit

SHARED = "/dev/shm"
# What a process dies of whose library does not expect that memory can be refused.
BLIND = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}


class MemoryWatch:
    """Looks at the memory of the ranks while they live, for what is left to be known of it when one has died."""

    def __init__(self) -> None:
        self._kills = KernelKills()
        self._spaces: dict[int, tuple[int, int]] = {}  # by process: address space at its peak, and its limit
        self._unlimited: set[int] = set()

    def look(self, pids: Iterable[int]) -> None:
        pids = [pid for pid in pids if pid]
        self._kills.look(pids)
        for pid in pids:
            if pid not in self._unlimited:
                space = address_space(pid)
                if space is not None:
                    self._spaces[pid] = space
                elif pid not in self._spaces:
                    self._unlimited.add(pid)

    def cause(self, end: Exit, pid: int) -> str:
        """How want of memory ended a rank, in words that follow "rank N"; empty where it was something else."""
        if end.code == -signal.SIGKILL and self._kills.killed(pid, end.clock):
            return "was killed by the kernel because the host ran out of memory"
        how = f"was killed by {signal.Signals(-end.code).name}" if end.code in BLIND else f"left with code {end.code}"
        if end.code not in BLIND and end.code != 1:  # 1 is what an interpreter and a library's exit() give
            return ""
        if words := last_words(end.tail):
            return f"{how} for want of host memory, its last words being '{words}'"
        if pid in self._spaces and full(*self._spaces[pid]):
            peak, limit = self._spaces[pid]
            return f"{how} with {peak / 1e9:.2f} GB of the {limit / 1e9:.2f} GB of address space that ulimit -v allows"
        if end.code == -signal.SIGBUS and _full(SHARED):
            return f"{how} while {SHARED} was full, which takes host memory"
        return ""


def _full(folder: str) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < max(1 << 20, room.f_blocks * room.f_frsize // 1000)
