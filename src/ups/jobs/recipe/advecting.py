"""Finds in a few samples the parameters that carry states along, as a wind does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ups.data import Source
from ups.jobs.recipe.samples import known_numbers, sampled
from ups.models.advection import Advection, moved
from ups.tensors import numeric_params
from ups.types import Array, Grid, TaskSpec

LOOKED_AT = 16  # samples of a file, about
EXPLAINED = 0.9  # of what changes in a step, by a move alone, at least
WORTH = 0.05  # of that, which a parameter explains at least that the others do not


@dataclass(frozen=True)
class Glance:
    """Two frames `(2, *S, C)` of a sample, one after the other, the time between them, and its parameters."""

    frames: Array
    dt: float
    params: tuple[float, ...]
    periodic: tuple[bool, ...]


def glances(source: Source, every: int) -> list[Glance]:
    """The first frame of a few samples, and the one `every` frames later. Samples that are shorter, or do not say their
    parameters, are left out."""
    result = []
    for i in sampled(source, LOOKED_AT):
        params, times = known_numbers(source, i), source.times_of(i)
        if len(times) <= every or not params:  # none are known, or its task has none
            continue
        frames = source.read(i, slice(0, every + 1, every)).astype(np.float64)
        result.append(Glance(frames, float(times[every] - times[0]), params, source.domain_of(i).periodic))
    return result


def winds_in(task: TaskSpec, seen: Sequence[Glance]) -> tuple[str, ...]:
    """The parameters that carry states along: those of which the equation says so, or which explain nearly all of what
    was seen to change, each a part of it. None where an axis does not wrap, or nothing varies."""
    if known := task.dynamics.advected_by:
        return known
    if len({glance.frames.shape for glance in seen}) != 1 or not all(all(glance.periodic) for glance in seen):
        return ()
    frames = np.stack([glance.frames for glance in seen])
    frames /= np.maximum(frames.std(tuple(range(frames.ndim - 1))), 1e-30)
    if task.steady or not np.isfinite(frames).all() or min(frames.shape[2:-1]) < 4:
        return ()
    params = np.array([glance.params for glance in seen])
    names = numeric_params(task)
    chosen = [i for i in range(len(names)) if np.ptp(params[:, i]) > 0]
    dt = np.array([glance.dt for glance in seen])
    if not chosen or (best := _explained(frames, params[:, chosen], dt)) < EXPLAINED:
        return ()
    for i in list(chosen):
        others = [j for j in chosen if j != i]
        if others and _explained(frames, params[:, others], dt) > best - WORTH:
            chosen = others
    return tuple(names[i] for i in chosen)


def _explained(frames: Array, params: Array, dt: Array) -> float:
    """The part of what changes from one frame to the next, `(B, 2, *S, C)`, that a move by these parameters is."""
    z, numbers, times = (torch.as_tensor(x, dtype=torch.float32) for x in (frames, params, dt))
    periodic = (True,) * (z.ndim - 3)
    with torch.no_grad():
        way = Advection.fitted(numbers, times.unsqueeze(1), z, periodic).way(numbers, times)
        left = z[:, 1] - moved(z[:, 0], way, Grid(tuple(z.shape[2:-1]), periodic))
    change = (z[:, 1] - z[:, 0]).square().sum()
    return 1.0 - float(left.square().sum() / change) if change > 0 else 0.0
