"""GPU kernels before attention: normalise and rotate queries and keys; and their gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32  # in a tile


@triton.jit
def _rows(tokens, BT: tl.constexpr):
    """The tokens of a tile of a sample, and whether they are there."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    return t, t < tokens


@triton.jit
def _at(t, head, s0, s1, s2):
    """Where the channels of tokens begin in `(B, heads, tokens, d)` of any strides."""
    return tl.program_id(2).to(tl.int64) * s0 + head * s1 + t * s2


@triton.jit
def _source(t, tokens, head, width, size):
    """Where the queries of tokens begin in `qkv`; keys and values lie `width` further each."""
    return (tl.program_id(2).to(tl.int64) * tokens + t) * 3 * width + head * size


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
def _turned(x, at, y, to, cosine, sine, j, half, size, live, eps):
    """y = x / rms(x), turned."""
    value, f = _unit(x, at, j, size, live, eps)
    value *= f
    partner = tl.load(x + at[:, None] + ((j + half) % size)[None, :], mask=live, other=0.0).to(tl.float32)
    tl.store(y + to[:, None] + j[None, :], value * cosine + partner * f * sine, mask=live)


@triton.jit
def _split(
    qkv, q, k, v, cos, sin, tokens, heads, size, eps, s0, s1, s2, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """Queries and keys over their rms, then turned; values as they are; all to where attention wants them."""
    head, j, half, width = tl.program_id(1), tl.arange(0, BD), size // 2, heads * size
    t, there = _rows(tokens, BT)
    live, source = there[:, None] & (j < size)[None, :], _source(t, tokens, head, width, size)
    to = _at(t, head, s0, s1, s2)
    cosine, sine = _turn(cos, sin, t, j, half, live)
    _turned(qkv, source, q, to, cosine, sine, j, half, size, live, eps)
    _turned(qkv, source + width, k, to, cosine, sine, j, half, size, live, eps)
    value = tl.load(qkv + (source + 2 * width)[:, None] + j[None, :], mask=live)
    tl.store(v + to[:, None] + j[None, :], value, mask=live)


@triton.jit
def _pull(x, at, dy, to, dx, cosine, sine, j, half, size, live, eps):
    """The gradient of x given that of x / rms(x), turned."""
    value, f = _unit(x, at, j, size, live, eps)
    value *= f
    given = tl.load(dy + to[:, None] + j[None, :], mask=live, other=0.0).to(tl.float32)
    partner = tl.load(dy + to[:, None] + ((j + half) % size)[None, :], mask=live, other=0.0).to(tl.float32)
    given = given * cosine - partner * sine
    along = (tl.sum(value * given, 1) / size)[:, None]
    tl.store(dx + at[:, None] + j[None, :], (given - value * along) * f, mask=live)


@triton.jit
def _split_back(
    dq, dk, dv, qkv, dqkv, cos, sin, tokens, heads, size, eps,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    head, j, half, width = tl.program_id(1), tl.arange(0, BD), size // 2, heads * size
    t, there = _rows(tokens, BT)
    live, source = there[:, None] & (j < size)[None, :], _source(t, tokens, head, width, size)
    cosine, sine = _turn(cos, sin, t, j, half, live)
    _pull(qkv, source, dq, _at(t, head, q0, q1, q2), dqkv, cosine, sine, j, half, size, live, eps)
    _pull(qkv, source + width, dk, _at(t, head, k0, k1, k2), dqkv, cosine, sine, j, half, size, live, eps)
    given = tl.load(dv + _at(t, head, v0, v1, v2)[:, None] + j[None, :], mask=live)
    tl.store(dqkv + (source + 2 * width)[:, None] + j[None, :], given, mask=live)


def split(qkv: Tensor, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, eps: float) -> None:
    """Write queries, keys and values `(B, heads, tokens, d)`, all laid out alike, out of `qkv (B, tokens,
    3 · heads · d)`."""
    _, heads, tokens, size = q.shape
    numbers = (tokens, heads, size, eps, *q.stride()[:3], TOKENS, triton.next_power_of_2(size))
    _split[_programs(q)](qkv, q, k, v, cos, sin, *numbers)


def split_back(dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """The gradient of `qkv`."""
    _, heads, tokens, size = dq.shape
    dqkv = torch.empty_like(qkv)
    given = [one if one.stride(-1) == 1 else one.contiguous() for one in (dq, dk, dv)]
    strides = [step for one in given for step in one.stride()[:3]]
    numbers = (tokens, heads, size, eps, *strides, TOKENS, triton.next_power_of_2(size))
    _split_back[_programs(dq)](*given, qkv, dqkv, cos, sin, *numbers)
    return dqkv


def _programs(heads: Tensor) -> tuple[int, int, int]:
    return triton.cdiv(heads.shape[2], TOKENS), heads.shape[1], len(heads)
