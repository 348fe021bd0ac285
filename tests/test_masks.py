"""Cells that do not count are filled with the nearest that does."""

from __future__ import annotations

import numpy as np
import pytest

from ups.masks import fill
from ups.types import DataError


def test_a_cell_that_does_not_count_gets_the_value_of_the_nearest_that_does() -> None:
    values = np.arange(12.0).reshape(1, 6, 2)
    mask = np.array([1, 1, 0, 0, 0, 1], bool)
    values[:, ~mask] = np.nan
    assert fill(values, mask)[0, :, 0].tolist()[:3] == [0.0, 2.0, 2.0]
    assert fill(values, mask)[0, :, 1].tolist()[4:] == [11.0, 11.0]
    plane = np.full((3, 4, 4, 1), np.nan)
    plane[:, 1, 1] = 5.0
    assert (fill(plane, np.isfinite(plane[0, ..., 0])) == 5.0).all()


def test_a_grid_without_holes_keeps_its_bits_and_one_without_cells_is_refused() -> None:
    values = np.random.default_rng(0).standard_normal((2, 5, 1)).astype(np.float32)
    assert fill(values, np.ones(5, bool)) is values
    with pytest.raises(DataError, match="no cell counts"):
        fill(values, np.zeros(5, bool))
