"""Weights between points and grids are exact for polynomials; volumes of points and cells fill the box."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import Delaunay

from ups.clouds import Weights, cell_volumes, corner_volumes, from_grid, nearest_volumes, to_grid
from ups.types import Array, DataError

DRAW = np.random.default_rng(0)
BOX = {2: ((-1.0, 1.0), (2.0, 3.0)), 3: ((0.0, 1.0), (0.0, 2.0), (-1.0, 0.0))}


def points(count: int, ndim: int) -> Array:
    low, high = np.array(BOX[ndim]).T
    return DRAW.uniform(low, high, (count, ndim))


def made(weights: Weights, x: Array) -> Array:
    return np.asarray((x[weights.place] * weights.weight).sum(1))


def centres(shape: tuple[int, ...], ndim: int) -> Array:
    ends = zip(BOX[ndim], shape, strict=True)
    along = [low + (np.arange(n) + 0.5) * (high - low) / n for (low, high), n in ends]
    return np.stack(np.meshgrid(*along, indexing="ij"), -1).reshape(-1, ndim)


@pytest.mark.parametrize(("ndim", "shape"), [(2, (12, 9)), (3, (6, 7, 5))])
def test_points_give_a_grid_and_a_grid_gives_points_exactly_what_is_a_polynomial_of_low_degree(
    ndim: int, shape: tuple[int, ...]
) -> None:
    at, cells, walls = points(400, ndim), centres(shape, ndim), (False,) * ndim

    def square(x: Array) -> Array:
        return np.asarray(1 + x[:, 0] - 2 * x[:, 1] + x[:, 0] * x[:, 1] - x[:, -1] ** 2)

    def line(x: Array) -> Array:
        return np.asarray(3 + x @ np.arange(1, ndim + 1))

    there, back = to_grid(at, BOX[ndim], walls, shape), from_grid(at, BOX[ndim], walls, shape)
    assert np.abs(there.weight).sum(1).max() <= 3.01
    exact = np.isclose(made(there, square(at)), square(cells), atol=2e-5)
    assert exact.mean() > 0.7  # elsewhere a fit of lower degree stands, which keeps lines at least
    inside = np.isclose(made(there, line(at)), line(cells), atol=2e-5)
    assert inside.mean() > 0.95
    assert np.allclose(made(back, line(cells)), line(at), atol=1e-4)
    ends, sizes = np.array(BOX[ndim]), np.array(shape)
    inner = (np.abs((at - ends[:, 0]) / (ends[:, 1] - ends[:, 0]) * sizes - sizes / 2) < sizes / 2 - 0.5).all(1)
    assert np.allclose(made(back, square(cells))[inner], square(at)[inner], atol=1e-4)


def test_where_points_are_the_centres_of_the_cells_both_ways_only_change_the_order() -> None:
    shape, walls = (8, 10), (False, True)
    at = centres(shape, 2)
    order = DRAW.permutation(len(at))
    x = DRAW.normal(size=len(at))
    assert np.allclose(made(to_grid(at[order], BOX[2], walls, shape), x[order]), x, atol=1e-5)
    assert np.allclose(made(from_grid(at[order], BOX[2], walls, shape), x), x[order], atol=1e-5)


def test_waves_that_wrap_are_met_across_the_ends() -> None:
    at, shape, wraps = points(3000, 2), (48, 24), (True, True)

    def wave(x: Array) -> Array:
        return np.asarray(np.sin(np.pi * x[:, 0] + 0.3) * np.cos(2 * np.pi * x[:, 1]))

    cells = centres(shape, 2)
    away = np.abs(made(to_grid(at, BOX[2], wraps, shape), wave(at)) - wave(cells)).reshape(shape)
    assert np.sqrt((away**2).mean()) < 0.005
    assert np.sqrt((away[[0, -1]] ** 2).mean()) < 0.01  # next to the ends, where there is nothing beyond
    assert np.abs(made(from_grid(at, BOX[2], wraps, shape), wave(cells)) - wave(at)).max() < 0.002


def test_the_parts_of_a_box_that_are_nearest_to_points_fill_it_and_are_those_of_a_grid() -> None:
    at = centres((16, 8), 2)
    assert np.allclose(nearest_volumes(at[DRAW.permutation(128)], BOX[2], (False, False)), 2 / 128)
    assert nearest_volumes(points(500, 2), BOX[2], (False, False)).sum() == pytest.approx(2, rel=0.02)
    dense = np.concatenate([points(200, 2), points(200, 2) / [2, 1] - [0.5, 0]])  # three times as many on the left
    volumes = nearest_volumes(dense, BOX[2], (False, False))
    assert (volumes * dense[:, 0]).sum() == pytest.approx(0, abs=0.03)


def test_volumes_of_cells_are_those_of_geometry_and_their_corners_have_all_of_it() -> None:
    at = points(300, 2)
    at = np.concatenate([at, [[-1, 2], [-1, 3], [1, 2], [1, 3]]])
    triangles = Delaunay(at).simplices
    assert cell_volumes(at, triangles).sum() == pytest.approx(2)
    assert corner_volumes(at, (triangles,)).sum() == pytest.approx(2)
    assert cell_volumes(np.array([[0, 0], [2, 0], [2, 1], [0, 1.0]]), np.array([[0, 1, 2, 3]])) == pytest.approx(2)
    cube = np.array([[0, 0, 0], [1, 0, 0], [1, 2, 0], [0, 2, 0], [0, 0, 3], [1, 0, 3], [1, 2, 3], [0, 2, 3.0]])
    assert cell_volumes(cube, np.arange(8)[None]) == pytest.approx(6)
    assert cell_volumes(cube, np.array([[0, 1, 3, 4]])) == pytest.approx(1)
    with pytest.raises(DataError, match="of cells of higher order give the corners alone"):
        cell_volumes(at, np.arange(6)[None])
