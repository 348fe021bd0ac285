"""TrainingMean: a forecast that gives every cell its mean over the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ups.data.trajectories import Trajectories
from ups.tensors import Window

MANY = 1024  # pieces of trajectories that a mean is of at most: with more it changes by a thousandth of what varies
READ = 2**30  # bytes of them that are read at most, so that judging does not wait for a mean of terabytes
PIECE = 2**24  # bytes of the frames that are read at a time, or one frame


@dataclass(frozen=True)
class TrainingMean:
    """The forecast that each cell has its mean over training, `(*S, C)`, whatever is given. Who does not beat it knows
    what is usual, and nothing of what follows from a state."""

    frame: Tensor
    name: str = "training-mean"

    def predict(self, window: Window, steps: int) -> Tensor:
        return self.frame.expand(len(window), steps, *self.frame.shape)


def training_mean(parts: Sequence[Trajectories], shape: tuple[int, ...]) -> TrainingMean | None:
    """The mean over the frames of all trajectories on a grid of so many cells; None where there are none.

    Added up in float64, a piece of a trajectory at a time: what is held is as large as a few frames, whatever the data
    are. Of very many or large trajectories it is that of some pieces, drawn evenly and always the same. A cell that
    does not count in a trajectory takes no part there.
    """
    alike = [part.streamed() for part in parts if part.shape == shape]
    if not alike:
        return None
    total = torch.zeros(*shape, len(alike[0].task.channels), dtype=torch.float64)
    seen = torch.zeros(*shape, 1, dtype=torch.float64)
    step = max(1, PIECE // (4 * total.numel()))
    pieces = [
        (i, row, first)
        for i, part in enumerate(alike)
        for row in range(len(part))
        for first in range(0, int(part.lengths[row]), step)
    ]
    most = min(MANY, max(2, READ // (4 * total.numel() * step)))
    for n in sorted(np.random.default_rng(0).permutation(len(pieces))[:most].tolist()):
        i, row, first = pieces[n]
        part = alike[i]
        frames = part.frames([row], [first], min(step, int(part.lengths[row]) - first))[0].cpu()
        counts = torch.ones(1) if part.mask is None else part.mask[row].unsqueeze(-1).cpu()
        total += frames.sum(0, dtype=torch.float64) * counts
        seen += counts * len(frames)
    return TrainingMean((total / seen.clamp_min(1)).float())
