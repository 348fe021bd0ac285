"""Cells that do not count: where the nearest one that does lies, and its value in their place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ups.types import Array, DataError


def nearest(mask: Array) -> tuple[Array, ...]:
    """For every cell of `mask (*S,)` the index of the nearest one that counts, an array `(*S,)` for each axis."""
    from scipy.ndimage import distance_transform_edt

    mask = np.asarray(mask, bool)
    if not mask.any():
        raise DataError("no cell counts: the mask is 0 everywhere; it must be 1 where there is a value.")
    indices: Array = distance_transform_edt(~mask, return_distances=False, return_indices=True)
    return tuple(indices)


def fill(values: Array, mask: Array) -> Array:
    """`values (…, *S, C)` with those of cells where `mask (*S,)` is 0 replaced by the value of the nearest that
    counts; cells that count keep their bits."""
    values, mask = np.asarray(values), np.asarray(mask, bool)
    if mask.all():
        return values
    places: Any = (..., *nearest(mask), slice(None))
    return np.asarray(values[places])
