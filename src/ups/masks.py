"""Masks: which cells of a grid count; what lies where nothing is, such as in an obstacle."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ups.types import Array


def fill(values: Array, mask: Array) -> Array:
    """`values (…, *S, C)` with every cell that does not count replaced by the nearest that does; `mask (*S,)` is true
    where a cell counts. All zero where no cell counts."""
    if mask.all():
        return values
    where = _nearest(np.packbits(mask).tobytes(), mask.shape)
    if where is None:
        return np.zeros_like(values)
    places: tuple[Any, ...] = (..., *where, slice(None))
    return np.asarray(values[places])


@lru_cache(maxsize=64)
def _nearest(bits: bytes, shape: tuple[int, ...]) -> tuple[Array, ...] | None:
    """For every cell the place of the nearest that counts, an index array per axis; None where no cell counts."""
    from scipy.ndimage import distance_transform_edt

    size = int(np.prod(shape))
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=size).reshape(shape).astype(bool)
    if not mask.any():
        return None
    where = distance_transform_edt(~mask, return_distances=False, return_indices=True)
    return tuple(np.asarray(where))
