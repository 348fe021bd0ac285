"""How far apart frames may be kept before a step changes too much to be foreseen: looked for in a few samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ups.data import Source
from ups.types import Array

LOOKED_AT, PLACES = 4, 16  # samples, about, and places in all of them together
SLOW, FAST = 0.15, 0.5  # parts of what a cell deviates by in time: a step should change it by one, and not by the other
FREE = 10**9  # frames, where any are as near to each other
TINY = 1e-30


def pace(source: Source, most: int, thin: int) -> tuple[int, int]:
    """Every so many frames, up to `most`, of a source at every so many cells can be kept without a loss, for a step
    still changes little, and at most, for one of more could hardly be foreseen; FREE where even `most` are as near."""
    steps = sorted({1, most, *(2**k for k in range(1, most.bit_length()))})
    rows = [_changes(source, i, steps, thin) for i in range(0, len(source), max(1, len(source) // LOOKED_AT))]
    if most < 2 or not (found := [row for row in rows if np.isfinite(row[0])]):
        return FREE, FREE
    squares = dict(zip(steps, np.stack(found).T, strict=True))
    points = [(step, float(np.sqrt(np.nanmean(each)))) for step, each in squares.items() if np.isfinite(each).any()]
    return _first(points, SLOW), _first(points, FAST)


def _first(points: list[tuple[int, float]], most: float) -> int:
    """The number of frames by which a change comes to `most` first, between those that were looked at."""
    for (before, less), (step, change) in zip([(0, 0.0), *points], points, strict=False):
        if change > most:
            return max(1, int(before + (step - before) * (most - less) / (change - less)))
    return FREE


def _changes(source: Source, index: int, steps: list[int], thin: int) -> Array:
    """The mean square by which so many frames change each cell of a sample, over that by which it deviates in time,
    `(steps,)`; nan where there are not as many frames, or nothing moves."""
    cells = (slice(None, None, thin),) * source.task.ndim
    places, frames = max(2, PLACES // min(LOOKED_AT, len(source))), len(source.times_of(index))

    def read(at: int) -> Array:
        values = source.read(index, slice(at, at + 1))[0][cells].astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    def squares(step: int) -> Iterator[Array]:
        starts = np.linspace(0, frames - 1 - step, places).astype(int) if step < frames else ()
        for start in sorted({int(at) for at in starts}):
            yield _mean(np.square(read(start + step) - read(start)))

    all_over = np.stack([read(int(at)) for at in np.linspace(0, frames - 1, places)])
    with np.errstate(invalid="ignore", over="ignore"):
        size = _mean(np.var(all_over, 0, ddof=1))
        moving = size > TINY
        ratios = [np.mean(rows, 0)[moving] / size[moving] for step in steps if (rows := list(squares(step)))]
    means = [float(np.mean(ratio)) if moving.any() else np.nan for ratio in ratios]
    return np.array([*means, *[np.nan] * (len(steps) - len(means))])


def _mean(values: Array) -> Array:
    """Of `(*S, C)` over the cells that count; 0 where none does."""
    counted = np.isfinite(values)
    axes = tuple(range(values.ndim - 1))
    mean: Array = np.where(counted, values, 0).sum(axes) / np.maximum(counted.sum(axes), 1)
    return mean
