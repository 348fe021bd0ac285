"""How far apart frames may be kept before a step changes too much to be foreseen: looked for in a few samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ups.data import Source
from ups.types import Array

LOOKED_AT, PLACES = 4, 16  # samples, about, and places in all of them together
FOREIGN = 0.5  # of what a field deviates by in time, by which a step changes it at most
FREE = 10**9  # frames, where any are as near to each other
TINY = 1e-30


def pace(source: Source, most: int, thin: int) -> int:
    """Every so many frames, up to `most`, can be kept of a source at every so many cells: neighbours then differ by
    less than half of the deviation that a cell has in time. FREE where even `most` do."""
    steps = sorted({1, most, *(2**k for k in range(1, most.bit_length()))})
    rows = [_changes(source, i, steps, thin) for i in range(0, len(source), max(1, len(source) // LOOKED_AT))]
    if most < 2 or not (found := [row for row in rows if np.isfinite(row[0])]):
        return FREE
    changes = np.sqrt(np.nanmean(np.stack(found), 0))
    before, less = 0, 0.0
    for step, change in zip(steps, changes.tolist(), strict=True):
        if change > FOREIGN:
            return max(1, int(before + (step - before) * (FOREIGN - less) / (change - less)))
        if np.isfinite(change):  # no sample may be so long
            before, less = step, change
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
