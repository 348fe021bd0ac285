"""Core: pure transformer. Blocks of one width, every token in reach of every other."""

from __future__ import annotations

from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape, GlobalAttention, fourier
from ups.models.config import NetworkConfig
from ups.types import Grid


class Transformer(nn.Module):
    """`depth` blocks over tokens `(B, *G, W)`: global attention (quadratic in tokens) or Fourier mixing (linear)."""

    def __init__(self, config: NetworkConfig, shape: BlockShape) -> None:
        super().__init__()
        mixer = fourier(shape, config.modes) if config.mixing == "fourier" else lambda: GlobalAttention(shape)
        self.blocks = nn.ModuleList(Block(shape, mixer) for _ in range(config.shape.depth))

    def forward(self, x: Tensor, c: Tensor, grid: Grid, task: str) -> Tensor:
        for block in self.blocks:
            x = block(x, c, grid, task)
        return x
