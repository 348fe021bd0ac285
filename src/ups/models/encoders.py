"""Grid encoder: overlapping patches of a normalised field become tokens, one per patch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ups.models.grids import Space, patches
from ups.models.layers import LocalMix
from ups.types import TaskSpec


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

    def forward(self, x: Tensor, task: TaskSpec, periodic: tuple[bool, ...]) -> Tensor:
        p = self.patch[task.ndim - 1]
        space = Space(tuple(x.shape[1:-1]), periodic).over(*(p,) * task.ndim)
        z: Tensor = self.enter[task.name](patches(x, p, self.halo, periodic))
        for block in self.blocks:
            z = block(z, space)
        return z
