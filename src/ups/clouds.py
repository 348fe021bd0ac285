"""Points in space: what volume each stands for, and the weights that bring values from points to a grid and back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ups.types import Array, DataError

Box = tuple[tuple[float, float], ...]
# Points of a lattice along an axis for each point, which say how much of space is nearest to it.
LATTICE = {1: 16, 2: 4, 3: 3}
REACH = 2.0  # times the usual distance to its neighbours, beyond which no space belongs to a point
NEIGHBOURS = {1: 6, 2: 14, 3: 26}  # that a place between points is told from
WIDTH = 4  # cells of a grid along an axis that a point between them is told from
CLOSE = 1e-8  # square of the distance, in usual distances, at which a point and a place are one
STABLE = 3.0  # what the sizes of weights that sum to 1 sum to at most
AT_ONCE = 2**15  # places that are computed together


class Weights(NamedTuple):
    """How values at some places are made of those at others: `value_i = Σ_j weight_ij · x[place_ij]`, both `(M, k)`."""

    place: Array
    weight: Array


def cell_volumes(table: Array, cells: Array) -> Array:
    """Length, area or volume of each cell, `(M,)`.

    Args:
        table: Coordinates of points, `(N, n)`.
        cells: The corners of each, `(M, k)`: 2 are an edge, 3 a triangle, 4 a quadrilateral in a plane and a
            tetrahedron in space, 8 a hexahedron, whose corners go around each of two opposite faces.

    Raises:
        DataError: No cell has so many corners.
    """
    at, ndim, corners = table[cells], table.shape[1], cells.shape[1]
    if corners == 2:
        return np.asarray(np.linalg.norm(at[:, 1] - at[:, 0], axis=1))
    if corners == 3:
        return _triangle(at[:, 0], at[:, 1], at[:, 2])
    if corners == 4 and ndim == 2:
        return np.asarray(_triangle(at[:, 0], at[:, 1], at[:, 2]) + _triangle(at[:, 0], at[:, 2], at[:, 3]))
    if corners == 4:
        return _tetrahedron(*at.swapaxes(0, 1))
    if corners == 8 and ndim == 3:
        parts = ((0, 1, 3, 4), (1, 2, 3, 6), (1, 4, 5, 6), (3, 4, 6, 7), (1, 3, 4, 6))
        return np.asarray(sum(_tetrahedron(*(at[:, i] for i in part)) for part in parts))
    raise DataError(
        f"cells of {corners} corners in {ndim}D are none that ups knows: edges have 2, triangles 3, quadrilaterals and "
        "tetrahedra 4, hexahedra 8; of cells of higher order give the corners alone."
    )


def _triangle(a: Array, b: Array, c: Array) -> Array:
    u, v = b - a, c - a
    if a.shape[1] == 2:
        return np.asarray(np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]) / 2)
    return np.asarray(np.linalg.norm(np.cross(u, v), axis=1) / 2)


def _tetrahedron(a: Array, b: Array, c: Array, d: Array) -> Array:
    return np.asarray(np.abs(np.einsum("ij,ij->i", b - a, np.cross(c - a, d - a))) / 6)


def corner_volumes(table: Array, cells: tuple[Array, ...]) -> Array:
    """What each point has of the cells around it, `(N,)`: of every cell all corners have the same."""
    total = np.zeros(len(table))
    for each in cells:
        share = np.repeat(cell_volumes(table, each) / each.shape[1], each.shape[1])
        total += np.bincount(each.ravel(), share, len(table))
    return total


def nearest_volumes(table: Array, bounds: Box, periodic: tuple[bool, ...]) -> Array:
    """The part of the box that is nearest to each point, `(N,)`, and no further from it than its neighbours are: told
    by a lattice of a few places for each point. A point that no place is nearest to has a part of one."""
    count, ndim = table.shape
    tree, lengths = _tree(table, bounds, periodic)
    side = (math.prod(lengths) / count) ** (1 / ndim)
    shape = tuple(max(1, round(length / side)) * LATTICE[ndim] for length in lengths)
    own = _usual(tree, min(count, 2 * ndim + 1))
    hits = np.zeros(count, np.int64)
    total = math.prod(shape)
    for first in range(0, total, AT_ONCE):
        rows = np.stack(np.unravel_index(np.arange(first, min(first + AT_ONCE, total)), shape), 1)
        places = (rows + 0.5) * (np.array(lengths) / shape)
        away, who = tree.query(places)
        hits += np.bincount(who[away <= REACH * own[who]], minlength=count)
    return np.asarray(np.maximum(hits, 0.5) * (math.prod(lengths) / total))


def to_grid(table: Array, bounds: Box, periodic: tuple[bool, ...], shape: tuple[int, ...]) -> Weights:
    """The weights that give values at the centres of a grid of `shape` cells in the box from values at points: the
    polynomial of the second degree that fits the nearest points best, nearer ones far better (moving least squares),
    exact for such a polynomial and where a point lies on a centre. Of a lower degree where the points around do not
    say enough of a place, as outside of all of them."""
    tree, lengths = _tree(table, bounds, periodic)
    count, ndim = table.shape
    near = min(NEIGHBOURS[ndim], count)
    total, size = math.prod(shape), np.array(lengths)
    index, weight = np.empty((total, near), np.int64), np.empty((total, near), np.float32)
    for first in range(0, total, AT_ONCE):
        rows = np.stack(np.unravel_index(np.arange(first, min(first + AT_ONCE, total)), shape), 1)
        places = (rows + 0.5) / shape * size
        here = slice(first, first + len(rows))
        index[here] = tree.query(places, near)[1].reshape(len(rows), near)
        gaps = tree.data[index[here]] - places[:, None]
        wraps = np.array(periodic)
        gaps = np.where(wraps, gaps - size * np.round(gaps / size), gaps)
        weight[here] = _fitted(gaps)
    return Weights(index, weight)


def from_grid(table: Array, bounds: Box, periodic: tuple[bool, ...], shape: tuple[int, ...]) -> Weights:
    """The weights that give values at points from those at the centres of a grid of `shape` cells in the box: the
    product over the axes of polynomials through the four nearest centres. Beyond the last centre between walls they go
    on in a straight line."""
    count = len(table)
    index, weight = np.zeros((count, 1), np.int64), np.ones((count, 1))
    for axis, (n, (low, high), wraps) in enumerate(zip(shape, bounds, periodic, strict=True)):
        x = (table[:, axis] - low) / (high - low) * n - 0.5
        first = np.floor(x).astype(np.int64) - WIDTH // 2 + 1
        cells = (first if wraps else np.clip(first, 0, max(0, n - WIDTH)))[:, None] + np.arange(min(WIDTH, n))
        along = _lagrange(x[:, None] - cells)
        beyond = (x < 0) | (x > n - 1)
        if not wraps and n > 1 and beyond.any():
            part = x[beyond, None] - np.where(x[beyond] < 0, 0, n - 2)[:, None]
            along[beyond] = np.where(cells[beyond] == np.where(x[beyond] < 0, 0, n - 2)[:, None], 1 - part, 0.0)
            along[beyond] += np.where(cells[beyond] == np.where(x[beyond] < 0, 1, n - 1)[:, None], part, 0.0)
        index = (index[:, :, None] * n + (cells % n)[:, None]).reshape(count, -1)
        weight = (weight[:, :, None] * along[:, None]).reshape(count, -1)
    return Weights(index, weight.astype(np.float32))


def _lagrange(gap: Array) -> Array:
    """The weights `(N, width)` of neighbouring centres in the polynomial through them, `gap (N, width)` from each."""
    width = gap.shape[1]
    columns = [[gap[:, j] / (i - j) for j in range(width) if j != i] for i in range(width)]
    return np.stack([np.prod(each, axis=0) if each else np.ones(len(gap)) for each in columns], 1)


def _tree(table: Array, bounds: Box, periodic: tuple[bool, ...]) -> tuple[Any, tuple[float, ...]]:
    """The points, counted from the corner of the box, as a tree of neighbours that knows which axes wrap."""
    from scipy.spatial import cKDTree

    lengths = tuple(high - low for low, high in bounds)
    at = np.asarray(table, np.float64) - [low for low, _ in bounds]
    wraps = np.array([length if wrap else 0.0 for length, wrap in zip(lengths, periodic, strict=True)])
    at = np.where(wraps > 0, np.mod(at, np.where(wraps > 0, wraps, 1.0)), at)
    return cKDTree(at, boxsize=wraps if any(periodic) else None), lengths


def _usual(tree: Any, near: int) -> Array:
    """The mean distance of each point from its nearest others."""
    away = np.asarray(tree.query(tree.data, near)[0]).reshape(-1, near)
    return np.asarray(away[:, 1:].mean(1) if near > 1 else np.ones(len(away)))


def _fitted(gaps: Array) -> Array:
    """The weights `(M, k)` of neighbours at `gaps (M, k, n)` from a place."""
    far = np.sqrt((gaps**2).sum(-1))
    size = np.maximum(np.median(far, axis=1), 1e-300)[:, None]
    gaps, square = gaps / size[..., None], (far / size) ** 2
    edge = np.maximum(square.max(1, keepdims=True), 1e-300)
    nearness = np.maximum(1 - square / (1.1 * edge), 0.0) ** 2 / (square + CLOSE) ** 2
    best = nearness / nearness.sum(1, keepdims=True)
    for degree in (1, 2):
        terms = _polynomials(gaps, degree)
        if terms.shape[2] > terms.shape[1]:
            break
        weighted = terms * nearness[..., None]
        matrix = np.einsum("mki,mkj->mij", weighted, terms)
        scale = np.sqrt(np.maximum(np.einsum("mii->mi", matrix), 1e-300))
        matrix = matrix / (scale[:, :, None] * scale[:, None]) + 1e-10 * np.eye(terms.shape[2])
        first = np.zeros((len(gaps), terms.shape[2], 1))
        first[:, 0, 0] = 1 / scale[:, 0]
        row = np.linalg.solve(matrix, first)[..., 0] / scale
        fit = np.einsum("mki,mi->mk", weighted, row)
        total = fit.sum(1, keepdims=True)
        fit = fit / np.where(np.abs(total) > 0.5, total, np.nan)
        sound = np.abs(fit).sum(1, keepdims=True) <= STABLE  # false where it is no number
        best = np.where(sound, fit, best)
    return np.asarray(best, np.float32)


def _polynomials(gaps: Array, degree: int) -> Array:
    """The products of coordinates up to a degree, `(M, k, terms)`, the constant first."""
    ndim = gaps.shape[-1]
    columns = [np.ones(gaps.shape[:-1]), *(gaps[..., i] for i in range(ndim))]
    if degree > 1:
        columns += [gaps[..., i] * gaps[..., j] for i in range(ndim) for j in range(i, ndim)]
    return np.stack(columns, -1)
