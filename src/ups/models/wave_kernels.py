"""Waves mixed between the channels of a head on a GPU: a complex matrix for each wave, one kernel for all of them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # in a tile
SHARE = 256  # rows of which one program adds up a weight's gradient


@triton.jit
def _where(first, wave, head, rows, inner, modes, heads, size, BR: tl.constexpr, BD: tl.constexpr):
    """Where the real parts of a wave's channels of some rows are in `(outer, 2, modes, inner, heads, d)`, and which are
    there; the imaginary ones lie `modes · inner · heads · d` further."""
    row, j = first + tl.arange(0, BR), tl.arange(0, BD)
    outer = (row // inner).to(tl.int64)
    at = ((outer * 2 * modes + wave) * inner + row % inner) * heads + head
    return at[:, None] * size + j[None, :], (row < rows)[:, None] & (j < size)[None, :]


@triton.jit
def _matrix(w, wave, head, heads, size, TURNED: tl.constexpr, BD: tl.constexpr):
    """A matrix of `w (modes, heads, d, d)`, or its transpose."""
    i, j = tl.arange(0, BD), tl.arange(0, BD)
    inside = (i < size)[:, None] & (j < size)[None, :]
    at = j[None, :] * size + i[:, None] if TURNED else i[:, None] * size + j[None, :]
    return tl.load(w + (wave * heads + head) * size * size + at, mask=inside, other=0.0)


@triton.jit
def _mix(
    x, real, imaginary, y, rows, inner, modes, heads, size,
    BACK: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """y = x W for complex x and W; `BACK` by the conjugate transpose of W."""
    wave, head = tl.program_id(1), tl.program_id(2)
    at, live = _where(tl.program_id(0) * BR, wave, head, rows, inner, modes, heads, size, BR, BD)
    step = modes * inner * heads * size
    a, b = tl.load(x + at, mask=live, other=0.0), tl.load(x + at + step, mask=live, other=0.0)
    r = _matrix(real, wave, head, heads, size, BACK, BD)
    i = _matrix(imaginary, wave, head, heads, size, BACK, BD)
    if BACK:
        i = -i
    tl.store(y + at, tl.dot(a, r, input_precision=HOW) - tl.dot(b, i, input_precision=HOW), mask=live)
    tl.store(y + at + step, tl.dot(a, i, input_precision=HOW) + tl.dot(b, r, input_precision=HOW), mask=live)


@triton.jit
def _weigh(
    x, dy, partial, rows, inner, modes, heads, size, share,
    BR: tl.constexpr, BD: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """The gradients of both parts of a matrix over a share of rows, to `partial (shares, 2, modes, heads, d, d)`."""
    part, wave, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    step = modes * inner * heads * size
    r, i = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    for first in range(part * share, tl.minimum((part + 1) * share, rows), BR):
        at, live = _where(first, wave, head, rows, inner, modes, heads, size, BR, BD)
        a, b = tl.load(x + at, mask=live, other=0.0), tl.load(x + at + step, mask=live, other=0.0)
        c, d = tl.load(dy + at, mask=live, other=0.0), tl.load(dy + at + step, mask=live, other=0.0)
        a, b = tl.trans(a), tl.trans(b)
        r += tl.dot(a, c, input_precision=HOW) + tl.dot(b, d, input_precision=HOW)
        i += tl.dot(a, d, input_precision=HOW) - tl.dot(b, c, input_precision=HOW)
    j, k = tl.arange(0, BD), tl.arange(0, BD)
    inside = (j < size)[:, None] & (k < size)[None, :]
    matrix = (part * 2 * modes + wave) * heads + head
    at = matrix * size * size + j[:, None] * size + k[None, :]
    tl.store(partial + at, r, mask=inside)
    tl.store(partial + at + modes * heads * size * size, i, mask=inside)


def mix(x: Tensor, real: Tensor, imaginary: Tensor, back: bool) -> Tensor:
    """Waves `x (outer, 2, modes, inner, heads, d)` times a complex matrix `(modes, heads, d, d)` each."""
    y = torch.empty_like(x)
    rows, *sizes = _sizes(x)
    grid = (triton.cdiv(rows, ROWS), sizes[1], sizes[2])
    _mix[grid](x, real, imaginary, y, rows, *sizes, back, *_words(sizes[-1]))
    return y


def weigh(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the matrices, added up in an order that is always the same."""
    rows, inner, modes, heads, size = _sizes(x)
    shares = triton.cdiv(rows, SHARE)
    partial = torch.empty(shares, 2, modes, heads, size, size, dtype=torch.float32, device=x.device)
    _weigh[(shares, modes, heads)](x, dy, partial, rows, inner, modes, heads, size, SHARE, *_words(size))
    return (partial.sum(0) if shares > 1 else partial[0]).unbind(0)  # type: ignore[return-value]


def _sizes(x: Tensor) -> tuple[int, int, int, int, int]:
    outer, _, modes, inner, heads, size = x.shape
    return outer * inner, inner, modes, heads, size


def _words(size: int) -> tuple[Any, ...]:
    """Rounded as torch rounds matrix products."""
    how = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return ROWS, max(16, triton.next_power_of_2(size)), how
