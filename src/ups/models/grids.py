"""Grids of any dimension: which axes wrap, how they are padded, cut into patches and brought to another resolution."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ups.tensors import table
from ups.types import Array, ConfigError, Grid, Points

LARGEST_MATRIX = 2**26  # numbers that bring an axis to another number of cells; of more no matrix is made
BLOCK = 2**20  # numbers of such a matrix that are made at once
LARGEST_GUESS = 2**20  # cells that any state may be brought to; more of them are at most
FINER = 64  # times as many as the state has


class Patch(NamedTuple):
    """How tokens hold the cells of their patches: `read (C · P, D)` of a token, `write (D, C · P)` into one."""

    read: Tensor
    write: Tensor
    size: int  # cells along an axis; P = size^n

    def cells(self, tokens: Grid) -> Grid:
        """That of the cells."""
        return Grid(tuple(n * self.size for n in tokens.shape), tokens.periodic)


def check_grid(shape: tuple[int, ...], patch: int, task: str) -> None:
    """A grid has at least two patches along each axis; one that they do not divide is padded."""
    if any(n < 2 * patch for n in shape):
        cells = " × ".join(str(n) for n in shape)
        if max(shape) < 2:
            raise ConfigError(f"{task}: one cell has no extent in space, and such data cannot be learnt by ups.")
        if min(shape) < 2:
            raise ConfigError(f"{task}: along an axis of one cell ({cells}) nothing can be learnt; leave it out.")
        raise ConfigError(
            f"{task}: a grid of {cells} cells is too small for patches of {patch}: an axis holds at least two; "
            f"choose a smaller codec patch, or at least {2 * patch} cells."
        )


def check_finer(own: int, given: int, task: str) -> None:
    """A simulator's grid of `own` cells is far finer than no state but a small one."""
    if own > max(LARGEST_GUESS, FINER * given):
        raise ConfigError(
            f"{task}: the simulator works on {own} cells and is given {given}, which say too little of so many; give a "
            f"state of at least {-(-own // FINER)} cells."
        )


def in_patches(shape: tuple[int, ...], patch: int) -> tuple[int, ...]:
    """The whole number of patches along each axis that hold a grid."""
    return tuple(-(-n // patch) for n in shape)


def padded(x: Tensor, patch: int, periodic: tuple[bool, ...]) -> Tensor:
    """Frames `(B, *S, C)` on a grid that `patch` divides; one that it divides already stays as it is.

    A periodic axis has somewhat smaller cells then: copies at its end would not wrap. A bounded axis gets copies of its
    last cell. `cropped` is the way back.
    """
    shape = tuple(x.shape[1:-1])
    whole = tuple(n * patch for n in in_patches(shape, patch))
    x = resample(x, tuple(m if wraps else n for n, m, wraps in zip(shape, whole, periodic, strict=True)), periodic)
    for axis, (m, n) in enumerate(zip(whole, x.shape[1:-1], strict=True), start=1):
        x = pad_axis(x, axis, 0, m - n, periodic=False)
    return x


def cropped(x: Tensor, shape: tuple[int, ...], periodic: tuple[bool, ...]) -> Tensor:
    """The frames on a grid of `shape` that `padded` made `x` of; nothing of them is lost."""
    for axis, (n, wraps) in enumerate(zip(shape, periodic, strict=True), start=1):
        if x.shape[axis] != n and wraps:
            many = x.shape[axis] * n > LARGEST_MATRIX
            x = _by_waves(x, axis, n, back=True) if many else _along(x, axis, _back(x.shape[axis], n, x.device))
        elif x.shape[axis] != n:
            x = x.narrow(axis, 0, n)
    return x


def pad_axis(x: Tensor, axis: int, before: int, after: int, periodic: bool) -> Tensor:
    """`x` with cells added at both ends of `axis`: the other end's where it wraps, else copies of the last cell."""
    if not before and not after:
        return x
    n = x.shape[axis]
    if periodic:
        assert max(before, after) <= n, "a halo is no wider than the grid"
        low, high = x.narrow(axis, n - before, before), x.narrow(axis, 0, after)
    else:
        low = x.narrow(axis, 0, 1).expand(*x.shape[:axis], before, *x.shape[axis + 1 :])
        high = x.narrow(axis, n - 1, 1).expand(*x.shape[:axis], after, *x.shape[axis + 1 :])
    return torch.cat((low, x, high), axis)


def patches(x: Tensor, patch: int, halo: int, periodic: tuple[bool, ...]) -> Tensor:
    """`(B, *S, C)` to overlapping patches `(B, *G, C · (patch + 2 halo)^n)`, G = S / patch."""
    ndim = len(periodic)
    for axis in range(ndim):
        x = pad_axis(x, axis + 1, halo, halo, periodic[axis]).unfold(axis + 1, patch + 2 * halo, patch)
    return x.flatten(ndim + 1)


def unpatch(x: Tensor, patch: tuple[int, ...]) -> Tensor:
    """`(B, *G, P, C)` with P sub-cells per patch (row-major) to the grid `(B, *G·patch, C)`."""
    ndim = len(patch)
    batch, grid, channels = x.shape[0], x.shape[1 : ndim + 1], x.shape[-1]
    x = x.reshape(batch, *grid, *patch, channels)
    order = [0, *itertools.chain.from_iterable((1 + a, 1 + ndim + a) for a in range(ndim)), 1 + 2 * ndim]
    return x.permute(order).reshape(batch, *(g * p for g, p in zip(grid, patch, strict=True)), channels)


def sub_cells(patch: tuple[int, ...]) -> Array:
    """Centres of the cells of one patch, `(P, n)`, in units of the patch, from its centre: within ±1/2."""
    axes = [(np.arange(p) + 0.5) / p - 0.5 for p in patch]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(patch))


def _fourier(n: int, m: int) -> Array:
    """The trigonometric interpolant through n cell centres, read at m cell centres; modes that m cannot hold go."""
    waves, rows, matrix = 2 * _whole_waves(n, m) + 1, max(1, BLOCK // n), np.empty((m, n), np.float32)
    for first in range(0, m, rows):
        i = np.arange(first, min(first + rows, m))[:, None]
        gap = (2 * i + 1) * n - (2 * np.arange(n)[None] + 1) * m  # between centres, in units of 1 / (2 n m)
        turn = np.pi / (2 * n * m)
        # The sum of so many waves: sin(waves · x) / sin(x).
        block = np.sin(turn * (waves * gap % (4 * n * m))) / np.where(gap == 0, 1.0, np.sin(turn * gap))
        block[gap == 0] = waves
        if n <= m and n % 2 == 0:
            block += np.cos(turn * (n * gap % (4 * n * m)))
        matrix[i[:, 0]] = block / n
    return matrix


def _whole_waves(n: int, m: int) -> int:
    """The waves that both n and m cells hold, but for those that are constant or alternate between cells."""
    return (min(n, m) + 1) // 2 - 1


def _alternating(m: int, cells: int, device: torch.device) -> Tensor:
    """The wave that alternates between m cells, at the centres of so many."""
    at = (torch.arange(cells, device=device, dtype=torch.float64) + 0.5) / cells
    return torch.sin(at * (torch.pi * m)).float()


def _by_waves(x: Tensor, axis: int, m: int, back: bool = False) -> Tensor:
    """What the matrix of `_fourier`, or with `back` that of `_back`, makes of many cells, without the matrix."""
    x, n = x.float(), x.shape[axis]
    waves, odd = torch.fft.rfft(x, dim=axis).movedim(axis, -1), n < m and n % 2 == 0
    waves = waves[..., : _whole_waves(n, m) + 1 + odd] * (m / n)
    k = torch.arange(waves.shape[-1], device=x.device)
    waves = waves * torch.polar(torch.where(2 * k == n, 0.5, 1.0), torch.pi * k * (1 / m - 1 / n))
    answer: Tensor = torch.fft.irfft(waves, m, dim=-1)
    if back and m % 2 == 0:
        here, there = (_alternating(m, c, x.device) for c in (n, m))
        answer = answer + 2 / n * (x.movedim(axis, -1) @ here).unsqueeze(-1) * there
    return answer.movedim(-1, axis)


def _cubic(n: int, m: int, shift: float = 0.0) -> Array:
    """Lagrange interpolation through the four nearest of n cell centres (one-sided at the walls), read at m centres of
    a grid that begins `shift` boxes later. Beyond the last cell it goes on in a straight line."""
    width = min(4, n)
    at = ((np.arange(m) + 0.5) / m + shift) * n - 0.5
    first = np.clip(np.floor(at).astype(int) - width // 2 + 1, 0, n - width)
    matrix = np.zeros((m, n))
    for i in range(width):
        others = [first + j for j in range(width) if j != i]
        weights = np.prod([(at - o) / (first + i - o) for o in others], axis=0)
        matrix[np.arange(m), first + i] = weights
    for row in np.flatnonzero((at < -0.5) | (at > n - 0.5)) if n > 1 else ():
        near = 0 if at[row] < 0 else n - 2
        matrix[row] = 0.0
        matrix[row, [near, near + 1]] = near + 1 - at[row], at[row] - near
    return matrix


def _average(n: int, m: int) -> Array:
    """The mean over each of m cells of what n smaller cells hold."""
    edges, fine = np.arange(m + 1) / m, np.arange(n + 1) / n
    overlap = np.minimum(edges[1:, None], fine[None, 1:]) - np.maximum(edges[:-1, None], fine[None, :-1])
    return np.asarray(np.clip(overlap, 0, None) * m)


@table
def _back(n: int, m: int, device: torch.device) -> Tensor:
    """The matrix from n to fewer cells m of a periodic axis that undoes `_fourier(m, n)`, also for the wave that
    alternates between cells, which `_fourier(n, m)` leaves out."""
    matrix = _fourier(n, m)
    if m % 2 == 0:
        wave = [np.sin(np.pi * m * (np.arange(k) + 0.5) / k) for k in (m, n)]
        matrix = matrix + 2 / n * np.outer(*wave)
    return torch.as_tensor(matrix, dtype=torch.float32, device=device)


@table
def _resampling(n: int, m: int, periodic: bool, shift: float, device: torch.device) -> Tensor:
    matrix = _fourier(n, m) if periodic else _cubic(n, m, shift) if m > n or shift else _average(n, m)
    return torch.as_tensor(matrix, dtype=torch.float32, device=device)


def resample(x: Tensor, shape: tuple[int, ...], periodic: tuple[bool, ...], shift: tuple[float, ...] = ()) -> Tensor:
    """Frames `(B, *S, C)` on another grid of the same box, `(B, *shape, C)`.

    Periodic axes: the trigonometric interpolant (exact for what the coarser grid resolves). Bounded axes: cubic
    interpolation towards finer cells, cell averages towards coarser ones. `shift`: how many boxes later the other grid
    begins along bounded axes; its values are then those at its centres, finer or coarser, for cells were picked.
    """
    for axis, (m, wraps) in enumerate(zip(shape, periodic, strict=True), start=1):
        n, later = x.shape[axis], 0.0 if wraps or not shift else shift[axis - 1]
        if n * m > LARGEST_MATRIX and (n != m or later):
            if not wraps:
                raise ConfigError(
                    f"{n} cells along an axis with walls cannot be brought to {m}: these are too many; give as many "
                    "cells as the data of training had."
                )
            x = _by_waves(x, axis, m)
        elif n != m or later:
            x = _along(x, axis, _resampling(n, m, wraps, later, x.device))
    return x


def beginning(own: tuple[float, ...], cells: tuple[int, ...], grid: Grid) -> tuple[float, ...]:
    """Where a grid begins: at its corner. Where nobody says it, it is the task's own, of `cells` and with the corner
    `own`, if it has as many cells, and fills the box if not. Points begin nowhere."""
    if isinstance(grid, Points):
        return ()
    return grid.corner or (own if cells == grid.shape else (0.0,) * len(own))


def shift_of(own: tuple[float, ...] | None, cells: tuple[int, ...], grid: Grid) -> tuple[float, ...]:
    """How many boxes later the task's own grid, of `cells` and with the corner `own`, begins than another; () if `own`
    is unknown."""
    if own is None or isinstance(grid, Points):
        return ()
    gaps = [a - b for a, b in zip(own, beginning(own, cells, grid), strict=True)]
    return tuple(gap if abs(gap) * n > 1e-3 else 0.0 for gap, n in zip(gaps, grid.shape, strict=True))


def _along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """`x (B, *S, C)` with its n cells along `axis` replaced by the m that a matrix `(m, n)` makes of them."""
    flat = torch.matmul(matrix, x.flatten(axis + 1).float().flatten(0, axis - 1))
    return flat.reshape(*x.shape[:axis], len(matrix), *x.shape[axis + 1 :])
