"""A viscous gas on a GPU: each part of a step of its finite volumes as one kernel, one pass over the state."""

# In plain torch a step reads and writes the state about a hundred times, compiled about thirty times. Here each thread
# goes along a run of cells of the first axis, and works out the fluxes across the other axes twice, once for each of
# the cells beside a face: it is the arithmetic that takes the time then. A sample whose step is 0 has arrived, and its
# cells return at once. Imported only where there is a GPU and Triton.

# A state `w (B, 2 + D, *S)` holds density, energy, momenta; `q`, of the same shape, density, pressure, velocities. `D`
# axes have N0, N1, N2 cells, those that are missing 1, and bit a of WRAPS says whether axis a is periodic. Of three
# velocities those of missing axes are 0, and never stored. What is true of faces across an axis is said with the
# velocity across first, then those along: `_turned`, `_back`.

from __future__ import annotations

import triton
import triton.language as tl

from ups.physics import riemann

BLOCK = 128  # threads of a program
GAMMA = tl.constexpr(riemann.GAMMA)
FLOOR = tl.constexpr(riemann.FLOOR)
# Places in `numbers`: 1/dx of three axes, then these.
ALONG, SHEAR, LAME, CFL, MOST, SHARE = (tl.constexpr(i) for i in range(3, 9))


@triton.jit
def _places(CELLS: tl.constexpr, BLOCK: tl.constexpr):
    """The sample of a program, its cells, and which of them are no repetitions of the last."""
    blocks: tl.constexpr = (CELLS + BLOCK - 1) // BLOCK
    cell = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0) // blocks, tl.minimum(cell, CELLS - 1), cell < CELLS


@triton.jit
def _runs(N0: tl.constexpr, PLANE: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr):
    """The sample of a program whose threads do RUN cells of the first axis each: where they begin, which cell of the
    PLANE of the others it is, and which of them are no repetitions of the last."""
    sample, place, inside = _places((N0 + RUN - 1) // RUN * PLANE, BLOCK)
    return sample, place // PLANE * RUN, place % PLANE, inside


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
    """Three channels of some cells; a missing one is 0."""
    a = tl.load(x + at)
    b, c = tl.zeros(a.shape, a.dtype), tl.zeros(a.shape, a.dtype)
    if D > 1:
        b = tl.load(x + CELLS + at)
    if D > 2:
        c = tl.load(x + 2 * CELLS + at)
    return a, b, c


@triton.jit
def _floored(x):
    return tl.maximum(x, FLOOR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _pressure(density, energy, x, y, z, D: tl.constexpr):
    """The pressure, given velocities."""
    motion = x * x
    if D > 1:
        motion += y * y
    if D > 2:
        motion += z * z
    return _floored((energy - 0.5 * density * motion) * (GAMMA - 1))


@triton.jit
def _gas(q, at, axis: tl.constexpr, D: tl.constexpr, CELLS: tl.constexpr):
    """Density, pressure and velocities of some cells, turned."""
    x, y, z = _vector(q + 2 * CELLS, at, D, CELLS)
    x, y, z = _turned(axis, x, y, z)
    return tl.load(q + at), tl.load(q + CELLS + at), x, y, z


@triton.jit
def _slope(before, here, after):
    """Half the monotonised central slope, times the cell width."""
    back, ahead = here - before, after - here
    low, high = tl.minimum(tl.maximum(back, ahead), 0.0), tl.maximum(tl.minimum(back, ahead), 0.0)
    return tl.minimum(tl.maximum(0.25 * (back + ahead), low), high)


@triton.jit
def _hllc(rl, pl, ul, vl, wl, rr, pr, ur, vr, wr, D: tl.constexpr):
    """The flux of `riemann.hllc` between face states, turned: of density, energy, and the momentum across and along."""
    # Few divisions: each costs as much as eight other operations.
    both = rl * rr
    roots = rl + tl.sqrt(both)
    inverse = 1 / (both * roots)
    weight = rl * both * inverse
    inverse *= roots * GAMMA
    cl2, cr2 = pl * rr * inverse, pr * rl * inverse
    jump = ur - ul
    part = weight * jump
    mean = ur - part
    sound = tl.sqrt(cr2 + weight * (cl2 - cr2) + 0.5 * part * (jump - part))
    sl, sr = tl.minimum(ul - tl.sqrt(cl2), mean - sound), tl.maximum(ur + tl.sqrt(cr2), mean + sound)
    al, ar = (sl - ul) * rl, (sr - ur) * rr
    contact = (pr - pl + al * ul - ar * ur) / (al - ar)
    left = contact > 0
    r, p, u = tl.where(left, rl, rr), tl.where(left, pl, pr), tl.where(left, ul, ur)
    v, w, a, s = tl.where(left, vl, vr), tl.where(left, wl, wr), tl.where(left, al, ar), tl.where(left, sl, sr)
    inverse = 1 / (s - contact)
    star = a * inverse
    outer = tl.where(left, tl.minimum(sl, 0.0), tl.maximum(sr, 0.0))
    momentum = r * u
    kinetic = momentum * u
    if D > 1:
        kinetic += r * v * v
    if D > 2:
        kinetic += r * w * w
    energy = p * (1 / (GAMMA - 1)) + 0.5 * kinetic
    energy_star = ((p + a * contact) * (contact - u) + energy * (s - u)) * inverse
    mass = momentum + outer * (star - r)
    across = p + momentum * u + outer * (star * contact - momentum)
    return mass, (energy + p) * u + outer * (energy_star - energy), across, mass * v, mass * w


@triton.jit
def _slopes(r0, p0, u0, v0, w0, r1, p1, u1, v1, w1, r2, p2, u2, v2, w2):
    return _slope(r0, r1, r2), _slope(p0, p1, p2), _slope(u0, u1, u2), _slope(v0, v1, v2), _slope(w0, w1, w2)


@triton.jit
def _face(r0, p0, u0, v0, w0, ar, ap, au, av, aw, r1, p1, u1, v1, w1, br, bp, bu, bv, bw, D: tl.constexpr):
    """The flux between two cells, given both and their half slopes."""
    return _hllc(r0 + ar, p0 + ap, u0 + au, v0 + av, w0 + aw, r1 - br, p1 - bp, u1 - bu, v1 - bv, w1 - bw, D)


@triton.jit
def _through(
    q, at, axis: tl.constexpr, D: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, WRAPS: tl.constexpr,
):  # fmt: skip
    """Flux out of cells through their upper face along an axis, less that into them through the lower one, turned."""
    CELLS: tl.constexpr = N0 * N1 * N2
    r0, p0, u0, v0, w0 = _gas(q, _beside(at, axis, -2, N0, N1, N2, WRAPS), axis, D, CELLS)
    r1, p1, u1, v1, w1 = _gas(q, _beside(at, axis, -1, N0, N1, N2, WRAPS), axis, D, CELLS)
    r2, p2, u2, v2, w2 = _gas(q, at, axis, D, CELLS)
    r3, p3, u3, v3, w3 = _gas(q, _beside(at, axis, 1, N0, N1, N2, WRAPS), axis, D, CELLS)
    r4, p4, u4, v4, w4 = _gas(q, _beside(at, axis, 2, N0, N1, N2, WRAPS), axis, D, CELLS)
    ar, ap, au, av, aw = _slopes(r0, p0, u0, v0, w0, r1, p1, u1, v1, w1, r2, p2, u2, v2, w2)
    br, bp, bu, bv, bw = _slopes(r1, p1, u1, v1, w1, r2, p2, u2, v2, w2, r3, p3, u3, v3, w3)
    cr, cp, cu, cv, cw = _slopes(r2, p2, u2, v2, w2, r3, p3, u3, v3, w3, r4, p4, u4, v4, w4)
    lr, lp, lu, lv, lw = _face(r1, p1, u1, v1, w1, ar, ap, au, av, aw, r2, p2, u2, v2, w2, br, bp, bu, bv, bw, D)
    hr, hp, hu, hv, hw = _face(r2, p2, u2, v2, w2, br, bp, bu, bv, bw, r3, p3, u3, v3, w3, cr, cp, cu, cv, cw, D)
    return hr - lr, hp - lp, hu - lu, hv - lv, hw - lw


@triton.jit
def _store(x, at, live, a, b, c, D: tl.constexpr, CELLS: tl.constexpr):
    """Three channels of some cells, as far as there are axes."""
    tl.store(x + at, a, mask=live)
    if D > 1:
        tl.store(x + CELLS + at, b, mask=live)
    if D > 2:
        tl.store(x + 2 * CELLS + at, c, mask=live)


@triton.jit
def _fastest(density, pressure, x, y, z, numbers, D: tl.constexpr):
    """The fastest signal, in cells a unit of time; what is not a number counts as ∞."""
    sound = tl.sqrt(pressure / density * GAMMA)
    rate = (tl.abs(x) + sound) * tl.load(numbers)
    if D > 1:
        rate = tl.maximum(rate, (tl.abs(y) + sound) * tl.load(numbers + 1), propagate_nan=tl.PropagateNan.ALL)
    if D > 2:
        rate = tl.maximum(rate, (tl.abs(z) + sound) * tl.load(numbers + 2), propagate_nan=tl.PropagateNan.ALL)
    return tl.where(rate == rate, rate, float("inf"))


@triton.jit
def measure(
    w, q, rates, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """q of w, and the fastest signal of each sample, where `rates` were 0."""
    CELLS: tl.constexpr = N0 * N1 * N2
    sample, at, live = _places(CELLS, BLOCK)
    w, q = _sample(w, sample, 2 + D, CELLS), _sample(q, sample, 2 + D, CELLS)
    density = _floored(tl.load(w + at))
    a, b, c = _vector(w + 2 * CELLS, at, D, CELLS)
    a, b, c = a / density, b / density, c / density
    pressure = _pressure(density, tl.load(w + CELLS + at), a, b, c, D)
    tl.store(q + at, density, mask=live)
    tl.store(q + CELLS + at, pressure, mask=live)
    _store(q + 2 * CELLS, at, live, a, b, c, D, CELLS)
    rate = _fastest(density, pressure, a, b, c, numbers, D)
    tl.atomic_max(rates + sample, tl.max(tl.where(live, rate, 0.0), 0))


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
def advance(
    q, w, target, change, rates, dt, numbers, D: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr,
    N2: tl.constexpr, WRAPS: tl.constexpr, VISCOUS: tl.constexpr, LAST: tl.constexpr, RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Both halves of a step. The first: target = w + dt/2 −∇·F(q), as density, pressure and velocities; with viscosity
    as density, energy and velocities. The last: w += dt −∇·F(q), with viscosity plus `change` of energy and momenta;
    target = density, pressure, velocities of w, and their fastest signal. Each thread does RUN cells of the first axis,
    and carries what it knows from one to the next."""
    CELLS: tl.constexpr = N0 * N1 * N2
    PLANE: tl.constexpr = N1 * N2
    sample, row, column, inside = _runs(N0, PLANE, RUN, BLOCK)
    h = tl.load(dt + sample)
    if h == 0:
        return
    h = h if LAST else 0.5 * h
    q, w, target = (
        _sample(q, sample, 2 + D, CELLS),
        _sample(w, sample, 2 + D, CELLS),
        _sample(target, sample, 2 + D, CELLS),
    )
    change = _sample(change, sample, 1 + D, CELLS)
    at = row * PLANE + column
    fastest = tl.zeros(at.shape, tl.float32).to(w.dtype.element_ty)
    r0, p0, u0, v0, w0 = _gas(q, _beside(at, 0, -2, N0, N1, N2, WRAPS), 0, D, CELLS)
    r1, p1, u1, v1, w1 = _gas(q, _beside(at, 0, -1, N0, N1, N2, WRAPS), 0, D, CELLS)
    r2, p2, u2, v2, w2 = _gas(q, at, 0, D, CELLS)
    r3, p3, u3, v3, w3 = _gas(q, _beside(at, 0, 1, N0, N1, N2, WRAPS), 0, D, CELLS)
    ar, ap, au, av, aw = _slopes(r0, p0, u0, v0, w0, r1, p1, u1, v1, w1, r2, p2, u2, v2, w2)
    sr, sp, su, sv, sw = _slopes(r1, p1, u1, v1, w1, r2, p2, u2, v2, w2, r3, p3, u3, v3, w3)
    fr, fe, fu, fv, fw = _face(r1, p1, u1, v1, w1, ar, ap, au, av, aw, r2, p2, u2, v2, w2, sr, sp, su, sv, sw, D)
    for step in range(RUN):
        live = inside & (row + step < N0)
        at = tl.minimum(row + step, N0 - 1) * PLANE + column
        # Along the first axis: what is known of the cell, the next one and the lower face, and the one after these.
        r4, p4, u4, v4, w4 = _gas(q, _beside(at, 0, 2, N0, N1, N2, WRAPS), 0, D, CELLS)
        ar, ap, au, av, aw = _slopes(r2, p2, u2, v2, w2, r3, p3, u3, v3, w3, r4, p4, u4, v4, w4)
        gr, ge, gu, gv, gw = _face(r2, p2, u2, v2, w2, sr, sp, su, sv, sw, r3, p3, u3, v3, w3, ar, ap, au, av, aw, D)
        scale = -tl.load(numbers)
        r, e, a, b, c = (gr - fr) * scale, (ge - fe) * scale, (gu - fu) * scale, (gv - fv) * scale, (gw - fw) * scale
        fr, fe, fu, fv, fw = gr, ge, gu, gv, gw
        r2, p2, u2, v2, w2 = r3, p3, u3, v3, w3
        r3, p3, u3, v3, w3 = r4, p4, u4, v4, w4
        sr, sp, su, sv, sw = ar, ap, au, av, aw
        for axis in tl.static_range(1, D):
            dr, de, across, one, other = _through(q, at, axis, D, N0, N1, N2, WRAPS)
            da, db, dc = _back(axis, across, one, other)
            scale = -tl.load(numbers + axis)
            r, e, a, b, c = r + dr * scale, e + de * scale, a + da * scale, b + db * scale, c + dc * scale
        rate = _update(w, target, change, at, live, h, numbers, r, e, a, b, c, VISCOUS, LAST, D, CELLS)
        fastest = tl.maximum(fastest, rate)
    if LAST:
        tl.atomic_max(rates + sample, tl.max(fastest, 0))


@triton.jit
def _update(
    w, target, change, at, live, h, numbers, r, e, a, b, c,
    VISCOUS: tl.constexpr, LAST: tl.constexpr, D: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """What `advance` does with −∇·F of density, energy and momenta; the fastest signal."""
    r, e, a, b, c = h * r, h * e, h * a, h * b, h * c
    if VISCOUS and LAST:
        da, db, dc = _vector(change + CELLS, at, D, CELLS)
        e, a, b, c = tl.load(change + at) + e, da + a, db + b, dc + c
    a0, b0, c0 = _vector(w + 2 * CELLS, at, D, CELLS)
    r, e = tl.load(w + at) + r, tl.load(w + CELLS + at) + e
    a, b, c = a0 + a, b0 + b, c0 + c
    if LAST:
        tl.store(w + at, r, mask=live)
        tl.store(w + CELLS + at, e, mask=live)
        _store(w + 2 * CELLS, at, live, a, b, c, D, CELLS)
    r = _floored(r)
    inverse = 1 / r
    a, b, c = a * inverse, b * inverse, c * inverse
    if LAST or not VISCOUS:
        e = _pressure(r, e, a, b, c, D)
    tl.store(target + at, r, mask=live)
    tl.store(target + CELLS + at, e, mask=live)
    _store(target + 2 * CELLS, at, live, a, b, c, D, CELLS)
    rate = tl.zeros(r.shape, r.dtype)
    if LAST:
        rate = tl.where(live, _fastest(r, e, a, b, c, numbers, D), 0.0)
    return rate
