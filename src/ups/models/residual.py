"""ResidualFlow: what the operator misses, as a distribution; drawn by following a flow from noise in a few steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape
from ups.models.conditions import Conditioner, driven_by
from ups.models.config import ResidualConfig
from ups.models.encoders import InputEncoder
from ups.models.grids import Space
from ups.models.layers import Walls, fourier_features, modulate, rms_norm
from ups.models.operator import CORES
from ups.models.part import Blueprint, NamedAxis, Part
from ups.tensors import Condition, TaskStatistics
from ups.types import TaskSpec, check_known

TIME_WAVES = 4
LEAST = 1e-6  # of a deviation that numbers are measured in


class ResidualFlow(Part):
    """r = z_true − z_predicted, in units `s_task (D,)` of what is usually missed (`fit_scales`), as a flow.

    `forward` is the velocity of x(t) = (1 − t) · noise + t · r / s at `t` from 0 to 1, expected given x(t), the
    prediction, the frame before it and the condition. Followed from noise it gives a draw of r. At time 0 and x = 0,
    where no noise ever is, it is trained to be the mean of r. The head starts at zero.
    """

    Config: ClassVar[type] = ResidualConfig
    draws: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("scale", "change", "conditioner.task")
    scale: Tensor
    change: Tensor

    def __init__(
        self,
        config: ResidualConfig,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        grids: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`patch`: the codec's cells per token along each axis, in 1D, 2D and 3D; `grids`: its grid of each task."""
        super().__init__()
        network = config.network
        check_known("core", (network.core,), CORES)
        size = network.shape
        self.config, self.norm = config, network.norm
        shape = BlockShape(size.width, size.heads, size.width, size.ratio, network.kernel, network.norm, 1)
        self.conditioner = Conditioner(size.width, tasks)
        self.time = nn.Linear(2 * TIME_WAVES + 1, size.width, bias=False)
        self.enter = nn.Linear(3 * dim, size.width)
        self.walls = Walls(size.width)
        self.core = CORES[network.core](network, shape)
        self.modulation = nn.Linear(size.width, 2 * size.width)
        self.head = nn.Linear(size.width, dim)
        nn.init.normal_(self.modulation.weight, std=0.02)
        for tensor in (self.modulation.bias, self.head.weight, self.head.bias):
            nn.init.zeros_(tensor)
        self.register_buffer("scale", torch.ones(len(tasks), dim))
        self.register_buffer("change", torch.ones(len(tasks), dim))
        self.inputs = InputEncoder(tasks, size.width, patch, grids)

    @classmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        codec = blueprint.parts["codec"]
        return cls(config, codec.config.dim, blueprint.tasks, codec.config.patch, codec.grids)

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        if task.name in self.inputs.tasks:
            self.inputs.statistics_of(task.name).fit(statistics.input_mean, statistics.input_std)
        self.conditioner.range_of(task.name).fit(statistics.low, statistics.high)

    def by_name(self, task: TaskSpec) -> dict[str, NamedAxis]:
        return driven_by(task)

    def shard_units(self) -> list[nn.Module]:
        return [module for module in self.core.modules() if isinstance(module, Block)]

    def fit_scales(self, task: str, missed: Tensor, change: Tensor) -> None:
        """Record rms `(D,)` of what the operator misses of `task`, and of what it changes, in one step."""
        row = self.conditioner.index[task]
        self.scale[row], self.change[row] = missed.clamp_min(LEAST), change.clamp_min(LEAST)

    def scale_of(self, task: str) -> Tensor:
        return self.scale[self.conditioner.index[task]]

    def forward(self, x: Tensor, time: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """The velocity `(B, *G, D)` of `x` at `time (B,)`; `z` is predicted to follow the tokens `last`."""
        space = Space(tuple(z.shape[1:-1]), condition.periodic)
        c = self.conditioner(condition) + self.time(fourier_features(time, TIME_WAVES))
        change = (z - last) / self.change[self.conditioner.index[condition.task]]
        h = self.enter(torch.cat((x, z, change), -1)) + self.walls(space, z.device)
        if condition.task in self.inputs.tasks:
            h = h + self.inputs(condition.inputs, condition.task, space)
        mixed = self.core(h, c, space)
        gain, shift = self.modulation(c).reshape(len(x), *(1,) * space.ndim, -1).chunk(2, -1)
        velocity: Tensor = self.head(modulate(rms_norm(mixed, self.norm), gain, shift))
        return velocity

    def refine_tokens(self, z: Tensor, before: Tensor, condition: Condition) -> Tensor:
        """A draw of the next frame's tokens where the condition brings noise, and their mean where it does not."""
        last, scale = before[:, -1], self.scale_of(condition.task)
        if condition.noise is None:
            mean: Tensor = self(torch.zeros_like(z), z.new_zeros(len(z)), z, last, condition)
            return z + scale * mean
        x, steps = condition.noise, self.config.steps
        for i in range(steps):  # the midpoint rule: two evaluations a step
            begin, middle = (z.new_full((len(z),), (i + part) / steps) for part in (0.0, 0.5))
            half = x + self(x, begin, z, last, condition) / (2 * steps)
            x = x + self(half, middle, z, last, condition) / steps
        return z + scale * x
