"""Trajectories: some samples of a source on one grid, of any lengths and times, in memory or read window by window."""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ups.data.source import Source, is_uniform
from ups.later import Tensor, torch
from ups.masks import fill
from ups.tensors import Window, mask_of, numbers_of
from ups.types import Array, DataError, Domain, TaskSpec

# Trajectories that fit in so many bytes are read once and stay in memory; larger sets are read window by window.
RESIDENT = 4 * 2**30
# Bytes that are read before they are copied to a GPU.
CHUNK = 2**28
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

    @property
    def frames(self) -> slice:
        return slice(self.start, None, self.time)

    def cells(self, domain: Domain, where: str) -> tuple[int, ...]:
        """The grid that is left of a domain; DataError, beginning with `where`, if the cells cannot be divided so."""
        for axis, n in enumerate(domain.shape):
            if n % self.space:
                raise DataError(f"{where}: axis {axis} has {n} cells, which {self.space} does not divide.")
        return tuple(n // self.space for n in domain.shape)

    def domain(self, domain: Domain) -> Domain:
        """The cells that are left of a domain, each as wide as those it stands for."""
        if self.space == 1:
            return domain
        kept = tuple(axis[:: self.space] for axis in domain.coordinates)
        shift = [(self.space - 1) / 2 * width for width in domain.spacing]
        bounds = tuple((lo - by, hi - by) for (lo, hi), by in zip(domain.bounds, shift, strict=True))
        return Domain(kept, domain.periodic, bounds)


def numbers_in(source: Source, row: int) -> list[float]:
    """The parameters of a sample that a network is told, in the order of its task, a word as its place among the
    choices; a DataError where the source does not say one."""
    known, names = source.params_of(row), numbers_of(source.task)
    missing = [name for name in names if name not in known]
    if missing:
        raise DataError(
            f"{source.path}: says nowhere what its {missing[0]} is, which {source.task.name} needs; check the task, or "
            "say it in the file's name or attributes, or in the config under `task: {parameters: …}`."
        )
    choices = {p.name: p.choices for p in source.task.parameters}
    return [_number(name, known[name], choices[name], source) for name in names]


def _number(name: str, value: float | str, choices: tuple[str, ...], source: Source) -> float:
    if choices and value in choices:
        return float(choices.index(str(value)))
    if isinstance(value, str):
        expected = f"one of {', '.join(choices)}" if choices else "a number"
        raise DataError(f"{source.path}: {name} is '{value}', but must be {expected}.")
    if not math.isfinite(value):
        raise DataError(f"{source.path}: {name} is {value} in a sample, but must be a finite number; mend the file.")
    return float(value)


def is_even(times: Array) -> bool:
    """Whether frames lie equally far apart, to a thousandth of a step, as far as float32 tells."""
    return len(times) < 3 or is_uniform(np.asarray(times, np.float32))


@dataclass(frozen=True)
class Clock:
    """When the frames of each of some samples were taken.

    `lengths (N,)` frames each; `dt (N,)` the time between the first two (1 for a steady task, whose one step leads from
    nothing to its solution); `steps (N, T − 1)` every time between two frames, where they differ within a sample.
    """

    times: Array
    lengths: Array
    dt: Array
    steps: Array | None

    @classmethod
    def of(cls, rows: Sequence[Array]) -> Clock:
        """From the times of each sample; `times` are those of the longest."""
        rows = [np.asarray(row, np.float64) for row in rows]
        lengths = np.array([len(row) for row in rows])
        dt = np.array([float(row[1] - row[0]) if len(row) > 1 else 1.0 for row in rows])
        longest = rows[int(lengths.argmax())]
        same = all(row is rows[0] or np.array_equal(row, rows[0]) for row in rows[1:])
        even = is_even(rows[0]) if same else all(is_even(row) for row in rows)
        steps = None
        if not even:
            steps = np.tile(dt[:, None], (1, len(longest) - 1))
            for i, row in enumerate(rows):
                steps[i, : len(row) - 1] = np.diff(row)
        return cls(longest, lengths, dt, steps)

    def step(self, samples: Sequence[int], first: Sequence[int], context: int, targets: int) -> Tensor:
        """`Window.dt` of a batch."""
        if self.steps is None or not targets:
            return torch.from_numpy(self.dt[list(samples)]).float()
        at = np.asarray(first)[:, None] + context - 1 + np.arange(targets)
        return torch.from_numpy(self.steps[np.asarray(samples)[:, None], at]).float()

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest time between two frames."""
        steps = self.dt if self.steps is None else self.steps
        return float(steps.min()), float(steps.max())


class Trajectories:
    """Some samples of a source at reduced resolution: in memory if they fit, else read from the file each time.

    All have the same grid, box and boundary; their lengths and times may differ. Nothing is read before it is needed.
    In memory, a sample that is shorter than the longest is continued by copies of its last frame, which no window
    reaches. Cells that do not count (see `TaskSpec.mask`) hold the value of the nearest that does.
    """

    def __init__(self, source: Source, ids: Sequence[str], reduction: Reduction, resident: int | None = None) -> None:
        """`resident` is the most bytes that are kept in memory, RESIDENT by default."""
        place = {name: i for i, name in enumerate(source.ids)}
        missing = [name for name in ids if name not in place]
        if missing or not ids:
            raise DataError(f"{source.path}: has no sample '{missing[0] if missing else ''}'; make the split again.")
        self.source, self.ids, self.reduction = source, tuple(ids), reduction
        self.rows = [place[name] for name in ids]
        self.domain = source.domain_of(self.rows[0])
        grids = {(d.shape, d.bounds, d.periodic) for d in {id(d): d for d in map(source.domain_of, self.rows)}.values()}
        if len(grids) > 1:
            raise DataError(f"{source.path}: its samples are on {len(grids)} grids; look at those of one grid alone.")
        self.shape = reduction.cells(self.domain, str(source.path))
        times = [source.times_of(row)[reduction.frames] for row in self.rows]
        if not all(map(len, times)):
            raise DataError(f"{source.path}: a sample has no frame {reduction.start} to begin at; lower reduce.start.")
        self.clock = Clock.of(times)
        self.times, self.lengths = self.clock.times, self.clock.lengths
        self.size = 4 * len(ids) * len(self.times) * int(np.prod(self.shape)) * len(self.task.channels)  # in bytes
        self._fits = self.size <= (RESIDENT if resident is None else resident)
        self._frames: Tensor | None = None
        self._reading = threading.Lock()
        known = [numbers_in(source, row) for row in self.rows]
        self.params = torch.tensor(known, dtype=torch.float32).reshape(len(ids), len(numbers_of(self.task)))
        self.inputs = torch.stack([torch.from_numpy(self._coarse(source.inputs(row))) for row in self.rows])
        self.mask = mask_of(self.task, self.inputs)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which reads what it needs from the file itself."""
        return {**self.__dict__, "_frames": None, "_fits": False, "_reading": None}

    @property
    def task(self) -> TaskSpec:
        return self.source.task

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the columns of `params`."""
        return numbers_of(self.task)

    @property
    def origin(self) -> Path:
        """The file they are read from."""
        return self.source.path

    @property
    def dt(self) -> float:
        """Time between the first two frames of the first sample; 1 for a steady task."""
        return float(self.clock.dt[0])

    @property
    def _resident(self) -> Tensor | None:
        """Every trajectory, `(N, T, *S, C)`, where they fit in memory; read at the first use."""
        if self._frames is None and self._fits:
            with self._reading:
                if self._frames is None:
                    self._frames = self._read_rows(range(len(self.ids)))
        return self._frames

    def on(self, device: torch.device) -> Trajectories:
        """These trajectories, kept in the memory of a GPU, whose windows are made there; the same numbers."""
        kept, held = copy.copy(self), self._resident
        kept._frames = torch.empty(len(self.ids), len(self.times), *self.shape, len(self.task.channels), device=device)
        step = max(1, CHUNK * len(self) // self.size)
        for rows in (range(first, min(first + step, len(self))) for first in range(0, len(self), step)):
            here = slice(rows.start, rows.stop)
            kept._frames[here].copy_(self._read_rows(rows) if held is None else held[here])
        kept.inputs, kept.params = self.inputs.to(device), self.params.to(device)
        return kept

    def __len__(self) -> int:
        return len(self.ids)

    def _coarse(self, values: Array) -> Array:
        """`(..., *S, C)` at every n-th cell, as float32."""
        step = self.reduction.space
        for axis in range(values.ndim - 1 - len(self.shape), values.ndim - 1):
            # Three times as fast as a slice, for channels are few.
            values = values.take(range(0, values.shape[axis], step), axis) if step > 1 else values
        return np.ascontiguousarray(values, dtype=np.float32)

    def _read_rows(self, rows: range) -> Tensor:
        """Some trajectories, `(N, T, *S, C)`: read by several threads, each sample straight to its place."""
        values = torch.empty(len(rows), len(self.times), *self.shape, len(self.task.channels))
        places = values.numpy()

        def read(i: int) -> None:
            length = self.lengths[rows[i]]
            places[i, :length] = self._read(rows[i], self.reduction.frames)
            places[i, length:] = places[i, length - 1]

        _in_threads(read, len(rows))
        return values

    def _read(self, sample: int, frames: slice) -> Array:
        """Frames of the file, `(T', *S, C)`, at every n-th cell, as float32."""
        values = self._coarse(self.source.read(self.rows[sample], frames))
        return values if self.mask is None else fill(values, self.mask[sample].numpy())

    def frames(self, samples: Sequence[int], first: Sequence[int], count: int) -> Tensor:
        """`(B, count, *S, C)`: `count` frames of each sample from its `first` on."""
        if (held := self._resident) is not None:
            rows = torch.as_tensor(samples).unsqueeze(1)
            at = torch.as_tensor(first).unsqueeze(1) + torch.arange(count)
            return held[rows.to(held.device), at.to(held.device)]
        start, every = self.reduction.start, self.reduction.time
        picked = [slice(start + f * every, start + (f + count - 1) * every + 1, every) for f in first]
        read = [self._read(s, p) for s, p in zip(samples, picked, strict=True)]
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
        rows = torch.as_tensor(samples, device=self.inputs.device)
        return Window(
            task=self.task,
            context=values[:, :context],
            targets=values[:, context:],
            inputs=self.inputs[rows],
            params=self.params[rows],
            dt=self.clock.step(samples, first, context, targets).to(rows.device),
            periodic=self.domain.periodic,
            box=self.domain.lengths,
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
            frames = self._resident[i, : self.lengths[i]] if self._resident is not None else None
            values = (self._read(i, self.reduction.frames) if frames is None else frames.numpy()).astype(np.float64)
            counts = values if self.mask is None else values[:, self.mask[i].numpy()]
            values = counts.reshape(-1, channels)
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


def alike(source: Source, ids: Sequence[str], reduction: Reduction) -> list[Trajectories]:
    """Samples of a source as trajectories that share a grid, a box and a boundary, most cells first."""
    place = {name: i for i, name in enumerate(source.ids)}
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in ids:
        domain = source.domain_of(place[name])
        groups.setdefault((domain.shape, domain.bounds, domain.periodic), []).append(name)
    parts = [Trajectories(source, names, reduction) for names in groups.values()]
    return sorted(parts, key=lambda part: -int(np.prod(part.shape)))


def balanced(params: Tensor, most: int = 64) -> Array | None:
    """Sample numbers in which every set of parameters `(N, P)` comes equally often, rare ones repeated; None where they
    do already, or where there are more sets than `most`, as when each sample has drawn its own."""
    _, which, counts = np.unique(params.numpy(), axis=0, return_inverse=True, return_counts=True)
    if len(counts) > most or counts.min() == counts.max():
        return None
    of_each = [np.flatnonzero(which.reshape(-1) == value) for value in range(len(counts))]
    return np.concatenate([np.resize(samples, counts.max()) for samples in of_each])


def _in_threads(work: Callable[[int], T], count: int, cores_each: int = 1) -> list[T]:
    """`work(0)`, `work(1)`, … `work(count − 1)`, by as many threads as there are cores for this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(THREADS, cores // cores_each, count)), "trajectories") as pool:
        return list(pool.map(work, range(count)))
