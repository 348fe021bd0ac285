"""Fluxes between two constant states: HLLC for an ideal gas, Roe for shallow water."""

from __future__ import annotations

from ups.lazy_imports import Tensor, torch

GAMMA = 5.0 / 3.0
FLOOR = 1e-4  # density and pressure are never read below this, as in PDEBench


def windward(speed: Tensor) -> Tensor:
    """1 where the wind comes from the left, 0 where it comes from the right: a weight for `torch.lerp`.

    On a processor, arithmetic is many times faster than a comparison and a choice, whose outcome it cannot foresee.
    """
    return (speed * 1e37).clamp_(0, 1)


def hllc(left: Tensor, right: Tensor, axis: int) -> Tensor:
    """Flux along `axis` of the ideal gas, Γ = 5/3, between primitive face states `(B, C, *F)`.

    Channels in: density, pressure, velocities; out: the fluxes of density, energy, momenta. Wave speeds after Einfeldt,
    with which density and pressure stay positive and isolated shocks and contacts are exact. Only the side of the
    contact that the face lies in is evaluated: F_K + S (U*_K − U_K), S the outer wave if it points away, else 0.
    """
    n = 2 + axis
    rl, pl, ul = left[:, 0], left[:, 1], left[:, n]
    rr, pr, ur = right[:, 0], right[:, 1], right[:, n]
    # In place wherever nothing is lost: on a processor, fresh memory costs more than the arithmetic.
    cl2, cr2 = (pl / rl).mul_(GAMMA), (pr / rr).mul_(GAMMA)
    root = rl.sqrt()
    weight = root / rr.sqrt().add_(root)
    jump = ur - ul
    part = weight * jump
    mean = ur - part
    sound = torch.lerp(cr2, cl2, weight).addcmul_(part, jump.sub_(part), value=0.5).sqrt_()
    sl = torch.minimum(ul - cl2.sqrt_(), mean - sound)
    sr = torch.maximum(cr2.sqrt_().add_(ur), mean.add_(sound))
    al, ar = (sl - ul).mul_(rl), (sr - ur).mul_(rr)
    contact = (pr - pl).addcmul_(al, ul).addcmul_(ar, ur, value=-1).div_(al - ar)

    is_left = windward(contact)
    r, p, *v = (torch.lerp(right[:, i], left[:, i], is_left) for i in range(left.shape[1]))
    u, a = v[axis], torch.lerp(ar, al, is_left)
    star = a / torch.lerp(sr, sl, is_left).sub_(contact)
    outer = torch.lerp(sr.clamp_min_(0), sl.clamp_max_(0), is_left)
    momentum = r * u
    kinetic = momentum * u
    for i, other in enumerate(v):
        kinetic = kinetic if i == axis else kinetic.addcmul(r * other, other)
    energy = torch.add(p * (1 / (GAMMA - 1)), kinetic, alpha=0.5)
    energy_star = (p / a).add_(contact).mul_(contact - u).add_(energy / r).mul_(star)
    mass = torch.addcmul(momentum, outer, star - r)
    flux = [mass, (energy + p).mul_(u).addcmul_(outer, energy_star.sub_(energy))]
    along = torch.addcmul(p, momentum, u).addcmul_(outer, (star * contact).sub_(momentum))
    flux += [along if i == axis else mass * other for i, other in enumerate(v)]
    return torch.stack(flux, dim=1)


def roe_shallow(left: Tensor, right: Tensor, axis: int) -> Tensor:
    """Flux along `axis` of the shallow-water equations, g = 1, between face states `(B, 1 + D, *F)` of h and h v.

    Roe's linearisation; the two gravity waves are widened inside a transonic rarefaction (Harten and Hyman), so no
    expansion shock survives. Equal states give their own flux exactly. Breaks for a dry bed, h = 0.
    """
    n = 1 + axis
    hl, hr, ml, mr = left[:, 0], right[:, 0], left[:, n], right[:, n]
    ul, ur = ml / hl, mr / hr
    root = hl.sqrt()
    weight = root / (root + hr.sqrt())
    mean = ur + weight * (ul - ur)
    sound = (0.5 * (hl + hr)).sqrt()
    dh, dm = hr - hl, mr - ml
    cl, cr = root, hr.sqrt()
    slow, fast = mean - sound, mean + sound
    slow_speed = _widened(slow, ul - cl, ur - cr)
    fast_speed = _widened(fast, ul + cl, ur + cr)
    slow_wave = slow_speed * (fast * dh - dm) / (2 * sound)
    fast_wave = fast_speed * (dm - slow * dh) / (2 * sound)
    flux = [0.5 * (ml + mr - slow_wave - fast_wave)]
    for i in range(1, left.shape[1]):
        if i == n:
            push = ml * ul + 0.5 * hl * hl + mr * ur + 0.5 * hr * hr
            flux.append(0.5 * (push - slow_wave * slow - fast_wave * fast))
        else:
            vl, vr = left[:, i] / hl, right[:, i] / hr
            side = vr + weight * (vl - vr)
            shear = mean.abs() * (right[:, i] - left[:, i] - side * dh)
            flux.append(0.5 * (ml * vl + mr * vr - (slow_wave + fast_wave) * side - shear))
    return torch.stack(flux, dim=1)


def _widened(speed: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """|speed|, or a parabola above it where the wave spreads from `left` to `right` and `speed` is near 0."""
    spread = torch.maximum(speed - left, right - speed).clamp_min(0)
    size = speed.abs()
    tiny = torch.finfo(speed.dtype).tiny
    return torch.where(size < spread, 0.5 * (speed * speed / spread.clamp_min(tiny) + spread), size)
