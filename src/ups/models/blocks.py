"""The block of both cores: mixing between all tokens, mixing of neighbours, an MLP; modulated by a condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ups.models.kernels.gpu_block_ops import heads_of, window_attention, window_fits
from ups.models.kernels.gpu_ops import usable
from ups.models.layers import (
    AXES,
    EPS,
    AxisConv,
    FourierMixing,
    Mlp,
    TaskLinears,
    affine,
    draw_small,
    gated,
    modulated_beside,
    residual_modulated,
    rms_norm,
    widened,
)
from ups.tensors import table
from ups.types import Array, Grid

Norm = Literal["token", "field"]


@dataclass(frozen=True)
class BlockShape:
    """What a block is made of; the same for all blocks of a core, but for the width."""

    width: int
    heads: int
    condition: int  # width of the condition vector
    ratio: float  # hidden over outer width of the MLP
    kernel: int  # reach of the local convolution, odd
    norm: Norm
    tasks: tuple[str, ...] = ()  # those that have some layers for themselves


@table
def _rotations(
    shape: tuple[int, ...], periodic: tuple[bool, ...], pairs: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin `(tokens, pairs)` by which queries and keys turn: whole turns per box on periodic axes."""
    grid = Grid(shape, periodic)
    count = -(-pairs // grid.ndim)
    angles = np.zeros((*grid.shape, pairs))
    for axis, (n, wraps) in enumerate(zip(grid.shape, grid.periodic, strict=True)):
        turns = np.geomspace(1, max(n / 2, 1), count)
        turns = np.round(turns) if wraps else turns / 2
        along = 2 * np.pi * (np.arange(n) / n)[:, None] * turns
        mine = np.arange(axis, pairs, grid.ndim)
        place = [1] * grid.ndim + [len(mine)]
        place[axis] = n
        angles[..., mine] += along[:, : len(mine)].reshape(place)
    flat = angles.reshape(-1, pairs)
    return tuple(torch.as_tensor(f(flat), dtype=torch.float32, device=device) for f in (np.cos, np.sin))  # type: ignore[return-value]


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair of channels of `(…, tokens, d)` turned by the token's angle."""
    cos, sin = (t.to(x.dtype) for t in turn)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class GlobalAttention(nn.Module):
    """Every token attends to every token; positions turn queries and keys, so that only differences matter.

    On periodic axes the turns are whole per box, and the layer is equivariant under shifts. Quadratic in tokens.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        qkv = self.qkv(x.flatten(1, -2))
        turn = _rotations(grid.shape, grid.periodic, qkv.shape[-1] // (6 * self.heads), x.device)
        if usable(qkv):
            q, k, v = heads_of(qkv, self.heads, turn, EPS)
        else:
            q, k, v = torch.unflatten(qkv, -1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            q, k = rotate(rms_norm(q), turn), rotate(rms_norm(k), turn)
        out = functional.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).flatten(2).reshape(x.shape)


def window_of(grid: Grid, limit: int) -> tuple[int, ...]:
    """Per axis the largest divisor of the grid that is at most `limit`."""
    return tuple(max(w for w in range(1, min(n, limit) + 1) if n % w == 0) for n in grid.shape)


@table
def _log_offsets(
    shape: tuple[int, ...], periodic: tuple[bool, ...], window: tuple[int, ...], device: torch.device
) -> Tensor:
    """sign(Δ) log2(1 + |Δ|) between the tokens of a window, `(W, W, 3)`; where it is a whole ring, Δ the short way."""
    grid = Grid(shape, periodic)
    at = np.stack(np.meshgrid(*(np.arange(w) for w in window), indexing="ij"), -1).reshape(-1, grid.ndim)
    gap = (at[:, None] - at[None]).astype(float)
    for axis, (n, w, wraps) in enumerate(zip(grid.shape, window, grid.periodic, strict=True)):
        if wraps and w == n:
            gap[..., axis] = (gap[..., axis] + n // 2) % n - n // 2
    spaced = np.sign(gap) * np.log2(1 + np.abs(gap)) / 3
    spaced = np.concatenate((spaced, np.zeros((*gap.shape[:2], AXES - grid.ndim))), -1)
    return torch.as_tensor(spaced, dtype=torch.float32, device=device)


@table
def _apart(
    shape: tuple[int, ...],
    periodic: tuple[bool, ...],
    window: tuple[int, ...],
    shift: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """`(windows, W, W)`: −inf between tokens that a shift brought together across a wall."""
    grid = Grid(shape, periodic)
    side: Array = np.zeros((1, *grid.shape, 1))
    for axis, (n, s, wraps) in enumerate(zip(grid.shape, shift, grid.periodic, strict=True)):
        place = [1] * (grid.ndim + 2)
        place[axis + 1] = n
        if s and not wraps:
            side = side * 2 + (np.arange(n) >= n - s).reshape(place)
    label = split(torch.as_tensor(np.broadcast_to(side, (1, *grid.shape, 1)).copy()), window)[0, ..., 0]
    different = label[:, :, None] != label[:, None, :]
    return torch.zeros(different.shape, device=device).masked_fill_(different.to(device), float("-inf"))


def split(x: Tensor, window: tuple[int, ...]) -> Tensor:
    """`(B, *G, D)` to windows `(B, windows, W, D)`."""
    ndim = len(window)
    shape = [part for n, w in zip(x.shape[1:-1], window, strict=True) for part in (n // w, w)]
    order = (0, *range(1, 2 * ndim, 2), *range(2, 2 * ndim + 1, 2), 2 * ndim + 1)
    return x.reshape(x.shape[0], *shape, x.shape[-1]).permute(order).flatten(1, ndim).flatten(2, -2)


@table
def _order(shape: tuple[int, ...], window: tuple[int, ...], shift: tuple[int, ...], device: torch.device) -> Tensor:
    """The token at each place, window after window, of a grid that was shifted."""
    number = torch.arange(math.prod(shape), dtype=torch.int32).reshape(1, *shape, 1)
    moved = number.roll([-s for s in shift], tuple(range(1, 1 + len(shape))))
    return split(moved, window).flatten().to(device)


def join(x: Tensor, window: tuple[int, ...], grid: Grid) -> Tensor:
    """The inverse of `split`."""
    ndim = grid.ndim
    counts = tuple(n // w for n, w in zip(grid.shape, window, strict=True))
    x = x.reshape(x.shape[0], *counts, *window, x.shape[-1])
    order = (0, *(part for a in range(ndim) for part in (1 + a, 1 + ndim + a)), 2 * ndim + 1)
    return x.permute(order).reshape(x.shape[0], *grid.shape, x.shape[-1])


class WindowAttention(nn.Module):
    """Tokens attend within windows, shifted by half a window in every other block; cost is linear in tokens.

    The bias between two tokens is a small network of their log-spaced distance, so that one set of weights serves
    windows of any size and dimension. Windows wrap around periodic axes and are cut at walls.
    """

    def __init__(self, shape: BlockShape, windows: tuple[int, int, int], shifted: bool) -> None:
        super().__init__()
        self.heads, self.windows, self.shifted = shape.heads, windows, shifted
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.bias = nn.Sequential(nn.Linear(AXES, 32), nn.GELU(), nn.Linear(32, shape.heads, bias=False))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        window = window_of(grid, self.windows[grid.ndim - 1])
        shift = tuple(w // 2 if self.shifted and w < n else 0 for n, w in zip(grid.shape, window, strict=True))
        bias = self._nearness(_log_offsets(grid.shape, grid.periodic, window, x.device))
        if any(s and not wraps for s, wraps in zip(shift, grid.periodic, strict=True)):
            bias = bias + _apart(grid.shape, grid.periodic, window, shift, x.device).unsqueeze(1)
        if usable(x) and window_fits(math.prod(window), x.shape[-1] // self.heads, x):
            order = _order(grid.shape, window, shift, x.device)
            return window_attention(self.qkv(x.flatten(1, -2)), order, bias, EPS).reshape(x.shape)
        moved, axes = any(shift), tuple(range(1, grid.ndim + 1))
        if moved:
            x = x.roll([-s for s in shift], axes)
        q, k, v = torch.unflatten(self.qkv(split(x, window)), -1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        out = self._attend(rms_norm(q), rms_norm(k), v, bias.to(q.dtype).contiguous())
        out = join(out.transpose(2, 3).flatten(3), window, grid)
        return out.roll(shift, axes) if moved else out

    def _nearness(self, offsets: Tensor) -> Tensor:
        """The bias `(1, heads, W, W)` in float32, whatever the precision around it: rounding its few numbers would take
        more kernels than making them."""
        enter, activate, leave = self.bias
        with torch.autocast(offsets.device.type, enabled=False):
            weights = (widened(w) for w in enter.parameters())
            into = functional.linear(offsets.flatten(0, 1), *weights)
            bias = torch.matmul(widened(next(leave.parameters())), activate(into).t())
        return torch.unflatten(bias, 1, offsets.shape[:2]).unsqueeze(0)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Attention within windows, of heads `(B, windows, heads, W, d)`."""
        if len(bias) > 1:
            # Windows join the heads: one mask then serves the whole batch.
            q, k, v = (t.flatten(1, 2) for t in (q, k, v))
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.flatten(0, 1).unsqueeze(0))
            return torch.unflatten(out, 1, (-1, self.heads))
        samples, (q, k, v) = q.shape[0], (t.flatten(0, 1) for t in (q, k, v))
        return torch.unflatten(functional.scaled_dot_product_attention(q, k, v, attn_mask=bias), 0, (samples, -1))


class Block(nn.Module):
    """x + gate · W((mixer(h) + conv(h)) ⊙ silu(G h)), then x + gate · MLP(h), h being the normalised, modulated x.

    The product with G h makes u ∂u one layer deep. Scale, shift and gate come from the condition; gates start at zero,
    and the block as the identity. Where `tasks` are named, each has W, G and what the condition does for itself.
    """

    def __init__(self, shape: BlockShape, mixer: Callable[[], nn.Module]) -> None:
        super().__init__()
        width = shape.width
        self.norm = shape.norm
        self.mixer, self.local = mixer(), AxisConv(width, shape.kernel)
        self.open, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = Mlp(width, shape.ratio)
        self.condition = nn.Linear(shape.condition, 6 * width)
        draw_small(self.condition.weight)
        nn.init.zeros_(self.condition.bias)
        with torch.no_grad():
            torch.unflatten(self.condition.weight, 0, (-1, 3, width))[:, 2] = 0
        if shape.tasks:
            for name in ("open", "leave", "condition"):
                setattr(self, name, TaskLinears(getattr(self, name), shape.tasks))

    def forward(self, x: Tensor, c: Tensor, grid: Grid, task: str) -> Tensor:
        modulation = functional.linear(c, *affine(self.condition, task))
        parts = modulation.reshape(x.shape[0], *(1,) * grid.ndim, -1).chunk(6, -1)
        h, x = modulated_beside(x, self.norm, parts[0], parts[1])
        local, h, again = self.local.beside(h, grid)
        mixed = gated(self.mixer(h, grid), local, affine(self.open, task), again)
        h, x = residual_modulated(x, parts[2], affine(self.leave, task), mixed, self.norm, parts[3], parts[4])
        y: Tensor = self.mlp(h, x, parts[5])
        return y


def fourier(shape: BlockShape, modes: int) -> Callable[[], nn.Module]:
    """A maker of Fourier mixers, for either core."""
    return lambda: FourierMixing(shape.width, shape.heads, modes)
