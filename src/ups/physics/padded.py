"""Spectral steppers that solve on the grid an equation needs, not on the one it stores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ups.lazy_imports import Tensor, torch
from ups.physics.spectral import ETDRK4, dealias_mask
from ups.types import Grid


def resize_spectrum(spectrum: Tensor, shape: tuple[int, ...], to: tuple[int, ...]) -> Tensor:
    """The real-transform spectrum `(B, *K, C)` of a grid `shape`, cut or padded with zeros to that of a grid `to`.

    The field keeps its value at the first point of the grid, so both grids start at the same place. Nyquist modes,
    which have no phase, are dropped.
    """
    for axis, (n, m) in enumerate(zip(shape, to, strict=True), start=1):
        most = (min(n, m) - 1) // 2
        last = axis == len(shape)
        sized = list(spectrum.shape)
        sized[axis] = m // 2 + 1 if last else m
        grown = spectrum.new_zeros(sized)
        grown.narrow(axis, 0, most + 1).copy_(spectrum.narrow(axis, 0, most + 1))
        if not last and most > 0:
            grown.narrow(axis, m - most, most).copy_(spectrum.narrow(axis, n - most, most))
        spectrum = grown
    return spectrum * (math.prod(to) / math.prod(shape))


def resolving(grid: Grid, wavenumber: float, at_least: tuple[int, ...]) -> Grid:
    """The coarsest grid on the box of `grid` that holds waves up to `wavenumber` in two thirds of its spectrum.

    Args:
        grid: A grid of the box.
        wavenumber: The largest wavenumber, in radians per length.
        at_least: The least number of cells along each axis, taken where it is enough; larger numbers are even products
            of small primes, which transform fast.
    """
    from scipy.fft import next_fast_len  # slow to import

    shape = []
    for length, least in zip(grid.lengths, at_least, strict=True):
        n = max(least, _cells(wavenumber, length))
        while n != least and (n % 2 or n != next_fast_len(n, real=True)):
            n += 1
        shape.append(n)
    return Grid(tuple(shape), grid.periodic, grid.bounds)


def _cells(wavenumber: float, length: float) -> int:
    return math.ceil(1.5 * wavenumber * length / math.pi) + 1


@dataclass
class Padded:
    """Solves with `inner` on its own grid; what goes in and out lives on `grid`.

    In: the trigonometric interpolant of the stored values. Out: the modes of the solution that the stored grid holds,
    so integrals are exact, and values are exact wherever the stored grid resolves the solution. Modes above two
    thirds of the solving grid's Nyquist are dropped at the start.
    """

    grid: Grid
    inner: ETDRK4

    @classmethod
    def solving(cls, grid: Grid, wavenumber: float) -> Grid:
        """The grid to solve on, for what is stored on `grid` and has waves up to `wavenumber`."""
        return resolving(grid, wavenumber, at_least=grid.shape)

    def start(self, u0: Tensor) -> Tensor:
        axes, fine = tuple(range(1, 1 + self.grid.ndim)), self.inner.grid
        keep = dealias_mask(fine, u0.device, u0.dtype).unsqueeze(-1)
        spectrum = resize_spectrum(torch.fft.rfftn(u0, dim=axes), self.grid.shape, fine.shape) * keep
        return self.inner.start(torch.fft.irfftn(spectrum, s=fine.shape, dim=axes))

    def advance(self, state: Tensor, t0: float, t1: float) -> Tensor:
        return self.inner.advance(state, t0, t1)

    def read(self, state: Tensor) -> Tensor:
        axes = tuple(range(1, 1 + self.grid.ndim))
        spectrum = resize_spectrum(state, self.inner.grid.shape, self.grid.shape)
        values: Tensor = torch.fft.irfftn(spectrum, s=self.grid.shape, dim=axes)
        return values


@dataclass
class Sampled(Padded):
    """As `Padded`, but what comes out are the values of the solution at the stored points, resolved or not.

    The solving grid has a whole number of cells to each stored one. Bounds hold on every stored grid; sums over a
    grid too coarse for the solution are not its integrals.
    """

    @classmethod
    def solving(cls, grid: Grid, wavenumber: float) -> Grid:
        from scipy.fft import next_fast_len  # slow to import

        sizes = zip(grid.shape, grid.lengths, strict=True)
        shape = (n * next_fast_len(math.ceil(_cells(wavenumber, length) / n), real=True) for n, length in sizes)
        return Grid(tuple(shape), grid.periodic, grid.bounds)

    def read(self, state: Tensor) -> Tensor:
        every = (slice(None, None, m // n) for m, n in zip(self.inner.grid.shape, self.grid.shape, strict=True))
        return self.inner.read(state)[(slice(None), *every)]
