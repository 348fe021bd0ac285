"""Views of a source: cut in time, with mirror images added, or as a task that the user defines."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np

from ups.data.source import Source, View
from ups.data.splits import PARTS
from ups.types import Array, Grid, Params, TaskSpec

FEW_FRAMES = 8  # of a trajectory that is looked at, where there are more trajectories than can be


class _Spans(View):
    """Some frames, evenly apart, of each of some trajectories: a row of the source and a range of its frames."""

    def __init__(self, source: Source, spans: Sequence[tuple[int, range]], ids: Sequence[str]) -> None:
        self._spans = spans
        row, span = spans[0]
        times = source.times_of(row)[span.start : span.stop : span.step]
        super().__init__(source, ids=tuple(ids), times=times, grid=source.grid_of(row))

    def _span(self, index: int) -> tuple[int, range]:
        return self._spans[self._position(index)]

    def times_of(self, index: int) -> Array:
        row, span = self._span(index)
        return self.source.times_of(row)[span.start : span.stop : span.step]

    def params_of(self, index: int) -> Params:
        return self.source.params_of(self._span(index)[0])

    def grid_of(self, index: int) -> Grid:
        return self.source.grid_of(self._span(index)[0])

    def _values(self, index: int, frames: slice) -> Array:
        row, span = self._span(index)
        wanted = span[frames]
        return self.source.read(row, slice(wanted.start, wanted.stop, wanted.step))

    def _inputs(self, index: int) -> Array:
        return self.source.inputs(self._span(index)[0])


class Spread(_Spans):
    """Some of the trajectories, from the first to the last, and of each some frames up to its last: about `size` bytes
    in float32, three frames at least. All of a source that has no more."""

    def __init__(self, source: Source, size: int) -> None:
        frames = max(3, size // (4 * len(source.task.channels) * math.prod(source.grid.shape)))
        count = min(len(source), max(1, frames // FEW_FRAMES))
        rows = [len(source) * k // count for k in range(count)]
        lengths = [len(source.times_of(row)) for row in rows]
        steps = [-(-length * count // frames) for length in lengths]
        spans = [range((n - 1) % step, n, step) for n, step in zip(lengths, steps, strict=True)]
        super().__init__(source, list(zip(rows, spans, strict=True)), [source.ids[row] for row in rows])


class CutInTime(_Spans):
    """Every trajectory as three, one after the other in time: `<id>@train`, `<id>@valid`, `<id>@test`.

    No frame is in two of them. valid and test get `floor(frames · fraction)` frames, train the rest. `parts` says which
    part each id is of. valid and test are cut again into `pieces` of one length, `<id>@test-1`, `<id>@test-2` …; the
    last frames, fewer than pieces, are in none.
    """

    def __init__(self, source: Source, fractions: tuple[float, float, float], pieces: int = 1) -> None:
        spans: list[tuple[int, range]] = []
        self.parts: dict[str, str] = {}
        for row, name in enumerate(source.ids):
            frames = len(source.times_of(row))
            valid, test = (math.floor(frames * fraction + 1e-9) for fraction in fractions[1:])
            ends = (0, frames - valid - test, frames - test, frames)
            for part, first, last in zip(PARTS, ends, ends[1:], strict=False):
                count = 1 if part == "train" else pieces
                length = (last - first) // count
                for at in range(count if length else 0):
                    spans.append((row, range(first + at * length, first + (at + 1) * length)))
                    self.parts[f"{name}@{part}" + (f"-{at + 1}" if count > 1 else "")] = part
        super().__init__(source, spans, tuple(self.parts))


MIRRORED = "@mirrored-"  # in the id of an image, between that of its sample and the axes


class Mirrored(View):
    """A source and, after its samples, the mirror images of some of them: `<id>@mirrored-x`, `<id>@mirrored-x-y`, …

    `rows` are those with images; `odd` says of each axis which channels change their sign in a mirror across it. What
    is given are scalars. `images` names the sample of each image.
    """

    def __init__(self, source: Source, rows: Sequence[int], odd: Sequence[Sequence[int]]) -> None:
        axes = range(len(odd))
        self._mirrors = [chosen for n in axes for chosen in itertools.combinations(axes, n + 1)]
        self._rows, self._odd, self._count = tuple(rows), tuple(map(list, odd)), len(source)
        breaks = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1]
        self._runs = (0, *breaks, len(rows))  # between two of them, rows follow each other
        names = ["-".join(source.task.axes[axis] for axis in chosen) for chosen in self._mirrors]
        self.images = {f"{source.ids[row]}{MIRRORED}{name}": source.ids[row] for name in names for row in rows}
        super().__init__(source, ids=(*source.ids, *self.images))

    def _place(self, index: int) -> tuple[int, tuple[int, ...]]:
        """The row of a sample in the source, and the axes across which it is mirrored."""
        at = self._position(index)
        if at < self._count:
            return at, ()
        which, among = divmod(at - self._count, len(self._rows))
        return self._rows[among], self._mirrors[which]

    def _moved(self, values: Array, axes: tuple[int, ...], vectors: bool = True) -> Array:
        """`(…, *S, C)` mirrored across some axes; without `vectors` all channels are scalars."""
        if not axes:
            return values
        values = np.flip(values, tuple(axis - self.task.ndim - 1 for axis in axes)).copy()
        for axis in axes if vectors else ():
            values[..., self._odd[axis]] *= -1
        return values

    def times_of(self, index: int) -> Array:
        return self.source.times_of(self._place(index)[0])

    def params_of(self, index: int) -> Params:
        return self.source.params_of(self._place(index)[0])

    def grid_of(self, index: int) -> Grid:
        return self.source.grid_of(self._place(index)[0])

    def beside(self, index: int) -> range:
        row, axes = self._place(index)
        there, shift = self.source.beside(row), self._position(index) - row
        if axes:
            among = (self._position(index) - self._count) % len(self._rows)
            run = bisect.bisect_right(self._runs, among)
            first, last = (self._rows[self._runs[run - 1]], self._rows[self._runs[run] - 1])
            there = range(max(there.start, first), min(there.stop, last + 1))
        return range(there.start + shift, there.stop + shift)

    def _values(self, index: int, frames: slice) -> Array:
        row, axes = self._place(index)
        return self._moved(self.source.read(row, frames), axes)

    def _values_of(self, samples: range, frames: slice) -> Array:
        row, axes = self._place(samples[0])
        return self._moved(self.source.read_several(range(row, row + len(samples)), frames), axes)

    def _inputs(self, index: int) -> Array:
        row, axes = self._place(index)
        return self._moved(self.source.inputs(row), axes, vectors=False)

    def _inputs_of(self, samples: range) -> Array:
        row, axes = self._place(samples[0])
        return self._moved(self.source.inputs_of(range(row, row + len(samples))), axes, vectors=False)


class Defined(View):
    """A source of the task that the user defines: its name, laws, box and boundary, and parameters for all samples."""

    def __init__(
        self, source: Source, task: TaskSpec, params: Params, bounded: Collection[str] = (), walls: bool = False
    ) -> None:
        """Take the ends of the axes `bounded` of every sample from the task, and with `walls` which axes wrap."""
        self._bounded, self._walls = frozenset(bounded), walls
        self._assumed = dict(params)
        self._task = task
        super().__init__(source, task=task, params={**source.params, **params}, grid=self.seen_as(source.grid))

    def seen_as(self, grid: Grid) -> Grid:
        if not self._bounded and not self._walls:
            return grid
        task, ends = self._task, zip(self._task.axes, self._task.bounds, grid.bounds, strict=False)
        bounds = tuple(stated if axis in self._bounded else stored for axis, stated, stored in ends)
        return grid.within(task.periodic if self._walls else grid.periodic, bounds)

    def params_of(self, index: int) -> Params:
        return {**self.source.params_of(index), **self._assumed}
