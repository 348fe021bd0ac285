"""Points and meshes as the pixels of a map: a mesh as filled triangles, points as dots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ups.pages.drawing import library
from ups.types import Array, Mesh, Points

PIXELS = 200  # along the longer side of a map
DOT = 0.75  # radius of a dot, as part of the usual distance between points
SLAB = 0.75  # of that distance: how far from the middle of a box in space points are shown


@dataclass(frozen=True)
class Raster:
    """Which points make each pixel of a map, `place` and `weight` `(X, Y, k)`, and which pixels show anything."""

    place: Array
    weight: Array
    mask: Array

    @classmethod
    def of(cls, grid: Points) -> Raster:
        """Of a mesh in a plane its cells, of other points dots; in space those near the plane through the middle."""
        (x, y), table = grid.bounds[:2], grid.table
        longest = max(x[1] - x[0], y[1] - y[0])
        wide, high = (max(2, round(PIXELS * (b - a) / longest)) for a, b in (x, y))
        along = [a + (np.arange(n) + 0.5) * (b - a) / n for n, (a, b) in ((wide, x), (high, y))]
        pixels = np.stack(np.meshgrid(*along, indexing="ij"), -1)
        if isinstance(grid, Mesh) and grid.ndim == 2 and all(each.shape[1] in (3, 4) for each in grid.corners):
            return cls._triangles(table, grid.corners, pixels)
        shown = np.arange(len(table))
        for axis in range(2, grid.ndim):
            middle = sum(grid.bounds[axis]) / 2
            near = np.abs(table[:, axis] - middle) <= SLAB * grid.spacing[axis]
            shown = np.intersect1d(shown, np.flatnonzero(near)) if near.any() else shown
        return cls._dots(table[shown, :2], shown, pixels, DOT * grid.spacing[0])

    @classmethod
    def _triangles(cls, table: Array, corners: tuple[Array, ...], pixels: Array) -> Raster:
        triangulation: Any = library("tri").Triangulation
        halves = [each[:, [i, j, k]] for each in corners for i, j, k in ((0, 1, 2), (0, 2, 3))[: each.shape[1] - 2]]
        triangles = np.concatenate(halves)
        which = triangulation(*table.T, triangles).get_trifinder()(pixels[..., 0], pixels[..., 1])
        place = triangles[np.maximum(which, 0)]
        a, b, c = np.moveaxis(table[place], -2, 0)

        def turn(p: Array, q: Array) -> Array:
            return np.asarray(p[..., 0] * q[..., 1] - p[..., 1] * q[..., 0])

        whole = turn(b - a, c - a)
        second, third = turn(pixels - a, c - a) / whole, turn(b - a, pixels - a) / whole
        return cls(place, np.stack((1 - second - third, second, third), -1), np.asarray(which >= 0))

    @classmethod
    def _dots(cls, table: Array, numbers: Array, pixels: Array, radius: float) -> Raster:
        from scipy.spatial import cKDTree

        away, which = cKDTree(table).query(pixels)
        return cls(numbers[which][..., None], np.ones((*which.shape, 1)), np.asarray(away <= radius))

    def image(self, values: Array) -> Array:
        """Values `(…, N, C)` at the points as pixels `(…, X, Y, C)`."""
        return np.asarray(np.einsum("...xykc,xyk->...xyc", values[..., self.place, :], self.weight))
