"""Windows over trajectories: which frames of which samples make batch number n, as a pure function of n."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from ups.data.draw_checksum import DrawChecksum
from ups.data.sampler import Mix, Sampler, Validations
from ups.data.source import Source
from ups.later import Tensor, torch
from ups.tensors import Window, numbers_of
from ups.types import Array, ConfigError, DataError, TaskSpec

CELLS = {"cuda": 2**21}  # of all trajectories that are rolled out together in a validation: a GPU is idle with few
# Trajectories that fit in so many bytes are read once and stay in memory; larger sets are read window by window.
RESIDENT = 4 * 2**30
# Threads that read trajectories at once; more do not help, for the memory is the limit.
THREADS = 8

T = TypeVar("T")


@dataclass(frozen=True)
class Reduction:
    """Every `time`-th frame from `start` on and every `space`-th cell of each axis, as PDEBench reduces its files."""

    time: int = 1
    """Every so many frames."""
    space: int = 1
    """Every so many cells of each axis."""
    start: int = 0
    """The first frame that is used."""

    def __post_init__(self) -> None:
        if self.time < 1 or self.space < 1 or self.start < 0:
            raise DataError(f"a reduction takes every n-th frame and cell, n ≥ 1, from start ≥ 0 on, not {self}.")


def numbers_in(source: Source, row: int) -> list[float]:
    """The numeric parameters of a sample, in the order of its task; a DataError where the source does not say one."""
    known, names = source.params_of(row), numbers_of(source.task)
    missing = [name for name in names if name not in known]
    if missing:
        raise DataError(
            f"{source.path}: says nowhere what its {missing[0]} is, which {source.task.name} needs; check the task, or "
            "say it in the file's name or attributes."
        )
    return [float(known[name]) for name in names]


class Trajectories:
    """Some samples of a source at reduced resolution: in memory if they fit, else read from the file each time."""

    def __init__(self, source: Source, ids: Sequence[str], reduction: Reduction, resident: int | None = None) -> None:
        """`resident` is the most bytes that are kept in memory, RESIDENT by default."""
        place = {name: i for i, name in enumerate(source.ids)}
        missing = [name for name in ids if name not in place]
        if missing or not ids:
            raise DataError(f"{source.path}: has no sample '{missing[0] if missing else ''}'; make the split again.")
        self.source, self.ids, self.reduction = source, tuple(ids), reduction
        self.rows = [place[name] for name in ids]
        self.slice = slice(reduction.start, None, reduction.time)
        self.times = np.asarray(source.times, np.float64)[self.slice]
        for axis, n in enumerate(source.domain.shape):
            if n % reduction.space:
                raise DataError(f"{source.path}: axis {axis} has {n} cells, which {reduction.space} does not divide.")
        self.shape = tuple(n // reduction.space for n in source.domain.shape)
        size = 4 * len(ids) * len(self.times) * int(np.prod(self.shape)) * len(self.task.channels)
        self._resident = self._read_all() if size <= (RESIDENT if resident is None else resident) else None
        known = [numbers_in(source, row) for row in self.rows]
        self.params = torch.tensor(known, dtype=torch.float32).reshape(len(ids), len(numbers_of(self.task)))
        self.inputs = torch.stack([torch.from_numpy(self._coarse(source.inputs(row))) for row in self.rows])

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which reads what it needs from the file itself."""
        return {**self.__dict__, "_resident": None}

    @property
    def task(self) -> TaskSpec:
        return self.source.task

    @property
    def origin(self) -> Path:
        """The file they are read from."""
        return self.source.path

    @property
    def dt(self) -> float:
        """Time between two frames; 1 for a steady task, whose one step leads from nothing to its solution."""
        return float(self.times[1] - self.times[0]) if len(self.times) > 1 else 1.0

    def __len__(self) -> int:
        return len(self.ids)

    def _coarse(self, values: Array) -> Array:
        """`(..., *S, C)` at every n-th cell, as float32."""
        step = self.reduction.space
        for axis in range(values.ndim - 1 - len(self.shape), values.ndim - 1):
            # Three times as fast as a slice, for channels are few.
            values = values.take(range(0, values.shape[axis], step), axis) if step > 1 else values
        return np.ascontiguousarray(values, dtype=np.float32)

    def _read_all(self) -> Tensor:
        """Every trajectory, `(N, T, *S, C)`: read by several threads, each sample straight to its place."""
        values = torch.empty(len(self.ids), len(self.times), *self.shape, len(self.task.channels))
        places = values.numpy()

        def read(i: int) -> None:
            places[i] = self._coarse(self.source.read(self.rows[i], self.slice))

        _in_threads(read, len(self.ids))
        return values

    def frames(self, samples: Sequence[int], first: Sequence[int], count: int) -> Tensor:
        """`(B, count, *S, C)`: `count` frames of each sample from its `first` on."""
        if self._resident is not None:
            rows = torch.as_tensor(samples).unsqueeze(1)
            return self._resident[rows, torch.as_tensor(first).unsqueeze(1) + torch.arange(count)]
        start, every = self.reduction.start, self.reduction.time
        picked = [slice(start + f * every, start + (f + count - 1) * every + 1, every) for f in first]
        read = [self._coarse(self.source.read(self.rows[s], p)) for s, p in zip(samples, picked, strict=True)]
        return torch.stack([torch.from_numpy(values) for values in read])

    def window(self, samples: Sequence[int], first: Sequence[int], context: int, targets: int) -> Window:
        """A batch: `context` frames from `first` on, and the `targets` frames after them.

        The context of a steady task is empty frames, and its one target the solution.
        """
        if self.task.steady:
            solution = self.frames(samples, [0] * len(samples), 1)
            values = torch.cat((torch.zeros_like(solution).expand(-1, context, *solution.shape[2:]), solution), 1)
            values = values[:, : context + targets]
        else:
            values = self.frames(samples, first, context + targets)
        rows = torch.as_tensor(samples)
        return Window(
            task=self.task,
            context=values[:, :context],
            targets=values[:, context:],
            inputs=self.inputs[rows],
            params=self.params[rows],
            dt=torch.full((len(rows),), self.dt),
            periodic=self.source.domain.periodic,
            box=self.source.domain.lengths,
            ids=tuple(self.ids[s] for s in samples),
        )

    def sound(self) -> Trajectories:
        """These trajectories, all of them finite; of those too large for memory `statistics` says so."""
        if self._resident is not None and not bool(self._resident.sum().isfinite()):
            self._check_finite(self._resident.isfinite().flatten(1).all(1).tolist())
        return self

    def _check_finite(self, finite: Sequence[bool]) -> None:
        bad = [name for name, good in zip(self.ids, finite, strict=True) if not good]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise DataError(
                f"{self.origin}: sample {bad[0]}{more} has values that are not finite; mend the file or make it again "
                "(`ups data validate` says where)."
            )

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation `(C,)` over everything: those of each trajectory, added in their order."""
        channels = len(self.task.channels)

        def moments(i: int) -> tuple[Tensor, Tensor]:
            frames = self.frames([i], [0], len(self.times)) if self._resident is None else self._resident[i]
            values = frames.numpy().astype(np.float64).reshape(-1, channels)
            mean = torch.from_numpy(values).mean(0)
            return mean, torch.from_numpy(np.square(values, out=values)).mean(0)

        # torch adds up a channel on one core, and a lone channel on all it has: its last bits depend on their number.
        cores = torch.get_num_threads() if channels == 1 else min(channels, torch.get_num_threads())
        total = square = torch.zeros(channels, dtype=torch.float64)
        finite = []
        for mean, mean_square in _in_threads(moments, len(self), cores):
            finite.append(bool(mean.isfinite().all()))
            total, square = total + mean, square + mean_square
        self._check_finite(finite)
        mean = total / len(self)
        return mean.float(), (square / len(self) - mean**2).clamp_min(0).sqrt().float()


def _in_threads(work: Callable[[int], T], count: int, cores_each: int = 1) -> list[T]:
    """`work(0)`, `work(1)`, … `work(count − 1)`, by as many threads as there are cores for this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(THREADS, cores // cores_each, count)), "trajectories") as pool:
        return list(pool.map(work, range(count)))


class Ranks(Protocol):
    """Who this process is among those that share the data; no loader is made without knowing."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...


class Samples(Protocol):
    """Samples of one task that windows are cut from: trajectories, or what a codec made of them."""

    @property
    def task(self) -> TaskSpec: ...
    @property
    def times(self) -> Array: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def origin(self) -> Path: ...
    def __len__(self) -> int: ...
    def window(self, samples: Sequence[int], first: Sequence[int], context: int, targets: int) -> Window: ...


class Windows:
    """Batches of several tasks: batch n holds one task, and every window of a task comes once per epoch of it.

    Batch n is a pure function of (seed, n), as `Sampler` says. Each rank of `ranks` gets its share of every batch:
    shares are disjoint, as even as can be, and together the batch that one process would get. `validations` gives the
    errors of all validations so far, as `Sampler` says. A validation window holds `batch` trajectories, or more up to
    `cells` cells.
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
    ) -> None:
        if batch < ranks.world:
            raise ConfigError(f"a batch of {batch} cannot be shared by {ranks.world} ranks; make it larger.")
        self.rank, self.world = ranks.rank, ranks.world
        self.train, self.valid = tuple(train), tuple(valid)
        self.size, self.context, self.targets, self.seed, self.cells = batch, context, targets, seed, cells
        for part in (*self.train, *self.valid):
            if len(part.times) < context + targets and not part.task.steady:
                raise DataError(
                    f"{part.origin}: has {len(part.times)} frames, too few for {context} frames of context and "
                    f"{targets} after them; reduce time less or ask for less context."
                )
        names, counts = [part.task.name for part in self.train], [len(part) * self._starts(part) for part in self.train]
        self.sampler = Sampler(names, counts, batch, mix, seed, validations)
        self.drawn = DrawChecksum()

    def _starts(self, part: Samples) -> int:
        """Windows per sample."""
        return 1 if part.task.steady else len(part.times) - self.context - self.targets + 1

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

    def window(self, which: int, chosen: Array) -> Window:
        """The windows numbered `chosen` of a task."""
        part = self.train[which]
        starts, targets = self._starts(part), 1 if part.task.steady else self.targets
        return part.window((chosen // starts).tolist(), (chosen % starts).tolist(), self.context, targets)

    def count(self, step: int) -> int:  # noqa: ARG002
        """Samples of all ranks in batch `step`."""
        return self.size

    def frames(self) -> tuple[int, int]:
        """Target frames of all samples in a step, on average over the tasks, and in a validation."""
        of_step = self.size * sum(1 if part.task.steady else self.targets for part in self.train) // len(self.train)
        return of_step, sum(len(p) * (1 if p.task.steady else len(p.times) - self.context) for p in self.valid)

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        """Whole trajectories of each task: the context, and every frame after it; the same at every step."""
        yield from whole(self.valid, self.context, self.size, self.cells)


def at_once(batch: int, frames: int, shape: tuple[int, ...], cells: int) -> int:
    """Whole trajectories in one window: `batch`, or more up to `cells` cells, and never more than fit in memory."""
    size = math.prod(shape)
    return max(1, min(max(batch, cells // size), 2**26 // max(1, frames * size)))


def whole(parts: Sequence[Samples], context: int, batch: int = 32, cells: int = 0) -> Iterator[Window]:
    """Each trajectory once, from its first frame to its last, in batches of one task: of `batch` trajectories, or of
    more as long as their frames have no more than `cells` cells together."""
    for part in parts:
        size = at_once(batch, len(part.times), part.shape, cells)
        for first in range(0, len(part), size):
            samples = list(range(first, min(first + size, len(part))))
            ahead = 1 if part.task.steady else len(part.times) - context
            yield part.window(samples, [0] * len(samples), context, ahead)


def spread(part: Trajectories, context: int, targets: int, count: int = 64) -> Window:
    """Windows from all over the trajectories and their times, always the same ones."""
    steady = part.task.steady
    targets = 1 if steady else targets
    starts = 1 if steady else max(1, len(part.times) - context - targets + 1)
    size = (context + targets) * int(np.prod(part.shape)) * len(part.task.channels)
    count = max(1, min(count, 2**25 // size, len(part) * starts))
    places = np.linspace(0, len(part) * starts - 1, count).astype(int)
    return part.window((places // starts).tolist(), (places % starts).tolist(), context, targets)
