"""Diffusion on a periodic line without a limit on the time step."""

from __future__ import annotations

import math
from collections.abc import Callable

from ups.lazy_imports import Tensor, torch
from ups.types import Grid


class PeriodicDiffusion:
    """u_t = D δ²u, δ² the second-order central difference, solved exactly: each Fourier mode by its own factor.

    The factor is e^{−4 D dt sin²(k dx/2)/dx²}. `diffusivity` gives D, a number or one per sample `(B,)`. The rounding
    of a step is in proportion to the change, not to the state; the mean stays as it is.
    """

    def __init__(self, grid: Grid, like: Tensor, diffusivity: Callable[[], float | Tensor]) -> None:
        (self.cells,), (dx,) = grid.shape, grid.spacing
        k = 2 * math.pi * torch.fft.rfftfreq(self.cells, dx, dtype=torch.float64, device=like.device)
        self.symbol = (-4 / dx**2 * torch.sin(k * dx / 2).square()).to(like.dtype)
        self.diffusivity = diffusivity

    def change(self, u: Tensor, dt: Tensor) -> Tensor:
        """What `dt` `(B,)` adds to the state `(B, C, N)`; nothing where dt = 0."""
        factor = ((self.diffusivity() * dt).view(-1, 1, 1) * self.symbol).expm1_()
        change: Tensor = torch.fft.irfft(torch.fft.rfft(u).mul_(factor), n=self.cells)
        return change
