"""Sees, while a predictor is judged, how much its rollouts break laws, and where they leave what training saw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ups.models import Simulator
from ups.models.limits import departed_of, first_steps
from ups.physics.laws import laws_of
from ups.tensors import Window
from ups.types import Array


class RolloutWatch:
    """A rollout function that remembers, for every sample in turn, how much it broke each law from its last given frame
    to its end, and, of a simulator, the step after which it left what training saw."""

    def __init__(self, function: Callable[[Window, int], Tensor], simulator: Simulator | None = None) -> None:
        self.function, self.simulator = function, simulator
        self.residuals: dict[str, list[Array]] = {}
        self.left: list[int | None] = []

    def __call__(self, window: Window, steps: int) -> Tensor:
        frames = self.function(window, steps)
        if self.simulator is not None:
            self.left += first_steps(departed_of(self.simulator, window, frames.unsqueeze(0)), len(window))
        rollout = frames if window.task.steady else torch.cat((window.state.unsqueeze(1), frames), 1)
        for law in laws_of(window.task, window.grid.periodic):
            values = law.residual(rollout, window.grid, window.mask).double().cpu().numpy()
            self.residuals.setdefault(law.name, []).append(np.nan_to_num(values, nan=np.inf, posinf=np.inf))
        return frames

    def taken(self) -> dict[str, Array]:
        """What each sample broke, by law, `(N,)`; then it begins anew."""
        residuals, self.residuals = self.residuals, {}
        return {name: np.concatenate(values) for name, values in residuals.items()}

    def taken_left(self) -> tuple[int | None, ...]:
        """The step after which each sample left what training saw; then it begins anew."""
        left, self.left = self.left, []
        return tuple(left)
