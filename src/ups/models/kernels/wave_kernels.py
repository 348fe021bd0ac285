"""GPU kernels of Fourier mixing: a complex matrix per mode mixes the channels of a head."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # in a tile
SHARE = 256  # rows of which one program adds up a weight's gradient
CHANNELS = 32  # whose gains one program adds up


@triton.jit
def _where(first, wave, head, rows, inner, modes, heads, size, BR: tl.constexpr, BD: tl.constexpr):
    """Where the real parts of a wave's channels of some rows are in `(outer, 2, modes, inner, heads, d)`, and which are
    there; the imaginary ones lie `modes · inner · heads · d` further."""
    row, j = first + tl.arange(0, BR), tl.arange(0, BD)
    outer = (row // inner).to(tl.int64)
    at = ((outer * 2 * modes + wave) * inner + row % inner) * heads + head
    return at[:, None] * size + j[None, :], (row < rows)[:, None] & (j < size)[None, :]


@triton.jit
def _channels(gain, head, size, BD: tl.constexpr):
    """The gain of each channel that a head answers."""
    j = tl.arange(0, BD)
    return tl.load(gain + head * size + j, mask=j < size, other=0.0).to(tl.float32)


@triton.jit
def _matrix(w, wave, head, heads, size, TURNED: tl.constexpr, BD: tl.constexpr):
    """A matrix of `w (waves, heads, d, d)`, or its transpose."""
    i, j = tl.arange(0, BD), tl.arange(0, BD)
    inside = (i < size)[:, None] & (j < size)[None, :]
    at = j[None, :] * size + i[:, None] if TURNED else i[:, None] * size + j[None, :]
    return tl.load(w + (wave * heads + head) * size * size + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _mix(
    x, real, imaginary, gain, y, rows, inner, modes, heads, size,
    BACK: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """y = x W for complex x and W, the gain in W; `BACK` by the conjugate transpose of W."""
    wave, head = tl.program_id(1), tl.program_id(2)
    at, live = _where(tl.program_id(0) * BR, wave, head, rows, inner, modes, heads, size, BR, BD)
    step = modes * inner * heads * size
    a, b = tl.load(x + at, mask=live, other=0.0), tl.load(x + at + step, mask=live, other=0.0)
    g = _channels(gain, head, size, BD)
    each = g[:, None] if BACK else g[None, :]
    r = _matrix(real, wave, head, heads, size, BACK, BD) * each
    i = _matrix(imaginary, wave, head, heads, size, BACK, BD) * each
    if BACK:
        i = -i
    tl.store(y + at, tl.dot(a, r, input_precision=HOW) - tl.dot(b, i, input_precision=HOW), mask=live)
    tl.store(y + at + step, tl.dot(a, i, input_precision=HOW) + tl.dot(b, r, input_precision=HOW), mask=live)


@triton.jit
def _split(r, i, real, imaginary, gain, dreal, dimaginary, sums, wave, head, heads, size, BD: tl.constexpr):
    """The gradients `r` and `i` of a matrix with its gain in it as those of the matrix alone, and what this wave adds
    to that of the gain, to `sums (waves, heads, d)`."""
    j, k = tl.arange(0, BD), tl.arange(0, BD)
    inside = (j < size)[:, None] & (k < size)[None, :]
    at = (wave * heads + head) * size * size + j[:, None] * size + k[None, :]
    g = _channels(gain, head, size, BD)[None, :]
    tl.store(dreal + at, r * g, mask=inside)
    tl.store(dimaginary + at, i * g, mask=inside)
    r = r * _matrix(real, wave, head, heads, size, False, BD)
    i = i * _matrix(imaginary, wave, head, heads, size, False, BD)
    tl.store(sums + (wave * heads + head) * size + k, tl.sum(r + i, 0), mask=k < size)


@triton.jit
def _weigh(
    x, dy, real, imaginary, gain, dreal, dimaginary, sums, partial, rows, inner, modes, heads, size, share,
    ALONE: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """The gradients of both parts of a matrix over a share of rows, to `partial (shares, 2, modes, heads, d, d)`; of a
    share that is all the rows, the whole ones. Those of a wave that the axis does not have are zero."""
    part, wave, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    step = modes * inner * heads * size
    r, i = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    stop = tl.where(wave < modes, tl.minimum((part + 1) * share, rows), 0)
    for first in range(part * share, stop, BR):
        at, live = _where(first, wave, head, rows, inner, modes, heads, size, BR, BD)
        a, b = tl.load(x + at, mask=live, other=0.0), tl.load(x + at + step, mask=live, other=0.0)
        c, d = tl.load(dy + at, mask=live, other=0.0), tl.load(dy + at + step, mask=live, other=0.0)
        a, b = tl.trans(a), tl.trans(b)
        r += tl.dot(a, c, input_precision=HOW) + tl.dot(b, d, input_precision=HOW)
        i += tl.dot(a, d, input_precision=HOW) - tl.dot(b, c, input_precision=HOW)
    if ALONE:
        _split(r, i, real, imaginary, gain, dreal, dimaginary, sums, wave, head, heads, size, BD)
    else:
        j, k = tl.arange(0, BD), tl.arange(0, BD)
        inside = (j < size)[:, None] & (k < size)[None, :]
        at = ((part * 2 * modes + wave) * heads + head) * size * size + j[:, None] * size + k[None, :]
        tl.store(partial + at, r, mask=inside)
        tl.store(partial + at + modes * heads * size * size, i, mask=inside)


@triton.jit
def _whole(partial, real, imaginary, gain, dreal, dimaginary, sums, shares, modes, heads, size, BD: tl.constexpr):
    """The gradients of a matrix out of those over the shares, one after the other."""
    wave, head = tl.program_id(0), tl.program_id(1)
    r, i = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    for part in range(0, tl.where(wave < modes, shares, 0)):
        r += _matrix(partial, part * 2 * modes + wave, head, heads, size, False, BD)
        i += _matrix(partial, (part * 2 + 1) * modes + wave, head, heads, size, False, BD)
    _split(r, i, real, imaginary, gain, dreal, dimaginary, sums, wave, head, heads, size, BD)


@triton.jit
def _gains(sums, dgain, waves, axis, axes, width, BW: tl.constexpr, BC: tl.constexpr):
    """The gradient of the gain along an axis, the sum over waves; along the others it is zero."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    total = tl.zeros((BW, BC), tl.float32)
    for first in range(0, waves, BW):
        wave = first + tl.arange(0, BW)
        live = (wave < waves)[:, None] & (c < width)[None, :]
        total += tl.load(sums + wave[:, None] * width + c[None, :], mask=live, other=0.0)
    gradient = tl.sum(total, 0)
    for one in range(0, axes):
        tl.store(dgain + one * width + c, tl.where(one == axis, gradient, 0.0), mask=c < width)


def mix(x: Tensor, real: Tensor, imaginary: Tensor, gain: Tensor, axis: int, back: bool) -> Tensor:
    """Waves `x (outer, 2, modes, inner, heads, d)` times the first of the complex matrices `(waves, heads, d, d)`, each
    times the gain `(axes, heads · d)` of what it answers along an axis."""
    y = torch.empty_like(x)
    rows, *sizes = _sizes(x)
    programs = (triton.cdiv(rows, ROWS), sizes[1], sizes[2])
    _mix[programs](x, real, imaginary, gain[axis], y, rows, *sizes, back, *_words(sizes[-1]))
    return y


def weigh(
    dy: Tensor, x: Tensor, real: Tensor, imaginary: Tensor, gain: Tensor, axis: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the matrices and of the gain, added up in an order that is always the same."""
    rows, inner, modes, heads, size = _sizes(x)
    waves, shares, words = len(real), triton.cdiv(rows, SHARE), _words(size)
    made = torch.empty_like(real), torch.empty_like(imaginary)
    sums = torch.empty(waves, heads * size, dtype=torch.float32, device=x.device)
    arguments = (real, imaginary, gain[axis], *made, sums)
    alone = shares == 1
    partial = sums if alone else sums.new_empty(shares, 2, modes, heads, size, size)
    programs = (shares, waves if alone else modes, heads)
    _weigh[programs](x, dy, *arguments, partial, rows, inner, modes, heads, size, SHARE, alone, *words)
    if not alone:
        _whole[(waves, heads)](partial, *arguments, shares, modes, heads, size, words[1])
    dgain = torch.empty_like(gain)
    _gains[(triton.cdiv(gain.shape[1], CHANNELS),)](sums, dgain, waves, axis, *gain.shape, ROWS, CHANNELS)
    return *made, dgain


def _sizes(x: Tensor) -> tuple[int, int, int, int, int]:
    outer, _, modes, inner, heads, size = x.shape
    return outer * inner, inner, modes, heads, size


def _words(size: int) -> tuple[Any, ...]:
    """Rounded as torch rounds matrix products."""
    how = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return ROWS, max(16, triton.next_power_of_2(size)), how
