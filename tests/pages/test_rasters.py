"""A linear field on a mesh is itself in every pixel; dots have the values of their points; holes stay empty."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import Delaunay

from ups.pages.rasters import Raster
from ups.types import Points

DRAW = np.random.default_rng(0)
TABLE = np.concatenate([DRAW.uniform(0, 1, (300, 2)), [[0, 0], [0, 1], [1, 0], [1, 1]]]) * [2, 1]
BOX = ((0.0, 2.0), (0.0, 1.0))


def test_a_mesh_is_filled_triangles_between_whose_corners_a_linear_field_is_itself() -> None:
    cells = Delaunay(TABLE).simplices
    hole = np.linalg.norm(TABLE[cells].mean(1) - [1, 0.5], axis=1) < 0.2
    raster = Raster.of(Points.at(TABLE, (False, False), BOX, np.full(304, 2 / 304), (cells[~hole],)))
    picture = raster.image((3 * TABLE[:, :1] - TABLE[:, 1:])[None])[0, ..., 0]
    assert picture.shape == (200, 100)  # of the shape of the box
    x, y = np.meshgrid((np.arange(200) + 0.5) / 100, (np.arange(100) + 0.5) / 100, indexing="ij")
    assert np.allclose(picture[raster.mask], (3 * x - y)[raster.mask])
    assert 1 - raster.mask.mean() == pytest.approx(np.pi * 0.2**2 / 2, abs=0.03)
    assert not raster.mask[100, 50]


def test_points_are_dots_with_their_values() -> None:
    table = np.array([[0.5, 0.5], [1.5, 0.5]])
    raster = Raster.of(Points.at(table, (False, False), BOX, np.full(2, 0.1)))
    picture = raster.image(np.array([[[1.0], [2.0]]]))[0, ..., 0]
    assert (picture[50, 50], picture[150, 50]) == (1, 2)
    assert raster.mask[50, 50]
    assert not raster.mask[100, 50]
    assert raster.mask.mean() == pytest.approx(2 * np.pi * (0.75**2 * 0.1) / 2, rel=0.05)
