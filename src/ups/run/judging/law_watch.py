"""Measures how much a predictor's rollouts break the laws of their task, while it is judged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ups.physics.laws import laws_of
from ups.tensors import Window
from ups.types import Array


class LawWatch:
    """A rollout function that remembers, for every sample in turn, how much it broke each law from its last given frame
    to its end."""

    def __init__(self, function: Callable[[Window, int], Tensor]) -> None:
        self.function = function
        self.residuals: dict[str, list[Array]] = {}

    def __call__(self, window: Window, steps: int) -> Tensor:
        frames = self.function(window, steps)
        rollout = frames if window.task.steady else torch.cat((window.state.unsqueeze(1), frames), 1)
        for law in laws_of(window.task, window.grid.periodic):
            values = law.residual(rollout, window.grid, window.mask).double().cpu().numpy()
            self.residuals.setdefault(law.name, []).append(np.nan_to_num(values, nan=np.inf, posinf=np.inf))
        return frames

    def taken(self) -> dict[str, Array]:
        """What each sample broke, by law, `(N,)`; then it begins anew."""
        residuals, self.residuals = self.residuals, {}
        return {name: np.concatenate(values) for name, values in residuals.items()}
