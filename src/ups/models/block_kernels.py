"""What stands between the matrix products of a block on a GPU: its gate and its residual sum, one kernel each way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ups.models.norm_kernels import PARTS, TOKENS, tiles

BLOCK = 1024  # numbers at once


@triton.jit
def _gate(a, b, g, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    total = tl.load(a + at, mask=live).to(tl.float32) + tl.load(b + at, mask=live).to(tl.float32)
    gate = tl.load(g + at, mask=live).to(tl.float32)
    tl.store(y + at, total * gate * tl.sigmoid(gate), mask=live)


@triton.jit
def _gate_back(dy, a, b, g, d, dg, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    total = tl.load(a + at, mask=live).to(tl.float32) + tl.load(b + at, mask=live).to(tl.float32)
    gate, given = tl.load(g + at, mask=live).to(tl.float32), tl.load(dy + at, mask=live).to(tl.float32)
    s = tl.sigmoid(gate)
    tl.store(d + at, given * gate * s, mask=live)
    tl.store(dg + at, given * total * s * (1.0 + gate * (1.0 - s)), mask=live)


@triton.jit
def _residual(x, g, m, y, tokens, width, stride, BT: tl.constexpr, BC: tl.constexpr):
    sample = tl.program_id(2).to(tl.int64)
    t, c = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    live = (t < tokens)[:, None] & (c < width)[None, :]
    at = (sample * tokens + t)[:, None] * width + c[None, :]
    gate = tl.load(g + sample * stride + c, mask=c < width, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=live).to(tl.float32)
    tl.store(y + at, value + gate[None, :] * tl.load(m + at, mask=live).to(tl.float32), mask=live)


@triton.jit
def _residual_back(dy, g, m, dm, partial, tokens, width, stride, chunk, BT: tl.constexpr, BC: tl.constexpr):
    """dm = gate · dy; and over a chunk of the tokens, of each channel, the sum of dy · m."""
    part, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, tokens)
    gate = tl.load(g + sample * stride + c, mask=c < width, other=0.0).to(tl.float32)
    total = tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = first + tl.arange(0, BT)
        live = (t < stop)[:, None] & (c < width)[None, :]
        at = (sample * tokens + t)[:, None] * width + c[None, :]
        given = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
        total += given * tl.load(m + at, mask=live, other=0.0).to(tl.float32)
        tl.store(dm + at, given * gate[None, :], mask=live)
    tl.store(partial + (sample * tl.num_programs(0) + part) * width + c, tl.sum(total, 0), mask=c < width)


def gate(a: Tensor, b: Tensor, g: Tensor) -> Tensor:
    """(a + b) · silu(g), all of one shape."""
    y = torch.empty_like(g)
    _gate[(triton.cdiv(g.numel(), BLOCK),)](a, b, g, y, g.numel(), BLOCK)
    return y


def gate_back(dy: Tensor, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of `a`, which is that of `b`, and that of `g`."""
    d, dg = torch.empty_like(a), torch.empty_like(g)
    _gate_back[(triton.cdiv(g.numel(), BLOCK),)](dy, a, b, g, d, dg, g.numel(), BLOCK)
    return d, dg


def residual(x: Tensor, g: Tensor, m: Tensor) -> Tensor:
    """x + g · m of `x, m (B, *G, D)` and rows `g (B, D)`."""
    y = torch.empty_like(x)
    tokens, width = _sizes(x)
    grid, channels = tiles(tokens, width, len(x))
    _residual[grid](x, g, m, y, tokens, width, g.stride(0), TOKENS, channels)
    return y


def residual_back(dy: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `g` and `m`; that of `x` is `dy`."""
    tokens, width = _sizes(m)
    chunk = TOKENS * max(1, -(-tokens // (TOKENS * PARTS)))
    parts = -(-tokens // chunk)
    partial = torch.empty(len(m), parts, width, dtype=torch.float32, device=m.device)
    dm = torch.empty_like(m)
    grid, channels = tiles(tokens, width, len(m))
    _residual_back[(parts, *grid[1:])](dy, g, m, dm, partial, tokens, width, g.stride(0), chunk, TOKENS, channels)
    return partial.sum(1).to(g.dtype), dm


def _sizes(x: Tensor) -> tuple[int, int]:
    return x.numel() // max(len(x) * x.shape[-1], 1), x.shape[-1]
