"""TokenNetwork: the base of every part that works on tokens: tokens and a condition in, numbers per token out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape
from ups.models.conditions import Conditioner, driven_by
from ups.models.config import NetworkConfig
from ups.models.encoders import InputEncoder
from ups.models.layers import Walls, draw_small, modulated
from ups.models.part import Blueprint, NamedAxis, Part
from ups.models.transformer import Transformer
from ups.models.unet import UNet
from ups.plugins import Table
from ups.tensors import Condition, TaskStatistics
from ups.types import TaskSpec, check_known

LEAST = 1e-6  # of a deviation that numbers are measured in
Core = Callable[[NetworkConfig, BlockShape], nn.Module]
BUILT_IN: dict[str, Core] = {"unet": UNet, "transformer": Transformer}
CORES: Table[Core] = Table("cores", BUILT_IN)


class TokenNetwork(Part):
    """head(core(enter(numbers of each token) + walls + inputs, condition)): tokens `(B, *G, D)`.

    A subclass says what enters (`frames` times D numbers for each token) and what the answer means. The head starts at
    zero.
    """

    config: Any

    def __init__(
        self,
        config: NetworkConfig,
        frames: int,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`patch`: the codec's cells per token along each axis, in 1D, 2D and 3D; `shapes`: its grid of each task."""
        super().__init__()
        check_known("core", (config.core,), CORES)
        size = config.shape
        self.config, self.dim, self.norm = config, dim, config.norm
        own = tuple(task.name for task in tasks) if config.per_task_layers else ()
        shape = BlockShape(size.width, size.heads, size.width, size.ratio, config.kernel, config.norm, own)
        self.conditioner = Conditioner(size.width, tasks)
        self.enter = nn.Linear(frames * dim, size.width)
        self.walls = Walls(size.width)
        self.core = CORES[config.core](config, shape)
        self.modulation = nn.Linear(size.width, 2 * size.width)
        self.head = nn.Linear(size.width, dim)
        draw_small(self.modulation.weight)
        for tensor in (self.modulation.bias, self.head.weight, self.head.bias):
            nn.init.zeros_(tensor)
        self.inputs = InputEncoder(tasks, size.width, patch, shapes)

    @classmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        codec = blueprint.parts["codec"]
        part = cls(config, codec.config.dim, blueprint.tasks, codec.config.patch, codec.shapes)  # type: ignore[arg-type]
        part.connect(blueprint.parts)
        return part

    def connect(self, parts: Mapping[str, Part]) -> None:
        self.inputs.corners = parts["codec"].corners  # type: ignore[assignment]

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        if task.inputs:
            std = statistics.input_std
            if task.mask:  # a mask that hardly varies is not blown up: its few cells would drown all else
                place = torch.tensor([name == task.mask for name in task.given], device=std.device)
                std = torch.where(place, std.clamp_min(0.25), std)
            self.fit_inputs(task.name, statistics.input_mean, std)
        self.fit_ranges(task.name, statistics.low, statistics.high)

    def fit_ranges(self, task: str, low: Tensor, high: Tensor) -> None:
        """Record the range `(P,)` of each parameter in training, in the order of `numeric_params(task)`."""
        self.conditioner.range_of(task).fit(low, high)

    def fit_inputs(self, task: str, mean: Tensor, std: Tensor) -> None:
        """Record mean and standard deviation `(C_in,)` of the training inputs; nothing where a task has none."""
        if task in self.inputs.tasks:
            self.inputs.statistics_of(task).fit(mean, std)

    def by_name(self, task: TaskSpec) -> dict[str, NamedAxis]:
        return driven_by(task)

    def shard_units(self) -> list[nn.Module]:
        return [module for module in self.core.modules() if isinstance(module, Block)]

    def row(self, task: str) -> int:
        """The place of a task in tensors with a row per task."""
        return self.conditioner.index[task]

    def network(
        self, numbers: Sequence[Tensor], c: Tensor, condition: Condition, features: Tensor | None = None
    ) -> Tensor:
        """`numbers`, each `(B, *G, D)`, under the embedded condition `c (B, width)`, to `(B, *G, D)`.

        `features (B, *G, width)`: what is known of each token besides.
        """
        first = numbers[0]
        grid = condition.grid.cells(first.shape[1:-1])
        x = self.enter(torch.cat(tuple(numbers), -1)) + self.walls(grid, first.device)
        if features is not None:
            x = x + features
        if condition.task in self.inputs.tasks:
            x = x + self.inputs(condition.inputs, condition.task, grid, condition.grid)
        mixed = self.core(x, c, grid, condition.task)
        gain, shift = self.modulation(c).reshape(x.shape[0], *(1,) * grid.ndim, -1).chunk(2, -1)
        answer: Tensor = self.head(modulated(mixed, self.norm, gain, shift))
        return answer


class StepNetwork(TokenNetwork):
    """The base of networks that correct or judge one step of the operator. Three grids of tokens enter, in units of
    what is usually missed of a task in a step, `scale (D,)`, or of what usually changes in it, `change (D,)`."""

    rows: ClassVar[tuple[str, ...]] = ("scale", "change", "conditioner.task")
    scale: Tensor
    change: Tensor

    def __init__(
        self,
        config: NetworkConfig,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(config, 3, dim, tasks, patch, shapes)
        self.register_buffer("scale", torch.ones(len(tasks), dim))
        self.register_buffer("change", torch.ones(len(tasks), dim))

    def fit_scales(self, task: str, missed: Tensor, change: Tensor) -> None:
        """Record rms `(D,)` of what is missed of a task in one step, and of what changes in it."""
        row = self.row(task)
        self.scale[row], self.change[row] = missed.clamp_min(LEAST), change.clamp_min(LEAST)

    def scale_of(self, task: str) -> Tensor:
        return self.scale[self.row(task)]
