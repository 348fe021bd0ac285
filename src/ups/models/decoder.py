"""Decoder: a cell reads the token it lies in, and attends to the tokens around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ups.models.encoders import GridEncoder
from ups.models.grids import pad_axis, sub_cells, unpatch
from ups.models.kernels.cpu_ops import gelu
from ups.models.layers import AXES, LocalMix, fourier_features, rms_norm
from ups.tensors import table
from ups.types import Array, Grid, TaskSpec

WAVES = 2


def lagrange(x: Tensor, count: int) -> Tensor:
    """The `count` polynomials that are 1 at one sub-cell centre of ±1/2 and 0 at the others, at `x`: `(…, count)`."""
    nodes = [(i + 0.5) / count - 0.5 for i in range(count)]
    columns = []
    for i, node in enumerate(nodes):
        column = torch.ones_like(x)
        for j, other in enumerate(nodes):
            if j != i:
                column = column * ((x - other) / (node - other))
        columns.append(column)
    return torch.stack(columns, -1)


def products(x: Tensor, count: int) -> Tensor:
    """Tensor products of `lagrange` over the axes of points `(…, n)`: `(…, count^n)`, row-major."""
    total = lagrange(x[..., 0], count)
    for axis in range(1, x.shape[-1]):
        total = (total.unsqueeze(-1) * lagrange(x[..., axis], count).unsqueeze(-2)).flatten(-2)
    return total


def offsets(ndim: int) -> Array:
    """The token itself and its neighbours, `(3^n, n)`, in units of a token."""
    return np.array(list(itertools.product((-1, 0, 1), repeat=ndim)))


@table
def _places(patch: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.as_tensor(sub_cells(patch), dtype=torch.float32, device=device)


@table
def _offsets(ndim: int, device: torch.device) -> Tensor:
    return torch.as_tensor(offsets(ndim), dtype=torch.float32, device=device)


@table
def _outside(shape: tuple[int, ...], periodic: tuple[bool, ...], device: torch.device) -> Tensor:
    """Which neighbours of each token lie beyond a wall, `(tokens, 3^n)`."""
    grid = Grid(shape, periodic)
    at = np.stack(np.meshgrid(*(np.arange(n) for n in grid.shape), indexing="ij"), -1).reshape(-1, 1, grid.ndim)
    near = at + offsets(grid.ndim)
    beyond = (near < 0) | (near >= np.array(grid.shape))
    return torch.as_tensor((beyond & ~np.array(grid.periodic)).any(-1), device=device)


class CellDecoder(nn.Module):
    """Tokens `(B, *G, D)` to the normalised values of the cells of their patches, `(B, *G·patch, C)`.

    value(x) = Σ_i φ_i(rel) (W_i · token) + V · gelu(attended ⊙ g(rel)), rel being the place of the cell x within its
    token. The first term reads the token linearly: φ_i are the polynomials through the patch's own cell centres, so
    that it is an exact linear read-out of that cell. The second term, zero at the start, attends to the 3^n tokens
    around x and corrects what is not linear.
    """

    def __init__(
        self, tasks: Sequence[TaskSpec], dim: int, patch: Sequence[int], blocks: int, width: int, heads: int
    ) -> None:
        super().__init__()
        self.patch, self.heads = tuple(patch), heads
        self.blocks = nn.ModuleList(LocalMix(dim) for _ in range(blocks))
        features = AXES * (2 * WAVES + 1)
        self.key, self.value = nn.Linear(dim, width), nn.Linear(dim, width)
        self.ask, self.gate = nn.Linear(features, width), nn.Linear(features, width)
        self.bias = nn.Linear(features, heads)
        self.linear = nn.ModuleDict(
            {t.name: nn.Linear(dim, len(t.channels) * self.patch[t.ndim - 1] ** t.ndim) for t in tasks}
        )
        self.leave = nn.ModuleDict({t.name: nn.Linear(width, len(t.channels), bias=False) for t in tasks})
        for layer in self.leave.values():
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]

    def start_as_inverse_of(self, encoder: GridEncoder, tasks: Sequence[TaskSpec]) -> None:
        """Set the linear read-out to the (pseudo-)inverse of what the encoder does to a patch."""
        for task in tasks:
            layer = self.linear[task.name]
            assert isinstance(layer, nn.Linear)
            if layer.weight.is_meta:
                continue  # there is nothing to set
            with torch.no_grad():
                layer.weight.copy_(torch.linalg.pinv(encoder.core_of(task).flatten(1)))
                layer.bias.zero_()

    def prepare(self, z: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens after local mixing, and their keys and values, each `(B, *G, ·)`."""
        for block in self.blocks:
            z = block(z, grid)
        h = rms_norm(z)
        return z, self.key(h), self.value(h)

    def grid(self, z: Tensor, task: TaskSpec, grid: Grid, patch: tuple[int, ...]) -> Tensor:
        """Values at the centres of a grid with `patch` cells per token, `(B, *G·patch, C)`: every token is asked
        for the same places within it."""
        z, keys, values = self.prepare(z, grid)
        near_keys, near_values = (self._neighbours(t, grid) for t in (keys, values))
        rel = _places(patch, z.device)
        out = self._read(
            z.flatten(1, -2), near_keys, near_values, rel, _outside(grid.shape, grid.periodic, z.device), task
        )
        return unpatch(torch.unflatten(out, 1, grid.shape), patch)

    def _neighbours(self, x: Tensor, grid: Grid) -> Tensor:
        """`(B, *G, D)` to the 3^n tokens around each, `(B, tokens, 3^n, D)`."""
        for axis, wraps in enumerate(grid.periodic):
            x = pad_axis(x, axis + 1, 1, 1, wraps)
        around = []
        for offset in offsets(grid.ndim):
            part = x
            for axis, (step, n) in enumerate(zip(offset, grid.shape, strict=True)):
                part = part.narrow(axis + 1, 1 + int(step), n)
            around.append(part)
        return torch.stack(around, -2).flatten(1, grid.ndim)

    def _read(self, z: Tensor, keys: Tensor, values: Tensor, rel: Tensor, outside: Tensor, task: TaskSpec) -> Tensor:
        """Values `(B, N, P, C)` from tokens `z (B, N, D)`, what lies around them `(B, N, J, ·)` and the places
        `rel (P, n)` that every token is asked for."""
        ndim, channels = task.ndim, len(task.channels)
        gap = rel.unsqueeze(-2) - _offsets(ndim, rel.device)
        here, there = self._features(rel), self._features(gap / 3)
        ask = torch.unflatten(self.ask(here), -1, (self.heads, -1))
        bias = self.bias(there).movedim(-1, 0)  # (heads, P, J)
        keys, values = (torch.unflatten(t, -1, (self.heads, -1)) for t in (keys, values))
        score = torch.einsum("bnjhd,phd->bnhpj", keys, ask) + bias
        score = score.float().masked_fill(outside[..., None, None, :], float("-inf"))
        weight = score.softmax(-1).to(values.dtype)
        attended = torch.einsum("bnhpj,bnjhd->bnphd", weight, values).flatten(3)
        gate = self.gate(here)
        shape = products(rel, self.patch[ndim - 1])
        coefficients = torch.unflatten(self.linear[task.name](z), -1, (channels, -1))
        direct = torch.einsum("bnci,pi->bnpc", coefficients, shape.to(z.dtype))
        correction: Tensor = self.leave[task.name](gelu(attended * (1 + gate)))
        return direct + correction

    def _features(self, rel: Tensor) -> Tensor:
        """Fourier features of places within a token; the axes a task lacks are zero."""
        missing = rel.new_zeros(*rel.shape[:-1], AXES - rel.shape[-1])
        return fourier_features(2 * torch.cat((rel, missing), -1), WAVES).flatten(-2)
