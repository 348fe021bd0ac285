"""Interpolates samples with unevenly spaced axes to uniform ones, by cubic splines."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ups.data.axes import bounds_of, uneven_axes
from ups.data.source import Source, View, is_uniform
from ups.types import Array, DataError, Grid

# How many samples the error of interpolation is measured on.
MEASURED = 8


class Resampled(View):
    """A source with its uneven axes made uniform: as many cells, between the same first and last coordinates.

    Args:
        source: Whose samples are interpolated, each when it is read.

    Raises:
        DataError: It has a mask. A spline would mix cells that count with those that do not.
    """

    def __init__(self, source: Source) -> None:
        if source.task.mask:
            raise DataError(f"{source.path}: has cells that do not count, which cannot be resampled; leave it out.")
        self.source = source
        self._plans: dict[Grid, ResamplePlan] = {}
        grid = self._plan(source.grid).grid
        problems = tuple(text for text in source.problems if not uneven_axes([text]))
        task = dataclasses.replace(source.task, bounds=grid.bounds)
        super().__init__(source, grid=grid, problems=problems, task=task)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # which are large, and made again in no time

    def _plan(self, grid: Grid) -> ResamplePlan:
        if grid not in self._plans:
            self._plans[grid] = ResamplePlan(grid)
        return self._plans[grid]

    def grid_of(self, index: int) -> Grid:
        return self._plan(self.source.grid_of(index)).grid

    def _values(self, index: int, frames: slice) -> Array:
        return self._plan(self.source.grid_of(index)).forth(self.source.read(index, frames))

    def _inputs(self, index: int) -> Array:
        given: Array = self._plan(self.source.grid_of(index)).forth(self.source.inputs(index)[None])[0]
        return given

    def error(self) -> float:
        """What interpolation loses: the largest relative difference between values and the same values taken to the
        uniform grid and back, over the first and last frames of a few samples."""
        worst = 0.0
        for i in map(int, np.unique(np.linspace(0, len(self) - 1, min(MEASURED, len(self))).astype(int))):
            last = len(self.times_of(i)) - 1
            plan = self._plan(self.source.grid_of(i))
            for t in {0, last}:
                values = self.source.read(i, slice(t, t + 1)).astype(np.float64)
                difference = plan.back(plan.forth(values)) - values
                size = float(np.linalg.norm(values)) or 1.0
                worst = max(worst, float(np.linalg.norm(difference)) / size)
        return worst


class ResamplePlan:
    """Takes values of one grid to uniform axes and back, by two matrices per uneven axis.

    Args:
        grid: The grid with uneven axes. The attribute `grid` is the uniform one.
    """

    def __init__(self, grid: Grid) -> None:
        from scipy.interpolate import make_interp_spline

        self._matrices: dict[int, tuple[Array, Array]] = {}
        axes, bounds = list(grid.coordinates), list(grid.bounds)
        for i, x in enumerate(grid.coordinates):
            if len(x) < 3 or is_uniform(x.astype(np.float32)):
                continue
            even, degree = np.linspace(x[0], x[-1], len(x)), min(3, len(x) - 1)
            there, back = (make_interp_spline(a, np.eye(len(x)), degree)(b) for a, b in ((x, even), (even, x)))
            self._matrices[i] = (there, back)
            axes[i], bounds[i] = even, bounds_of(even)
        self.grid = Grid.along(tuple(axes), grid.periodic, tuple(bounds)) if self._matrices else grid

    def forth(self, values: Array) -> Array:
        """Values `(T, *S, C)` of the uneven grid, on the uniform one."""
        return self._applied(values, 0)

    def back(self, values: Array) -> Array:
        """Values `(T, *S, C)` of the uniform grid, on the uneven one."""
        return self._applied(values, 1)

    def _applied(self, values: Array, direction: int) -> Array:
        """Values with each uneven axis multiplied by its matrix: 0 to the uniform grid, 1 back."""
        for i, matrices in self._matrices.items():
            moved = np.moveaxis(values, i + 1, -1) @ matrices[direction].T
            values = np.moveaxis(moved, -1, i + 1)
        return values
