"""Reduction: every n-th frame and cell of what a file holds."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ups.clouds import nearest_volumes
from ups.types import DataError, Grid, Points, counted


@dataclass(frozen=True)
class Reduction:
    """Keep every `time`-th frame from `start` on and every `space`-th cell of each axis, as PDEBench reduces its
    files."""

    time: int = 1
    """Keep every n-th frame."""
    space: int = 1
    """Keep every n-th cell of each axis."""
    start: int = 0
    """The first frame that is kept."""

    def __post_init__(self) -> None:
        if self.time < 1 or self.space < 1 or self.start < 0:
            raise DataError(f"a reduction takes every n-th frame and cell, n ≥ 1, from start ≥ 0 on, not {self}.")

    @property
    def frames(self) -> slice:
        return slice(self.start, None, self.time)

    def cells(self, grid: Grid, where: str) -> tuple[int, ...]:
        """How many cells are left along each axis of a grid; DataError, naming `where`, if they cannot be divided."""
        if isinstance(grid, Points):
            return tuple(-(-n // self.space) for n in grid.shape)
        for axis, n in enumerate(grid.shape):
            if n % self.space:
                raise DataError(f"{where}: axis {axis} has {counted(n, 'cell')}, which {self.space} does not divide.")
        return tuple(n // self.space for n in grid.shape)

    def corner(self, grid: Grid, bounds: tuple[tuple[float, float], ...]) -> tuple[float, ...]:
        """Where the cells that are left of a grid begin, in boxes from the lower ends of `bounds`, as in `Grid.corner`;
        where the grid's own box is another, from its lower ends. Nothing, `()`, where no cell is left out."""
        picked, own = self.grid(grid).corner_in(grid.bounds), grid.corner_in(bounds)
        if own:
            return tuple(round(a + b, 9) for a, b in zip(picked, own, strict=True))
        return picked if any(picked) else ()

    def left_of(self, grid: Grid, bounds: tuple[tuple[float, float], ...], where: str) -> Grid:
        """What is left of a grid as values on it are learnt: cells in its own box, with its `corner` in `bounds`."""
        if isinstance(grid, Points):
            return self.grid(grid)
        return Grid(self.cells(grid, where), grid.periodic, grid.bounds, self.corner(grid, bounds))

    def grid(self, grid: Grid) -> Grid:
        """The grid that is left of a grid: fewer cells, each as wide as those it stands for; or fewer points."""
        if self.space == 1:
            return grid
        if isinstance(grid, Points):
            return thinned(grid, self.space)
        coordinates = tuple(axis[:: self.space] for axis in grid.coordinates)
        shift = [(self.space - 1) / 2 * width for width in grid.spacing]
        bounds = tuple((lo - by, hi - by) for (lo, hi), by in zip(grid.bounds, shift, strict=True))
        return Grid.along(coordinates, grid.periodic, bounds)


@functools.lru_cache(64)
def thinned(points: Points, every: int) -> Points:
    """Every n-th point, each with the part of the box that is nearest to it; a mesh is one no more."""
    table = np.ascontiguousarray(points.table[::every])
    return Points.at(table, points.periodic, points.bounds, nearest_volumes(table, points.bounds, points.periodic))


def thinning(shape: tuple[int, ...], cells: tuple[int, ...]) -> int | None:
    """Every how many cells of `shape` make a grid of `cells`; None if no whole number does, the same on all axes."""
    if len(shape) != len(cells) or any(c < 1 or n % c for n, c in zip(shape, cells, strict=True)):
        return None
    steps = {n // c for n, c in zip(shape, cells, strict=True)}
    return steps.pop() if len(steps) == 1 else None
