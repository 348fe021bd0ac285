"""Attention within windows on a GPU: tokens are gathered, normalised, weighed and put back in one kernel each way."""

# A window is small enough for one program to hold all of its tokens: there is no mask in memory, nothing is copied into
# windows and back, and the gradient of the bias is added up over samples where it arises.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ups.models.kernels.gpu_ops import channel_parts

PROGRAMS = 2048  # that fill a GPU, on the way back
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tokens(order, place, window: tl.constexpr, BW: tl.constexpr):
    """The tokens of a window, and which of them are there."""
    w = tl.arange(0, BW)
    return tl.load(order + place * window + w, mask=w < window, other=0).to(tl.int64), w < window


@triton.jit
def _load(x, at, there, size: tl.constexpr, WHOLE: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr):
    """The channels of tokens in two parts: the first BD, and up to BE more; if those are none, the first ones again.
    `WHOLE`: there is no place without a token or a channel."""
    j, e = tl.arange(0, BD), BD + tl.arange(0, BE if BE > 0 else BD)
    if WHOLE:
        first = tl.load(x + at[:, None] + j[None, :])
    else:
        first = tl.load(x + at[:, None] + j[None, :], mask=there[:, None] & (j < size)[None, :], other=0.0)
    more = first
    if BE > 0:
        if WHOLE:
            more = tl.load(x + at[:, None] + e[None, :])
        else:
            more = tl.load(x + at[:, None] + e[None, :], mask=there[:, None] & (e < size)[None, :], other=0.0)
    return first, more


@triton.jit
def _store(x, at, there, first, more, size: tl.constexpr, WHOLE: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr):
    j, e = tl.arange(0, BD), BD + tl.arange(0, BE if BE > 0 else BD)
    if WHOLE:
        tl.store(x + at[:, None] + j[None, :], first)
    else:
        tl.store(x + at[:, None] + j[None, :], first, mask=there[:, None] & (j < size)[None, :])
    if BE > 0:
        if WHOLE:
            tl.store(x + at[:, None] + e[None, :], more)
        else:
            tl.store(x + at[:, None] + e[None, :], more, mask=there[:, None] & (e < size)[None, :])


@triton.jit
def _over_channels(a, b, c, d, BE: tl.constexpr):
    """The sum over the channels of (a, b) times (c, d), of each token."""
    total = tl.sum(a.to(tl.float32) * c.to(tl.float32), 1)
    if BE > 0:
        total += tl.sum(b.to(tl.float32) * d.to(tl.float32), 1)
    return total[:, None]


@triton.jit
def _unit(x, at, there, eps, size: tl.constexpr, WHOLE: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr):
    """Channels over their rms, rounded as they are kept, and what they were multiplied by."""
    a, b = _load(x, at, there, size, WHOLE, BD, BE)
    f = 1.0 / tl.sqrt(_over_channels(a, b, a, b, BE) * (1.0 / size) + eps)
    return (a.to(tl.float32) * f).to(a.dtype), (b.to(tl.float32) * f).to(b.dtype), f


@triton.jit
def _between(a, b, c, d, BE: tl.constexpr, HOW: tl.constexpr):
    """The product of each token (a, b) with each token (c, d)."""
    s = tl.dot(a, tl.trans(c), input_precision=HOW)
    if BE > 0:
        s = tl.dot(b, tl.trans(d), s, input_precision=HOW)
    return s


@triton.jit
def _sums(w, a, b, BE: tl.constexpr, HOW: tl.constexpr):
    """Sums of tokens (a, b) by weights, in both parts."""
    first = tl.dot(w, a, input_precision=HOW)
    more = first
    if BE > 0:
        more = tl.dot(w, b, input_precision=HOW)
    return first, more


@triton.jit
def _nearness(bias, which, head, heads, window: tl.constexpr, BW: tl.constexpr):
    """The bias between the tokens of a window, over log 2, for powers of two are what is computed; nothing is near to
    what is not there."""
    w = tl.arange(0, BW)
    at = (which * heads + head) * window * window + w[:, None] * window + w[None, :]
    if window == BW:
        near = tl.load(bias + at).to(tl.float32)
    else:
        near = tl.load(bias + at, mask=(w < window)[:, None] & (w < window)[None, :], other=0.0).to(tl.float32)
        near = tl.where((w < window)[None, :], near, -1.0e30)
    return tl.maximum(near * LOG2E, -1.0e30)


@triton.jit
def _weights(s, near, scale):
    """How much each token of a window heeds each other, by the products `s` of queries and keys."""
    s = s * (scale * LOG2E) + near
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    return p * (1.0 / tl.sum(p, 1))[:, None]


@triton.jit(do_not_specialize=["kinds"])
def _attend(
    qkv, order, bias, y, tokens, heads, kinds, scale, eps,
    size: tl.constexpr, window: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    WHOLE: tl.constexpr = (window == BW) and (size == BD + BE)
    head, place, sample = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.program_id(1).to(tl.int64)
    width = heads * size
    token, there = _tokens(order, place, window, BW)
    mine, at = qkv + sample * tokens * 3 * width + head * size, token * 3 * width
    q, q_more, _ = _unit(mine, at, there, eps, size, WHOLE, BD, BE)
    k, k_more, _ = _unit(mine + width, at, there, eps, size, WHOLE, BD, BE)
    v, v_more = _load(mine + 2 * width, at, there, size, WHOLE, BD, BE)
    s = _between(q, q_more, k, k_more, BE, HOW)
    p = _weights(s, _nearness(bias, place % kinds, head, heads, window, BW), scale)
    out, more = _sums(p.to(v.dtype), v, v_more, BE, HOW)
    _store(y + sample * tokens * width + head * size, token * width, there, out, more, size, WHOLE, BD, BE)


@triton.jit
def _enter(
    dx, at, there, x, x_more, f, given, more,
    size: tl.constexpr, WHOLE: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradient of what was divided by its rms."""
    along = _over_channels(x, x_more, given, more, BE) * (1.0 / size)
    first = (given - x.to(tl.float32) * along) * f
    _store(dx, at, there, first, (more - x_more.to(tl.float32) * along) * f, size, WHOLE, BD, BE)


@triton.jit(do_not_specialize=["kinds"])
def _attend_back(
    dy, qkv, order, bias, dqkv, partial, samples, tokens, heads, kinds, scale, eps, share,
    size: tl.constexpr, window: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """All gradients of one window and head, over a share of the samples."""
    WHOLE: tl.constexpr = (window == BW) and (size == BD + BE)
    head, place, part = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.program_id(1)
    w, width = tl.arange(0, BW), heads * size
    token, there = _tokens(order, place, window, BW)
    at, near = token * 3 * width, _nearness(bias, place % kinds, head, heads, window, BW)
    total = tl.zeros((BW, BW), tl.float32)
    for sample in range(part * share, tl.minimum((part + 1) * share, samples)):
        first = (tl.full((), 0, tl.int64) + sample) * tokens * width
        mine, out = qkv + 3 * first + head * size, dqkv + 3 * first + head * size
        q, q_more, f = _unit(mine, at, there, eps, size, WHOLE, BD, BE)
        k, k_more, g = _unit(mine + width, at, there, eps, size, WHOLE, BD, BE)
        p = _weights(_between(q, q_more, k, k_more, BE, HOW), near, scale)
        v, v_more = _load(mine + 2 * width, at, there, size, WHOLE, BD, BE)
        given, given_more = _load(dy + first + head * size, token * width, there, size, WHOLE, BD, BE)
        dv, more = _sums(tl.trans(p.to(v.dtype)), given, given_more, BE, HOW)
        _store(out + 2 * width, at, there, dv, more, size, WHOLE, BD, BE)
        dp = _between(given, given_more, v, v_more, BE, HOW)
        ds = p * (dp - tl.sum(p * dp, 1)[:, None])
        total += ds
        pull = (ds * scale).to(v.dtype)
        dq, more = _sums(pull, k, k_more, BE, HOW)
        _enter(out, at, there, q, q_more, f, dq, more, size, WHOLE, BD, BE)
        dk, more = _sums(tl.trans(pull), q, q_more, BE, HOW)
        _enter(out + width, at, there, k, k_more, g, dk, more, size, WHOLE, BD, BE)
    at = ((part * (tokens // window) + place) * heads + head) * window * window
    inside = (w < window)[:, None] & (w < window)[None, :]
    tl.store(partial + at + w[:, None] * window + w[None, :], total, mask=inside)


def attend(qkv: Tensor, order: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Tokens `(B, tokens, heads · d)` out of `qkv (B, tokens, 3 · heads · d)`; `order` names the token at each place,
    window after window; `bias (1 or windows, heads, W, W)`."""
    kinds, heads, window, _ = bias.shape
    samples, tokens, size = len(qkv), qkv.shape[1], qkv.shape[2] // (3 * heads)
    y = qkv.new_empty(samples, tokens, heads * size)
    programs = (tokens // window * heads, samples)
    numbers = (tokens, heads, kinds, size**-0.5, eps)
    _attend[programs](qkv, order, bias, y, *numbers, size, window, *_words(window, size), num_warps=_warps(size))
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
    numbers = (samples, tokens, heads, kinds, size**-0.5, eps, share)
    words = (size, window, *_words(window, size))
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
    return max(16, triton.next_power_of_2(window)), *channel_parts(size), how
