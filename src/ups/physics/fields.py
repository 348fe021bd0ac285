"""Random fields in several dimensions: sums of plane waves, their solenoidal part, PDEBench's gas states."""

from __future__ import annotations

import math

from ups.later import Tensor, torch
from ups.physics.initial import window_of
from ups.physics.random import Draw
from ups.types import Domain

CUTOFF = 4
REFERENCE = {1: 1024, 2: 128, 3: 32}


def wave_numbers(ndim: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Integer wavenumbers `(D, K, …, K)`, K from −4 to 4 on each axis, and their norm."""
    k = torch.arange(-CUTOFF, CUTOFF + 1, device=draw.device, dtype=draw.dtype)
    grid = torch.stack(torch.meshgrid(*([k] * ndim), indexing="ij"))
    return grid, grid.square().sum(0).sqrt()


def plane_waves(draw: Draw, name: str, count: int, ndim: int) -> Tensor:
    """Coefficients `(B, count, K, …, K)` of random fields: Re Σ_k c_k e^{2πi k·x/L}.

    One wave of random phase for every wavenumber with norm ≤ 4 and no zero component; its amplitude is norm^(−1/2) in
    two dimensions, norm^(−1) in three.
    """
    grid, norm = wave_numbers(ndim, draw)
    allowed = (norm <= CUTOFF) & (grid != 0).all(0)
    amplitude = torch.where(allowed, norm.clamp_min(1) ** (-0.5 if ndim < 3 else -1.0), torch.zeros_like(norm))
    phase = draw.uniform(name, (count, *norm.shape), 0.0, 2 * math.pi)
    return torch.polar(amplitude.expand_as(phase).contiguous(), phase)


def solenoidal(coefficients: Tensor, draw: Draw) -> Tensor:
    """The divergence-free part of a velocity `(B, D, K, …, K)`: c − k (k·c)/k² wave by wave (Helmholtz)."""
    grid, norm = wave_numbers(coefficients.shape[1], draw)
    along = (grid * coefficients).sum(1, keepdim=True) / norm.clamp_min(1).square()
    return coefficients - grid * along


def evaluate(coefficients: Tensor, domain: Domain, draw: Draw) -> Tensor:
    """The fields `(B, count, *S)` at the points of `domain`, one axis after the other, each a matrix product."""
    k = torch.arange(-CUTOFF, CUTOFF + 1, device=draw.device, dtype=draw.dtype)
    field = coefficients
    for x, length in zip(domain.coordinates, domain.lengths, strict=True):
        angle = (2 * math.pi / length) * draw.tensor(x)[:, None] * k
        waves = torch.polar(torch.ones_like(angle), angle)
        field = torch.tensordot(field, waves, dims=([2], [1]))
    return field.real


def reference(domain: Domain) -> Domain:
    """A fixed grid on which means and extremes are taken, so that a state does not depend on its resolution."""
    n = REFERENCE[domain.ndim]
    return Domain.box(domain.bounds, (n,) * domain.ndim, domain.periodic)


def mean_speed(coefficients: Tensor, domain: Domain, draw: Draw) -> Tensor:
    """⟨|v|⟩ `(B,)` of a velocity given by its waves."""
    return evaluate(coefficients, reference(domain), draw).square().sum(1).sqrt().flatten(1).mean(1)


def random_gas(draw: Draw, domain: Domain, mach: float, gamma: float) -> Tensor:
    """PDEBench's random gas `(B, *S, 2 + D)`: density, pressure, velocities, at the points of `domain`.

    ρ = ρ₀ (1 + δρ f/max|f|), p likewise around p₀ = ρ₀ T₀; ρ₀, T₀ ~ U(0.1, 10), δρ, δp ~ U(0.01, 0.2). Velocity scaled
    to a mean speed of M √(Γ T₀). With probability ½ density and pressure fade to ρ₀, p₀ outside a window of side 0.45.
    """
    ndim = domain.ndim
    base = torch.stack([draw.uniform("density", (), 0.1, 10.0), draw.uniform("temperature", (), 0.1, 10.0)], dim=1)
    sound = (gamma * base[:, 1]).sqrt()
    base = torch.stack([base[:, 0], base[:, 0] * base[:, 1]], dim=1)
    size = draw.uniform("contrast", (2,), 0.01, 0.2)

    scalars = plane_waves(draw, "waves.scalar", 2, ndim)
    largest = evaluate(scalars, reference(domain), draw).abs().flatten(2).amax(2)
    view = (len(draw), 2, *([1] * ndim))
    ripple = evaluate(scalars, domain, draw) * (size / largest).view(view)
    for axis, x in enumerate(domain.coordinates):
        shape = [len(draw), 1, *([1] * ndim)]
        shape[2 + axis] = -1
        ripple = ripple * window_of(draw, draw.tensor(x), 0.5, "window").view(shape)

    motion = plane_waves(draw, "waves.velocity", ndim, ndim)
    scale = mach * sound / mean_speed(motion, domain, draw)
    velocity = evaluate(motion, domain, draw) * scale.view(-1, *([1] * (ndim + 1)))
    return torch.cat([base.view(view) * (1 + ripple), velocity], dim=1).movedim(1, -1)


def turbulent_gas(draw: Draw, domain: Domain, mach: float, gamma: float) -> Tensor:
    """PDEBench's turbulence `(B, *S, 2 + D)`: ρ = 1, p = 1/(Γ M²), divergence-free velocity of mean speed 1."""
    ndim = domain.ndim
    motion = solenoidal(plane_waves(draw, "waves.velocity", ndim, ndim), draw)
    scale = 1 / mean_speed(motion, domain, draw)
    velocity = evaluate(motion, domain, draw) * scale.view(-1, *([1] * (ndim + 1)))
    one = torch.ones_like(velocity[:, :1])
    return torch.cat([one, one / (gamma * mach**2), velocity], dim=1).movedim(1, -1)
