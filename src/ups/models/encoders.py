"""Grid encoders: overlapping patches of a normalised field become tokens, one per patch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ups.models.grids import in_patches, padded, patches, resample, shift_of
from ups.models.layers import LocalMix
from ups.models.scattered import on_grid
from ups.types import ConfigError, Grid, Points, TaskSpec, counted

# Relative rounding of float32, in which fields are read.
ROUNDING = 4 * torch.finfo(torch.float32).eps


class Statistics(nn.Module):
    """Mean, standard deviation and range of each channel of a task, `(C,)`; they travel with the weights.

    The deviation of a channel that never varied is 0: whatever tokens say of it, it is decoded as its mean. Of its
    range nothing is known, nor is it before a `fit`: that is infinite.
    """

    mean: Tensor
    std: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.register_buffer("least", torch.full((channels,), -math.inf))
        self.register_buffer("most", torch.full((channels,), math.inf))

    def fit(self, mean: Tensor, std: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> None:
        """A deviation within the rounding of its mean is none; how small it is says nothing, for units are anyone's."""
        mean, std = torch.as_tensor(mean), torch.as_tensor(std)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > ROUNDING * mean.abs(), std, torch.zeros_like(std)))
        if least is not None and most is not None:
            self.least.copy_(torch.where(self.std > 0, least.to(self.std), -math.inf))
            self.most.copy_(torch.where(self.std > 0, most.to(self.std), math.inf))

    def complete(self, other: Statistics) -> None:
        """Take the numbers of other data for channels that have never varied so far; the range becomes that of both."""
        still = self.std == 0
        least, most = torch.minimum(self.least, other.least), torch.maximum(self.most, other.most)
        self.least.copy_(torch.where(still, other.least, least))
        self.most.copy_(torch.where(still, other.most, most))
        self.mean.copy_(torch.where(still, other.mean, self.mean))
        self.std.copy_(torch.where(still, other.std, self.std))

    @property
    def scale(self) -> Tensor:
        """What differences are divided by: the deviation; for a channel that never varied, something of its size."""
        return torch.where(self.std > 0, self.std, 1 + self.mean.abs())

    @property
    def usual(self) -> Tensor:
        """The size that values have: the deviation, or that of a channel that never varied; 0 where it was zero."""
        return torch.where(self.std > 0, self.std, self.mean.abs())

    def forward(self, x: Tensor) -> Tensor:
        """Physical units to about ±1."""
        return (x.float() - self.mean) / self.scale


def isometry(dim: int, values: int) -> Tensor:
    """A `(dim, values)` matrix of orthonormal columns (rows, where dim is smaller), scaled to keep an rms."""
    turned = torch.empty(dim, values)
    nn.init.orthogonal_(turned, gain=max(dim / values, 1.0) ** 0.5)
    return turned


class GridEncoder(nn.Module):
    """`(B, *S, C)` → `(B, *G, D)`, G = S / patch: one linear map per task, then shared residual local mixing.

    A token sees its patch and `halo` cells around it. It starts as an isometry of the patch alone, which loses nothing
    as long as D ≥ C · patch^n; wider patches than that are compressed.
    """

    def __init__(self, tasks: Sequence[TaskSpec], dim: int, patch: Sequence[int], halo: int, blocks: int) -> None:
        super().__init__()
        self.patch, self.halo = tuple(patch), halo
        self.enter = nn.ModuleDict({task.name: self._embedding(task, dim) for task in tasks})
        self.blocks = nn.ModuleList(LocalMix(dim) for _ in range(blocks))

    def _embedding(self, task: TaskSpec, dim: int) -> nn.Linear:
        p, h, n, c = self.patch[task.ndim - 1], self.halo, task.ndim, len(task.channels)
        layer = nn.Linear(c * (p + 2 * h) ** n, dim)
        with torch.no_grad():
            window = torch.zeros(dim, c, *(p + 2 * h,) * n)
            inner = (slice(None), slice(None), *(slice(h, h + p),) * n)
            window[inner] = isometry(dim, c * p**n).reshape(dim, c, *(p,) * n)
            layer.weight.copy_(window.reshape(dim, -1))
            layer.bias.zero_()
        return layer

    def core_of(self, task: TaskSpec) -> Tensor:
        """The weights `(D, C, patch^n)` that read the patch itself, without its halo."""
        p, h, n, c = self.patch[task.ndim - 1], self.halo, task.ndim, len(task.channels)
        layer = self.enter[task.name]
        assert isinstance(layer, nn.Linear)
        window = layer.weight.detach().reshape(-1, c, *(p + 2 * h,) * n)
        return window[(slice(None), slice(None), *(slice(h, h + p),) * n)].flatten(2)

    def change(self, x: Tensor, task: TaskSpec, periodic: tuple[bool, ...]) -> Tensor:
        """How tokens `(B, *G, D)` move with a change `(B, *S, C)` of the field: by the linear map alone, so that no
        change moves nothing. What the blocks would add to it is left out."""
        layer = self.enter[task.name]
        assert isinstance(layer, nn.Linear)
        cells = patches(x, self.patch[task.ndim - 1], self.halo, periodic)
        return nn.functional.linear(cells, layer.weight)

    def forward(self, x: Tensor, task: TaskSpec, grid: Grid) -> Tensor:
        p = self.patch[task.ndim - 1]
        tokens = grid.cells(x.shape[1:-1]).over(*(p,) * task.ndim)
        z: Tensor = self.enter[task.name](patches(x, p, self.halo, grid.periodic))
        for block in self.blocks:
            z = block(z, tokens)
        return z


class InputEncoder(nn.Module):
    """What drives a task rather than being predicted, `(B, *S, C_in)` in physical units, to one token per patch.

    Inputs on another grid than the task's (`shapes`; that of the tokens where it is not named) are resampled to it and
    padded as frames are. Tasks without inputs are not in `tasks`.
    """

    HALO = 2

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        dim: int,
        patch: Sequence[int],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__()
        self.shapes = dict(shapes or {})
        self.corners: Mapping[str, tuple[float, ...]] = {}  # where they begin, as the codec's do
        given = [dataclasses.replace(task, fields=task.inputs, inputs=()) for task in tasks if task.inputs]
        self.tasks = {task.name: task for task in given}
        self.statistics = nn.ModuleDict({task.name: Statistics(len(task.channels)) for task in given})
        self.encoder = GridEncoder(given, dim, patch, self.HALO, blocks=0)

    def statistics_of(self, task: str) -> Statistics:
        statistics = self.statistics[task]
        assert isinstance(statistics, Statistics)
        return statistics

    def forward(self, inputs: Tensor | None, task: str, tokens: Grid, grid: Grid) -> Tensor:
        """Inputs of a task, on a `grid`, to tokens `(B, *G, D)` on the grid of `tokens`."""
        spec = self.tasks[task]
        if inputs is None or inputs.ndim != len(grid.shape) + 2 or inputs.shape[-1] != len(spec.channels):
            given = "nothing" if inputs is None else f"a shape of {tuple(inputs.shape)}"
            raise ConfigError(
                f"{task} is driven by the inputs {', '.join(spec.channels)}, (B, *S, {len(spec.channels)}) with "
                f"{counted(spec.ndim, 'axis')}, and was given {given}; give inputs=…."
            )
        patch = self.encoder.patch[spec.ndim - 1]
        own = self.shapes.get(task, ())
        if in_patches(own, patch) != tokens.shape:
            own = tuple(n * patch for n in tokens.shape)
        values = self.statistics_of(task)(inputs)
        if isinstance(grid, Points):
            at: Tensor = self.encoder(padded(on_grid(values, grid, own), patch, grid.periodic), spec, tokens)
            return at
        theirs = grid._replace(shape=tuple(inputs.shape[1:-1]))  # which may have other cells than the state
        shift = shift_of(self.corners.get(task), own, theirs)
        x = resample(values, own, grid.periodic, shift)
        y: Tensor = self.encoder(padded(x, patch, grid.periodic), spec, grid)
        return y
