"""Tests on a few samples whether states are uniform, and whether they become so and still change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ups.data import Source
from ups.jobs.recipe.history import FEWEST_TRIPLES, TINY, Triple
from ups.jobs.recipe.samples import sampled
from ups.types import Array

UNIFORM = 0.01  # part of the deviation of all values that a uniform state has at most
STILL = 1e-3  # of the deviation of all values, below which a state counts as uniform
BEYOND = 3.0  # times what a state is uneven by, above which a change is not one of its shape: a wave's is 2 at most


def driven(seen: Sequence[Triple]) -> bool:
    """Whether a tenth of the changes from one frame to the next are far greater than what the first is uneven by: its
    mean moves then, whatever its shape does."""
    alike = [triple.frames for triple in seen if triple.frames.shape == seen[0].frames.shape]
    if len(alike) < FEWEST_TRIPLES:
        return False
    frames = np.stack(alike)
    axes = tuple(range(frames.ndim - 1))
    if np.isnan(frames).all(axes).any():
        return False
    first, then = (frames[:, i] / np.maximum(np.nanstd(frames, axes), TINY) for i in (1, 2))
    inside = tuple(range(1, first.ndim))
    uneven = np.nanmean((first - np.nanmean(first, inside[:-1], keepdims=True)) ** 2, inside)
    change = np.nanmean((then - first) ** 2, inside)
    return bool(np.nanquantile(np.sqrt(change / (uneven + STILL**2)), 0.9) > BEYOND)


def all_uneven(source: Source, count: int) -> bool:
    """Whether the first frame of none of `count` samples is uniform."""
    return all(
        uneven(source.read(i, slice(1))[0], source.read(i, slice(len(source.times_of(i)) - 1, None))[0])
        for i in sampled(source, count)
    )


@np.errstate(over="ignore", invalid="ignore")  # of what is not finite nobody knows
def uneven(first: Array, last: Array) -> bool:
    """Whether a state `(*S, C)` is not uniform, in deviations of itself and of what becomes of it."""
    cells = tuple(range(first.ndim - 1))
    if np.isnan(first).all(cells).any():
        return True  # nobody knows
    size = np.nanstd(np.stack((first, last)).astype(np.float64), (0, *(axis + 1 for axis in cells)))
    deviation = np.nanstd(first.astype(np.float64), cells) / np.maximum(size, TINY)
    return bool(np.sqrt(np.mean(deviation**2)) > UNIFORM)
