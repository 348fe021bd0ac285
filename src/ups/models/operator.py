"""LatentOperator: advances a grid of tokens by dt, driven by parameters, boundary and task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape
from ups.models.conditions import Conditioner
from ups.models.config import OperatorConfig
from ups.models.encoders import InputEncoder
from ups.models.grids import Space
from ups.models.layers import Walls, modulate, rms_norm
from ups.models.part import Blueprint, NamedAxis, Part
from ups.models.transformer import Transformer
from ups.models.unet import UNet
from ups.tensors import Condition, TaskStatistics, numbers_of
from ups.types import ConfigError, TaskSpec, check_known

CORES: dict[str, Callable[[OperatorConfig, BlockShape], nn.Module]] = {"unet": UNet, "transformer": Transformer}


class LatentOperator(Part):
    """z(t + dt) = z(t) + s_task · head(core(enter(z(t), increments before it) + inputs, condition)).

    `s_task (D,)` is the size of an increment of that task (`fit_increments`), so that the network works with numbers of
    order one whatever dt is. The head starts at zero: an untrained operator predicts no change. The only random
    numbers used in `forward` are those of drop path, in training.
    """

    Config: ClassVar[type] = OperatorConfig
    scale: Tensor
    rows: ClassVar[tuple[str, ...]] = ("scale", "conditioner.task")

    def __init__(
        self,
        config: OperatorConfig,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        grids: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`patch`: the codec's cells per token along each axis, in 1D, 2D and 3D; `grids`: its grid of each task."""
        super().__init__()
        check_known("core", (config.core,), CORES)
        size = config.shape
        self.config, self.dim = config, dim
        shape = BlockShape(size.width, size.heads, size.width, size.ratio, config.kernel, config.norm, config.streams)
        self.conditioner = Conditioner(size.width, tasks)
        self.enter = nn.Linear(config.context * dim, size.width * config.streams)
        self.walls = Walls(size.width * config.streams)
        if config.streams > 1:
            self.stream = nn.Parameter(torch.randn(config.streams, size.width) / 2)
        self.core = CORES[config.core](config, shape)
        self.modulation = nn.Linear(size.width, 2 * size.width * config.streams)
        self.head = nn.Linear(size.width * config.streams, dim)
        nn.init.normal_(self.modulation.weight, std=0.02)
        for tensor in (self.modulation.bias, self.head.weight, self.head.bias):
            nn.init.zeros_(tensor)
        self.register_buffer("scale", torch.ones(len(tasks), dim))
        self.inputs = InputEncoder(tasks, size.width * config.streams, patch, grids)

    @classmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        codec = blueprint.parts["codec"]
        return cls(config, codec.config.dim, blueprint.tasks, codec.config.patch, codec.grids)

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        if task.inputs:
            std = statistics.input_std
            if task.mask:  # a mask that hardly varies is not blown up: its few cells would drown all else
                place = torch.tensor([name == task.mask for name in task.given], device=std.device)
                std = torch.where(place, std.clamp_min(0.25), std)
            self.fit_inputs(task.name, statistics.input_mean, std)
        self.fit_ranges(task.name, statistics.low, statistics.high)

    def by_name(self, task: TaskSpec) -> dict[str, NamedAxis]:
        name, numbers = task.name, numbers_of(task)
        named = {f"conditioner.ranges.{name}.{end}": NamedAxis(0, numbers) for end in ("low", "high")}
        named[f"conditioner.params.{name}.weight"] = NamedAxis(1, numbers, silent=True)
        named |= {f"inputs.statistics.{name}.{moment}": NamedAxis(0, task.given) for moment in ("mean", "std")}
        return named | {f"inputs.encoder.enter.{name}.weight": NamedAxis(1, task.given, silent=True)}

    def shard_units(self) -> list[nn.Module]:
        return [module for module in self.core.modules() if isinstance(module, Block)]

    def fit_increments(self, task: str, std: Tensor | float) -> None:
        """Record the size of an increment of `task`: rms of z(t + dt) − z(t), one number or one per channel `(D,)`."""
        row = self.conditioner.index[task]
        self.scale[row] = torch.as_tensor(std, dtype=self.scale.dtype, device=self.scale.device).clamp_min(1e-6)

    def fit_ranges(self, task: str, low: Tensor, high: Tensor) -> None:
        """Record the range `(P,)` of each parameter in training, in the order of `numbers_of(task)`."""
        self.conditioner.range_of(task).fit(low, high)

    def fit_inputs(self, task: str, mean: Tensor, std: Tensor) -> None:
        """Record mean and standard deviation `(C_in,)` of the training inputs; nothing where a task has none."""
        if task in self.inputs.tasks:
            self.inputs.statistics_of(task).fit(mean, std)

    def forward(self, z: Tensor, condition: Condition) -> Tensor:
        """Tokens of the last frames `z (B, K, *G, D)` to those of the next, `(B, *G, D)`."""
        if z.shape[1] != self.config.context:
            raise ConfigError(f"the operator was built for {self.config.context} frames of context, not {z.shape[1]}.")
        space = Space(tuple(z.shape[2:-1]), condition.periodic)
        scale = self.scale[self.conditioner.index[condition.task]]
        last = z[:, -1]
        past = (z.diff(dim=1) / scale).unbind(1)
        x = self.enter(torch.cat((last, *past), -1)) + self.walls(space, z.device)
        if condition.task in self.inputs.tasks:
            x = x + self.inputs(condition.inputs, condition.task, space)
        c = self.conditioner(condition)
        streams = self.config.streams
        mixed = self._streams(x, c, space) if streams > 1 else self.core(x, c, space)
        change, shift = self.modulation(c).reshape(len(x), *(1,) * space.ndim, -1).chunk(2, -1)
        delta = self.head(modulate(rms_norm(mixed, self.config.norm), change, shift))
        return torch.addcmul(last, delta, scale)

    def _streams(self, x: Tensor, c: Tensor, space: Space) -> Tensor:
        """Streams go through the core as samples of their own, each with its own share of the condition."""
        streams = self.config.streams
        apart = torch.unflatten(x, -1, (streams, -1)).movedim(-2, 1).flatten(0, 1)
        conditions = (c.unsqueeze(1) + self.stream).flatten(0, 1)
        return torch.unflatten(self.core(apart, conditions, space), 0, (-1, streams)).movedim(1, -2).flatten(-2)
