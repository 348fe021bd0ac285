"""ResidualFlow: what the operator misses, as a distribution; drawn by following a flow from noise in a few steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ups.models.config import ResidualConfig
from ups.models.layers import fourier_features
from ups.models.tokens import StepNetwork
from ups.tensors import Condition
from ups.types import TaskSpec

TIME_WAVES = 4


class ResidualFlow(StepNetwork):
    """r = z_true − z_predicted, in units s of what is usually missed, as a flow.

    `forward` is the velocity of x(t) = (1 − t) · noise + t · r / s at `t` from 0 to 1, expected given x(t), the
    prediction, the frame before it and the condition. Followed from noise it gives a draw of r. At time 0 and x = 0,
    where no noise ever is, it is trained to be the mean of r. The head starts at zero.
    """

    Config: ClassVar[type] = ResidualConfig
    draws: ClassVar[bool] = True

    def __init__(
        self,
        config: ResidualConfig,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(config, dim, tasks, patch, shapes)
        self.evaluations = 2 * config.steps
        self.time = nn.Linear(2 * TIME_WAVES + 1, config.shape.width, bias=False)

    def forward(self, x: Tensor, time: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """The velocity `(B, *G, D)` of `x` at `time (B,)`; `z` is predicted to follow the tokens `last`."""
        c = self.conditioner(condition) + self.time(fourier_features(time, TIME_WAVES))
        return self.network((x, z, (z - last) / self.change[self.row(condition.task)]), c, condition)

    def sample(self, noise: Tensor | None, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """What is missed, in its units: drawn with `noise (B, *G, D)`, or its mean without."""
        if noise is None:
            mean: Tensor = self(torch.zeros_like(z), z.new_zeros(z.shape[0]), z, last, condition)
            return mean
        x, steps = noise, self.config.steps
        for i in range(steps):  # the midpoint rule: two evaluations a step
            begin, middle = (z.new_full((z.shape[0],), (i + part) / steps) for part in (0.0, 0.5))
            half = x + self(x, begin, z, last, condition) / (2 * steps)
            x = x + self(half, middle, z, last, condition) / steps
        return x

    def refine_tokens(self, z: Tensor, before: Tensor, condition: Condition) -> Tensor:
        """A draw of the next frame's tokens where the condition brings noise, and their mean where it does not."""
        return z + self.scale_of(condition.task) * self.sample(condition.noise, z, before[:, -1], condition)
