"""Gridded: trajectories on points as they are on a grid in their box, to be looked at."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ups.clouds import Weights, to_grid
from ups.data.source import Source, View
from ups.types import Array, Grid, Points


class Gridded(View):
    """Another source, on a grid that holds what its points do."""

    def __init__(self, source: Source) -> None:
        task = dataclasses.replace(source.task, domain="grid")
        super().__init__(source, task=task, grid=self.seen_as(source.grid))

    def seen_as(self, grid: Grid) -> Grid:
        return Grid(grid.resolved, grid.periodic, grid.bounds)

    def _values(self, index: int, frames: slice) -> Array:
        return self._on_grid(self.source.read(index, frames), index)

    def _inputs(self, index: int) -> Array:
        return self._on_grid(self.source.inputs(index), index)

    def _on_grid(self, values: Array, index: int) -> Array:
        """Values `(…, N, C)` at points as `(…, *S, C)`."""
        points = self.source.grid_of(index)
        assert isinstance(points, Points)
        place, weight = _weights(points)
        cells = np.einsum("...mkc,mk->...mc", values[..., place, :], weight)
        return np.asarray(cells.reshape(*values.shape[:-2], *points.resolved, values.shape[-1]))


@functools.lru_cache(8)
def _weights(points: Points) -> Weights:
    return to_grid(points.table, points.bounds, points.periodic, points.resolved)


def gridded(source: Source) -> Source:
    """A source as it is where it has a grid, and else on one."""
    return source if source.task.domain == "grid" else Gridded(source)
