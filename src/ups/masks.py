"""Gives cells that do not count (outside a mask) the value of the nearest cell that does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ups.types import Array, DataError


def unmasked(values: Any) -> Any:
    """A masked array of numpy as a plain one, with NaN where it is masked; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if values.dtype.kind not in "fc":
        values = values.astype(np.float64) if np.ma.getmaskarray(values).any() else values
    return values.filled(np.nan) if values.dtype.kind in "fc" else values.data


def nearest(mask: Array) -> tuple[Array, ...]:
    """The index of the nearest cell that counts, for every cell of `mask (*S,)`: an array `(*S,)` for each axis."""
    mask = np.asarray(mask, bool)
    if not mask.any():
        raise DataError("no cell counts: the mask is 0 everywhere; it must be 1 where there is a value.")
    return _nearest(np.packbits(mask).tobytes(), mask.shape)


@lru_cache(maxsize=64)
def _nearest(bits: bytes, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Kept, for the samples of a data set often share a mask, and every read of a frame asks for it."""
    from scipy.ndimage import distance_transform_edt

    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=int(np.prod(shape))).reshape(shape).astype(bool)
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


def fill_given(given: Array, mask: Array, place: int) -> None:
    """As `fill`, in place, for the inputs of samples, `(N, *S, C)`, with a mask each, `(N, *S)`. Channel `place`, which
    holds the masks, becomes 1 where a cell counts and 0 elsewhere."""
    for values, counts in zip(given, mask, strict=True):
        values[...] = fill(values, counts)
        values[..., place] = counts
