"""Viscous stress of a compressible fluid, advanced by stabilised explicit steps of a fixed number of stages."""

from __future__ import annotations

import math

from ups.lazy_imports import Tensor, torch
from ups.physics.finite_volume import divergence, with_ghosts
from ups.physics.riemann import FLOOR
from ups.types import Grid

SAFETY = 0.9
FEW = 0.25


def rkl2(stages: int) -> list[tuple[float, float, float, float]]:
    """(μ, ν, μ̃, γ̃) of stages 1 … s of the Runge–Kutta–Legendre method of second order (Meyer et al. 2014).

    s ≥ 2; a single stage is Euler's method.
    """
    if stages == 1:
        return [(0.0, 0.0, 1.0, 0.0)]
    b = [1 / 3] * 3 + [(j * j + j - 2) / (2 * j * (j + 1)) for j in range(3, stages + 1)]
    w = 4 / (stages * stages + stages - 2)
    coefficients = [(0.0, 0.0, b[1] * w, 0.0)]
    for j in range(2, stages + 1):
        mu = (2 * j - 1) / j * b[j] / b[j - 1]
        nu = -(j - 1) / j * b[j] / b[j - 2]
        coefficients.append((mu, nu, mu * w, -(1 - b[j - 1]) * mu * w))
    return coefficients


class Viscosity:
    """ρ v_t = ∇·σ, E_t = ∇·(v·σ), σ = ρ [η (∇v + ∇vᵀ) + (ζ − 2η/3) (∇·v) I], at fixed density.

    η and ζ are kinematic. State `(B, 2 + D, *S)` of density, energy, momenta. Momentum and energy change by face fluxes
    only, so both are conserved, and the kinetic energy lost is heat. Stress at the faces: two-point differences across,
    central ones along, harmonic mean density, with which no mode decays faster than in a uniform fluid, at `stiffness`.

    `step_hint` is a time step that viscosity should not be what limits; from it the number of stages is chosen, once:
    one (plain Euler) where so little happens in a step that this is enough, else the least odd number of stages of RKL2
    whose limit, (s² + s − 2)/2 over the stiffness, reaches it. Stages grow as √(η step)/dx.
    """

    def __init__(self, grid: Grid, eta: float, zeta: float, step_hint: float) -> None:
        # Plain numbers, worked out here: `change` is compiled and captured, and must not look at a grid.
        self.shape, self.spacing, self.periodic = grid.shape, grid.spacing, grid.periodic
        self.eta, self.zeta = eta, zeta
        self.active = eta > 0 or zeta > 0
        squares = sorted(1 / dx**2 for dx in grid.spacing)
        # The largest decay rate: 4 (4η/3 + ζ)/dx² along one axis and 4η/dx² along each other.
        self.stiffness = 4 * ((4 / 3 * eta + zeta) * squares[-1] + eta * sum(squares[:-1]))
        number = step_hint * self.stiffness / (2 * SAFETY)
        enough = math.ceil((math.sqrt(9 + 16 * number) - 1) / 2) // 2 * 2 + 1
        self.stages = 1 if number <= FEW else max(3, enough)
        self.coefficients = rkl2(self.stages)
        reach = FEW if self.stages == 1 else (self.stages**2 + self.stages - 2) / 4
        #: The longest stable step.
        self.limit = 2 * SAFETY * reach / self.stiffness if self.active else math.inf

    def change(self, w: Tensor, dt: Tensor) -> Tensor:
        """What `dt` `(B,)` adds to the state; nothing where dt = 0."""
        density = w[:, :1].clamp_min(FLOOR)
        v0 = w[:, 2:] / density
        rate = dt.view(-1, *([1] * (w.dim() - 1)))
        weights = self._face_weights(density)
        inverse = rate / density
        # The operator is linear, so stage j is v_j = v0 + dt M(z_j): z_j is followed, and the last one, a mean velocity
        # over the step, gives the fluxes of momentum and energy alike.
        z, before = self.coefficients[0][2] * v0, torch.zeros_like(v0)
        for mu, nu, mu_v, mu_0 in self.coefficients[1:]:
            v = torch.addcmul(v0, inverse, self._force(self._stress(z, weights)))
            z, before = torch.mul(z, mu).add_(before, alpha=nu).add_(v, alpha=mu_v).add_(v0, alpha=mu_0), z
        stress = self._stress(z, weights)
        push = rate * self._force(stress)
        heat = rate * self._work(v0 + 0.5 * push / density, stress)
        return torch.cat([torch.zeros_like(heat), heat, push], dim=1)

    def _face_weights(self, density: Tensor) -> list[Tensor]:
        """Harmonic mean density of the n + 1 faces along each axis."""
        means = []
        for a, n in enumerate(self.shape):
            padded = with_ghosts(density, 2 + a, self.periodic[a], width=1)
            low, high = padded.narrow(2 + a, 0, n + 1), padded.narrow(2 + a, 1, n + 1)
            means.append(2 * low * high / (low + high))
        return means

    def _stress(self, v: Tensor, weights: list[Tensor]) -> list[Tensor]:
        """σ_{a i} `(B, D, *faces)` on the faces across each axis a."""
        shape, spacing, ndim = self.shape, self.spacing, len(self.shape)
        padded = v
        for a in range(ndim):
            padded = with_ghosts(padded, 2 + a, self.periodic[a], width=1)
        along, lame = 4 / 3 * self.eta + self.zeta, self.zeta - 2 / 3 * self.eta
        if ndim == 1:  # the same in fewer passes
            across = padded.narrow(2, 1, shape[0] + 1) - padded.narrow(2, 0, shape[0] + 1)
            return [across.mul_(along / spacing[0]).mul_(weights[0])]
        stresses = []
        for a in range(ndim):
            rows = padded
            for b in range(ndim):
                rows = rows if b == a else rows.narrow(2 + b, 1, shape[b])
            across = (rows.narrow(2 + a, 1, shape[a] + 1) - rows.narrow(2 + a, 0, shape[a] + 1)) / spacing[a]
            parts = [(along if i == a else self.eta) * across[:, i] for i in range(ndim)]
            for b in range(ndim):
                if b != a:
                    slope = self._face_slope(padded, a, b)
                    parts[a] = parts[a] + lame * slope[:, b]
                    parts[b] = parts[b] + self.eta * slope[:, a]
            stresses.append(weights[a] * torch.stack(parts, dim=1))
        return stresses

    def _face_slope(self, padded: Tensor, a: int, b: int) -> Tensor:
        """∂_b v on the faces across a: the mean of the central differences in the two cells beside."""
        shape = self.shape
        rows = padded
        for c in range(len(shape)):
            rows = rows if c in (a, b) else rows.narrow(2 + c, 1, shape[c])
        wide = rows.narrow(2 + b, 2, shape[b]) - rows.narrow(2 + b, 0, shape[b])
        faces = wide.narrow(2 + a, 0, shape[a] + 1) + wide.narrow(2 + a, 1, shape[a] + 1)
        return faces * (0.25 / self.spacing[b])

    def _force(self, stress: list[Tensor]) -> Tensor:
        total = divergence(stress[0], 2, self.spacing[0])
        for a in range(1, len(stress)):
            total = total + divergence(stress[a], 2 + a, self.spacing[a])
        return total

    def _work(self, v: Tensor, stress: list[Tensor]) -> Tensor:
        """∇·(v·σ) `(B, 1, *S)`, v on a face the mean of the two cells."""
        flux = []
        for a, n in enumerate(self.shape):
            padded = with_ghosts(v, 2 + a, self.periodic[a], width=1)
            face = padded.narrow(2 + a, 0, n + 1) + padded.narrow(2 + a, 1, n + 1)
            flux.append(0.5 * (face * stress[a]).sum(1, keepdim=True))
        return self._force(flux)
