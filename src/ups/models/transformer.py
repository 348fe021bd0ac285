"""Core: pure transformer. Blocks of one width, every token in reach of every other."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from ups.models.blocks import Block, BlockShape, GlobalAttention, fourier
from ups.models.grids import Space


class Transformer(nn.Module):
    """`depth` blocks over tokens `(B, *G, W)`: global attention (quadratic in tokens) or Fourier mixing (linear)."""

    def __init__(self, shape: BlockShape, depth: int, mixing: str, modes: int, drop_path: float) -> None:
        super().__init__()
        mixer = fourier(shape, modes) if mixing == "fourier" else lambda: GlobalAttention(shape)
        self.blocks = nn.ModuleList(Block(shape, mixer, float(p)) for p in np.linspace(0, drop_path, depth))

    def forward(self, x: Tensor, c: Tensor, space: Space) -> Tensor:
        for block in self.blocks:
            x = block(x, c, space)
        return x
