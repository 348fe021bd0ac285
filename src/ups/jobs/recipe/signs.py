"""What a few frames of a few samples say of data: their pace, what one frame hides, uniform states, ends that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ups.data import Source
from ups.data.digits import FLOAT32_MAX
from ups.run.data.sphere import Sphere
from ups.tensors import numeric_params
from ups.types import Array

LOOKED_AT, TIMES = 16, 4  # samples of a file, about, and frames or places in each
TINY = 1e-30
# Of how far apart frames may be kept:
PACED, PLACES, FEWEST_PLACES = 4, 32, 4  # samples, about, places in all of them together, and in each at least
ROOM = 2**29  # bytes that are read of a sample, about, if that leaves places enough
SLOW, FAST = 0.25, 0.5  # parts of what a cell deviates by in time: a step should change it by one, and not by the other
ANY_PACE = 10**9  # frames, where any are as near to each other
GOLDEN = 0.6180339887498949
# Of whether one frame says all of the next:
ROWS = 128  # cells of a triple that are looked at, at most
FEATURES = 512  # random functions of what lies around a cell
FEWEST_TRIPLES = 8  # triples of which anything can be said
HIDDEN = 0.5  # of what changes, which one frame leaves unexplained at least where something is hidden
TOLD = 0.25  # of that, which the frame before it leaves at most
RIDGES = (1e-6, 1e-4, 1e-2, 1.0)
# Of whether states are or become uniform:
UNIFORM = 0.01  # part of the deviation of all values that a uniform state has at most
STILL = 1e-3  # of the deviation of all values, below which a state counts as uniform
BEYOND = 3.0  # times what a state is uneven by, above which a change is not one of its shape: a wave's is 2 at most
# Of whether the ends of an axis fit together:
SEVERAL = 5  # samples of which more frames say more: those of one alone may all be alike
SMOOTH = 0.3  # of a frame's deviation, which neighbours differ by at most where cells resolve it
LEAST, STEP, BEND = 0.5, 1.5, 2.0  # times what is usual inside: any seam at least, its step and its bend at most
SAME, NO_STEP = 1e-3, 1e-6  # of the steps beside them: what equal ends differ by; of all deviation: no step
FEWEST_FRAMES = 12  # frames of which anything can be said


def sampled(source: Source, about: int) -> range:
    """About so many samples, evenly from the first on; all where there are fewer."""
    return range(0, len(source), max(1, len(source) // about))


def known_numbers(source: Source, i: int) -> tuple[float, ...] | None:
    """The parameters of a sample that are numbers in its task; None where it does not say them all, or where one is
    not a number that float32 can hold."""
    params = source.params_of(i)
    values = [params.get(name) for name in numeric_params(source.task)]
    numbers = [float(value) for value in values if isinstance(value, int | float) and abs(value) <= FLOAT32_MAX]
    return tuple(numbers) if len(numbers) == len(values) else None


def pace(source: Source, most: int, thin: int) -> tuple[int, int]:
    """Every so many frames, up to `most`, of a source at every so many cells can be kept without a loss, for a step
    still changes little, and at most, for one of more could hardly be foreseen; ANY_PACE where `most` are as near."""
    steps = sorted({1, most, *(2**k for k in range(1, most.bit_length()))})
    chosen = sampled(source, PACED) if most > 1 else ()
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
    cells = (slice(None, None, thin),) * len(source.grid.shape)
    frames = len(source.times_of(index))
    steps = [step for step in steps if step < frames]
    frame = 4 * len(source.task.channels) * int(np.prod(source.grid_of(index).shape))
    places = PLACES // min(PACED, len(source))
    places = max(FEWEST_PLACES, min(places, ROOM // (frame * (1 + len(steps)))))

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
            result.append(Triple(frames, inputs, numbers, source.grid_of(i).periodic))
    return result


def hides(seen: Sequence[Triple]) -> bool:
    """Whether one frame leaves at least half of what changes next unexplained, and two frames at most a quarter of
    that, in all channels together or in one of them: a displacement without its velocity, a field without the one that
    drives it."""
    alike = [t for t in seen if (t.frames.shape, t.periodic) == (seen[0].frames.shape, seen[0].periodic)]
    if len(alike) < FEWEST_TRIPLES:
        return False
    frames = np.stack([triple.frames for triple in alike])
    axes = tuple(range(frames.ndim - 1))
    if np.isnan(frames).all(axes).any():
        return False
    frames = (frames - np.nanmean(frames, axes)) / np.maximum(np.nanstd(frames, axes), TINY)
    left = _unexplained(alike, frames, before=False)
    if not (left > HIDDEN).any():
        return False
    return bool(((left > HIDDEN) & (_unexplained(alike, frames, before=True) < TOLD * left)).any())


def _unexplained(seen: Sequence[Triple], frames: Array, before: bool) -> Array:
    """How much of the changes to the last frames of triples cannot be told from their middle frames.

    Ridge regression on random functions of what lies around a cell in the middle frame, and with `before` in the change
    to that frame too. Cells that do not count are 0, and not asked for.

    Args:
        seen: Triples; the first half is fitted to, the second half judged.
        frames: Those of all, `(N, 3, *S, C)`, in deviations from their mean.
        before: Whether the change to the middle frame is looked at.

    Returns:
        The part of the changes that is missed, for all channels together and then for each, `(1 + C,)`.
    """
    draw = np.random.default_rng(0)
    nothing = np.zeros(1 + frames.shape[-1])
    inputs, changes, fit = [], [], []
    for i, (triple, (first, middle, last)) in enumerate(zip(seen, frames, strict=True)):
        known = [middle, *([middle - first] if before else []), triple.inputs]
        change = (last - middle).reshape(-1, last.shape[-1])
        counted = np.flatnonzero(np.isfinite(change).all(-1))
        rows = draw.permutation(counted)[:ROWS]
        near = np.nan_to_num(_around(np.concatenate(known, -1), triple.periodic, rows))
        inputs.append(np.hstack((near, np.tile(triple.numbers, (len(rows), 1)))))
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


def _around(values: Array, periodic: Sequence[bool], cells: Array) -> Array:
    """The values of some cells of `(*S, C)`, and those 1, 2, 4 … cells away along each axis, `(cells, features)`."""
    places = np.unravel_index(cells, values.shape[:-1])
    neighbours = [values[places]]
    for axis, wraps in enumerate(periodic):
        count = values.shape[axis]
        away = 1
        while away == 1 or 8 * away <= count:
            for shift in (away, -away):
                moved = places[axis] + shift
                moved = moved % count if wraps else moved.clip(0, count - 1)
                neighbours.append(values[(*places[:axis], moved, *places[axis + 1 :])])
            away *= 2
    return np.concatenate(neighbours, -1)


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
    ends = enumerate(zip(source.task.axes, source.grid.periodic, source.grid.shape, strict=False))
    chosen = [(axis, name) for axis, (name, wraps, n) in ends if wraps is wrap and n >= 8 and len(frames)]
    return tuple(name for axis, name in chosen if holds(frames, axis))


def _frames(source: Source) -> Array:
    """Some frames `(F, *S, C)` of some samples; none of a task whose equation says what wraps, or where too few are
    finite, or on points."""
    if source.task.equation or source.task.steady or source.task.domain != "grid":
        return np.zeros(0)
    candidates, count = [], len(source)
    times = max(TIMES, LOOKED_AT * TIMES // count) if count >= SEVERAL else TIMES
    for i in sampled(source, LOOKED_AT):
        last = len(source.times_of(i)) - 1
        places = sorted({last * k // (times - 1) for k in range(times)})
        if source.grid_of(i).shape == source.grid.shape:
            candidates += [source.read(i, slice(k, k + 1))[0].astype(np.float64) for k in places]
    frames = [frame for frame in candidates if np.isfinite(frame).all()]
    return np.stack(frames) if len(frames) >= FEWEST_FRAMES else np.zeros(0)


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
    if (smooth.sum(0) < FEWEST_FRAMES).any():
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
    return bool(min(steps) > NO_STEP * lines.std() and apart < SAME * min(steps))
