"""A viscous gas on a GPU: each part of a step of its finite volumes as one kernel, one pass over the state."""

# In plain torch a step reads and writes the state about a hundred times, compiled about thirty times. Here each cell
# works out the fluxes through all its faces, so each flux is worked out twice: arithmetic costs less than memory.
# A sample whose step is 0 has arrived, and its cells return at once. Imported only where there is a GPU and Triton.

# A state `(B, 2 + D, *S)` holds density, energy, momenta; `D` axes have N0, N1, N2 cells, those that are missing 1, and
# bit a of WRAPS says whether axis a is periodic. Of three velocities those of missing axes are dummies: never stored.
# What is true of faces across an axis is said with the velocity across first, then those along: `_turned`, `_back`.

from __future__ import annotations

import triton
import triton.language as tl

from ups.physics import riemann

BLOCK = 128  # cells of a program
GAMMA = tl.constexpr(riemann.GAMMA)
FLOOR = tl.constexpr(riemann.FLOOR)
# Places in `numbers`: 1/dx of three axes, then these.
ALONG, SHEAR, LAME, CFL, MOST = (tl.constexpr(i) for i in range(3, 8))


@triton.jit
def _places(CELLS: tl.constexpr, BLOCK: tl.constexpr):
    """The sample of a program, its cells, and which of them are no repetitions of the last."""
    blocks: tl.constexpr = (CELLS + BLOCK - 1) // BLOCK
    cell = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0) // blocks, tl.minimum(cell, CELLS - 1), cell < CELLS


@triton.jit
def _sample(x, sample, CHANNELS: tl.constexpr, CELLS: tl.constexpr):
    """Where the values of a sample begin in an array of so many channels."""
    return x + sample.to(tl.int64) * (CHANNELS * CELLS)


@triton.jit
def _beside(
    at, axis: tl.constexpr, off: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr
):  # fmt: skip
    """The cell `off` further along an axis: around it where it is periodic, else the last one there is."""
    n: tl.constexpr = N0 if axis == 0 else (N1 if axis == 1 else N2)
    s: tl.constexpr = N1 * N2 if axis == 0 else (N2 if axis == 1 else 1)
    p = (at // s) % n
    q = tl.minimum(tl.maximum(p + off, 0), n - 1)
    if (WRAPS >> axis) & 1:
        q = (p + off + n) % n
    return at + (q - p) * s


@triton.jit
def _turned(axis: tl.constexpr, x, y, z):
    """The component across an axis first, then the others."""
    if axis == 1:
        x, y = y, x
    if axis == 2:
        x, y, z = z, x, y
    return x, y, z


@triton.jit
def _back(axis: tl.constexpr, across, one, other):
    """The components in the order of the axes again."""
    if axis == 1:
        across, one = one, across
    if axis == 2:
        across, one, other = one, other, across
    return across, one, other


@triton.jit
def _vector(x, at, D: tl.constexpr, CELLS: tl.constexpr):
    """Three channels of some cells; a missing one is the first."""
    a = tl.load(x + at)
    b, c = a, a
    if D > 1:
        b = tl.load(x + CELLS + at)
    if D > 2:
        c = tl.load(x + 2 * CELLS + at)
    return a, b, c


@triton.jit
def _density(w, at):
    return tl.maximum(tl.load(w + at), FLOOR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _primitive(density, energy, a, b, c, D: tl.constexpr):
    """Density, pressure and velocities of a state."""
    density = tl.maximum(density, FLOOR, propagate_nan=tl.PropagateNan.ALL)
    u, v, w = a / density, b / density, c / density
    motion = a * u
    if D > 1:
        motion += b * v
    if D > 2:
        motion += c * w
    pressure = (energy - 0.5 * motion) * (GAMMA - 1)
    return density, tl.maximum(pressure, FLOOR, propagate_nan=tl.PropagateNan.ALL), u, v, w


@triton.jit
def _gas(w, at, axis: tl.constexpr, D: tl.constexpr, CELLS: tl.constexpr):
    """Density, pressure and velocities of some cells, turned."""
    a, b, c = _vector(w + 2 * CELLS, at, D, CELLS)
    r, p, x, y, z = _primitive(tl.load(w + at), tl.load(w + CELLS + at), a, b, c, D)
    x, y, z = _turned(axis, x, y, z)
    return r, p, x, y, z


@triton.jit
def _slope(before, here, after):
    """Half the monotonised central slope, times the cell width."""
    back, ahead = here - before, after - here
    low, high = tl.minimum(tl.maximum(back, ahead), 0.0), tl.maximum(tl.minimum(back, ahead), 0.0)
    return tl.minimum(tl.maximum(0.25 * (back + ahead), low), high)


@triton.jit
def _hllc(rl, pl, ul, vl, wl, rr, pr, ur, vr, wr, D: tl.constexpr):
    """The flux of `riemann.hllc` between face states, turned: of density, energy, and the momentum across and along."""
    cl2, cr2 = pl / rl * GAMMA, pr / rr * GAMMA
    root = tl.sqrt(rl)
    weight = root / (tl.sqrt(rr) + root)
    jump = ur - ul
    part = weight * jump
    mean = ur - part
    sound = tl.sqrt(cr2 + weight * (cl2 - cr2) + 0.5 * part * (jump - part))
    sl, sr = tl.minimum(ul - tl.sqrt(cl2), mean - sound), tl.maximum(ur + tl.sqrt(cr2), mean + sound)
    al, ar = (sl - ul) * rl, (sr - ur) * rr
    contact = (pr - pl + al * ul - ar * ur) / (al - ar)
    left = contact > 0
    r, p, u = tl.where(left, rl, rr), tl.where(left, pl, pr), tl.where(left, ul, ur)
    v, w, a = tl.where(left, vl, vr), tl.where(left, wl, wr), tl.where(left, al, ar)
    star = a / (tl.where(left, sl, sr) - contact)
    outer = tl.where(left, tl.minimum(sl, 0.0), tl.maximum(sr, 0.0))
    momentum = r * u
    kinetic = momentum * u
    if D > 1:
        kinetic += r * v * v
    if D > 2:
        kinetic += r * w * w
    energy = p * (1 / (GAMMA - 1)) + 0.5 * kinetic
    energy_star = ((p / a + contact) * (contact - u) + energy / r) * star
    mass = momentum + outer * (star - r)
    across = p + momentum * u + outer * (star * contact - momentum)
    return mass, (energy + p) * u + outer * (energy_star - energy), across, mass * v, mass * w


@triton.jit
def _through(
    w, at, axis: tl.constexpr, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """Flux out of cells through their upper face along an axis, less that into them through the lower one, turned."""
    CELLS: tl.constexpr = N0 * N1 * N2
    r0, p0, u0, v0, w0 = _gas(w, _beside(at, axis, -2, N0, N1, N2, WRAPS), axis, D, CELLS)
    r1, p1, u1, v1, w1 = _gas(w, _beside(at, axis, -1, N0, N1, N2, WRAPS), axis, D, CELLS)
    r2, p2, u2, v2, w2 = _gas(w, at, axis, D, CELLS)
    r3, p3, u3, v3, w3 = _gas(w, _beside(at, axis, 1, N0, N1, N2, WRAPS), axis, D, CELLS)
    r4, p4, u4, v4, w4 = _gas(w, _beside(at, axis, 2, N0, N1, N2, WRAPS), axis, D, CELLS)
    r, p, u, v, s = _slope(r1, r2, r3), _slope(p1, p2, p3), _slope(u1, u2, u3), _slope(v1, v2, v3), _slope(w1, w2, w3)
    lr, lp, lu, lv, lw = _hllc(
        r1 + _slope(r0, r1, r2), p1 + _slope(p0, p1, p2), u1 + _slope(u0, u1, u2), v1 + _slope(v0, v1, v2),
        w1 + _slope(w0, w1, w2), r2 - r, p2 - p, u2 - u, v2 - v, w2 - s, D,
    )  # fmt: skip
    hr, hp, hu, hv, hw = _hllc(
        r2 + r, p2 + p, u2 + u, v2 + v, w2 + s, r3 - _slope(r2, r3, r4), p3 - _slope(p2, p3, p4),
        u3 - _slope(u2, u3, u4), v3 - _slope(v2, v3, v4), w3 - _slope(w2, w3, w4), D,
    )  # fmt: skip
    return hr - lr, hp - lp, hu - lu, hv - lv, hw - lw


@triton.jit
def _tendency(
    w, at, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr
):  # fmt: skip
    """−∇·F of the inviscid gas, all axes at once: of density, energy, momenta."""
    r, e, a, b, c = _through(w, at, 0, D, N0, N1, N2, WRAPS)
    scale = -tl.load(numbers)
    r, e, a, b, c = r * scale, e * scale, a * scale, b * scale, c * scale
    for axis in tl.static_range(1, D):
        fr, fe, across, one, other = _through(w, at, axis, D, N0, N1, N2, WRAPS)
        fa, fb, fc = _back(axis, across, one, other)
        scale = -tl.load(numbers + axis)
        r, e, a, b, c = r + fr * scale, e + fe * scale, a + fa * scale, b + fb * scale, c + fc * scale
    return r, e, a, b, c


@triton.jit
def _store(x, at, live, a, b, c, D: tl.constexpr, CELLS: tl.constexpr):
    """Three channels of some cells, as far as there are axes."""
    tl.store(x + at, a, mask=live)
    if D > 1:
        tl.store(x + CELLS + at, b, mask=live)
    if D > 2:
        tl.store(x + 2 * CELLS + at, c, mask=live)


@triton.jit
def _fastest(rate_of, numbers, live, r, e, a, b, c, D: tl.constexpr):
    """Raise the sample's fastest signal, in cells a unit of time, to that of a state; not a number counts as ∞."""
    r, p, u, v, w = _primitive(r, e, a, b, c, D)
    sound = tl.sqrt(p / r * GAMMA)
    rate = (tl.abs(u) + sound) * tl.load(numbers)
    if D > 1:
        rate = tl.maximum(rate, (tl.abs(v) + sound) * tl.load(numbers + 1), propagate_nan=tl.PropagateNan.ALL)
    if D > 2:
        rate = tl.maximum(rate, (tl.abs(w) + sound) * tl.load(numbers + 2), propagate_nan=tl.PropagateNan.ALL)
    rate = tl.where(rate == rate, rate, float("inf"))
    tl.atomic_max(rate_of, tl.max(tl.where(live, rate, 0.0), 0))


@triton.jit
def measure(
    w, rates, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The fastest signal of each sample, where `rates` were 0."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    w = _sample(w, sample, 2 + D, CELLS)
    a, b, c = _vector(w + 2 * CELLS, at, D, CELLS)
    _fastest(rates + sample, numbers, live, tl.load(w + at), tl.load(w + CELLS + at), a, b, c, D)


@triton.jit
def choose(rates, left, dt, numbers, samples, BLOCK: tl.constexpr):
    """The next step of each sample: never past its remaining time, 0 where none is left. One whose signals are
    infinitely fast takes a step that is not a number, which spoils it and ends it."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = b < samples
    rate, rest = tl.load(rates + b, mask=live, other=1.0), tl.load(left + b, mask=live, other=0.0)
    step = tl.load(numbers + CFL) * tl.minimum(1 / rate, tl.load(numbers + MOST))
    step = tl.where(rate == float("inf"), float("nan"), tl.minimum(step, rest))
    going = rest > 0
    tl.store(dt + b, tl.where(going, step, 0.0), mask=live)
    tl.store(left + b, tl.where(going, rest - step, rest), mask=live)
    tl.store(rates + b, 0.0, mask=live & going)


@triton.jit
def predict(
    w, half, z, dt, numbers, coefficients, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, VISCOUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """half = w + dt/2 −∇·F(w); where there is viscosity, z = its first stage, a share of the velocity."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    w, half = _sample(w, sample, 2 + D, CELLS), _sample(half, sample, 2 + D, CELLS)
    r, e, a, b, c = _tendency(w, at, numbers, D, N0, N1, N2, WRAPS)
    h = 0.5 * h
    a0, b0, c0 = _vector(w + 2 * CELLS, at, D, CELLS)
    r, e = tl.load(w + at) + h * r, tl.load(w + CELLS + at) + h * e
    a, b, c = a0 + h * a, b0 + h * b, c0 + h * c
    tl.store(half + at, r, mask=live)
    tl.store(half + CELLS + at, e, mask=live)
    _store(half + 2 * CELLS, at, live, a, b, c, D, CELLS)
    if VISCOUS:
        share = tl.load(coefficients + 2) / tl.maximum(r, FLOOR, propagate_nan=tl.PropagateNan.ALL)
        _store(_sample(z, sample, D, CELLS), at, live, a * share, b * share, c * share, D, CELLS)


@triton.jit
def correct(
    half, w, change, rates, dt, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    WRAPS: tl.constexpr, VISCOUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """w += dt −∇·F(half) + change; the fastest signal of the new state."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    w, half = _sample(w, sample, 2 + D, CELLS), _sample(half, sample, 2 + D, CELLS)
    r, e, a, b, c = _tendency(half, at, numbers, D, N0, N1, N2, WRAPS)
    r, e, a, b, c = h * r, h * e, h * a, h * b, h * c
    if VISCOUS:
        change = _sample(change, sample, 1 + D, CELLS)
        da, db, dc = _vector(change + CELLS, at, D, CELLS)
        e, a, b, c = tl.load(change + at) + e, da + a, db + b, dc + c
    a0, b0, c0 = _vector(w + 2 * CELLS, at, D, CELLS)
    r, e = tl.load(w + at) + r, tl.load(w + CELLS + at) + e
    a, b, c = a0 + a, b0 + b, c0 + c
    tl.store(w + at, r, mask=live)
    tl.store(w + CELLS + at, e, mask=live)
    _store(w + 2 * CELLS, at, live, a, b, c, D, CELLS)
    _fastest(rates + sample, numbers, live, r, e, a, b, c, D)
