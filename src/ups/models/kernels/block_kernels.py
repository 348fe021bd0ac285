"""GPU kernels between the matrix products of a block: gates, activations, residual sums; gradients."""

# Gates and residual sums take what a matrix product gave without its bias, and add that; the gradient of every bias, a
# sum over all tokens, falls off on the way back.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ups.models.kernels import norm_kernels
from ups.models.kernels.norm_kernels import TOKENS, chunks, tiles

SUMS = 512  # partial sums over all tokens, at most
ROWS, FEW = 128, 32  # partial sums, and channels of them, that a program adds up at once


@triton.jit
def _tile(rows, width, BT: tl.constexpr, BC: tl.constexpr):
    """Where the numbers of a tile of rows are, its channels, and which are there."""
    t, c = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    return t[:, None] * width + c[None, :], c, (t < rows)[:, None] & (c < width)[None, :]


@triton.jit
def _row(x, c, width):
    return tl.load(x + c, mask=c < width, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _gate(a, b, g, bias, y, rows, width, BT: tl.constexpr, BC: tl.constexpr):
    at, c, live = _tile(rows, width, BT, BC)
    total = tl.load(a + at, mask=live).to(tl.float32) + tl.load(b + at, mask=live).to(tl.float32)
    gate = tl.load(g + at, mask=live).to(tl.float32) + _row(bias, c, width)
    tl.store(y + at, total * gate * tl.sigmoid(gate), mask=live)


@triton.jit
def _gate_back(dy, a, b, g, bias, d, dg, partial, rows, width, chunk, BT: tl.constexpr, BC: tl.constexpr):
    part, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, rows)
    sums, shift = tl.zeros((BT, BC), tl.float32), _row(bias, c, width)
    for first in range(part * chunk, stop, BT):
        t = (first + tl.arange(0, BT)).to(tl.int64)
        at, live = t[:, None] * width + c[None, :], (t < stop)[:, None] & (c < width)[None, :]
        total = tl.load(a + at, mask=live, other=0.0).to(tl.float32)
        total += tl.load(b + at, mask=live, other=0.0).to(tl.float32)
        gate = tl.load(g + at, mask=live, other=0.0).to(tl.float32) + shift
        given, s = tl.load(dy + at, mask=live, other=0.0).to(tl.float32), tl.sigmoid(gate)
        slope = given * total * s * (1.0 + gate * (1.0 - s))
        tl.store(d + at, given * gate * s, mask=live)
        tl.store(dg + at, slope, mask=live)
        sums += slope
    tl.store(partial + part * width + c, tl.sum(sums, 0), mask=c < width)


@triton.jit
def _slope(x):
    """The derivative of x Φ(x), Φ(x) + x φ(x): that of −|x|, and 1 less it where x > 0. Φ by the exponential that it
    shares with φ and a polynomial (Abramowitz and Stegun 7.1.26, halved), which is right to 1e-7: a library's erf would
    be most of the work."""
    far = tl.abs(x)
    bell = tl.exp2(-0.7213475204444817 * far * far)  # exp(−x² / 2)
    t = 1.0 / (1.0 + 0.23164188826636036 * far)
    tail = 0.5307027145 * t - 0.7265760135
    tail = ((tail * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796
    below = (tail * t - 0.3989422804014327 * far) * bell
    return tl.where(x > 0, 1.0 - below, below)


@triton.jit
def _activate_back(dy, x, dx, partial, rows, width, chunk, BT: tl.constexpr, BC: tl.constexpr):
    part, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, rows)
    sums = tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = (first + tl.arange(0, BT)).to(tl.int64)
        at, live = t[:, None] * width + c[None, :], (t < stop)[:, None] & (c < width)[None, :]
        slope = _slope(tl.load(x + at, mask=live, other=0.0).to(tl.float32))
        slope *= tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
        tl.store(dx + at, slope, mask=live)
        sums += slope
    tl.store(partial + part * width + c, tl.sum(sums, 0), mask=c < width)


@triton.jit
def _residual(x, g, m, bias, y, tokens, width, stride, BT: tl.constexpr, BC: tl.constexpr):
    sample = tl.program_id(2).to(tl.int64)
    t, c = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BC + tl.arange(0, BC)
    live = (t < tokens)[:, None] & (c < width)[None, :]
    at = (sample * tokens + t)[:, None] * width + c[None, :]
    branch = tl.load(m + at, mask=live).to(tl.float32) + _row(bias, c, width)
    value = tl.load(x + at, mask=live).to(tl.float32)
    tl.store(y + at, value + _row(g + sample * stride, c, width) * branch, mask=live)


@triton.jit
def _residual_back(dy, g, m, bias, dm, partial, tokens, width, stride, chunk, BT: tl.constexpr, BC: tl.constexpr):
    """dm = gate · dy; and over a chunk of the tokens, of each channel, the sums of dy · (m + bias) and of dm."""
    part, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, tokens)
    gate, shift = _row(g + sample * stride, c, width), _row(bias, c, width)
    times, plain = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = first + tl.arange(0, BT)
        live = (t < stop)[:, None] & (c < width)[None, :]
        at = (sample * tokens + t)[:, None] * width + c[None, :]
        given = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
        times += given * (tl.load(m + at, mask=live, other=0.0).to(tl.float32) + shift)
        plain += given
        tl.store(dm + at, given * gate, mask=live)
    out = partial + (sample * tl.num_programs(0) + part) * 2 * width + c
    tl.store(out, tl.sum(times, 0), mask=c < width)
    tl.store(out + width, tl.sum(plain * gate, 0), mask=c < width)


@triton.jit
def _residual_squares(
    x, g, m, bias, y, partial, tokens, width, stride, chunk, BT: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """What `_residual` does, over a chunk of the tokens, and the sum of the squares of what it gives."""
    part, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, tokens)
    gate, shift = _row(g + sample * stride, c, width), _row(bias, c, width)
    squares = tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = first + tl.arange(0, BT)
        live = (t < stop)[:, None] & (c < width)[None, :]
        at = (sample * tokens + t)[:, None] * width + c[None, :]
        branch = tl.load(m + at, mask=live, other=0.0).to(tl.float32) + shift
        value = (tl.load(x + at, mask=live, other=0.0).to(tl.float32) + gate * branch).to(y.dtype.element_ty)
        tl.store(y + at, value, mask=live)
        squares += tl.where(live, value.to(tl.float32) * value.to(tl.float32), 0.0)
    at = (sample * tl.num_programs(0) + part) * tl.num_programs(1) + tl.program_id(1)
    tl.store(partial + at, tl.sum(tl.sum(squares, 0), 0))


@triton.jit
def _residual_norm_back(
    dh, y, scale, factor, pull, through, g, m, bias, dx, dm, partial, tokens, width, scales, stride, chunk,
    THROUGH: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient of the norm of a residual sum (`_entering`), and what `_residual_back` makes of it."""
    part, sample = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    stop = tl.minimum((part + 1) * chunk, tokens)
    gate, shift = _row(g + sample * stride, c, width), _row(bias, c, width)
    a = (1.0 + _row(scale + sample * scales, c, width)) * tl.load(factor + sample)
    along = tl.load(pull + sample)
    times, plain = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    for first in range(part * chunk, stop, BT):
        t = first + tl.arange(0, BT)
        live = (t < stop)[:, None] & (c < width)[None, :]
        at = (sample * tokens + t)[:, None] * width + c[None, :]
        given = tl.load(dh + at, mask=live, other=0.0).to(tl.float32) * a
        given -= tl.load(y + at, mask=live, other=0.0).to(tl.float32) * along
        if THROUGH:
            given += tl.load(through + at, mask=live, other=0.0).to(tl.float32)
        branch = tl.load(m + at, mask=live, other=0.0).to(tl.float32) + shift
        rounded = given.to(dx.dtype.element_ty)
        tl.store(dx + at, rounded, mask=live)
        given = rounded.to(tl.float32)
        times += given * branch
        plain += given
        tl.store(dm + at, given * gate, mask=live)
    out = partial + (sample * tl.num_programs(0) + part) * 2 * width + c
    tl.store(out, tl.sum(times, 0), mask=c < width)
    tl.store(out + width, tl.sum(plain * gate, 0), mask=c < width)


@triton.jit
def _gather(partial, dg, dbias, samples, parts, width, BR: tl.constexpr, BC: tl.constexpr):
    """The sums over the chunks of a sample are the gradient of its gate; those over all samples that of the bias, which
    comes after the last sample."""
    sample, c = tl.program_id(1), tl.program_id(0) * BC + tl.arange(0, BC)
    own = sample < samples
    start, stop = tl.where(own, sample * parts, 0), tl.where(own, (sample + 1) * parts, samples * parts)
    total = tl.zeros((BR, BC), tl.float32)
    for first in range(start, stop, BR):
        row = first + tl.arange(0, BR)
        at = (row * 2 + tl.where(own, 0, 1))[:, None] * width + c[None, :]
        total += tl.load(partial + at, mask=(row < stop)[:, None] & (c < width)[None, :], other=0.0)
    if own:
        tl.store(dg + sample * width + c, tl.sum(total, 0), mask=c < width)
    else:
        tl.store(dbias + c, tl.sum(total, 0), mask=c < width)


def gate(a: Tensor, b: Tensor, g: Tensor, bias: Tensor) -> Tensor:
    """(a + b) · silu(g + bias), `a`, `b` and `g` of one shape."""
    y = torch.empty_like(g)
    rows, width, programs, channels = _over_rows(g)
    _gate[programs[:2]](a, b, g, bias, y, rows, width, TOKENS, channels)
    return y


def gate_back(dy: Tensor, a: Tensor, b: Tensor, g: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of `a`, which is that of `b`, and those of `g` and of the bias."""
    d, dg = torch.empty_like(a), torch.empty_like(g)
    rows, width, programs, channels = _over_rows(g)
    parts, chunk = chunks(rows, programs, SUMS)
    partial = torch.empty(parts, width, dtype=torch.float32, device=g.device)
    _gate_back[(parts, programs[1])](dy, a, b, g, bias, d, dg, partial, rows, width, chunk, TOKENS, channels)
    return d, dg, partial.sum(0).to(bias.dtype)


def activate_back(dy: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `x` and of the bias in it, given that of GELU of x."""
    dx = torch.empty_like(x)
    rows, width, programs, channels = _over_rows(x)
    parts, chunk = chunks(rows, programs, SUMS)
    partial = torch.empty(parts, width, dtype=torch.float32, device=x.device)
    _activate_back[(parts, programs[1])](dy, x, dx, partial, rows, width, chunk, TOKENS, channels)
    return dx, partial.sum(0).to(bias.dtype)


def residual(x: Tensor, g: Tensor, m: Tensor, bias: Tensor) -> Tensor:
    """x + g · (m + bias) of `x, m (B, *G, D)` and rows `g (B, D)`."""
    y = torch.empty_like(x)
    width, tokens = x.shape[-1], x[0].numel() // x.shape[-1]
    programs, channels = tiles(tokens, width, len(x))
    _residual[programs](x, g, m, bias, y, tokens, width, g.stride(0), TOKENS, channels)
    return y


def residual_back(dy: Tensor, g: Tensor, m: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `g`, `m` and the bias; that of `x` is `dy`."""
    width, tokens = m.shape[-1], m[0].numel() // m.shape[-1]
    programs, channels = tiles(tokens, width, len(m))
    parts, chunk = chunks(tokens, programs)
    partial = torch.empty(len(m), parts, 2, width, dtype=torch.float32, device=m.device)
    dm, numbers = torch.empty_like(m), (tokens, width, g.stride(0), chunk, TOKENS, channels)
    _residual_back[(parts, *programs[1:])](dy, g, m, bias, dm, partial, *numbers)
    dg, dbias = _gathered(partial, g, bias)
    return dg, dm, dbias


def _gathered(partial: Tensor, g: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gate and of the bias, out of sums over chunks of the tokens."""
    samples, parts, _, width = partial.shape
    dg, dbias = torch.empty(samples, width, dtype=g.dtype, device=g.device), torch.empty_like(bias)
    _gather[(triton.cdiv(width, FEW), samples + 1)](partial, dg, dbias, samples, parts, width, ROWS, FEW)
    return dg, dbias


def residual_norm(
    x: Tensor, g: Tensor, m: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of `residual`, times 1 + `scale (B, D)`, plus `shift (B, D)`; that itself; and 1 / rms `(B,)`. Squares
    are added up where the sum is made."""
    width, tokens = x.shape[-1], x[0].numel() // x.shape[-1]
    if norm_kernels.whole_sample(tokens * width, width):
        y = residual(x, g, m, bias)
        h, factor = norm_kernels.forward(y, scale, shift, eps)
        return h, y, factor
    y, (programs, channels) = torch.empty_like(x), tiles(tokens, width, len(x))
    parts, chunk = chunks(tokens, programs)
    partial = torch.empty(len(x), parts * programs[1], dtype=torch.float32, device=x.device)
    numbers = (tokens, width, g.stride(0), chunk, TOKENS, channels)
    _residual_squares[(parts, *programs[1:])](x, g, m, bias, y, partial, *numbers)
    h, factor = norm_kernels.apply(y, partial, scale, shift, eps)
    return h, y, factor


def residual_norm_back(
    dh: Tensor, y: Tensor, scale: Tensor, factor: Tensor, through: Tensor | None, g: Tensor, m: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of `x`, `g`, `m`, the bias, `scale` and `shift`, given that of the norm and what comes `through`
    that of the sum."""
    width, tokens = y.shape[-1], y[0].numel() // y.shape[-1]
    if norm_kernels.whole_sample(tokens * width, width):
        dx, dscale, dshift = norm_kernels.backward(dh, y, scale, factor, through)
        return dx, *residual_back(dx, g, m, bias), dscale, dshift
    dscale, dshift = (torch.empty(len(y), width, dtype=scale.dtype, device=y.device) for _ in range(2))
    pull = norm_kernels.of_rows(dh, y, scale, factor, dscale, dshift)
    dx, dm, (programs, channels) = torch.empty_like(y), torch.empty_like(m), tiles(tokens, width, len(y))
    parts, chunk = chunks(tokens, programs)
    partial = torch.empty(len(y), parts, 2, width, dtype=torch.float32, device=y.device)
    given = (dh, y, scale, factor, pull, dx if through is None else through, g, m, bias)
    numbers = (tokens, width, scale.stride(0), g.stride(0), chunk, through is not None, TOKENS, channels)
    _residual_norm_back[(parts, *programs[1:])](*given, dx, dm, partial, *numbers)
    dg, dbias = _gathered(partial, g, bias)
    return dx, dg, dm, dbias, dscale, dshift


def _over_rows(x: Tensor) -> tuple[int, int, tuple[int, int, int], int]:
    """Tokens of all samples as rows: how many, their width, a grid of tiles over them, and the channels of a tile."""
    width = x.shape[-1]
    rows = x.numel() // width
    return rows, width, *tiles(rows, width, 1)
