"""Finds in a few frames axes that seem to wrap though nobody says so, or whose two ends are one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ups.data import Source
from ups.jobs.recipe.samples import sampled
from ups.run.data.sphere import Sphere
from ups.types import Array

LOOKED_AT, TIMES = 16, 4  # samples, about, and frames of each; of fewer samples more frames, as many in all
SEVERAL = 5  # samples of which more frames say more: those of one alone may all be alike
SMOOTH = 0.3  # of a frame's deviation, which neighbours differ by at most where cells resolve it
LEAST, STEP, BEND = 0.5, 1.5, 2.0  # times what is usual inside: any seam at least, its step and its bend at most
SAME, STILL = 1e-3, 1e-6  # of the steps beside them: what equal ends differ by; of all deviation: no step
FEWEST = 12  # frames of which anything can be said


def seamless(source: Source) -> tuple[str, ...]:
    """The axes that do not wrap by what is said of them, and across whose ends all channels go on as they do inside, in
    value and in slope. A field that is held at walls has a kink there, one that is flat there a step."""
    known = Sphere(source).unsaid
    return tuple(name for name in _axes(source, _frames(source), False, _fits) if name not in known)


def seams(source: Source) -> list[str]:
    """What there is to say of the ends of axes: those that seem to wrap, and those that do and have their end twice."""
    frames = _frames(source)
    twice = (
        "the last cell of {0} equals the first in all frames looked at; {0} wraps, so leave out the one or the other"
    )
    closed = [twice.format(name) for name in _axes(source, frames, True, _twice)]
    sphere = Sphere(source)
    fitting = [name for name in _axes(source, frames, False, _fits) if name not in sphere.unsaid]
    return [*sphere.words(), *wrapping(fitting), *closed]


def _axes(source: Source, frames: Array, wrap: bool, holds: Callable[[Array, int], bool]) -> tuple[str, ...]:
    """The axes that wrap, or do not, of which something `holds` in frames."""
    ends = enumerate(zip(source.task.axes, source.domain.periodic, source.domain.shape, strict=False))
    chosen = [(axis, name) for axis, (name, wraps, n) in ends if wraps is wrap and n >= 8 and len(frames)]
    return tuple(name for axis, name in chosen if holds(frames, axis))


def _frames(source: Source) -> Array:
    """Some frames `(F, *S, C)` of some samples; none of a task whose equation says what wraps, or where too few are
    finite."""
    if source.task.equation or source.task.steady:
        return np.zeros(0)
    candidates, count = [], len(source)
    times = max(TIMES, LOOKED_AT * TIMES // count) if count >= SEVERAL else TIMES
    for i in sampled(source, LOOKED_AT):
        last = len(source.times_of(i)) - 1
        places = sorted({last * k // (times - 1) for k in range(times)})
        if source.domain_of(i).shape == source.domain.shape:
            candidates += [source.read(i, slice(k, k + 1))[0].astype(np.float64) for k in places]
    frames = [frame for frame in candidates if np.isfinite(frame).all()]
    return np.stack(frames) if len(frames) >= FEWEST else np.zeros(0)


def wrapping(axes: Sequence[str]) -> list[str]:
    """What there is to say of such axes."""
    names = ", ".join(axes)
    words = f"the ends of {names} fit together; if the box wraps there, write `periodic: [{names}]` into the task"
    return [words] if axes else []


@np.errstate(over="ignore", invalid="ignore")
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


@np.errstate(over="ignore", invalid="ignore")  # numbers beyond all measure are named elsewhere
def _twice(frames: Array, axis: int) -> bool:
    """Whether the ends of an axis are equal, and its neighbours there are not, nor the cells next to the ends, as in
    states that are their own mirror image."""
    lines = np.moveaxis(frames, 1 + axis, 0)
    apart = np.sqrt(np.mean((lines[0] - lines[-1]) ** 2))
    steps = [np.sqrt(np.mean((lines[i] - lines[j]) ** 2)) for i, j in ((0, 1), (-2, -1), (1, -2))]
    return bool(min(steps) > STILL * lines.std() and apart < SAME * min(steps))
