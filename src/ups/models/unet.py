"""Core: U-shaped transformer. Windows at each level, grids halved on the way down and joined on the way up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape, WindowAttention, fourier
from ups.models.config import NetworkConfig
from ups.types import Grid


class Halve(nn.Module):
    """Pairs of tokens along each axis become one, by one map shared between axes; then the width grows."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.pair, self.widen = nn.Linear(2 * width, width), nn.Linear(width, wider)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        for axis in range(1, grid.ndim + 1):
            pairs = torch.unflatten(x, axis, (-1, 2)).movedim(axis + 1, -2).flatten(-2)
            x = self.pair(pairs)
        y: Tensor = self.widen(x)
        return y


class Double(nn.Module):
    """The way back: the width shrinks, then each token becomes two along each axis."""

    def __init__(self, wider: int, width: int) -> None:
        super().__init__()
        self.narrow, self.pair = nn.Linear(wider, width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        x = self.narrow(x)
        for axis in range(1, grid.ndim + 1):
            x = torch.unflatten(self.pair(x), -1, (2, -1)).movedim(-2, axis + 1).flatten(axis, axis + 1)
        return x


class UNet(nn.Module):
    """`levels` halvings of the token grid, blocks before and after each; `(B, *G, W)` to the same shape.

    Blocks are dealt evenly over the way down and up. Windows hold a fixed number of tokens, so cost is linear
    in tokens. A grid that cannot be halved that often (an odd axis, or fewer than four tokens) uses as many levels as
    it can; the number follows from the shape alone.
    """

    def __init__(self, config: NetworkConfig, shape: BlockShape) -> None:
        super().__init__()
        levels = config.levels + 1
        each = max(1, round(config.shape.depth / (2 * levels)))
        widths = [shape.heads * round(shape.width * config.growth**level / shape.heads) for level in range(levels)]
        shapes = [dataclasses.replace(shape, width=w) for w in widths]

        def mixer(s: BlockShape, shifted: bool) -> Callable[[], nn.Module]:
            if config.mixing == "fourier":
                return fourier(s, config.modes)
            return lambda: WindowAttention(s, config.windows, shifted)

        def stack(s: BlockShape, first: int) -> nn.ModuleList:
            """Blocks of one level; every other one is shifted, across the way down (0) and up (1) alike."""
            parity = ((first * each + i) % 2 == 1 for i in range(each))
            return nn.ModuleList(Block(s, mixer(s, odd)) for odd in parity)

        self.down = nn.ModuleList(stack(s, 0) for s in shapes)
        self.up = nn.ModuleList(stack(s, 1) for s in shapes)
        self.shrink = nn.ModuleList(Halve(a, b) for a, b in itertools.pairwise(widths))
        self.grow = nn.ModuleList(Double(b, a) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, c: Tensor, grid: Grid, task: str) -> Tensor:
        return self._level(0, x, c, grid, task)

    def _level(self, level: int, x: Tensor, c: Tensor, grid: Grid, task: str) -> Tensor:
        for block in self.down[level]:  # type: ignore[attr-defined]
            x = block(x, c, grid, task)
        if level < len(self.shrink) and all(n % 2 == 0 and n >= 4 for n in grid.shape):
            below = grid.over(*(2,) * grid.ndim)
            deeper = self._level(level + 1, self.shrink[level](x, grid), c, below, task)
            x = x + self.grow[level](deeper, grid)
        for block in self.up[level]:  # type: ignore[attr-defined]
            x = block(x, c, grid, task)
        return x
