"""Which point of a sweep comes next: the next of a list, or what a study asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ups_fleet.run_folders.state import RunState
from ups_fleet.sweep.axes import SweepPoint


class Queue(Protocol):
    """Gives points one by one, and is told how each ended."""

    @property
    def total(self) -> int:
        """Runs there will be in all."""
        ...

    def next(self) -> SweepPoint | None:
        """The next point; None where there is none, or none before others have ended."""
        ...

    def done(self, point: SweepPoint, state: RunState) -> None:
        """A point is finished, failed, or was finished before."""
        ...


class Listed:
    """Points that are known from the start, in their order."""

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        self.points, self.place = points, 0

    @property
    def total(self) -> int:
        return len(self.points)

    def next(self) -> SweepPoint | None:
        if self.place == len(self.points):
            return None
        self.place += 1
        return self.points[self.place - 1]

    def done(self, point: SweepPoint, state: RunState) -> None:
        """Nothing depends on how one ended."""
