"""Fluxes between two constant states: HLLC for an ideal gas, Roe for shallow water."""

from __future__ import annotations

from ups.later import Tensor, torch

GAMMA = 5.0 / 3.0
FLOOR = 1e-4  # density and pressure are never read below this, as in PDEBench


def hllc(left: Tensor, right: Tensor, axis: int) -> Tensor:
    """Flux along `axis` of the ideal gas, Γ = 5/3, between primitive face states `(B, C, *F)`.

    Channels in: density, pressure, velocities; out: the fluxes of density, energy, momenta. Wave speeds after Einfeldt,
    with which density and pressure stay positive and isolated shocks and contacts are exact. Only the side of the
    contact that the face lies in is evaluated: F_K + S (U*_K − U_K), S the outer wave if it points away, else 0.
    """
    n = 2 + axis
    rl, pl, ul = left[:, 0], left[:, 1], left[:, n]
    rr, pr, ur = right[:, 0], right[:, 1], right[:, n]
    cl2, cr2 = GAMMA * pl / rl, GAMMA * pr / rr
    root = rl.sqrt()
    weight = root / (root + rr.sqrt())
    jump = ur - ul
    mean = ur - weight * jump
    sound = (cr2 + weight * (cl2 - cr2) + 0.5 * weight * (1 - weight) * jump * jump).sqrt()
    sl = torch.minimum(ul - cl2.sqrt(), mean - sound)
    sr = torch.maximum(ur + cr2.sqrt(), mean + sound)
    al, ar = rl * (sl - ul), rr * (sr - ur)
    contact = (pr - pl + al * ul - ar * ur) / (al - ar)

    is_left = contact >= 0
    q = torch.where(is_left.unsqueeze(1), left, right)
    r, p, u = q[:, 0], q[:, 1], q[:, n]
    a = torch.where(is_left, al, ar)
    outer = torch.where(is_left, sl.clamp_max(0), sr.clamp_min(0))
    star = a / (torch.where(is_left, sl, sr) - contact)
    energy = p / (GAMMA - 1) + 0.5 * r * q[:, 2:].square().sum(1)
    energy_star = star * (energy / r + (contact - u) * (contact + p / a))
    mass = r * u + outer * (star - r)
    flux = [mass, (energy + p) * u + outer * (energy_star - energy)]
    for i in range(2, q.shape[1]):
        flux.append(r * u * u + p + outer * (star * contact - r * u) if i == n else mass * q[:, i])
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
