"""Sees, while a predictor is judged, how much its rollouts break laws, and where they leave what training saw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ups.models import Simulator
from ups.models.limits import departed_of, first_steps
from ups.models.trust import ErrorModel, Trust, rollout_with_signs
from ups.physics.laws import laws_of
from ups.tensors import Window
from ups.types import Array, TaskSpec


class RolloutWatch:
    """A rollout function that remembers, for every sample in turn, how much it broke each law from its last given frame
    to its end, and, of a simulator, the step after which it left what training saw; with an `error` model also what
    that estimates of its error."""

    def __init__(self, function: Callable[[Window, int], Tensor], simulator: Simulator | None = None) -> None:
        self.function, self.simulator = function, simulator
        self.error: ErrorModel | None = None
        self.residuals: dict[str, list[Array]] = {}
        self.left: list[int | None] = []
        self.estimates: list[Array] = []  # (B, steps)

    def __call__(self, window: Window, steps: int) -> Tensor:
        frames = self._frames(window, steps)
        if self.simulator is not None:
            self.left += first_steps(departed_of(self.simulator, window, frames.unsqueeze(0)), len(window))
        rollout = frames if window.task.steady else torch.cat((window.state.unsqueeze(1), frames), 1)
        for law in laws_of(window.task, window.grid.periodic):
            values = law.residual(rollout, window.grid, window.mask).double().cpu().numpy()
            self.residuals.setdefault(law.name, []).append(np.nan_to_num(values, nan=np.inf, posinf=np.inf))
        return frames

    def _frames(self, window: Window, steps: int) -> Tensor:
        """The rollout, and beside it the estimates of its error where they are asked for."""
        if self.simulator is None or self.error is None or self.error.unknown(window.task, window.grid.periodic):
            return self.function(window, steps)
        frames, signs = rollout_with_signs(self.simulator, window, steps)
        self.estimates.append(torch.stack([self.error(row) for row in signs], 1).double().cpu().numpy())
        return frames

    def estimating(self, task: TaskSpec, device: torch.device) -> None:
        """Estimate the errors of the rollouts to come, where that takes nothing beside them: no part draws. On a GPU a
        rollout is replayed, and one that looks for broken laws on its way is not."""
        sim, self.error, self.estimates = self.simulator, None, []
        if sim is not None and not any(part.draws for part in sim.awake(task)):
            free = device.type == "cpu" or not laws_of(sim.codec.task(task), task.periodic)
            self.error = sim.trust.get(task.name, Trust()).error if free and not task.steady else None

    def taken_estimates(self) -> Array | None:
        """The estimate for each sample and step, `(N, steps)`, None where there are none; then no more are made."""
        estimates, self.estimates, self.error = self.estimates, [], None
        return np.concatenate(estimates) if estimates else None

    def taken(self) -> dict[str, Array]:
        """What each sample broke, by law, `(N,)`; then it begins anew."""
        residuals, self.residuals = self.residuals, {}
        return {name: np.concatenate(values) for name, values in residuals.items()}

    def taken_left(self) -> tuple[int | None, ...]:
        """The step after which each sample left what training saw; then it begins anew."""
        left, self.left = self.left, []
        return tuple(left)
