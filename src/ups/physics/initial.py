"""Random initial states: PDEBench's sum of modes in one dimension, its random fields in several."""

from __future__ import annotations

import math

from ups.later import Tensor, torch
from ups.physics.random import Draw
from ups.types import Domain

WINDOW_WIDTH = 0.45


def random_modes(
    draw: Draw, x: Tensor, length: float, modes: int = 4, window: float = 0.1, name: str = "u", absolute: float = 0.1
) -> Tensor:
    """PDEBench's random 1D state `(B, N)` at the points `x`: Σ_k A_k sin(2π k c_k x / length + φ_k), k = 1 … modes.

    c_k counts how often mode k came up in two draws, so a mode that never came up adds a constant and one that came
    up twice doubles its wavenumber. With probability `absolute` the absolute value is taken, the sign is random, and
    with probability `window` all but a stretch of 0.45 is faded to zero (see `window_of`). A ~ U(0, 1), φ ~ U(0, 2π).
    Standard deviation ≈ 0.79, range ≈ ±3.2 for four modes. `length` is the box: the state is periodic.
    """
    drawn = draw.integers(f"{name}.modes", (2,), modes)
    k = torch.arange(1, modes + 1, device=draw.device)
    counts = (drawn.unsqueeze(-1) + 1 == k).sum(1)
    wave = (2 * math.pi / length) * (k * counts).to(draw.dtype)
    amplitude = draw.uniform(f"{name}.amplitude", (modes,))
    phase = draw.uniform(f"{name}.phase", (modes,), 0.0, 2 * math.pi)
    u = torch.zeros((len(draw), len(x)), dtype=draw.dtype, device=draw.device)
    for m in range(modes):
        u += amplitude[:, m : m + 1] * torch.sin(wave[:, m : m + 1] * x + phase[:, m : m + 1])
    u = torch.where(draw.chance(f"{name}.absolute", absolute).unsqueeze(1), u.abs(), u)
    sign = torch.where(draw.chance(f"{name}.sign", 0.5), 1.0, -1.0).to(draw.dtype)
    return u * sign.unsqueeze(1) * window_of(draw, x, window, name)


def window_of(draw: Draw, x: Tensor, probability: float, name: str = "u") -> Tensor:
    """A smooth window `(B, N)`: ½[tanh((x − x_L)/0.01) − tanh((x − x_R)/0.01)], or 1 where the sample has none.

    PDEBench draws the place and the decision from one random number r, hence x_L = 0.1 + 0.35 r with r < probability,
    and x_R = x_L + 0.45 always.
    """
    r = draw.uniform(f"{name}.window").unsqueeze(1)
    left = 0.1 + 0.35 * r
    faded = 0.5 * (torch.tanh((x - left) / 0.01) - torch.tanh((x - left - WINDOW_WIDTH) / 0.01))
    return torch.where(r < probability, faded, torch.ones_like(faded))


def pdebench_points(domain: Domain) -> Domain:
    """Points stretched by L / (L − dx): PDEBench takes the first to the last cell centre for one wavelength.

    Evaluated there, a periodic state becomes PDEBench's, which misses periodicity by one cell in a thousand.
    """
    stretched = tuple(
        lo + (x - lo) * (length / (length - dx))
        for x, (lo, _), length, dx in zip(
            domain.coordinates, domain.bounds, domain.lengths, domain.spacing, strict=True
        )
    )
    return Domain(stretched, domain.periodic, domain.bounds)


def normalised(u: Tensor) -> Tensor:
    """Each sample `(B, ...)` mapped to [0, 1] by its own minimum and maximum; a constant sample to 0."""
    flat = u.flatten(1)
    low, high = flat.amin(1), flat.amax(1)
    view = (-1, *([1] * (u.dim() - 1)))
    span = (high - low).clamp_min(torch.finfo(u.dtype).tiny)
    return (u - low.view(view)) / span.view(view)
