"""Windows: cuts training batches out of trajectories; batch n is a pure function of n."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ups.data.draw_checksum import DrawChecksum
from ups.data.sampler import Mix, Sampler, Validations
from ups.data.trajectories import Trajectories
from ups.lazy_imports import torch
from ups.tensors import Window
from ups.types import Array, ConfigError, DataError, TaskSpec, counted

CELLS = {"cuda": 2**21}  # cells of all trajectories that are validated together, by device: a GPU idles with fewer


class Ranks(Protocol):
    """Who this process is among those that share the data; no loader is made without knowing."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...


class Samples(Protocol):
    """Samples of one task and grid that windows are cut from: trajectories, or what a codec made of them.

    `times` are those of the longest sample, `lengths (N,)` the frames of each.
    """

    @property
    def task(self) -> TaskSpec: ...
    @property
    def times(self) -> Array: ...
    @property
    def lengths(self) -> Array: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def origin(self) -> Path: ...
    def __len__(self) -> int: ...
    def window(self, samples: Sequence[int], first: Sequence[int], context: int, targets: int) -> Window: ...


class Places:
    """Where the windows of some samples begin, numbered from 0: all of the first sample, all of the second, …

    `draws` are the samples to take, some of them perhaps more than once; each once by default. A sample that is too
    short for a window has none.
    """

    def __init__(self, part: Samples, context: int, targets: int, draws: Array | None = None) -> None:
        self.draws = np.arange(len(part)) if draws is None else draws
        most = np.ones_like(part.lengths) if part.task.steady else part.lengths - context - targets + 1
        starts = np.maximum(most, 0)[self.draws]
        self.ends = np.cumsum(starts)
        # One number where all samples have as many windows, which is nearly always: no search is needed then.
        self.each = int(starts[0]) if len(starts) and (starts == starts[0]).all() else None

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def of(self, numbers: Array) -> tuple[list[int], list[int]]:
        """The sample of each window, and the frame it begins with."""
        if self.each is not None:
            at, first = numbers // self.each, numbers % self.each
        else:
            at = np.searchsorted(self.ends, numbers, side="right")
            first = numbers - np.concatenate(([0], self.ends))[at]
        return self.draws[at].tolist(), first.tolist()


class Windows:
    """Batches of several tasks: batch n holds one task, and every window of a task comes once per epoch of it.

    Batch n is a pure function of (seed, n), as `Sampler` says. Each rank of `ranks` gets its share of every batch:
    shares are disjoint, as even as can be, and together the batch that one process would get. `validations` gives the
    errors of all validations so far, as `Sampler` says. A validation window holds `batch` trajectories, or more up to
    `cells` cells, and begins after `given` frames where those are more than the context. `draws` are the samples to
    take of each part of `train`, as `Places` says. `contexts`: frames of context by task, in the place of `context`;
    `batches`: windows in a step by task, of tasks that have others than `batch`.
    """

    def __init__(
        self,
        train: Sequence[Samples],
        valid: Sequence[Samples],
        batch: int,
        context: int,
        targets: int = 1,
        seed: int = 0,
        *,
        ranks: Ranks,
        mix: Mix | None = None,
        validations: Callable[[], Validations] = tuple,
        cells: int = 0,
        draws: Sequence[Array | None] = (),
        given: int = 0,
        contexts: Mapping[str, int] | None = None,
        batches: Mapping[str, int] | None = None,
    ) -> None:
        least = min([batch, *(batches or {}).values()])
        if least < ranks.world:
            raise ConfigError(f"a batch of {least} cannot be shared by {counted(ranks.world, 'rank')}; make it larger.")
        self.rank, self.world = ranks.rank, ranks.world
        self.train, self.valid = tuple(train), tuple(valid)
        self.size, self.context, self.targets, self.seed, self.cells = batch, context, targets, seed, cells
        self.given, self.contexts, self.batches = max(context, given), dict(contexts or {}), dict(batches or {})
        for part in (*self.train, *self.valid):
            if len(part.times) < (needed := self._back(part)) + targets and not part.task.steady:
                raise DataError(
                    f"{part.origin}: has {counted(len(part.times), 'frame')}, too few for {counted(needed, 'frame')} "
                    f"of context and {targets} after them; give longer trajectories, or ask for less context."
                )
        chosen = draws or [None] * len(self.train)
        self.places = [Places(p, self._back(p), targets, d) for p, d in zip(self.train, chosen, strict=True)]
        names, counts = [part.task.name for part in self.train], [len(places) for places in self.places]
        self.sampler = Sampler(names, counts, batch, mix, seed, validations, self.batches)
        self.drawn = DrawChecksum()

    def batch(self, step: int) -> Window:
        which, chosen = self.indices(step)
        self.used(step, which, chosen)
        return self.window(which, chosen)

    def used(self, step: int, which: int, chosen: Array) -> None:
        """Note what a step was really given."""
        self.drawn.add(step, which, self.sampler.place(step, self.rank, self.world), chosen)

    def indices(self, step: int) -> tuple[int, Array]:
        """The task of a step and this rank's windows of it."""
        return self.sampler.indices(step, self.rank, self.world)

    def kind(self, step: int) -> tuple[int, int]:
        """Batches of one kind differ in their numbers alone: they are as many windows of one part."""
        which, chosen = self.indices(step)
        return which, len(chosen)

    def window(self, which: int, chosen: Array) -> Window:
        """The windows numbered `chosen` of a task."""
        part = self.train[which]
        targets = 1 if part.task.steady else self.targets
        return part.window(*self.places[which].of(chosen), self._back(part), targets)

    def keep(self, device: torch.device, room: int, steps: int | None) -> int:
        """Keep what fits into `room` bytes of a GPU there, for so many steps to come, where these draw more frames than
        there are: windows are then made where they are used, of the same numbers. The bytes that are kept."""
        taken, parts = 0, dict[int, Samples]()
        size = sum(self.sampler.sizes) / len(self.train)
        drawn = math.inf if steps is None else steps * size * (self.context + self.targets) / self.world
        if drawn < sum(len(part) * len(part.times) for part in self.train):
            return 0
        for part in (*self.train, *self.valid):
            if isinstance(part, Trajectories) and part.size <= room - taken and id(part) not in parts:
                parts[id(part)], taken = part.on(device), taken + part.size
        self.train, self.valid = (tuple(parts.get(id(p), p) for p in some) for some in (self.train, self.valid))
        return taken

    def count(self, step: int) -> int:
        """Samples of all ranks in batch `step`."""
        return self.sampler.sizes[self.sampler.draw(step).task]

    def frames(self) -> tuple[int, int]:
        """Target frames of all samples in a step, on average over the tasks, and in a validation."""
        pairs = zip(self.sampler.sizes, self.train, strict=True)
        of_step = sum(n * (1 if part.task.steady else self.targets) for n, part in pairs) // len(self.train)
        of_each = (
            len(p) if p.task.steady else int(np.maximum(p.lengths - self._before(p), 0).sum()) for p in self.valid
        )
        return of_step, sum(of_each)

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        """Whole trajectories of each task: the given frames, and every one after them; the same at every step."""
        for part in self.valid:
            yield from whole([part], self._before(part), self.batches.get(part.task.name, self.size), self.cells)

    def _before(self, part: Samples) -> int:
        """True frames shown before the validated ones of a part: `given`, or the context where `given` would leave no
        frame."""
        return self.given if bool((part.lengths > self.given).any()) else self._back(part)

    def _back(self, part: Samples) -> int:
        """Frames of context of a part."""
        return self.contexts.get(part.task.name, self.context)


def at_once(batch: int, frames: int, shape: tuple[int, ...], cells: int) -> int:
    """Whole trajectories in one window: `batch`, or more up to `cells` cells, and never more than fit in memory."""
    size = math.prod(shape)
    return max(1, min(max(batch, cells // size), 2**26 // max(1, frames * size)))


def whole(
    parts: Sequence[Samples],
    context: int,
    batch: int = 32,
    cells: int = 0,
    frames: int | None = None,
    cut: bool = False,
) -> Iterator[Window]:
    """Each trajectory once, from its first frame to its last, in batches of one task and length: of `batch`
    trajectories, or of more as long as their frames have no more than `cells` cells together.

    `frames`: only those of this length, or, where `cut`, the first so many frames of all that have them. A trajectory
    that ends with its context is left out.
    """
    for part in parts:
        own = part.lengths if not cut else np.where(part.lengths >= (frames or 0), frames or 0, 0)
        for length in [frames] if frames is not None else dict.fromkeys(own.tolist()):
            ahead = 1 if part.task.steady else length - context
            same = np.flatnonzero(own == length).tolist()
            size = at_once(batch, length, part.shape, cells)
            for first in range(0, len(same) if ahead > 0 else 0, size):
                samples = same[first : first + size]
                yield part.window(samples, [0] * len(samples), context, ahead)


def spread(parts: Sequence[Trajectories], context: int, targets: int, count: int = 64) -> list[Window]:
    """About `count` samples from all over the trajectories of a task and their times, always the same ones: of each
    part as its share is, one window for all that can be joined; none where all are too short."""
    task = parts[0].task
    targets = 1 if task.steady else targets
    some = [parts[i] for i in _even(len(parts), count)]
    places = [(part, own) for part in some if len(own := Places(part, context, targets))]
    total = sum(len(own) for _, own in places)
    alike: dict[tuple[Any, ...], list[Window]] = {}
    for part, own in places:
        most = 2**25 // ((context + targets) * int(np.prod(part.shape)) * len(task.channels))
        wanted = max(1, min(round(count * len(own) / total), most))
        window = part.window(*own.of(_even(len(own), wanted)), context, targets)
        alike.setdefault(window.kind, []).append(window)
    return [Window.join(windows) for windows in alike.values()]


def _even(size: int, count: int) -> Array:
    """At most `count` of `size` places, from the first to the last."""
    return np.linspace(0, size - 1, min(count, size)).astype(int)
