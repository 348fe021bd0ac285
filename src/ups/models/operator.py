"""LatentOperator: advances a grid of tokens by dt, driven by parameters, boundary and task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape
from ups.models.conditions import Conditioner, driven_by
from ups.models.config import OperatorConfig
from ups.models.encoders import InputEncoder
from ups.models.grids import Space
from ups.models.layers import Walls, fourier_features, modulate, rms_norm
from ups.models.part import Blueprint, NamedAxis, Part
from ups.models.transformer import Transformer
from ups.models.unet import UNet
from ups.tensors import Condition, TaskStatistics
from ups.types import ConfigError, TaskSpec, check_known

# A state that is less uneven and less in motion than this, beside a usual one, counts as if it were so.
STILL = 1e-3
GAUGE_WAVES = 3

CORES: dict[str, Callable[[OperatorConfig, BlockShape], nn.Module]] = {"unet": UNet, "transformer": Transformer}


class Gauge(nn.Module):
    """How far the states of a batch are from rest, `(B,)`, and what a network is told of it.

    A state at rest is uniform and does not change. Where states decay towards it, changes shrink with them; measured in
    this, they stay of order one, and so does what is left of the state.
    """

    def __init__(self, dim: int, width: int, condition: int) -> None:
        super().__init__()
        self.uneven = nn.Linear(dim, width, bias=False)
        self.told = nn.Linear(2 * GAUGE_WAVES + 1, condition, bias=False)

    def measure(self, z: Tensor, scale: Tensor) -> Tensor:
        """Of frames `(B, K, *G, D)`: rms of the last one's deviation from uniform, and of its change over `scale`."""
        uneven = _deviation(z[:, -1]).flatten(1).square().mean(1)
        moving = (z[:, -1] - z[:, -2]).div(scale).flatten(1).square().mean(1) if z.shape[1] > 1 else 0.0
        return (uneven + moving + STILL**2).sqrt()

    def features(self, last: Tensor, size: Tensor) -> Tensor:
        """What tokens `(B, *G, D)` are beside their mean, in units of `size`, as `(B, *G, width)`."""
        y: Tensor = self.uneven(_deviation(last) / size.reshape(-1, *(1,) * (last.ndim - 1)))
        return y

    def condition(self, size: Tensor) -> Tensor:
        y: Tensor = self.told(fourier_features(size.log() / 4, GAUGE_WAVES))
        return y


def _deviation(last: Tensor) -> Tensor:
    return last - last.mean(tuple(range(1, last.ndim - 1)), keepdim=True)


class LatentOperator(Part):
    """z(t + dt) = z(t) + s_task · head(core(enter(z(t), increments before it) + inputs, condition)).

    `s_task (D,)` is the size of an increment of that task (`fit_increments`), so that the network works with numbers of
    order one whatever dt is; with `gauge: sample` times each sample's own `Gauge`, unless the task is steady. The head
    starts at zero: an untrained operator predicts no change. The only random numbers used in `forward` are those of
    drop path, in training.
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
        if config.gauge == "sample":  # last: the weights of all else are those of an operator without it
            self.gauge = Gauge(dim, size.width * config.streams, size.width)
        # A steady task has one step, from nothing: there is no state to measure.
        self.gauged = frozenset(task.name for task in tasks if config.gauge == "sample" and not task.steady)

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
        return driven_by(task)

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
        last, c = z[:, -1], self.conditioner(condition)
        if gauged := condition.task in self.gauged:
            size = self.gauge.measure(z, scale)
            c, scale = c + self.gauge.condition(size), scale * size.reshape(-1, *(1,) * (z.ndim - 2))
        past = (z.diff(dim=1) / (scale.unsqueeze(1) if gauged else scale)).unbind(1)
        x = self.enter(torch.cat((last, *past), -1)) + self.walls(space, z.device)
        if gauged:
            x = x + self.gauge.features(last, size)
        if condition.task in self.inputs.tasks:
            x = x + self.inputs(condition.inputs, condition.task, space)
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
