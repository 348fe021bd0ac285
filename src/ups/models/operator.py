"""LatentOperator: advances a grid of tokens by dt, driven by parameters, boundary and task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape
from ups.models.conditions import Condition, Conditioner
from ups.models.encoders import InputEncoder
from ups.models.grids import Space
from ups.models.layers import Walls, modulate, rms_norm
from ups.models.transformer import Transformer
from ups.models.unet import UNet
from ups.types import ConfigError, TaskSpec


@dataclass(frozen=True)
class Size:
    """How large an operator is."""

    width: int
    depth: int
    heads: int
    ratio: float = 2.0


SIZES: dict[str, Size] = {
    "tiny": Size(width=64, depth=4, heads=4),
    "small": Size(width=128, depth=6, heads=4),
    "base": Size(width=384, depth=12, heads=6, ratio=4.0),
    "large": Size(width=768, depth=16, heads=12, ratio=4.0),
}


@dataclass(frozen=True)
class OperatorConfig:
    """A latent operator. Good values: the defaults on a laptop; `base` and a `unet` core for large 2D and 3D grids."""

    core: Literal["transformer", "unet"] = "transformer"
    """The network: every token meets every token, or U-shaped with windows, for large grids."""
    mixing: Literal["attention", "fourier"] = "fourier"
    """How tokens far apart meet: attention (within windows in the unet), or the first Fourier modes of each axis."""
    size: Literal["tiny", "small", "base", "large"] = "tiny"
    """A name out of SIZES; width, depth and heads below change one of its numbers."""
    width: int | None = None
    """Another width than that of `size`."""
    depth: int | None = None
    """Another depth than that of `size`."""
    heads: int | None = None
    """Another number of heads than that of `size`."""
    context: int = 1
    """Frames of context the operator sees."""
    kernel: int = 5
    """Reach of the local convolution, in tokens; odd."""
    modes: int = 16
    """Fourier modes kept per axis, where mixing is fourier."""
    norm: Literal["token", "field"] = "field"
    """What the norms measure: each token, or the whole field of a sample (keeps amplitudes between places)."""
    streams: int = 1
    """Groups of channels mixed in space apart from each other, with attention between them; 1: all together."""
    drop_path: float = 0.0
    """Probability of leaving out the last block's branches in training; earlier blocks less."""
    levels: int = 2
    """unet: how often the grid is halved."""
    growth: float = 1.5
    """unet: by what the width grows each time the grid is halved."""
    windows: tuple[int, int, int] = (16, 8, 4)
    """unet: tokens per window axis in 1D, 2D, 3D."""

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ConfigError(f"operator.kernel is {self.kernel}; a convolution with a middle has an odd kernel.")
        given = [n for n in (self.width, self.depth, self.heads) if n is not None]
        if min(self.context, self.streams, self.modes, self.kernel, *self.windows, *given) < 1:
            raise ConfigError(
                "operator.context, streams, modes, kernel, windows, width, depth and heads are at least 1."
            )
        if not 0 <= self.drop_path < 1:
            raise ConfigError(f"operator.drop_path is {self.drop_path:g}, but must be from 0 to below 1.")
        if self.levels < 0 or not 0 < self.growth < math.inf:
            raise ConfigError("operator.levels is at least 0, and operator.growth a number above 0.")
        if self.shape.width % (2 * self.shape.heads):
            raise ConfigError(
                f"operator.width {self.shape.width} is not a multiple of twice operator.heads {self.shape.heads}; "
                "change one of them."
            )

    @property
    def shape(self) -> Size:
        """The size's numbers with the changes made to them."""
        named = SIZES[self.size]
        return Size(self.width or named.width, self.depth or named.depth, self.heads or named.heads, named.ratio)


def _transformer(config: OperatorConfig, shape: BlockShape) -> nn.Module:
    return Transformer(shape, config.shape.depth, config.mixing, config.modes, config.drop_path)


def _unet(config: OperatorConfig, shape: BlockShape) -> nn.Module:
    return UNet(
        shape,
        config.shape.depth,
        config.mixing,
        config.modes,
        config.drop_path,
        config.levels,
        config.growth,
        config.windows,
    )


CORES: dict[str, Callable[[OperatorConfig, BlockShape], nn.Module]] = {"unet": _unet, "transformer": _transformer}


class LatentOperator(nn.Module):
    """z(t + dt) = z(t) + s_task · head(core(enter(z(t), increments before it) + inputs, condition)).

    `s_task (D,)` is the size of an increment of that task (`fit_increments`), so that the network works with numbers of
    order one whatever dt is. The head starts at zero: an untrained operator predicts no change. The only random
    numbers used in `forward` are those of drop path, in training.
    """

    scale: Tensor
    # Methods other than `forward` through which it is run.
    entries: tuple[str, ...] = ()

    def __init__(
        self, config: OperatorConfig, dim: int, tasks: Sequence[TaskSpec], patch: Sequence[int] = (4, 4, 2)
    ) -> None:
        """`patch`: the codec's cells per token along each axis, in 1D, 2D and 3D."""
        super().__init__()
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
        self.inputs = InputEncoder(tasks, size.width * config.streams, patch)

    def shard_units(self) -> list[nn.Module]:
        """The repeated blocks, each with a `forward` of its own."""
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
