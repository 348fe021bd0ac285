"""Finds in a few samples how far apart frames may be kept while a step can still be predicted."""

from __future__ import annotations

import numpy as np

from ups.data import Source
from ups.jobs.recipe.samples import sampled
from ups.types import Array

LOOKED_AT, PLACES, FEWEST = 4, 32, 4  # samples, about, places in all of them together, and in each at least
ROOM = 2**29  # bytes that are read of a sample, about, if that leaves places enough
SLOW, FAST = 0.25, 0.5  # parts of what a cell deviates by in time: a step should change it by one, and not by the other
ANY_PACE = 10**9  # frames, where any are as near to each other
TINY, GOLDEN = 1e-30, 0.6180339887498949


def pace(source: Source, most: int, thin: int) -> tuple[int, int]:
    """Every so many frames, up to `most`, of a source at every so many cells can be kept without a loss, for a step
    still changes little, and at most, for one of more could hardly be foreseen; FREE where even `most` are as near."""
    steps = sorted({1, most, *(2**k for k in range(1, most.bit_length()))})
    chosen = sampled(source, LOOKED_AT) if most > 1 else ()
    rows = [_changes(source, i, steps, thin) for i in chosen]
    points = []
    for at, step in enumerate(steps):
        long = [(each[at], size) for each, size in rows if len(each) > at]
        change, size = np.mean(long, 0) if long else np.zeros((2, 1))
        if (moving := size > TINY).any():
            points.append((step, float(np.sqrt(np.mean(change[moving] / size[moving])))))
    return _first(points, SLOW), _first(points, FAST)


def _first(points: list[tuple[int, float]], most: float) -> int:
    """The number of frames by which a change comes to `most` first, between those that were looked at."""
    for (before, less), (step, change) in zip([(0, 0.0), *points], points, strict=False):
        if change > most:
            return max(1, int(before + (step - before) * (most - less) / (change - less)))
    return ANY_PACE


def _changes(source: Source, index: int, steps: list[int], thin: int) -> tuple[list[Array], Array]:
    """The mean squares `(C,)` by which so many frames change the cells of a sample, as far as it has frames, and the
    square of their deviation in time."""
    cells = (slice(None, None, thin),) * source.task.ndim
    frames = len(source.times_of(index))
    steps = [step for step in steps if step < frames]
    frame = 4 * len(source.task.channels) * int(np.prod(source.domain_of(index).shape))
    places = PLACES // min(LOOKED_AT, len(source))
    places = max(FEWEST, min(places, ROOM // (frame * (1 + len(steps)))))

    def read(at: int) -> Array:
        values = source.read(index, slice(at, at + 1))[0][cells].astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    # Evenly spread places would be in step with what comes back after a while.
    ways = (GOLDEN * np.arange(places)) % 1 * (frames - max(steps, default=0))
    starts = {int(at): read(int(at)) for at in ways}
    size = _mean(np.var([*starts.values(), read(frames - 1)], 0))
    squares = [[_mean(np.square(read(at + step) - first)) for at, first in starts.items()] for step in steps]
    return [np.mean(each, 0) for each in squares], size


def _mean(values: Array) -> Array:
    """The mean of `(*S, C)` over the cells that count, `(C,)`; 0 where none does."""
    counted = np.isfinite(values)
    axes = tuple(range(values.ndim - 1))
    mean: Array = np.where(counted, values, 0).sum(axes) / np.maximum(counted.sum(axes), 1)
    return mean
