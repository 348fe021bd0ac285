"""A velocity without divergence, in boxes that wrap and in boxes with walls: measured, and repaired by projection."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import NOTHING, Law
from ups.tensors import table
from ups.types import Array, Grid

STENCIL = 5  # cells that a derivative reads along an axis with walls: fourth order
COARSE = 3  # the same to second order, by which the error of the first is judged


def derivative_matrix(n: int, length: float, periodic: bool, width: int = STENCIL) -> Array:
    """`(n, n)`: the derivative of the values in n cells along an axis. Where it wraps, that of the trigonometric
    interpolant; else that of the polynomial through the `width` nearest cells. A constant has none."""
    if periodic:
        m = np.fft.fftfreq(n, 1 / n)
        m[np.abs(m) * 2 == n] = 0  # a real field has no derivative at the Nyquist wavenumber
        return np.fft.ifft(2j * np.pi / length * m[:, None] * np.fft.fft(np.eye(n), axis=0), axis=0).real
    matrix, wide = np.zeros((n, n)), min(width, n)
    for i in range(n):
        first = min(max(i - wide // 2, 0), n - wide)
        places = np.arange(first, first + wide) - i
        powers = np.vander(places, increasing=True).T  # the weights of the slope at 0 give 0, 1, 0, … on 1, x, x², …
        matrix[i, first : first + wide] = np.linalg.solve(powers.astype(float), np.eye(wide)[1])
    return matrix * n / length


class Projection:
    """The derivative D along each axis, and the solution of Σ D Dᵀ φ = f by the eigenvectors of each axis.

    u − Dᵀ φ with f = Σ D u is then the nearest field without divergence, whatever the ends of the axes are like.
    """

    def __init__(
        self, shape: tuple[int, ...], lengths: tuple[float, ...], periodic: tuple[bool, ...], device: torch.device
    ) -> None:
        def tensor(values: Array) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        axes = list(zip(shape, lengths, periodic, strict=True))
        derivatives = [derivative_matrix(*axis) for axis in axes]
        self.slopes = [tensor(d) for d in derivatives]
        self.coarse = [tensor(derivative_matrix(*axis, width=COARSE)) for axis in axes]
        pairs = [np.linalg.eigh(d @ d.T) for d in derivatives]
        self.bases = [tensor(vectors) for _, vectors in pairs]
        total = functools.reduce(np.add.outer, [values for values, _ in pairs])
        null = total < 1e-12 * total.max()  # what has no slope along any axis is no divergence either
        self.inverse = tensor(np.where(null, 0.0, 1 / np.where(null, 1.0, total)))

    def solve(self, f: Tensor) -> Tensor:
        """φ `(…, *S)` of f `(…, *S)`."""
        for axis, basis in enumerate(self.bases):
            f = along(basis.T, f, axis, len(self.bases))
        f = f * self.inverse
        for axis, basis in enumerate(self.bases):
            f = along(basis, f, axis, len(self.bases))
        return f


def along(matrix: Tensor, values: Tensor, axis: int, ndim: int) -> Tensor:
    """A matrix `(n, n)` applied to one of the last `ndim` axes of values."""
    place = axis - ndim
    return torch.movedim(torch.movedim(values, place, -1) @ matrix.T, -1, place)


@table
def _made(
    shape: tuple[int, ...], lengths: tuple[float, ...], periodic: tuple[bool, ...], device: torch.device
) -> Projection:
    return Projection(shape, lengths, periodic, device)


def projection(grid: Grid, device: torch.device) -> Projection:
    """That of a box, made once for each device."""
    return _made(grid.shape, grid.lengths, grid.periodic, device)


@dataclass(frozen=True)
class DivergenceFree(Law):
    """A velocity, one channel per axis of a box, has no divergence.

    Slopes are those of Fourier modes along axes that wrap, and of polynomials along those with walls, of which nothing
    is assumed: flow may go through. `laws_of` claims it of no box with a mask, around which neither is known.
    """

    kind: ClassVar[str] = "divergence"
    around_masks: ClassVar[bool] = False
    name: str
    channels: tuple[int, ...]

    @property
    def says(self) -> str:
        return f"{self.name} has no divergence"

    def _slopes(self, u: Tensor, matrices: list[Tensor]) -> list[list[Tensor]]:
        """The slope of each component along each axis, `(B, T, *S)`."""
        ndim = len(matrices)
        return [[along(m, u[..., c].double(), a, ndim) for a, m in enumerate(matrices)] for c in self.channels]

    def _squares(self, u: Tensor, matrices: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean squares `(B,)` of the divergence and of all slopes."""
        slopes = self._slopes(u, matrices)
        divergence = torch.stack([slopes[a][a] for a in range(len(matrices))]).sum(0)
        size = torch.stack([s.square() for row in slopes for s in row]).sum(0)
        return divergence.square().flatten(1).mean(1), size.flatten(1).mean(1)

    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        assert mask is None, "the divergence of a masked field is not measured"
        divergence, size = self._squares(u, projection(grid, u.device).slopes)
        return (divergence / size.clamp_min(torch.finfo(torch.float64).tiny)).sqrt()

    def sampling_error(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """The difference between the divergence to fourth and to second order; nothing where all axes wrap."""
        p = projection(grid, u.device)
        gap = [fine - coarse for fine, coarse in zip(p.slopes, p.coarse, strict=True)]
        unsure, (_, size) = self._slopes(u, gap), self._squares(u, p.slopes)
        total = torch.stack([unsure[a][a] for a in range(grid.ndim)]).sum(0).square().flatten(1).mean(1)
        return (total / size.clamp_min(torch.finfo(torch.float64).tiny)).sqrt()

    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        assert mask is None, "the divergence of a masked field is not penalised"
        slopes = projection(grid, u.device).slopes
        divergence, _ = self._squares(u, slopes)
        _, size = self._squares(reference.unsqueeze(1), slopes)
        return (divergence / size.clamp_min(NOTHING)).to(u.dtype)

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        assert mask is None, "the divergence of a masked field is not repaired"
        p, ndim = projection(grid, u.device), grid.ndim
        flow = [u[..., c].double() for c in self.channels]
        divergence = torch.stack([along(p.slopes[a], flow[a], a, ndim) for a in range(ndim)]).sum(0)
        potential = p.solve(divergence)
        fixed = list(u.unbind(-1))
        for a, c in enumerate(self.channels):
            fixed[c] = (flow[a] - along(p.slopes[a].T, potential, a, ndim)).to(u.dtype)
        return torch.stack(fixed, -1)
