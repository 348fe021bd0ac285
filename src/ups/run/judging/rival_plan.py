"""Decides beforehand how much of the data `linear` looks at, so that it costs little beside the training of ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ups.data.trajectories import Trajectories
from ups.eval.linear import FEW, REACH, RIDGES, ROWS, unknowns
from ups.tensors import Window
from ups.types import TaskSpec

SHARE, LEAST_SECONDS = 0.05, 1.0  # of the seconds that ours is trained for, and what is allowed however short those are
TRAJECTORIES, NUMBERS = 64, 2**24  # of training that are looked at, and numbers in them, at most
CHOSEN_BY, CHOSEN_BY_NUMBERS = 4, 2**20  # trajectories of validation that choose, and numbers in them, at most
FEWEST = 8  # trajectories that are judged, at least
# Nanoseconds of one core, as measured: for each weight of a row that is fitted to, and for each pair of them; for each
# weight of a frame by which a cell is predicted, and for each number that is compared with the truth.
DRAW, SQUARE, NEAR, WEIGH, COMPARE = 40.0, 0.06, 8.0, 1.0, 150.0


@dataclass(frozen=True)
class RivalPlan:
    """What `linear` looks at: the given frames, and the trajectories that it is judged on. `seconds` is what that takes
    on one core, by the numbers above: no clock is read, so that results repeat."""

    context: int
    judged: int
    seconds: float

    @classmethod
    def of(cls, task: TaskSpec, cells: int, given: int, frames: int, trajectories: int, seconds: float) -> RivalPlan:
        """The plan with the most frames of context that is affordable beside a training of so many `seconds`.

        Args:
            task: What is predicted.
            cells: Of a frame.
            given: True frames before a rollout.
            frames: That are predicted of each trajectory.
            trajectories: That ours is judged on.
            seconds: Of the training of ours, as the config says them.
        """
        allowed = max(LEAST_SECONDS, SHARE * seconds)
        contexts = sorted({given, *(n for n in (8, 4, 2, 1) if n < given)}, reverse=True)
        for context in contexts:
            fixed, each = _costs(task, cells, context, frames)
            if context == 1 or fixed + each * trajectories <= allowed:
                break
        judged = min(trajectories, max(FEWEST, int((allowed - fixed) / each)))
        return cls(context, judged, fixed + each * judged)

    def windows(self, parts: Sequence[Trajectories]) -> list[Window]:
        """The training windows that it is fitted to, evenly drawn from all trajectories."""
        return _some(parts, self.context, TRAJECTORIES, NUMBERS)

    def windows_to_choose(self, parts: Sequence[Trajectories]) -> list[Window]:
        """The windows of validation that choose among what it may be."""
        return _some(parts, self.context, CHOSEN_BY, CHOSEN_BY_NUMBERS)

    def of_all(self, windows: Iterable[Window], count: int) -> Iterator[Window]:
        """The trajectories that it is judged on, evenly drawn from the `count` that there are."""
        chosen, at = set(_evenly(count, max(self.judged, FEWEST))), 0
        for window in windows:
            rows = [i for i in range(len(window)) if at + i in chosen]
            at += len(window)
            if len(rows) == len(window):
                yield window
            else:
                yield from (window.rows(i, i + 1) for i in rows)


def _costs(task: TaskSpec, cells: int, context: int, frames: int) -> tuple[float, float]:
    """Seconds for the fit with its choices, and for each trajectory that is judged."""
    weights, channels = unknowns(task, context), len(task.channels)
    near = channels * (1 + 2 * REACH[task.ndim] * task.ndim)
    fit = ROWS * weights * (DRAW * weights + SQUARE * weights**2) + len(RIDGES) * SQUARE * weights**3
    cell = near * (NEAR + WEIGH * channels * context)
    choose = 2 * len(RIDGES) * min(CHOSEN_BY * frames * cells, CHOSEN_BY_NUMBERS / channels) * cell
    return 1e-9 * (fit + choose), 1e-9 * frames * cells * (cell + COMPARE * channels)


def _some(parts: Sequence[Trajectories], context: int, most: int, numbers: int) -> list[Window]:
    """Windows of single trajectories, evenly drawn: as many whole ones as hold so many numbers, but at least a few, of
    which fewer frames are then taken."""
    places = [(part, row) for part in parts for row in np.flatnonzero(part.lengths > context).tolist()]
    size = max((int(part.lengths[row]) * _numbers(part) for part, row in places), default=1)
    few = _evenly(len(places), max(min(FEW // 4, most), min(most, numbers // size)))
    windows = []
    for nth, i in enumerate(few):
        part, row = places[i]
        length = int(part.lengths[row])
        ahead = min(length - context, max(1, numbers // len(few) // _numbers(part) - context))
        first = (length - context - ahead) * nth // max(1, len(few) - 1)
        windows.append(part.streamed().window([row], [first], context, ahead))
    return windows


def _numbers(part: Trajectories) -> int:
    """Those of a frame."""
    return math.prod(part.shape) * len(part.task.channels)


def _evenly(count: int, most: int) -> list[int]:
    """So many of `count` places, evenly among them; all where there are no more."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist())) if count else []
