"""Clock: how many frames each sample has, and the time between them where it varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ups.data.source import is_uniform
from ups.lazy_imports import Tensor, torch
from ups.types import Array


def is_even(times: Array) -> bool:
    """Whether frames lie equally far apart, to a thousandth of a step, as far as float32 tells."""
    return len(times) < 3 or is_uniform(np.asarray(times, np.float32))


@dataclass(frozen=True)
class Clock:
    """When the frames of each of some samples were taken.

    `lengths (N,)` frames each; `dt (N,)` the time between the first two (1 for a steady task, whose one step leads from
    nothing to its solution); `steps (N, T − 1)` every time between two frames, where they differ within a sample.
    """

    times: Array
    lengths: Array
    dt: Array
    steps: Array | None

    @classmethod
    def of(cls, rows: Sequence[Array]) -> Clock:
        """A clock made of the times of each sample; its `times` are those of the longest."""
        # Most samples share one array of times, which is looked at once.
        known = {id(row): i for i, row in enumerate(rows)}
        each = {key: np.asarray(rows[i], np.float64) for key, i in known.items()}
        of = [id(row) for row in rows]
        first_steps = {key: float(row[1] - row[0]) if len(row) > 1 else 1.0 for key, row in each.items()}
        lengths, dt = np.array([len(each[key]) for key in of]), np.array([first_steps[key] for key in of])
        longest, first = each[of[int(lengths.argmax())]], each[of[0]]
        same = all(np.array_equal(row, first) for row in each.values())
        even = is_even(first) if same else all(is_even(row) for row in each.values())
        steps = None
        if not even:
            steps = np.tile(dt[:, None], (1, len(longest) - 1))
            for i, key in enumerate(of):
                steps[i, : len(each[key]) - 1] = np.diff(each[key])
        return cls(longest, lengths, dt, steps)

    def step(self, samples: Sequence[int], first: Sequence[int], context: int, targets: int) -> Tensor:
        """`Window.dt` of a batch."""
        if self.steps is None or not targets:
            return torch.from_numpy(self.dt[list(samples)]).float()
        at = np.asarray(first)[:, None] + context - 1 + np.arange(targets)
        return torch.from_numpy(self.steps[np.asarray(samples)[:, None], at]).float()

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest time between two frames."""
        steps = self.dt if self.steps is None else self.steps
        return float(steps.min()), float(steps.max())
