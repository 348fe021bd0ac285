"""PDEBench's random states of a gas: waves around a uniform state, and divergence-free turbulence."""

from __future__ import annotations

from ups.lazy_imports import Tensor, torch
from ups.physics.initial import evaluate, plane_waves, random_waves, reference, solenoidal, window_of
from ups.physics.random import Draw
from ups.types import Grid


def mean_speed(coefficients: Tensor, grid: Grid, draw: Draw) -> Tensor:
    """⟨|v|⟩ `(B,)` of a velocity given by its waves."""
    return evaluate(coefficients, reference(grid), draw).square().sum(1).sqrt().flatten(1).mean(1)


def random_gas(draw: Draw, grid: Grid, mach: float, gamma: float) -> Tensor:
    """PDEBench's random gas `(B, *S, 2 + D)`: density, pressure, velocities, at the points of `grid`.

    ρ = ρ₀ (1 + δρ f/max|f|), p likewise around p₀ = ρ₀ T₀; ρ₀, T₀ ~ U(0.1, 10), δρ, δp ~ U(0.01, 0.2). Velocity scaled
    to a mean speed of M √(Γ T₀). With probability ½ density and pressure fade to ρ₀, p₀ outside a window of side 0.45.
    """
    ndim = grid.ndim
    base = torch.stack([draw.uniform("density", (), 0.1, 10.0), draw.uniform("temperature", (), 0.1, 10.0)], dim=1)
    sound = (gamma * base[:, 1]).sqrt()
    base = torch.stack([base[:, 0], base[:, 0] * base[:, 1]], dim=1)
    size = draw.uniform("contrast", (2,), 0.01, 0.2)

    ripple = random_waves(draw, grid, "waves.scalar", size, channels=2).movedim(-1, 1)
    for axis, x in enumerate(grid.coordinates):
        shape = [len(draw), 1, *([1] * ndim)]
        shape[2 + axis] = -1
        ripple = ripple * window_of(draw, draw.tensor(x), 0.5, "window").view(shape)

    motion = plane_waves(draw, "waves.velocity", ndim, ndim)
    scale = mach * sound / mean_speed(motion, grid, draw)
    velocity = evaluate(motion, grid, draw) * scale.view(-1, *([1] * (ndim + 1)))
    return torch.cat([base.view(len(draw), 2, *([1] * ndim)) * (1 + ripple), velocity], dim=1).movedim(1, -1)


def turbulent_gas(draw: Draw, grid: Grid, mach: float, gamma: float) -> Tensor:
    """PDEBench's turbulence `(B, *S, 2 + D)`: ρ = 1, p = 1/(Γ M²), divergence-free velocity of mean speed 1."""
    ndim = grid.ndim
    motion = solenoidal(plane_waves(draw, "waves.velocity", ndim, ndim), draw)
    scale = 1 / mean_speed(motion, grid, draw)
    velocity = evaluate(motion, grid, draw) * scale.view(-1, *([1] * (ndim + 1)))
    one = torch.ones_like(velocity[:, :1])
    return torch.cat([one, one / (gamma * mach**2), velocity], dim=1).movedim(1, -1)
