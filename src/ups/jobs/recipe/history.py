"""Tests on a few samples whether one frame is enough to predict the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ups.data import Source
from ups.jobs.recipe.samples import known_numbers, sampled
from ups.types import Array

LOOKED_AT, TIMES = 16, 4  # samples of a file, about, and places in each
ROWS = 128  # cells of a triple that are looked at, at most
FEATURES = 512  # random functions of what lies around a cell
FEWEST_TRIPLES = 8  # triples of which anything can be said
HIDDEN = 0.5  # of what changes, which one frame leaves unexplained at least where something is hidden
TOLD = 0.25  # of that, which the frame before it leaves at most
RIDGES = (1e-6, 1e-4, 1e-2, 1.0)
TINY = 1e-30


@dataclass(frozen=True)
class Triple:
    """Three frames `(3, *S, C)` of a sample one after the other, its inputs `(*S, G)`, the times between the frames
    with its parameters, and which axes wrap."""

    frames: Array
    inputs: Array
    numbers: tuple[float, ...]
    periodic: tuple[bool, ...]


def triples(source: Source, every: int, thin: int) -> list[Triple]:
    """Triples of a few samples, from beginning to end, of every `every`-th frame and every `thin`-th cell."""
    result = []
    for i in sampled(source, LOOKED_AT):
        params, times = known_numbers(source, i), source.times_of(i)
        if len(times) <= 2 * every or params is None:
            continue
        cells = (slice(None, None, thin),) * source.task.ndim
        inputs = source.inputs(i)[cells].astype(np.float64)
        starts = np.linspace(0, len(times) - 1 - 2 * every, TIMES).astype(int)
        for start in sorted(set(starts.tolist())):
            when = slice(start, start + 2 * every + 1, every)
            frames = source.read(i, when)[(slice(None), *cells)].astype(np.float64)
            frames[np.isinf(frames)] = np.nan
            if np.isnan(frames).all(tuple(range(1, frames.ndim - 1))).any():
                continue  # it has blown up, and no cell says anything
            numbers = (*np.diff(times[when]), *params)
            result.append(Triple(frames, inputs, numbers, source.domain_of(i).periodic))
    return result


def hides(seen: Sequence[Triple]) -> bool:
    """Whether one frame leaves at least half of what changes next unexplained, and two frames at most a quarter of
    that, in all channels together or in one of them: a displacement without its velocity, a field without the one that
    drives it."""
    alike = [t for t in seen if (t.frames.shape, t.periodic) == (seen[0].frames.shape, seen[0].periodic)]
    if len(alike) < FEWEST_TRIPLES:
        return False
    left = _unexplained(alike, before=False)
    if not (left > HIDDEN).any():
        return False
    return bool(((left > HIDDEN) & (_unexplained(alike, before=True) < TOLD * left)).any())


def _unexplained(seen: Sequence[Triple], before: bool) -> Array:
    """How much of the changes to the last frames of triples cannot be told from their middle frames.

    Ridge regression on random functions of what lies around a cell in the middle frame, and with `before` in the change
    to that frame too. Cells that do not count are 0, and not asked for.

    Args:
        seen: Triples; the first half is fitted to, the second half judged.
        before: Whether the change to the middle frame is looked at.

    Returns:
        The part of the changes that is missed, for all channels together and then for each, `(1 + C,)`.
    """
    draw = np.random.default_rng(0)
    frames = np.stack([triple.frames for triple in seen])
    axes = tuple(range(frames.ndim - 1))
    nothing = np.zeros(1 + frames.shape[-1])
    if np.isnan(frames).all(axes).any():
        return nothing
    frames = (frames - np.nanmean(frames, axes)) / np.maximum(np.nanstd(frames, axes), TINY)
    inputs, changes, fit = [], [], []
    for i, (triple, (first, middle, last)) in enumerate(zip(seen, frames, strict=True)):
        known = [middle, *([middle - first] if before else []), triple.inputs]
        near = np.nan_to_num(_around(np.concatenate(known, -1), triple.periodic))
        change = (last - middle).reshape(-1, last.shape[-1])
        counted = np.flatnonzero(np.isfinite(change).all(-1))
        rows = draw.permutation(counted)[:ROWS]
        inputs.append(np.hstack((near[rows], np.tile(triple.numbers, (len(rows), 1)))))
        changes.append(change[rows])
        fit.append(np.full(len(rows), 2 * i < len(seen)))
    x, y, train = np.concatenate(inputs), np.concatenate(changes), np.concatenate(fit)
    if not len(x):
        return nothing
    y /= np.maximum(np.sqrt(np.mean(y**2, 0)), TINY)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9 * np.abs(x).max(0) + TINY)
    weights = draw.normal(size=(x.shape[1], FEATURES)) / np.sqrt(x.shape[1])
    x = np.hstack((x, np.maximum(x @ weights + draw.normal(size=FEATURES), 0), np.ones((len(x), 1))))
    a, b, size = x[train], y[train], _squares(y[~train])
    if not len(a) or size[0] == 0:
        return nothing
    gram, right, unit = a.T @ a, a.T @ b, len(a) * np.eye(x.shape[1])
    fits = (np.linalg.solve(gram + ridge * unit, right) for ridge in RIDGES)
    missed = np.min([_squares(y[~train] - x[~train] @ w) for w in fits], 0)
    part: Array = np.divide(missed, size, out=nothing, where=size > 0)
    return part.clip(max=1.0)


def _squares(values: Array) -> Array:
    """The sum of squares of all channels, then of each."""
    each = np.sum(values**2, 0)
    return np.array([each.sum(), *each])


def _around(values: Array, periodic: Sequence[bool]) -> Array:
    """The values of each cell of `(*S, C)`, and those 1, 2, 4 … cells away along each axis, `(cells, features)`."""
    neighbours = [values]
    for axis, wraps in enumerate(periodic):
        cells = values.shape[axis]
        away = 1
        while away == 1 or 8 * away <= cells:
            for shift in (away, -away):
                places = np.arange(cells) + shift
                neighbours.append(np.take(values, places, axis, mode="wrap" if wraps else "clip"))
            away *= 2
    return np.concatenate(neighbours, -1).reshape(values[..., 0].size, -1)
