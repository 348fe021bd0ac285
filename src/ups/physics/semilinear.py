"""Semilinear equations on periodic boxes, u_t = L u + N(u): an equation gives its symbols, this solves it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ups.lazy_imports import Tensor, torch
from ups.physics.padded import Padded, Sampled
from ups.physics.solver import Equation
from ups.physics.spectral import ETDRK4, dealias_mask, wavenumbers
from ups.types import Grid


@dataclass(frozen=True)
class Semilinear(Equation):
    """u_t = L u + D g(u) on a periodic box of one, two or three dimensions.

    L and D are given by their symbols: functions of the angular wavenumbers k `(dimensions, *K)`, so that ∂_x is i k[0]
    and the Laplacian is −k.square().sum(0). A symbol is `(*K)`, or `(*K, C)` where channels differ. g is pointwise.

    L is integrated exactly, D g(u) to fourth order in time (ETDRK4). It is solved on a grid that holds all wavenumbers
    up to `highest`, whatever the stored grid; `stored` says what of the solution is stored: its values at the stored
    points (`Sampled`) or the waves that the stored grid can hold (`Padded`). The initial state is read from the
    stored grid, which must therefore resolve it.
    """

    stored: ClassVar[type[Padded]] = Sampled

    @property
    @abstractmethod
    def highest(self) -> float:
        """The wavenumber beyond which the solution, and g of it, have nothing to speak of."""

    @property
    @abstractmethod
    def step(self) -> float:
        """The longest time step that resolves D g(u); L may be as stiff as it likes."""

    @abstractmethod
    def symbol(self, k: Tensor) -> Tensor:
        """The symbol of L, in double precision."""

    @abstractmethod
    def nonlinear(self, u: Tensor) -> Tensor:
        """g(u): values `(B, *S, C)` to values of that shape, point by point."""

    def outer(self, k: Tensor) -> Tensor:
        """The symbol of D; 1 unless given."""
        return torch.ones_like(k[0])

    def tendency(self, grid: Grid, like: Tensor) -> Callable[[Tensor], Tensor]:
        """D g(u) from the spectrum of u to its own `(B, *K, C)`, without the upper third of the waves of `grid`.

        Override it where the nonlinear term is not of this form (the velocity of a vorticity, say).
        """
        k = torch.stack(wavenumbers(grid, like.device, like.dtype, real=True))
        keep = dealias_mask(grid, like.device, like.dtype).unsqueeze(-1)
        outer = (per_channel(self.outer(k), grid) * keep).to(like.dtype.to_complex())
        shape, axes = grid.shape, tuple(range(1, 1 + grid.ndim))

        def spectrum_of_term(spectrum: Tensor) -> Tensor:
            values = self.nonlinear(torch.fft.irfftn(spectrum, s=shape, dim=axes))
            term: Tensor = torch.fft.rfftn(values, dim=axes)
            return term.mul_(outer)

        return spectrum_of_term

    def stepper(self, scheme: str, grid: Grid, like: Tensor) -> Padded:
        self.check_scheme(scheme)
        fine = self.stored.solving(grid, self.highest)
        k = torch.stack(wavenumbers(fine, like.device, torch.float64, real=True))
        symbol = per_channel(self.symbol(k), fine)
        return self.stored(grid, ETDRK4(fine, symbol, self.tendency(fine, like), self.step))


def per_channel(symbol: Tensor, grid: Grid) -> Tensor:
    """A symbol `(*K)` or `(*K, C)` as `(*K, 1)` or `(*K, C)`."""
    return symbol.unsqueeze(-1) if symbol.ndim == grid.ndim else symbol
