"""Attention within windows on a GPU: tokens are gathered, normalised, weighed and put back in one kernel each way."""

# A window is small enough for one program to hold all of its tokens: there is no mask in memory, nothing is copied into
# windows and back, and the gradient of the bias is added up over samples where it arises.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 2048  # that fill a GPU, on the way back


@triton.jit
def _rows(order, sample, place, tokens, window, BW: tl.constexpr):
    """The rows of a window's tokens among those of all samples, and which of them are there."""
    w = tl.arange(0, BW)
    token = tl.load(order + place * window + w, mask=w < window, other=0)
    return sample.to(tl.int64) * tokens + token, w < window


@triton.jit
def _unit(x, at, live, size, eps):
    """Channels over their rms, rounded as they are kept, and what they were multiplied by."""
    value = tl.load(x + at, mask=live, other=0.0)
    wide = value.to(tl.float32)
    f = (1.0 / tl.sqrt(tl.sum(wide * wide, 1) / size + eps))[:, None]
    return (wide * f).to(value.dtype), f


@triton.jit
def _weights(q, k, bias, which, head, heads, window, scale, BW: tl.constexpr, HOW: tl.constexpr):
    """How much each token of a window heeds each other."""
    w = tl.arange(0, BW)
    inside = (w < window)[:, None] & (w < window)[None, :]
    at = (which * heads + head) * window * window + w[:, None] * window + w[None, :]
    near = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.dot(q, tl.trans(k), input_precision=HOW) * scale + near
    s = tl.where((w < window)[None, :], tl.maximum(s, -1.0e30), -1.0e30)
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit(do_not_specialize=["kinds"])
def _attend(
    qkv, order, bias, y, tokens, heads, size, window, kinds, scale, eps,
    BW: tl.constexpr, BD: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    head, place, sample = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.program_id(1)
    j, width = tl.arange(0, BD), heads * size
    row, there = _rows(order, sample, place, tokens, window, BW)
    live = there[:, None] & (j < size)[None, :]
    at = row[:, None] * 3 * width + head * size + j[None, :]
    q, _ = _unit(qkv, at, live, size, eps)
    k, _ = _unit(qkv, at + width, live, size, eps)
    v = tl.load(qkv + at + 2 * width, mask=live, other=0.0)
    p = _weights(q, k, bias, place % kinds, head, heads, window, scale, BW, HOW)
    out = tl.dot(p.to(v.dtype), v, input_precision=HOW)
    tl.store(y + row[:, None] * width + head * size + j[None, :], out, mask=live)


@triton.jit
def _enter(dx, at, live, x, f, given, size):
    """The gradient of what was divided by its rms."""
    wide = x.to(tl.float32)
    along = (tl.sum(wide * given, 1) / size)[:, None]
    tl.store(dx + at, (given - wide * along) * f, mask=live)


@triton.jit(do_not_specialize=["kinds"])
def _attend_back(
    dy, qkv, order, bias, dqkv, partial, samples, tokens, heads, size, window, kinds, scale, eps, share,
    BW: tl.constexpr, BD: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """All gradients of one window and head, over a share of the samples."""
    head, place, part = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.program_id(1)
    j, w, width = tl.arange(0, BD), tl.arange(0, BW), heads * size
    total = tl.zeros((BW, BW), tl.float32)
    for sample in range(part * share, tl.minimum((part + 1) * share, samples)):
        row, there = _rows(order, tl.full((), 0, tl.int64) + sample, place, tokens, window, BW)
        live = there[:, None] & (j < size)[None, :]
        at = row[:, None] * 3 * width + head * size + j[None, :]
        q, f = _unit(qkv, at, live, size, eps)
        k, g = _unit(qkv, at + width, live, size, eps)
        v = tl.load(qkv + at + 2 * width, mask=live, other=0.0)
        given = tl.load(dy + row[:, None] * width + head * size + j[None, :], mask=live, other=0.0)
        p = _weights(q, k, bias, place % kinds, head, heads, window, scale, BW, HOW)
        dv = tl.dot(tl.trans(p.to(v.dtype)), given, input_precision=HOW)
        tl.store(dqkv + at + 2 * width, dv, mask=live)
        dp = tl.dot(given, tl.trans(v), input_precision=HOW)
        ds = p * (dp - tl.sum(p * dp, 1)[:, None])
        total += ds
        pull = (ds * scale).to(v.dtype)
        _enter(dqkv, at, live, q, f, tl.dot(pull, k, input_precision=HOW), size)
        _enter(dqkv, at + width, live, k, g, tl.dot(tl.trans(pull), q, input_precision=HOW), size)
    inside = (w < window)[:, None] & (w < window)[None, :]
    at = ((part * (tokens // window) + place) * heads + head) * window * window
    tl.store(partial + at + w[:, None] * window + w[None, :], total, mask=inside)


def attend(qkv: Tensor, order: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Tokens `(B, tokens, heads · d)` out of `qkv (B, tokens, 3 · heads · d)`; `order` names the token at each place,
    window after window; `bias (1 or windows, heads, W, W)`."""
    kinds, heads, window, _ = bias.shape
    samples, tokens, size = len(qkv), qkv.shape[1], qkv.shape[2] // (3 * heads)
    y = qkv.new_empty(samples, tokens, heads * size)
    grid = (tokens // window * heads, samples)
    numbers = (tokens, heads, size, window, kinds, size**-0.5, eps)
    _attend[grid](qkv, order, bias, y, *numbers, *_words(window, size), num_warps=_warps(size))
    return y


def attend_back(dy: Tensor, qkv: Tensor, order: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients of `qkv` and of the bias; the latter is added up in an order that is always the same."""
    kinds, heads, window, _ = bias.shape
    samples, tokens, size = len(qkv), qkv.shape[1], qkv.shape[2] // (3 * heads)
    windows = tokens // window
    share = max(1, -(-samples * windows * heads // PROGRAMS))
    shares = -(-samples // share)
    dqkv = torch.empty_like(qkv)
    partial = torch.empty(shares, windows, heads, window, window, dtype=torch.float32, device=qkv.device)
    numbers = (samples, tokens, heads, size, window, kinds, size**-0.5, eps, share)
    words = _words(window, size)
    # One stage: samples that are loaded ahead would leave room for one program at a time, or for none (`window_fits`).
    _attend_back[(windows * heads, shares)](
        dy, qkv, order, bias, dqkv, partial, *numbers, *words, num_warps=_warps(size), num_stages=1
    )
    of_bias = partial.sum(0) if kinds > 1 else partial.sum((0, 1)).unsqueeze(0)
    return dqkv, of_bias.to(bias.dtype)


def _warps(size: int) -> int:
    return 4 if size <= 64 else 8


def _words(window: int, size: int) -> tuple[Any, ...]:
    """Rounded as torch rounds matrix products."""
    how = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return max(16, triton.next_power_of_2(window)), max(16, triton.next_power_of_2(size)), how
