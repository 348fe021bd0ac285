"""Attention on a GPU, before and after it: heads in windows, normalised and turned in one kernel, and back in one."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32  # in a tile


@triton.jit
def _places(order, tokens, ORDERED: tl.constexpr, BT: tl.constexpr):
    """The places of a tile of a sample, the token that stands at each, its row among all samples', and whether it is
    there."""
    r = tl.program_id(0) * BT + tl.arange(0, BT)
    token = tl.load(order + r, mask=r < tokens, other=0) if ORDERED else r
    row = tl.program_id(2).to(tl.int64) * tokens + token
    return r, token, row, r < tokens


@triton.jit
def _at(r, head, window, s0, s1, s2, s3):
    """Where the channels of places begin in `(B, windows, heads, W, d)` of any strides."""
    return tl.program_id(2).to(tl.int64) * s0 + (r // window).to(tl.int64) * s1 + head * s2 + (r % window) * s3


@triton.jit
def _turn(cos, sin, token, j, half, live):
    """By what a channel and its partner, half the channels away, are multiplied to be turned."""
    at, there = token[:, None] * half + (j % half)[None, :], live & (j < 2 * half)[None, :]
    sine = tl.load(sin + at, mask=there, other=0.0)
    return tl.load(cos + at, mask=there, other=1.0), tl.where((j < half)[None, :], -sine, sine)


@triton.jit
def _unit(x, at, j, size, live, eps):
    """Channels in float32, and what makes their mean square 1."""
    value = tl.load(x + at[:, None] + j[None, :], mask=live, other=0.0).to(tl.float32)
    return value, (1.0 / tl.sqrt(tl.sum(value * value, 1) / size + eps))[:, None]


@triton.jit
def _turned(x, at, y, to, cosine, sine, j, half, size, live, eps, TURNED: tl.constexpr):
    """y = x / rms(x), turned."""
    value, f = _unit(x, at, j, size, live, eps)
    value *= f
    if TURNED:
        partner = tl.load(x + at[:, None] + ((j + half) % size)[None, :], mask=live, other=0.0).to(tl.float32)
        value = value * cosine + partner * f * sine
    tl.store(y + to[:, None] + j[None, :], value, mask=live)


@triton.jit
def _split(
    qkv, q, k, v, order, cos, sin, tokens, heads, size, window, eps, s0, s1, s2, s3,
    ORDERED: tl.constexpr, TURNED: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Queries and keys over their rms, then turned; values as they are; all to where attention wants them."""
    head, j, half, width = tl.program_id(1), tl.arange(0, BD), size // 2, heads * size
    r, token, row, there = _places(order, tokens, ORDERED, BT)
    live, source = there[:, None] & (j < size)[None, :], row * 3 * width + head * size
    to = _at(r, head, window, s0, s1, s2, s3)
    cosine, sine = 1.0, 0.0
    if TURNED:
        cosine, sine = _turn(cos, sin, token, j, half, live)
    _turned(qkv, source, q, to, cosine, sine, j, half, size, live, eps, TURNED)
    _turned(qkv, source + width, k, to, cosine, sine, j, half, size, live, eps, TURNED)
    value = tl.load(qkv + (source + 2 * width)[:, None] + j[None, :], mask=live)
    tl.store(v + to[:, None] + j[None, :], value, mask=live)


@triton.jit
def _pull(x, at, dy, to, dx, cosine, sine, j, half, size, live, eps, TURNED: tl.constexpr):
    """The gradient of x given that of x / rms(x), turned."""
    value, f = _unit(x, at, j, size, live, eps)
    value *= f
    given = tl.load(dy + to[:, None] + j[None, :], mask=live, other=0.0).to(tl.float32)
    if TURNED:
        partner = tl.load(dy + to[:, None] + ((j + half) % size)[None, :], mask=live, other=0.0).to(tl.float32)
        given = given * cosine - partner * sine
    along = (tl.sum(value * given, 1) / size)[:, None]
    tl.store(dx + at[:, None] + j[None, :], (given - value * along) * f, mask=live)


@triton.jit
def _split_back(
    dq, dk, dv, qkv, dqkv, order, cos, sin, tokens, heads, size, window, eps,
    q0, q1, q2, q3, k0, k1, k2, k3, v0, v1, v2, v3,
    ORDERED: tl.constexpr, TURNED: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    head, j, half, width = tl.program_id(1), tl.arange(0, BD), size // 2, heads * size
    r, token, row, there = _places(order, tokens, ORDERED, BT)
    live, source = there[:, None] & (j < size)[None, :], row * 3 * width + head * size
    cosine, sine = 1.0, 0.0
    if TURNED:
        cosine, sine = _turn(cos, sin, token, j, half, live)
    to = _at(r, head, window, q0, q1, q2, q3)
    _pull(qkv, source, dq, to, dqkv, cosine, sine, j, half, size, live, eps, TURNED)
    to = _at(r, head, window, k0, k1, k2, k3)
    _pull(qkv, source + width, dk, to, dqkv, cosine, sine, j, half, size, live, eps, TURNED)
    given = tl.load(dv + _at(r, head, window, v0, v1, v2, v3)[:, None] + j[None, :], mask=live)
    tl.store(dqkv + (source + 2 * width)[:, None] + j[None, :], given, mask=live)


@triton.jit
def _join(
    x, y, order, tokens, heads, size, window, s0, s1, s2, s3, BACK: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """Heads in windows `x (B, windows, heads, W, d)` to tokens `y (B, tokens, heads · d)`, or `BACK`."""
    head, j = tl.program_id(1), tl.arange(0, BD)
    r, _, row, there = _places(order, tokens, True, BT)
    live = there[:, None] & (j < size)[None, :]
    mine = x + _at(r, head, window, s0, s1, s2, s3)[:, None] + j[None, :]
    theirs = y + (row * heads * size + head * size)[:, None] + j[None, :]
    if BACK:
        tl.store(mine, tl.load(theirs, mask=live), mask=live)
    else:
        tl.store(theirs, tl.load(mine, mask=live), mask=live)


def split(
    qkv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> None:
    """Write queries, keys and values `(B, windows, heads, W, d)`, all laid out alike, out of `qkv (B, tokens,
    3 · heads · d)`; `order` names the token that stands at each place, window after window."""
    _, _, heads, window, size = q.shape
    numbers = (qkv.shape[1], heads, size, window, eps, *q.stride()[:4])
    _split[_grid(qkv, heads)](qkv, q, k, v, order, cos, sin, *numbers, *_words(size, order, cos))


def split_back(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    qkv: Tensor,
    order: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> Tensor:
    """The gradient of `qkv`."""
    _, _, heads, window, size = dq.shape
    dqkv = torch.empty_like(qkv)
    given = [one if one.stride(-1) == 1 else one.contiguous() for one in (dq, dk, dv)]
    strides = [step for one in given for step in one.stride()[:4]]
    numbers = (qkv.shape[1], heads, size, window, eps, *strides)
    _split_back[_grid(qkv, heads)](*given, qkv, dqkv, order, cos, sin, *numbers, *_words(size, order, cos))
    return dqkv


def join(x: Tensor, order: Tensor) -> Tensor:
    """Tokens `(B, tokens, heads · d)` in their order out of heads in windows `x (B, windows, heads, W, d)`."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    samples, windows, heads, window, size = x.shape
    y = x.new_empty(samples, windows * window, heads * size)
    _launch_join(x, y, order, False)
    return y


def join_back(dy: Tensor, order: Tensor, heads: int, window: int) -> Tensor:
    """The gradient of `x`, laid out as attention gave `x`."""
    samples, tokens, width = dy.shape
    dx = dy.new_empty(samples, tokens // window, window, heads, width // heads).transpose(2, 3)
    _launch_join(dx, dy, order, True)
    return dx


def _launch_join(x: Tensor, y: Tensor, order: Tensor, back: bool) -> None:
    _, _, heads, window, size = x.shape
    numbers = (y.shape[1], heads, size, window, *x.stride()[:4], back, TOKENS, triton.next_power_of_2(size))
    _join[_grid(y, heads)](x, y, order, *numbers)


def _grid(tokens: Tensor, heads: int) -> tuple[int, int, int]:
    return triton.cdiv(tokens.shape[1], TOKENS), heads, len(tokens)


def _words(size: int, order: Tensor | None, cos: Tensor | None) -> tuple[Any, ...]:
    return order is not None, cos is not None, TOKENS, triton.next_power_of_2(size)
