"""Axes that nobody has called periodic, and whose ends fit together as if they were: looked for in a few frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ups.data import Source
from ups.types import Array

LOOKED_AT, TIMES = 16, 4  # samples, about, and frames of each
SMOOTH = 0.3  # of a frame's deviation, which neighbours differ by at most where cells resolve it
LEAST, STEP, BEND = 0.5, 1.5, 2.0  # times what is usual inside: any seam at least, its step and its bend at most
FEWEST = 12  # frames of which anything can be said


def seamless(source: Source) -> tuple[str, ...]:
    """The axes that do not wrap by what is said of them, and across whose ends all channels go on as they do inside, in
    value and in slope. A field that is held at walls has a kink there, one that is flat there a step."""
    if source.task.equation or source.task.steady:
        return ()
    shape, periodic = source.domain.shape, source.domain.periodic
    found = []
    for i in range(0, len(source), max(1, len(source) // LOOKED_AT)):
        last = len(source.times_of(i)) - 1
        places = sorted({last * k // (TIMES - 1) for k in range(TIMES)})
        if source.domain_of(i).shape == shape:
            found += [source.read(i, slice(k, k + 1))[0].astype(np.float64) for k in places]
    frames = [frame for frame in found if np.isfinite(frame).all()]
    if len(frames) < FEWEST:
        return ()
    axes = enumerate(zip(source.task.axes, periodic, shape, strict=False))
    return tuple(name for axis, (name, wraps, n) in axes if not wraps and n >= 8 and _fits(np.stack(frames), axis))


def wrapping(axes: Sequence[str]) -> list[str]:
    """What there is to say of such axes."""
    names = ", ".join(axes)
    words = f"the ends of {names} fit together; if the box wraps there, write `periodic: [{names}]` into the task"
    return [words] if axes else []


def _fits(frames: Array, axis: int) -> bool:
    """Whether first and second differences of `(F, *S, C)` across the ends of an axis are as large as those inside."""
    lines = np.moveaxis(frames, 1 + axis, 0)
    lines = lines.reshape(*lines.shape[:2], -1, lines.shape[-1])  # (n, F, others, C)
    step = lines - np.roll(lines, 1, 0)
    bend = step - np.roll(step, 1, 0)
    usual = np.mean(step[1:] ** 2, (0, 2))
    smooth = (usual > 0) & (usual < SMOOTH**2 * lines.var((0, 2)))  # (F, C)
    if (smooth.sum(0) < FEWEST).any():
        return False
    for differences, across, most in ((step, 1, STEP), (bend, 2, BEND)):
        squares = np.mean(differences**2, 2)  # (n, F, C)
        inside = np.where(smooth, np.mean(squares[across:], 0), np.inf)
        ratio = np.sum(np.mean(squares[:across], 0) / np.maximum(inside, 1e-300), 0) / smooth.sum(0)
        if (ratio < LEAST**2).any() or (ratio > most**2).any():
            return False
    return True
