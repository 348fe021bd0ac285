"""The viscous stages of a gas on a GPU, each as one kernel; those of `viscosity.Viscosity`."""

# The words of gas_kernels.py, and as there: imported only where there is a GPU and Triton. `half` holds density, energy
# and velocities. What the stages follow, z, is a share of these at first, and then has an array of its own: CHANNELS
# says how many channels the array has that z lies in.

from __future__ import annotations

import triton
import triton.language as tl

from ups.physics.gas_kernels import (
    ALONG,
    LAME,
    SHARE,
    SHEAR,
    _back,
    _beside,
    _pressure,
    _runs,
    _sample,
    _store,
    _turned,
    _vector,
)


@triton.jit
def _bend(
    z, at, lo, hi, axis: tl.constexpr, part: tl.constexpr, numbers,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """The slope along an axis of one velocity on faces: the mean of the central differences in the two cells beside,
    which are where the cells `at` are on that axis."""
    z = z + part * (N0 * N1 * N2)
    up, down = _beside(at, axis, 1, N0, N1, N2, WRAPS) - at, _beside(at, axis, -1, N0, N1, N2, WRAPS) - at
    below, above = tl.load(z + (lo + up)) - tl.load(z + (lo + down)), tl.load(z + (hi + up)) - tl.load(z + (hi + down))
    return (below + above) * (0.25 * tl.load(numbers + axis))


@triton.jit
def _stress(
    half, z, at, lo, hi, axis: tl.constexpr, numbers, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """σ on the faces across an axis between cells `lo` and `hi`, one of which is `at`, turned."""
    CELLS: tl.constexpr = N0 * N1 * N2
    ONE: tl.constexpr = 1 if axis == 0 else 0
    OTHER: tl.constexpr = 1 if axis == 2 else 2
    a, b, c = _vector(z, lo, D, CELLS)
    x, y, z0 = _vector(z, hi, D, CELLS)
    across, one, other = _turned(axis, x - a, y - b, z0 - c)
    scale, shear = tl.load(numbers + axis), tl.load(numbers + SHEAR)
    across, one, other = across * scale * tl.load(numbers + ALONG), one * scale * shear, other * scale * shear
    if D > 1:
        across += tl.load(numbers + LAME) * _bend(z, at, lo, hi, ONE, ONE, numbers, N0, N1, N2, WRAPS)
        one += shear * _bend(z, at, lo, hi, ONE, axis, numbers, N0, N1, N2, WRAPS)
    if D > 2:
        across += tl.load(numbers + LAME) * _bend(z, at, lo, hi, OTHER, OTHER, numbers, N0, N1, N2, WRAPS)
        other += shear * _bend(z, at, lo, hi, OTHER, axis, numbers, N0, N1, N2, WRAPS)
    rl, rh = tl.load(half + lo), tl.load(half + hi)
    weight = 2 * rl * rh / (rl + rh)
    return across * weight, one * weight, other * weight


@triton.jit
def _below(
    half, z, at, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr
):  # fmt: skip
    """σ on the lower faces of cells across the first axis."""
    return _stress(half, z, at, _beside(at, 0, -1, N0, N1, N2, WRAPS), at, 0, numbers, D, N0, N1, N2, WRAPS)


@triton.jit
def _force(
    half, z, at, a0, b0, c0, numbers, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """∇·σ of the velocity z in a gas of the density of half, given σ of `_below`; and that of the cells above."""
    hi = _beside(at, 0, 1, N0, N1, N2, WRAPS)
    a1, b1, c1 = _stress(half, z, at, at, hi, 0, numbers, D, N0, N1, N2, WRAPS)
    scale = tl.load(numbers)
    x, y, t = (a1 - a0) * scale, (b1 - b0) * scale, (c1 - c0) * scale
    for axis in tl.static_range(1, D):
        lo, hi = _beside(at, axis, -1, N0, N1, N2, WRAPS), _beside(at, axis, 1, N0, N1, N2, WRAPS)
        dl, el, fl = _stress(half, z, at, lo, at, axis, numbers, D, N0, N1, N2, WRAPS)
        dh, eh, fh = _stress(half, z, at, at, hi, axis, numbers, D, N0, N1, N2, WRAPS)
        a, b, c = _back(axis, dh - dl, eh - el, fh - fl)
        scale = tl.load(numbers + axis)
        x, y, t = x + a * scale, y + b * scale, t + c * scale
    return x, y, t, a1, b1, c1


@triton.jit
def stage(
    half, z, target, dt, numbers, coefficients, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, CHANNELS: tl.constexpr, STAGE: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """target = μ z + ν before + μ̃ (v0 + dt/ρ ∇·σ(z)) + γ̃ v0, with the four coefficients. What was before z is 0 in the
    second stage, a share of v0 in the third, and later `target` itself. In the second stage `z` is v0, without that
    share: ∇·σ is linear."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, row, column, inside = _runs(N0, N1 * N2, RUN, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    half, z = _sample(half, sample, 2 + D, CELLS), _sample(z, sample, CHANNELS, CELLS)
    target = _sample(target, sample, D, CELLS)
    mu, nu = tl.load(coefficients), tl.load(coefficients + 1)
    new, old = tl.load(coefficients + 2), tl.load(coefficients + 3)
    if STAGE == 2:
        h, mu = h * tl.load(numbers + SHARE), mu * tl.load(numbers + SHARE)
    if STAGE == 3:
        old += nu * tl.load(numbers + SHARE)
    a0, b0, c0 = _below(half, z, row * (N1 * N2) + column, numbers, D, N0, N1, N2, WRAPS)
    for step in range(RUN):
        live = inside & (row + step < N0)
        at = tl.minimum(row + step, N0 - 1) * (N1 * N2) + column
        x, y, t, a0, b0, c0 = _force(half, z, at, a0, b0, c0, numbers, D, N0, N1, N2, WRAPS)
        inverse = h / tl.load(half + at)
        a, b, c = _vector(half + 2 * CELLS, at, D, CELLS)
        x, y, t = (a + inverse * x) * new, (b + inverse * y) * new, (c + inverse * t) * new
        za, zb, zc = _vector(z, at, D, CELLS)
        x, y, t = x + mu * za + old * a, y + mu * zb + old * b, t + mu * zc + old * c
        if STAGE > 3:
            pa, pb, pc = _vector(target, at, D, CELLS)
            x, y, t = x + nu * pa, y + nu * pb, t + nu * pc
        _store(target, at, live, x, y, t, D, CELLS)


@triton.jit
def push(
    half, z, change, middle, dt, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a step adds to the momenta, the last channels of `change`: dt ∇·σ(z); and the velocities of `middle`, half
    way through that."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, row, column, inside = _runs(N0, N1 * N2, RUN, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    half, z = _sample(half, sample, 2 + D, CELLS), _sample(z, sample, CHANNELS, CELLS)
    change, middle = _sample(change, sample, 1 + D, CELLS), _sample(middle, sample, 2 + D, CELLS)
    a0, b0, c0 = _below(half, z, row * (N1 * N2) + column, numbers, D, N0, N1, N2, WRAPS)
    for step in range(RUN):
        live = inside & (row + step < N0)
        at = tl.minimum(row + step, N0 - 1) * (N1 * N2) + column
        x, y, t, a0, b0, c0 = _force(half, z, at, a0, b0, c0, numbers, D, N0, N1, N2, WRAPS)
        x, y, t = h * x, h * y, h * t
        _store(change + CELLS, at, live, x, y, t, D, CELLS)
        a, b, c = _vector(half + 2 * CELLS, at, D, CELLS)
        inverse = 0.5 / tl.load(half + at)
        _store(middle + 2 * CELLS, at, live, a + inverse * x, b + inverse * y, c + inverse * t, D, CELLS)


@triton.jit
def _work(
    half, z, middle, at, lo, hi, axis: tl.constexpr, numbers, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """v·σ on the faces across an axis, v the mean of the two cells of `middle`."""
    CELLS: tl.constexpr = N0 * N1 * N2
    across, one, other = _stress(half, z, at, lo, hi, axis, numbers, D, N0, N1, N2, WRAPS)
    a, b, c = _vector(middle + 2 * CELLS, lo, D, CELLS)
    x, y, t = _vector(middle + 2 * CELLS, hi, D, CELLS)
    a, b, c = _turned(axis, a + x, b + y, c + t)
    total = a * across
    if D > 1:
        total += b * one
    if D > 2:
        total += c * other
    return 0.5 * total


@triton.jit
def heat(
    half, z, change, middle, dt, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a step adds to the energy, the first channel of `change`: dt ∇·(v·σ); and density and pressure of `middle`,
    half way through that."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, row, column, inside = _runs(N0, N1 * N2, RUN, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    half, z = _sample(half, sample, 2 + D, CELLS), _sample(z, sample, CHANNELS, CELLS)
    change, middle = _sample(change, sample, 1 + D, CELLS), _sample(middle, sample, 2 + D, CELLS)
    at = row * (N1 * N2) + column
    low = _work(half, z, middle, at, _beside(at, 0, -1, N0, N1, N2, WRAPS), at, 0, numbers, D, N0, N1, N2, WRAPS)
    for step in range(RUN):
        live = inside & (row + step < N0)
        at = tl.minimum(row + step, N0 - 1) * (N1 * N2) + column
        hi = _beside(at, 0, 1, N0, N1, N2, WRAPS)
        high = _work(half, z, middle, at, at, hi, 0, numbers, D, N0, N1, N2, WRAPS)
        total = (high - low) * tl.load(numbers)
        low = high
        for axis in tl.static_range(1, D):
            lo, hi = _beside(at, axis, -1, N0, N1, N2, WRAPS), _beside(at, axis, 1, N0, N1, N2, WRAPS)
            into = _work(half, z, middle, at, lo, at, axis, numbers, D, N0, N1, N2, WRAPS)
            out = _work(half, z, middle, at, at, hi, axis, numbers, D, N0, N1, N2, WRAPS)
            total += (out - into) * tl.load(numbers + axis)
        total = h * total
        tl.store(change + at, total, mask=live)
        density, energy = tl.load(half + at), tl.load(half + CELLS + at)
        a, b, c = _vector(middle + 2 * CELLS, at, D, CELLS)
        tl.store(middle + at, density, mask=live)
        tl.store(middle + CELLS + at, _pressure(density, energy + 0.5 * total, a, b, c, D), mask=live)
