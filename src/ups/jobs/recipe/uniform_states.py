"""Tests on a few samples whether states become uniform and still change, as in a reaction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ups.jobs.recipe.history import FEWEST_TRIPLES, TINY, Triple

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
