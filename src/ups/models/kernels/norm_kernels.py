"""The norm of whole fields and its modulation on a GPU: a kernel each way for small ones, two and three for others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32  # in a tile
CHANNELS = 64  # at most
BLOCK = 1024  # numbers that are squared and added at once
PARTS = 64  # partial sums of a sample, at most
ALONE = 32768  # numbers of a sample that one program goes through twice, at most; more are cut into parts
TILE = 4096  # numbers that it takes at once
PROGRAMS = 4096  # that fill a GPU; more of them only means more sums of sums


@triton.jit
def _squares(x, partial, count, chunk, BLOCK: tl.constexpr):
    """The sum of squares over a chunk of the `count` numbers of a sample."""
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    stop = tl.minimum((part + 1) * chunk, count)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(part * chunk, stop, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + sample * count + at, mask=at < stop, other=0.0).to(tl.float32)
        total += value * value
    tl.store(partial + sample * tl.num_programs(0) + part, tl.sum(total, 0))


@triton.jit
def _apply(
    x, partial, scale, shift, y, factor, tokens, width, scales, shifts, parts, eps,
    PARTS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = x (1 + scale) f + shift with f = 1 / rms(x), which is kept."""
    sample = tl.program_id(2).to(tl.int64)
    each = tl.arange(0, PARTS)
    total = tl.sum(tl.load(partial + sample * parts + each, mask=each < parts, other=0.0), 0)
    f = 1.0 / tl.sqrt(total / (tokens * width) + eps)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(factor + sample, f)
    t, c = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    live = (t < tokens)[:, None] & (c < width)[None, :]
    a = tl.load(scale + sample * scales + c, mask=c < width, other=0.0).to(tl.float32)
    b = tl.load(shift + sample * shifts + c, mask=c < width, other=0.0).to(tl.float32)
    at = (sample * tokens + t)[:, None] * width + c[None, :]
    value = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    tl.store(y + at, value * ((1.0 + a) * f)[None, :] + b[None, :], mask=live)


@triton.jit
def _sums(dy, x, partial, tokens, width, chunk, BT: tl.constexpr, BC: tl.constexpr):
    """Over a chunk of the tokens of a sample, of each channel: the sums of dy and of dy · x."""
    part, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, tokens)
    plain, times = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = first + tl.arange(0, BT)
        live = (t < stop)[:, None] & (c < width)[None, :]
        at = (sample * tokens + t)[:, None] * width + c[None, :]
        given = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
        plain += given
        times += given * tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    out = partial + (sample * tl.num_programs(0) + part) * 2 * width + c
    tl.store(out, tl.sum(plain, 0), mask=c < width)
    tl.store(out + width, tl.sum(times, 0), mask=c < width)


@triton.jit
def _gather(
    partial, scale, factor, pull, dscale, dshift, tokens, width, scales, parts, PARTS: tl.constexpr, BC: tl.constexpr
):
    """Of a sample, out of the sums over its chunks: the gradients of scale and shift, and what pulls dx along x."""
    sample = tl.program_id(0).to(tl.int64)
    f, each = tl.load(factor + sample), tl.arange(0, PARTS)
    total = tl.zeros((BC,), tl.float32)
    for first in range(0, width, BC):
        c = first + tl.arange(0, BC)
        at = partial + (sample * parts + each)[:, None] * 2 * width + c[None, :]
        live = (each < parts)[:, None] & (c < width)[None, :]
        plain = tl.sum(tl.load(at, mask=live, other=0.0), 0)
        times = tl.sum(tl.load(at + width, mask=live, other=0.0), 0)
        total += times * (1.0 + tl.load(scale + sample * scales + c, mask=c < width, other=0.0).to(tl.float32))
        tl.store(dshift + sample * width + c, plain, mask=c < width)
        tl.store(dscale + sample * width + c, times * f, mask=c < width)
    tl.store(pull + sample, tl.sum(total, 0) * f * f * f / (tokens * width))


@triton.jit
def _entering(
    dy, x, scale, factor, pull, through, dx, tokens, width, scales,
    THROUGH: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx = dy (1 + scale) f − x · pull, and what comes `through` another way, if anything does."""
    sample = tl.program_id(2).to(tl.int64)
    t, c = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    live = (t < tokens)[:, None] & (c < width)[None, :]
    at = (sample * tokens + t)[:, None] * width + c[None, :]
    a = 1.0 + tl.load(scale + sample * scales + c, mask=c < width, other=0.0).to(tl.float32)
    a = a * tl.load(factor + sample)
    given = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    entering = given * a[None, :] - value * tl.load(pull + sample)
    if THROUGH:
        entering += tl.load(through + at, mask=live, other=0.0).to(tl.float32)
    tl.store(dx + at, entering, mask=live)


@triton.jit
def _alone(x, scale, shift, y, factor, tokens, width, scales, shifts, eps, BT: tl.constexpr, BC: tl.constexpr):
    """What `_squares` and `_apply` do, of a whole sample."""
    sample, c = tl.program_id(0).to(tl.int64), tl.arange(0, BC)
    squares = tl.zeros((BT, BC), tl.float32)
    for first in range(0, tokens, BT):
        t = first + tl.arange(0, BT)
        live, at = (t < tokens)[:, None] & (c < width)[None, :], (sample * tokens + t)[:, None] * width + c[None, :]
        value = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
        squares += value * value
    f = 1.0 / tl.sqrt(tl.sum(tl.sum(squares, 0), 0) / (tokens * width) + eps)
    tl.store(factor + sample, f)
    a = 1.0 + tl.load(scale + sample * scales + c, mask=c < width, other=0.0).to(tl.float32)
    b = tl.load(shift + sample * shifts + c, mask=c < width, other=0.0).to(tl.float32)
    for first in range(0, tokens, BT):
        t = first + tl.arange(0, BT)
        live, at = (t < tokens)[:, None] & (c < width)[None, :], (sample * tokens + t)[:, None] * width + c[None, :]
        value = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
        tl.store(y + at, value * (a * f)[None, :] + b[None, :], mask=live)


@triton.jit
def _alone_back(
    dy, x, scale, factor, through, dx, dscale, dshift, tokens, width, scales,
    THROUGH: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """What `_sums`, `_gather` and `_entering` do, of a whole sample."""
    sample, c = tl.program_id(0).to(tl.int64), tl.arange(0, BC)
    plain, times = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    for first in range(0, tokens, BT):
        t = first + tl.arange(0, BT)
        live, at = (t < tokens)[:, None] & (c < width)[None, :], (sample * tokens + t)[:, None] * width + c[None, :]
        given = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
        plain += given
        times += given * tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    f, sums = tl.load(factor + sample), tl.sum(times, 0)
    a = 1.0 + tl.load(scale + sample * scales + c, mask=c < width, other=0.0).to(tl.float32)
    tl.store(dshift + sample * width + c, tl.sum(plain, 0), mask=c < width)
    tl.store(dscale + sample * width + c, sums * f, mask=c < width)
    pull = tl.sum(sums * a, 0) * f * f * f / (tokens * width)
    for first in range(0, tokens, BT):
        t = first + tl.arange(0, BT)
        live, at = (t < tokens)[:, None] & (c < width)[None, :], (sample * tokens + t)[:, None] * width + c[None, :]
        given = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
        entering = given * (a * f)[None, :] - value * pull
        if THROUGH:
            entering += tl.load(through + at, mask=live, other=0.0).to(tl.float32)
        tl.store(dx + at, entering, mask=live)


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Fields `x (B, *G, D)` over their rms, times 1 + `scale (B, D)`, plus `shift (B, D)`; and 1 / rms `(B,)`."""
    samples, width = len(x), x.shape[-1]
    count = x.numel() // max(samples, 1)
    if tile := whole_sample(count, width):
        y, factor = torch.empty_like(x), torch.empty(samples, dtype=torch.float32, device=x.device)
        sizes = (count // width, width, scale.stride(0), shift.stride(0))
        _alone[(samples,)](x, scale, shift, y, factor, *sizes, eps, *tile, num_warps=8)
        return y, factor
    chunk = BLOCK * max(1, -(-count // (BLOCK * PARTS)))
    parts = -(-count // chunk)
    partial = torch.empty(samples, parts, dtype=torch.float32, device=x.device)
    _squares[(parts, samples)](x, partial, count, chunk, BLOCK)
    return apply(x, partial, scale, shift, eps)


def apply(x: Tensor, partial: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The same, given the sums of squares `(B, parts)` over parts of each sample."""
    samples, width, parts = len(x), x.shape[-1], partial.shape[1]
    y, factor = torch.empty_like(x), torch.empty(samples, dtype=torch.float32, device=x.device)
    tokens = x.numel() // max(samples * width, 1)
    programs, channels = tiles(tokens, width, samples)
    sizes = (tokens, width, scale.stride(0), shift.stride(0), parts, eps)
    _apply[programs](
        x, partial, scale, shift, y, factor, *sizes, max(PARTS, triton.next_power_of_2(parts)), TOKENS, channels
    )
    return y, factor


def backward(
    dy: Tensor, x: Tensor, scale: Tensor, factor: Tensor, through: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `x`, to which is added what comes `through` another way, of `scale` and of `shift`."""
    samples, width = len(x), x.shape[-1]
    tokens = x.numel() // max(samples * width, 1)
    dscale, dshift = (torch.empty(samples, width, dtype=scale.dtype, device=x.device) for _ in range(2))
    dx, sizes = torch.empty_like(x), (tokens, width, scale.stride(0))
    other, added = dx if through is None else through, through is not None
    if tile := whole_sample(tokens * width, width):
        _alone_back[(samples,)](dy, x, scale, factor, other, dx, dscale, dshift, *sizes, added, *tile, num_warps=8)
        return dx, dscale, dshift
    pull = of_rows(dy, x, scale, factor, dscale, dshift)
    programs, channels = tiles(tokens, width, samples)
    _entering[programs](dy, x, scale, factor, pull, other, dx, *sizes, added, TOKENS, channels)
    return dx, dscale, dshift


def of_rows(dy: Tensor, x: Tensor, scale: Tensor, factor: Tensor, dscale: Tensor, dshift: Tensor) -> Tensor:
    """Fills the gradients of `scale` and `shift`; what pulls that of `x` along x, of each sample."""
    samples, width = len(x), x.shape[-1]
    tokens = x.numel() // max(samples * width, 1)
    programs, channels = tiles(tokens, width, samples)
    parts, chunk = chunks(tokens, programs)
    partial = torch.empty(samples, parts, 2, width, dtype=torch.float32, device=x.device)
    _sums[(parts, *programs[1:])](dy, x, partial, tokens, width, chunk, TOKENS, channels)
    pull = torch.empty_like(factor)
    sizes = (tokens, width, scale.stride(0), parts, PARTS, channels)
    _gather[(samples,)](partial, scale, factor, pull, dscale, dshift, *sizes)
    return pull


def whole_sample(count: int, width: int) -> tuple[int, int] | None:
    """The tokens and channels that a program takes at once which goes through a whole sample; None if that is large."""
    channels = triton.next_power_of_2(width)
    return (max(1, TILE // channels), channels) if 0 < count <= ALONE and channels <= TILE else None


def tiles(tokens: int, width: int, samples: int) -> tuple[tuple[int, int, int], int]:
    """A grid of tiles over tokens, channels and samples, and the channels of a tile."""
    channels = min(CHANNELS, triton.next_power_of_2(width))
    return (triton.cdiv(tokens, TOKENS), triton.cdiv(width, channels), samples), channels


def chunks(tokens: int, programs: tuple[int, int, int], most: int = PARTS) -> tuple[int, int]:
    """Into how many parts tokens are cut that are added up apart, and the tokens of one."""
    most = max(1, min(most, PROGRAMS // (programs[1] * programs[2])))
    chunk = TOKENS * max(1, -(-tokens // (TOKENS * most)))
    return -(-tokens // chunk), chunk
