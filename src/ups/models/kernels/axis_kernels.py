"""Depthwise convolutions along the axes of a grid on a GPU: all axes in one kernel, forwards and backwards."""

# Libraries have slow kernels for few taps along one axis: of a training step in 2D these took a third. Imported only
# where there is a GPU and Triton, which comes with torch there.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ups.types import Grid

TOKENS = 32  # in a tile
FEW = 16  # in one with the sums of several taps
CHANNELS = 64  # at most
CHUNKS = 128  # partial sums of a weight's gradient, at most


@triton.jit
def _along(t, axis: tl.constexpr, n0, n1, n2):
    """Where tokens are along an axis of a grid, how many there are, and how far apart in memory neighbours are."""
    n = n0 if axis == 0 else (n1 if axis == 1 else n2)
    s = n1 * n2 if axis == 0 else (n2 if axis == 1 else 1)
    return (t // s) % n, n, s


@triton.jit
def _neighbour(t, p, n, s, off, wraps):
    """The token `off` further along an axis: around it where it wraps, else the last one there is.

    An arm longer than its axis has weight 0 there, and must read a token all the same: 0 times NaN is NaN.
    """
    q = p + off
    around = tl.where(q < 0, q + n, tl.where(q >= n, q - n, q))
    q = tl.minimum(tl.maximum(tl.where(wraps != 0, around, q), 0), n - 1)
    return t + (q - p) * s


@triton.jit
def _tile(x, at, c, width, live):
    """Values of tokens `at` in channels `c`, in float32; 0 where not `live`."""
    return tl.load(x + at.to(tl.int64)[:, None] * width + c[None, :], mask=live, other=0.0).to(tl.float32)


@triton.jit
def _weight(kernel, tap: tl.constexpr, n, c, width, TAPS: tl.constexpr, CUT: tl.constexpr):
    """A tap's weight in channels `c`; where arms may be longer than an axis, those of `CUT` are no longer than it."""
    off: tl.constexpr = tap - TAPS // 2
    weight = tl.load(kernel + c * TAPS + tap, mask=c < width, other=0.0).to(tl.float32)
    if CUT:
        weight = tl.where((n >= off) & (n >= -off), weight, 0.0)
    return weight[None, :]


@triton.jit
def _forward(
    x, kernel, gain, y, tokens, width, n0, n1, n2,
    AXES: tl.constexpr, TAPS: tl.constexpr, WRAPS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    CUT: tl.constexpr,
):  # fmt: skip
    t, c = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    live = (t < tokens)[:, None] & (c < width)[None, :]
    total = tl.zeros((BT, BC), tl.float32)
    for axis in tl.static_range(3 - AXES, 3):
        p, n, s = _along(t, axis, n0, n1, n2)
        along = tl.zeros((BT, BC), tl.float32)
        for k in tl.static_range(TAPS):
            at = _neighbour(t, p, n, s, k - TAPS // 2, (WRAPS >> axis) & 1)
            along += _tile(x, at, c, width, live) * _weight(kernel, k, n, c, width, TAPS, CUT)
        factor = tl.load(gain + (axis - 3 + AXES) * width + c, mask=c < width, other=0.0).to(tl.float32)
        total += along * factor[None, :]
    tl.store(y + t.to(tl.int64)[:, None] * width + c[None, :], total, mask=live)


@triton.jit
def _backward(
    dy, kernel, gain, one, two, dx, tokens, width, n0, n1, n2,
    AXES: tl.constexpr, TAPS: tl.constexpr, WRAPS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    CUT: tl.constexpr, THROUGH: tl.constexpr,
):  # fmt: skip
    """A token has entered what lies `off` before it; the last one at a wall stood for all those beyond it, too: what is
    given of a place then reaches it by the weights of the taps before or after that place's as well. Added to what
    comes through `THROUGH` other ways: none, `one`, or `one` and `two`."""
    t, c = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    live = (t < tokens)[:, None] & (c < width)[None, :]
    total = tl.zeros((BT, BC), tl.float32)
    if THROUGH > 0:
        total += _tile(one, t, c, width, live)
    if THROUGH > 1:
        total += _tile(two, t, c, width, live)
    for axis in tl.static_range(3 - AXES, 3):
        p, n, s = _along(t, axis, n0, n1, n2)
        along, before = tl.zeros((BT, BC), tl.float32), tl.zeros((1, BC), tl.float32)
        low, high = (p == 0).to(tl.float32)[:, None], (p == n - 1).to(tl.float32)[:, None]
        for k in tl.static_range(TAPS):
            weight = _weight(kernel, k, n, c, width, TAPS, CUT)
            if (WRAPS >> axis) & 1:
                along += _tile(dy, _neighbour(t, p, n, s, TAPS // 2 - k, 1), c, width, live) * weight
            else:
                o, reach = p - (k - TAPS // 2), weight
                if (k > 0) & (k <= TAPS // 2):
                    reach = reach + low * before
                if (k >= TAPS // 2) & (k < TAPS - 1):
                    after = _weight(kernel, k + 1, n, c, width, TAPS, CUT)
                    for j in tl.static_range(k + 2, TAPS):
                        after += _weight(kernel, j, n, c, width, TAPS, CUT)
                    reach = reach + high * after
                inside = (o >= 0) & (o < n)
                along += _tile(dy, t + (o - p) * s, c, width, live & inside[:, None]) * reach
                before += weight
        factor = tl.load(gain + (axis - 3 + AXES) * width + c, mask=c < width, other=0.0).to(tl.float32)
        total += along * factor[None, :]
    tl.store(dx + t.to(tl.int64)[:, None] * width + c[None, :], total, mask=live)


@triton.jit
def _through(given, x, t, p, n, s, tap, c, width, live, wraps, TAPS: tl.constexpr):
    """What dy says of a tap's weight, token by token."""
    at = _neighbour(t, p, n, s, tap - TAPS // 2, wraps)
    there = tl.full(t.shape, TAPS, tl.int32) > tap
    return given * _tile(x, at, c, width, live & there[:, None])


@triton.jit
def _put(partial, total, tap, n, c, width, TAPS: tl.constexpr):
    """An arm is no longer than its axis."""
    off = tap - TAPS // 2
    total = tl.where((n >= off) & (n >= -off), tl.sum(total, 0), 0.0)
    there = tl.full(c.shape, TAPS, tl.int32) > tap
    tl.store(partial + tap * width + c, total, mask=(c < width) & there)


@triton.jit
def _backward_weight(
    x, dy, partial, tokens, width, chunk, n0, n1, n2,
    AXES: tl.constexpr, TAPS: tl.constexpr, WRAPS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of six taps along one axis, over a chunk of the tokens, so that dy is read once for them."""
    part, groups = tl.program_id(0), (TAPS + 5) // 6
    mine, tap = tl.program_id(2) // groups, 6 * (tl.program_id(2) % groups)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    axis = mine + 3 - AXES
    n = tl.where(axis == 0, n0, tl.where(axis == 1, n1, n2))
    s = tl.where(axis == 0, n1 * n2, tl.where(axis == 1, n2, 1))
    wraps = (WRAPS >> axis) & 1
    stop = tl.minimum((part + 1) * chunk, tokens)
    a0, a1, a2 = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    a3, a4, a5 = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = first + tl.arange(0, BT)
        p, live = (t // s) % n, (t < stop)[:, None] & (c < width)[None, :]
        given = _tile(dy, t, c, width, live)
        a0 += _through(given, x, t, p, n, s, tap, c, width, live, wraps, TAPS)
        a1 += _through(given, x, t, p, n, s, tap + 1, c, width, live, wraps, TAPS)
        a2 += _through(given, x, t, p, n, s, tap + 2, c, width, live, wraps, TAPS)
        a3 += _through(given, x, t, p, n, s, tap + 3, c, width, live, wraps, TAPS)
        a4 += _through(given, x, t, p, n, s, tap + 4, c, width, live, wraps, TAPS)
        a5 += _through(given, x, t, p, n, s, tap + 5, c, width, live, wraps, TAPS)
    out = partial + (part * AXES + mine) * TAPS * width
    _put(out, a0, tap, n, c, width, TAPS)
    _put(out, a1, tap + 1, n, c, width, TAPS)
    _put(out, a2, tap + 2, n, c, width, TAPS)
    _put(out, a3, tap + 3, n, c, width, TAPS)
    _put(out, a4, tap + 4, n, c, width, TAPS)
    _put(out, a5, tap + 5, n, c, width, TAPS)


@triton.jit
def _axis_sum(
    partial, axis: tl.constexpr, tap: tl.constexpr, parts, c, width,
    AXES: tl.constexpr, TAPS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """What all chunks together say of a tap's weight along an axis."""
    part = tl.arange(0, PARTS)
    at = ((part * AXES + axis) * TAPS + tap)[:, None] * width + c[None, :]
    return tl.sum(tl.load(partial + at, mask=(part < parts)[:, None] & (c < width)[None, :], other=0.0), 0)


@triton.jit
def _taps(
    partial, kernel, gain, dkernel, dgain, parts, width, rows,
    AXES: tl.constexpr, TAPS: tl.constexpr, PARTS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of the taps and of the gain of every axis; along axes that are not there that is zero."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    for tap in tl.static_range(TAPS):
        total = tl.zeros((BC,), tl.float32)
        for axis in tl.static_range(AXES):
            factor = tl.load(gain + axis * width + c, mask=c < width, other=0.0).to(tl.float32)
            total += factor * _axis_sum(partial, axis, tap, parts, c, width, AXES, TAPS, PARTS)
        tl.store(dkernel + c * TAPS + tap, total, mask=c < width)
    for axis in tl.static_range(AXES):
        total = tl.zeros((BC,), tl.float32)
        for tap in tl.static_range(TAPS):
            factor = tl.load(kernel + c * TAPS + tap, mask=c < width, other=0.0).to(tl.float32)
            total += factor * _axis_sum(partial, axis, tap, parts, c, width, AXES, TAPS, PARTS)
        tl.store(dgain + axis * width + c, total, mask=c < width)
    for axis in range(AXES, rows):
        tl.store(dgain + axis * width + c, tl.zeros((BC,), tl.float32), mask=c < width)


def forward(x: Tensor, kernel: Tensor, gain: Tensor, grid: Grid) -> Tensor:
    """Σ over axes and taps of `kernel (D, taps)` times `gain (3, D)` times the tokens `x (B, *G, D)` beside each."""
    y = torch.empty_like(x)
    _launch(_forward, x, grid, kernel.shape[1], x, kernel, gain, y)
    return y


def backward(dy: Tensor, kernel: Tensor, gain: Tensor, through: list[Tensor], grid: Grid) -> Tensor:
    """The gradient of `x`, given that of `y`, and what comes `through` at most two other ways."""
    dx, others = torch.empty_like(dy), (*through, dy, dy)[:2]
    _launch(_backward, dy, grid, kernel.shape[1], dy, kernel, gain, *others, dx, THROUGH=len(through))
    return dx


def backward_weight(dy: Tensor, x: Tensor, kernel: Tensor, gain: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The gradients of `kernel` and `gain`: sums over chunks of the tokens first, in an order that never changes."""
    tokens, width, taps = x.numel() // x.shape[-1], x.shape[-1], kernel.shape[1]
    chunk = TOKENS * max(1, -(-tokens // (TOKENS * CHUNKS)))
    chunks = -(-tokens // chunk)
    partial = torch.empty(chunks, grid.ndim, taps, width, dtype=torch.float32, device=x.device)
    channels = min(CHANNELS, triton.next_power_of_2(width))
    programs = (chunks, triton.cdiv(width, channels), grid.ndim * triton.cdiv(taps, 6))
    *words, _, _ = _words(grid, taps, channels)
    _backward_weight[programs](x, dy, partial, tokens, width, chunk, *words, FEW, channels)
    dkernel, dgain = torch.empty_like(kernel), torch.empty_like(gain)
    arguments = (partial, kernel, gain, dkernel, dgain, chunks, width, len(gain), grid.ndim, taps, CHUNKS, FEW)
    _taps[(triton.cdiv(width, FEW),)](*arguments)
    return dkernel, dgain


def _words(grid: Grid, taps: int, channels: int) -> tuple[int, ...]:
    """What all kernels are told of a grid, at their end: it has three axes, some of length 1."""
    missing = 3 - grid.ndim
    wraps = sum(int(wraps) << axis for axis, wraps in enumerate(grid.periodic, start=missing))
    return (*(1,) * missing, *grid.shape, grid.ndim, taps, wraps, TOKENS, channels)


def _launch(kernel: Any, x: Tensor, grid: Grid, taps: int, *tensors: Tensor, **flags: int) -> None:
    tokens, width = x.numel() // x.shape[-1], x.shape[-1]
    channels = min(CHANNELS, triton.next_power_of_2(width))
    programs = (triton.cdiv(tokens, TOKENS), triton.cdiv(width, channels))
    cut = min(grid.shape) < taps // 2
    kernel[programs](*tensors, tokens, width, *_words(grid, taps, channels), CUT=cut, **flags)
