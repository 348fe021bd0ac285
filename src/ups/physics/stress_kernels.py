"""The viscous stages of a gas on a GPU, each as one kernel; those of `viscosity.Viscosity`."""

# The words of gas_kernels.py, and as there: imported only where there is a GPU and Triton.

from __future__ import annotations

import triton
import triton.language as tl

from ups.physics.gas_kernels import (
    ALONG,
    LAME,
    SHEAR,
    _back,
    _beside,
    _density,
    _places,
    _sample,
    _store,
    _turned,
    _vector,
)


@triton.jit
def _bend(
    z, lo, hi, axis: tl.constexpr, part: tl.constexpr, numbers,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """The slope along an axis of one velocity on faces: the mean of the central differences in the two cells beside."""
    z = z + part * (N0 * N1 * N2)
    below = tl.load(z + _beside(lo, axis, 1, N0, N1, N2, WRAPS)) - tl.load(z + _beside(lo, axis, -1, N0, N1, N2, WRAPS))
    above = tl.load(z + _beside(hi, axis, 1, N0, N1, N2, WRAPS)) - tl.load(z + _beside(hi, axis, -1, N0, N1, N2, WRAPS))
    return (below + above) * (0.25 * tl.load(numbers + axis))


@triton.jit
def _stress(
    w, z, lo, hi, axis: tl.constexpr, numbers, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """σ on the faces across an axis between cells `lo` and `hi`, turned."""
    CELLS: tl.constexpr = N0 * N1 * N2
    ONE: tl.constexpr = 1 if axis == 0 else 0
    OTHER: tl.constexpr = 1 if axis == 2 else 2
    a, b, c = _vector(z, lo, D, CELLS)
    x, y, z0 = _vector(z, hi, D, CELLS)
    across, one, other = _turned(axis, x - a, y - b, z0 - c)
    scale, shear = tl.load(numbers + axis), tl.load(numbers + SHEAR)
    across, one, other = across * scale * tl.load(numbers + ALONG), one * scale * shear, other * scale * shear
    if D > 1:
        across += tl.load(numbers + LAME) * _bend(z, lo, hi, ONE, ONE, numbers, N0, N1, N2, WRAPS)
        one += shear * _bend(z, lo, hi, ONE, axis, numbers, N0, N1, N2, WRAPS)
    if D > 2:
        across += tl.load(numbers + LAME) * _bend(z, lo, hi, OTHER, OTHER, numbers, N0, N1, N2, WRAPS)
        other += shear * _bend(z, lo, hi, OTHER, axis, numbers, N0, N1, N2, WRAPS)
    rl, rh = _density(w, lo), _density(w, hi)
    weight = 2 * rl * rh / (rl + rh)
    return across * weight, one * weight, other * weight


@triton.jit
def _force(
    w, z, at, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr
):  # fmt: skip
    """∇·σ of the velocity z in a gas of the density of w."""
    x, y, t = 0.0, 0.0, 0.0
    for axis in tl.static_range(D):
        lo, hi = _beside(at, axis, -1, N0, N1, N2, WRAPS), _beside(at, axis, 1, N0, N1, N2, WRAPS)
        a0, b0, c0 = _stress(w, z, lo, at, axis, numbers, D, N0, N1, N2, WRAPS)
        a1, b1, c1 = _stress(w, z, at, hi, axis, numbers, D, N0, N1, N2, WRAPS)
        a, b, c = _back(axis, a1 - a0, b1 - b0, c1 - c0)
        scale = tl.load(numbers + axis)
        x, y, t = x + a * scale, y + b * scale, t + c * scale
    return x, y, t


@triton.jit
def stage(
    half, z, before, dt, numbers, coefficients, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """before = μ z + ν before + μ̃ (v0 + dt/ρ ∇·σ(z)) + γ̃ v0, with the four coefficients; before is 0 at first."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    half, z, before = (
        _sample(half, sample, 2 + D, CELLS),
        _sample(z, sample, D, CELLS),
        _sample(before, sample, D, CELLS),
    )
    x, y, t = _force(half, z, at, numbers, D, N0, N1, N2, WRAPS)
    density = _density(half, at)
    inverse = h / density
    ma, mb, mc = _vector(half + 2 * CELLS, at, D, CELLS)
    a, b, c = ma / density, mb / density, mc / density
    mu, share = tl.load(coefficients), tl.load(coefficients + 2)
    start = tl.load(coefficients + 3)
    x, y, t = (a + inverse * x) * share, (b + inverse * y) * share, (c + inverse * t) * share
    za, zb, zc = _vector(z, at, D, CELLS)
    x, y, t = x + mu * za + start * a, y + mu * zb + start * b, t + mu * zc + start * c
    if not FIRST:
        nu = tl.load(coefficients + 1)
        pa, pb, pc = _vector(before, at, D, CELLS)
        x, y, t = x + nu * pa, y + nu * pb, t + nu * pc
    _store(before, at, live, x, y, t, D, CELLS)


@triton.jit
def push(
    half, z, change, dt, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a step adds to the momenta, the last channels of `change`: dt ∇·σ(z)."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    half, z, change = (
        _sample(half, sample, 2 + D, CELLS),
        _sample(z, sample, D, CELLS),
        _sample(change, sample, 1 + D, CELLS),
    )
    x, y, t = _force(half, z, at, numbers, D, N0, N1, N2, WRAPS)
    _store(change + CELLS, at, live, h * x, h * y, h * t, D, CELLS)


@triton.jit
def _pushed(half, change, at, axis: tl.constexpr, D: tl.constexpr, CELLS: tl.constexpr):
    """The velocity half way through the push, turned."""
    density = _density(half, at)
    a, b, c = _vector(half + 2 * CELLS, at, D, CELLS)
    x, y, z = _vector(change + CELLS, at, D, CELLS)
    a, b, c = _turned(axis, (a + 0.5 * x) / density, (b + 0.5 * y) / density, (c + 0.5 * z) / density)
    return a, b, c


@triton.jit
def _work(
    half, z, change, lo, hi, axis: tl.constexpr, numbers, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """v·σ on the faces across an axis, v the mean of the two cells."""
    CELLS: tl.constexpr = N0 * N1 * N2
    across, one, other = _stress(half, z, lo, hi, axis, numbers, D, N0, N1, N2, WRAPS)
    a, b, c = _pushed(half, change, lo, axis, D, CELLS)
    x, y, t = _pushed(half, change, hi, axis, D, CELLS)
    total = (a + x) * across
    if D > 1:
        total += (b + y) * one
    if D > 2:
        total += (c + t) * other
    return 0.5 * total


@triton.jit
def heat(
    half, z, change, middle, dt, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a step adds to the energy, the first channel of `change`: dt ∇·(v·σ); and middle = half + change/2."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    half, middle = _sample(half, sample, 2 + D, CELLS), _sample(middle, sample, 2 + D, CELLS)
    z, change = _sample(z, sample, D, CELLS), _sample(change, sample, 1 + D, CELLS)
    total = 0.0
    for axis in tl.static_range(D):
        lo, hi = _beside(at, axis, -1, N0, N1, N2, WRAPS), _beside(at, axis, 1, N0, N1, N2, WRAPS)
        low = _work(half, z, change, lo, at, axis, numbers, D, N0, N1, N2, WRAPS)
        high = _work(half, z, change, at, hi, axis, numbers, D, N0, N1, N2, WRAPS)
        total = total + (high - low) * tl.load(numbers + axis)
    total = h * total
    tl.store(change + at, total, mask=live)
    tl.store(middle + at, tl.load(half + at), mask=live)
    tl.store(middle + CELLS + at, tl.load(half + CELLS + at) + 0.5 * total, mask=live)
    a, b, c = _vector(half + 2 * CELLS, at, D, CELLS)
    x, y, t = _vector(change + CELLS, at, D, CELLS)
    _store(middle + 2 * CELLS, at, live, a + 0.5 * x, b + 0.5 * y, c + 0.5 * t, D, CELLS)
