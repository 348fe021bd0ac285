"""Depthwise convolutions along both axes of a grid on a GPU, for many samples: a program holds a patch of the grid."""

# Threads go over samples and channels, and all that has to do with places is the same for all of them. A token is read
# by four of the patches instead of ten times, and becomes float32 as often.

# Triton joins tuples by +, and one name may hold tuples of any length.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ups.models.kernels.axis_kernels import CHUNKS, FEW, _taps
from ups.types import Grid

ROWS, COLUMNS = 2, 4  # of a patch
SAMPLES, CHANNELS = 8, 64  # of a tile
LONGEST = 5  # kernel that is held in registers


@triton.jit
def _corner(n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr, patch):
    """The first row and column of a patch; the last patches end where the grid does, and overlap with others."""
    across = tl.cdiv(m, COLUMNS)
    return tl.minimum(patch // across * ROWS, n - ROWS), tl.minimum(patch % across * COLUMNS, m - COLUMNS)


@triton.jit
def _place(q, n, WRAPS: tl.constexpr):
    """The place of a number along an axis: around it where it wraps, else the last one there is."""
    if WRAPS:
        return tl.where(q < 0, q + n, tl.where(q >= n, q - n, q))
    return tl.minimum(tl.maximum(q, 0), n - 1)


@triton.jit
def _lanes(samples, width, tokens, first, BS: tl.constexpr, BC: tl.constexpr):
    """Where the first token of samples is in channels, those channels, and which are there."""
    b, c = first * BS + tl.arange(0, BS), tl.program_id(1) * BC + tl.arange(0, BC)
    at = b.to(tl.int64)[:, None] * tokens * width + c[None, :]
    return at, c, (b < samples)[:, None] & (c < width)[None, :]


@triton.jit
def _weights(kernel, gain, axis: tl.constexpr, c, width, TAPS: tl.constexpr):
    """Of each tap along an axis."""
    factor = tl.load(gain + axis * width + c, mask=c < width, other=0.0).to(tl.float32)
    weights = ()
    for k in tl.static_range(TAPS):
        tap = tl.load(kernel + c * TAPS + k, mask=c < width, other=0.0).to(tl.float32)
        weights = weights + ((tap * factor)[None, :],)
    return weights


@triton.constexpr_function
def _inside(at, count, first):
    return first <= at < first + count


@triton.jit
def _zeros(COUNT: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr):
    tiles = ()
    for _ in tl.static_range(COUNT):
        tiles = tiles + (tl.zeros((BS, BC), tl.float32),)
    return tiles


@triton.jit
def _patch(
    x, kernel, gain, y, samples, width, n, m,
    TAPS: tl.constexpr, ROUND: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """`ROUND` and `ACROSS`: whether the first axis wraps, and the second one."""
    HALF: tl.constexpr = TAPS // 2
    i, j = _corner(n, m, ROWS, COLUMNS, tl.program_id(0))
    at, c, live = _lanes(samples, width, n * m, tl.program_id(2), BS, BC)
    rows, columns = _weights(kernel, gain, 0, c, width, TAPS), _weights(kernel, gain, 1, c, width, TAPS)
    both = rows[HALF] + columns[HALF]
    total = _zeros(ROWS * COLUMNS, BS, BC)
    for r in tl.static_range(ROWS + 2 * HALF):
        line = x + at + _place(i + (r - HALF), n, ROUND).to(tl.int64) * m * width
        for s in tl.static_range(COLUMNS + 2 * HALF):
            if _inside(r, ROWS, HALF) or _inside(s, COLUMNS, HALF):
                there = _place(j + (s - HALF), m, ACROSS)
                value = tl.load(line + there * width, mask=live, other=0.0).to(tl.float32)
                more = ()
                for p in tl.static_range(ROWS * COLUMNS):
                    if (r - p // COLUMNS == HALF) and (s - p % COLUMNS == HALF):
                        more = more + (total[p] + value * both,)
                    elif (s - p % COLUMNS == HALF) and _inside(r - p // COLUMNS, TAPS, 0):
                        more = more + (total[p] + value * rows[r - p // COLUMNS],)
                    elif (r - p // COLUMNS == HALF) and _inside(s - p % COLUMNS, TAPS, 0):
                        more = more + (total[p] + value * columns[s - p % COLUMNS],)
                    else:
                        more = more + (total[p],)
                total = more
    for p in tl.static_range(ROWS * COLUMNS):
        there = (i + p // COLUMNS).to(tl.int64) * m + j + p % COLUMNS
        tl.store(y + at + there * width, total[p], mask=live)


@triton.jit
def _edges(weights, at_low, at_high, WRAPS: tl.constexpr, TAPS: tl.constexpr):
    """The weights of what is given of the first places of an axis to the first one, and of the last places to the last
    one, from there: it stood for all those beyond it, too, where it is a wall."""
    HALF: tl.constexpr = TAPS // 2
    low, high = (), ()
    for o in tl.static_range(HALF + 1):
        first, last = weights[HALF - o], weights[HALF + o]
        if not WRAPS:
            for k in tl.static_range(HALF - o):
                first += at_low * weights[k]
                last += at_high * weights[TAPS - 1 - k]
        low, high = low + (first,), high + (last,)
    return low, high


@triton.jit
def _given(q, n, WRAPS: tl.constexpr):
    """Whether anything is given of a place, which may be beyond a wall."""
    return (q >= 0) & (q < n) | WRAPS


@triton.jit
def _heeded(
    total, value, weights, low, high, at: tl.constexpr, place: tl.constexpr, SIDE: tl.constexpr, TAPS: tl.constexpr
):  # fmt: skip
    """`total` and what is given of `value`, which lies `at` a number of places after the first that a place of a patch
    can have entered."""
    HALF: tl.constexpr = TAPS // 2
    if (at >= 0) and (at < TAPS):
        if (place == 0) and (at >= HALF):
            total += value * low[at - HALF]
        elif (place == SIDE - 1) and (at <= HALF):
            total += value * high[HALF - at]
        else:
            total += value * weights[TAPS - 1 - at]
    return total


@triton.jit
def _patch_back(
    dy, kernel, gain, one, two, dx, samples, width, n, m,
    THROUGH: tl.constexpr, TAPS: tl.constexpr, ROUND: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A token has entered what lies around it. Added to what comes through `THROUGH` other ways: none, `one`, or `one`
    and `two`."""
    HALF: tl.constexpr = TAPS // 2
    i, j = _corner(n, m, ROWS, COLUMNS, tl.program_id(0))
    at, c, live = _lanes(samples, width, n * m, tl.program_id(2), BS, BC)
    rows, columns = _weights(kernel, gain, 0, c, width, TAPS), _weights(kernel, gain, 1, c, width, TAPS)
    top, bottom = _edges(rows, (i == 0).to(tl.float32), (i == n - ROWS).to(tl.float32), ROUND, TAPS)
    left, right = _edges(columns, (j == 0).to(tl.float32), (j == m - COLUMNS).to(tl.float32), ACROSS, TAPS)
    total = _zeros(ROWS * COLUMNS, BS, BC)
    for r in tl.static_range(ROWS + 2 * HALF):
        line = dy + at + _place(i + (r - HALF), n, ROUND).to(tl.int64) * m * width
        for s in tl.static_range(COLUMNS + 2 * HALF):
            if _inside(r, ROWS, HALF) or _inside(s, COLUMNS, HALF):
                there = _place(j + (s - HALF), m, ACROSS)
                known = _given(i + (r - HALF), n, ROUND) & _given(j + (s - HALF), m, ACROSS)
                value = tl.load(line + there * width, mask=live & known, other=0.0).to(tl.float32)
                more = ()
                for p in tl.static_range(ROWS * COLUMNS):
                    sum_of = total[p]
                    if s - p % COLUMNS == HALF:
                        sum_of = _heeded(sum_of, value, rows, top, bottom, r - p // COLUMNS, p // COLUMNS, ROWS, TAPS)
                    if r - p // COLUMNS == HALF:
                        sum_of = _heeded(
                            sum_of, value, columns, left, right, s - p % COLUMNS, p % COLUMNS, COLUMNS, TAPS
                        )
                    more = more + (sum_of,)
                total = more
    for p in tl.static_range(ROWS * COLUMNS):
        there = at + ((i + p // COLUMNS).to(tl.int64) * m + j + p % COLUMNS) * width
        sum_of = total[p]
        if THROUGH > 0:
            sum_of += tl.load(one + there, mask=live, other=0.0).to(tl.float32)
        if THROUGH > 1:
            sum_of += tl.load(two + there, mask=live, other=0.0).to(tl.float32)
        tl.store(dx + there, sum_of, mask=live)


@triton.jit
def _patch_weight(
    x, dy, partial, samples, width, n, m, patches, count, chunk,
    TAPS: tl.constexpr, ROUND: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of all taps along both axes, over a chunk of the `count` patches of all tiles of samples."""
    HALF: tl.constexpr = TAPS // 2
    part = tl.program_id(0)
    sums = _zeros(2 * TAPS, BS, BC)
    for mine in range(part * chunk, tl.minimum((part + 1) * chunk, count)):
        patch = mine % patches
        i, j = _corner(n, m, ROWS, COLUMNS, patch)
        own_rows, own_columns = patch // tl.cdiv(m, COLUMNS) * ROWS, patch % tl.cdiv(m, COLUMNS) * COLUMNS
        at, _, live = _lanes(samples, width, n * m, mine // patches, BS, BC)
        given = ()
        for p in tl.static_range(ROWS * COLUMNS):
            there = dy + at + ((i + p // COLUMNS).to(tl.int64) * m + j + p % COLUMNS) * width
            own = (i + p // COLUMNS >= own_rows) & (j + p % COLUMNS >= own_columns)
            given = given + (tl.load(there, mask=live & own, other=0.0).to(tl.float32),)
        for r in tl.static_range(ROWS + 2 * HALF):
            line = x + at + _place(i + (r - HALF), n, ROUND).to(tl.int64) * m * width
            for s in tl.static_range(COLUMNS + 2 * HALF):
                if _inside(r, ROWS, HALF) or _inside(s, COLUMNS, HALF):
                    there = _place(j + (s - HALF), m, ACROSS)
                    value = tl.load(line + there * width, mask=live, other=0.0).to(tl.float32)
                    more = ()
                    for k in tl.static_range(2 * TAPS):
                        sum_of = sums[k]
                        if k < TAPS:  # along the first axis, the centre of both among it
                            if _inside(s, COLUMNS, HALF) and (r - k >= 0) and (r - k < ROWS):
                                sum_of += value * given[(r - k) * COLUMNS + s - HALF]
                        elif (
                            (k != TAPS + HALF)
                            and _inside(r, ROWS, HALF)
                            and (s - k + TAPS >= 0)
                            and (s - k + TAPS < COLUMNS)
                        ):
                            sum_of += value * given[(r - HALF) * COLUMNS + s - k + TAPS]
                        more = more + (sum_of,)
                    sums = more
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    for k in tl.static_range(2 * TAPS):
        at = partial + (part * 2 * TAPS + k) * width + c
        tl.store(at, tl.sum(sums[HALF if k == TAPS + HALF else k], 0), mask=c < width)


def fits(x: Tensor, taps: int, grid: Grid) -> bool:
    """Whether a convolution is one of those that are computed here."""
    return (
        grid.ndim == 2
        and len(x) >= SAMPLES
        and taps <= LONGEST
        and grid.shape[0] >= max(ROWS, taps // 2)
        and grid.shape[1] >= max(COLUMNS, taps // 2)
    )


def forward(x: Tensor, kernel: Tensor, gain: Tensor, grid: Grid) -> Tensor:
    """See `axis_kernels.forward`."""
    y = torch.empty_like(x)
    programs, sizes, words = _words(x, kernel, grid)
    _patch[programs](x, kernel, gain, y, *sizes, *words)
    return y


def backward(dy: Tensor, kernel: Tensor, gain: Tensor, through: list[Tensor], grid: Grid) -> Tensor:
    """See `axis_kernels.backward`."""
    dx, others = torch.empty_like(dy), (*through, dy, dy)[:2]
    programs, sizes, words = _words(dy, kernel, grid)
    _patch_back[programs](dy, kernel, gain, *others, dx, *sizes, len(through), *words)
    return dx


def backward_weight(dy: Tensor, x: Tensor, kernel: Tensor, gain: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """See `axis_kernels.backward_weight`."""
    (patches, tiles, groups), sizes, words = _words(x, kernel, grid)
    taps, width = kernel.shape[1], x.shape[-1]
    chunk = -(-patches * groups // CHUNKS)
    parts = -(-patches * groups // chunk)
    partial = torch.empty(parts, 2, taps, width, dtype=torch.float32, device=x.device)
    _patch_weight[(parts, tiles)](x, dy, partial, *sizes, patches, patches * groups, chunk, *words)
    dkernel, dgain = torch.empty_like(kernel), torch.empty_like(gain)
    arguments = (partial, kernel, gain, dkernel, dgain, parts, width, len(gain), 2, taps, CHUNKS, FEW)
    _taps[(triton.cdiv(width, FEW),)](*arguments)
    return dkernel, dgain


def _words(
    x: Tensor, kernel: Tensor, grid: Grid
) -> tuple[tuple[int, int, int], tuple[int, ...], tuple[int | bool, ...]]:
    """A grid of patches, tiles of channels and tiles of samples; the sizes that kernels are told; their constants."""
    (n, m), width = grid.shape, x.shape[-1]
    channels = min(CHANNELS, triton.next_power_of_2(width))
    patches = triton.cdiv(n, ROWS) * triton.cdiv(m, COLUMNS)
    programs = (patches, triton.cdiv(width, channels), triton.cdiv(len(x), SAMPLES))
    return programs, (len(x), width, n, m), (kernel.shape[1], *grid.periodic, ROWS, COLUMNS, SAMPLES, channels)
