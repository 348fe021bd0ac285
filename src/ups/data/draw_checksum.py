"""A checksum of the windows that a rank drew; the sum over all ranks must be that of the planned order."""

from __future__ import annotations

import numpy as np

from ups.data.sampler import CHUNK, Sampler, mixed
from ups.types import Array

WRAP = (1 << 64) - 1
# Steps whose sums are remembered: windows are drawn ahead of the step that is being proven.
KEPT = 4096


def number(task: int, first: int, windows: Array) -> int:
    """A 64-bit checksum of the windows drawn at places `first` … of a task's endless sequence. Checksums of several
    pieces add up (modulo 2^64), in any order, to that of the whole."""
    places = np.arange(first, first + len(windows), dtype=np.uint64)
    return int(mixed(windows.astype(np.uint64), mixed(places, np.uint64(task))).sum())


class DrawChecksum:
    """A running sum over the steps drawn one after the other; another step than the next begins it anew.

    The thread that builds windows adds to it, some steps ahead of the thread that reads it.
    """

    def __init__(self) -> None:
        self.first = self.next = 0
        self._sums: dict[int, int] = {0: 0}

    def add(self, step: int, task: int, first: int, windows: Array) -> None:
        """Step `step` drew `windows` of a task, at places `first` … of its sequence."""
        if step != self.next:
            self.first, self._sums = step, {step: 0}
        self._sums[step + 1] = (self._sums[step] + number(task, first, windows)) & WRAP
        self._sums.pop(step - KEPT, None)
        self.next = step + 1

    def until(self, step: int) -> tuple[int, int]:
        """The first step that is counted, and the sum of what it and those before `step` drew."""
        return (self.first, self._sums[step]) if step in self._sums else (step, 0)


def expected(sampler: Sampler, first: int, last: int) -> int:
    """The sum of all that steps `first` … `last` − 1 draw by the order, over all ranks."""
    total = 0
    for task, turns in enumerate(zip(sampler.turns(first), sampler.turns(last), strict=True)):
        begin, end = (turn * sampler.sizes[task] for turn in turns)
        for at in range(begin, end, CHUNK):
            total += number(task, at, sampler.sequence(task, at, min(at + CHUNK, end)))
    return total & WRAP


def share(sampler: Sampler, first: int, last: int, rank: int, world: int) -> int:
    """The sum of what one rank should have drawn of it."""
    total = 0
    for step in range(first, last):
        task, windows = sampler.indices(step, rank, world)
        total += number(task, sampler.place(step, rank, world), windows)
    return total & WRAP
