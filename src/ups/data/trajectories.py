"""Trajectories: some samples of a source on one grid, of any lengths and times, in memory or read window by window."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ups.data.clock import Clock
from ups.data.digits import FLOAT32_MAX
from ups.data.reduction import Reduction
from ups.data.sample_blocks import blocks_of, fill_frames, in_threads, moments_of, read_block
from ups.data.source import Source
from ups.lazy_imports import Tensor, torch
from ups.masks import fill, fill_given
from ups.tensors import Window, mask_of, numeric_params
from ups.types import Array, DataError, Points, TaskSpec

# Trajectories that fit in so many bytes are read once and stay in memory; larger sets are read window by window.
RESIDENT = 4 * 2**30


def numbers_in(source: Source, rows: Sequence[int]) -> Array:
    """The parameters `(N, P)` of samples that a network is told, in the order of their task, a word as its place among
    the choices; a DataError where the source does not say one."""
    names, choices = numeric_params(source.task), {p.name: p.choices for p in source.task.parameters}
    known = [source.params_of(row) for row in rows]
    missing = next((name for name in names for each in known if name not in each), None)
    if missing is not None:
        raise DataError(
            f"{source.path}: says nowhere what its {missing} is, which {source.task.name} needs; check the task, or "
            "say it in the file's name or attributes, or in the config under `task: {parameters: …}`."
        )
    columns = [[each[name] for each in known] for name in names]
    for name, column in zip(names, columns, strict=True):
        if choices[name] or not all(map(_is_number, column)):
            column[:] = [_number(name, value, choices[name], source) for value in column]
    return np.array(columns, np.float64).reshape(len(names), len(known)).T


def _is_number(value: float | str) -> bool:
    return isinstance(value, float) and abs(value) <= FLOAT32_MAX


def _number(name: str, value: float | str, choices: tuple[str, ...], source: Source) -> float:
    if choices and value in choices:
        return float(choices.index(str(value)))
    if isinstance(value, str):
        expected = f"one of {', '.join(choices)}" if choices else "a number"
        raise DataError(f"{source.path}: {name} is '{value}', but must be {expected}.")
    if not abs(value) <= FLOAT32_MAX:
        raise DataError(
            f"{source.path}: {name} is {value} in a sample, but must be a finite number that float32 can hold; mend it."
        )
    return float(value)


class ChannelMoments(NamedTuple):
    """What all values of each channel are like, `(C,)`."""

    mean: Tensor
    std: Tensor
    least: Tensor
    most: Tensor


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
        stored = source.grid_of(self.rows[0])
        grids = {d.kind for d in set(map(source.grid_of, self.rows))}
        if len(grids) > 1:
            raise DataError(f"{source.path}: its samples are on {len(grids)} grids; look at those of one grid alone.")
        self.grid = reduction.left_of(stored, source.task.bounds, str(source.path))
        self.shape = self.grid.shape
        times = _reduced([source.times_of(row) for row in self.rows], reduction)
        if not all(map(len, times)):
            raise DataError(f"{source.path}: a sample has no frame {reduction.start} to begin at; lower reduce.start.")
        self.clock = Clock.of(times)
        self.times, self.lengths = self.clock.times, self.clock.lengths
        self.size = 4 * len(ids) * len(self.times) * int(np.prod(self.shape)) * len(self.task.channels)  # in bytes
        self._fits = self.size <= (RESIDENT if resident is None else resident)
        self._frames: Tensor | None = None
        self._statistics: ChannelMoments | None = None
        self._reading = threading.Lock()
        self.params = torch.from_numpy(numbers_in(source, self.rows).astype(np.float32, order="C"))
        self.inputs = self._read_inputs()
        self.mask = mask_of(self.task, self.inputs)
        if self.mask is not None:
            for name, counts in zip(self.ids, self.mask.flatten(1).any(1).tolist(), strict=True):
                if not counts:
                    raise DataError(
                        f"{source.path}: no cell of sample {name} counts: its mask is 0 everywhere; mend the mask, or "
                        "leave the sample out."
                    )
            fill_given(self.inputs.numpy(), self.mask.numpy(), self.task.given.index(self.task.mask))

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which reads what it needs from the file itself."""
        return {**self.__dict__, "_frames": None, "_fits": False, "_reading": None}

    @property
    def task(self) -> TaskSpec:
        return self.source.task

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the columns of `params`."""
        return numeric_params(self.task)

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
                    self._frames = self._read_all(torch.device("cpu"))
        return self._frames

    def on(self, device: torch.device) -> Trajectories:
        """These trajectories, kept in the memory of a GPU, whose windows are made there; the same numbers."""
        moved, held = copy.copy(self), self._resident
        moved._frames = self._read_all(device) if held is None else held.to(device, copy=True)
        moved.inputs, moved.params = self.inputs.to(device), self.params.to(device)
        return moved

    def streamed(self) -> Trajectories:
        """These trajectories, not brought into memory by being looked at; where they are there already, read there."""
        unread = copy.copy(self)
        unread._fits = False
        return unread

    def __len__(self) -> int:
        return len(self.ids)

    def _coarse(self, values: Array) -> Array:
        """`(..., *S, C)` at every n-th cell, as float32."""
        step = self.reduction.space
        for axis in range(values.ndim - 1 - len(self.shape), values.ndim - 1):
            # Three times as fast as a slice, for channels are few.
            values = values.take(range(0, values.shape[axis], step), axis) if step > 1 else values
        return np.ascontiguousarray(values, dtype=np.float32)

    def _blocks(self, samples: range) -> list[range]:
        """Some samples in pieces that are read at once, where the source has them one after the other."""
        cells = int(np.prod(self.source.grid_of(self.rows[0]).shape))
        frame = cells * max(len(self.task.channels), len(self.task.given))
        size = 8 * len(self.source.times_of(self.rows[0])) * frame
        if self.lengths.min() < self.lengths.max():
            return [range(i, i + 1) for i in samples]
        return blocks_of(self.source, self.rows, samples, size)

    def _read_inputs(self) -> Tensor:
        """What is given with each sample, `(N, *S, C_in)`."""
        values = torch.empty(len(self.ids), *self.shape, len(self.task.given))
        if self.task.given:
            for block in self._blocks(range(len(self.ids))):
                given = read_block(self.rows[block.start : block.stop], self.source.inputs, self.source.inputs_of)
                values.numpy()[block.start : block.stop] = self._coarse(given)
        return values

    def _read_all(self, device: torch.device, staged: bool | None = None) -> Tensor:
        """Every trajectory, `(N, T, *S, C)`, on a device; `staged` as `fill_frames` says."""
        values = torch.empty(len(self.ids), len(self.times), *self.shape, len(self.task.channels), device=device)
        fill_frames(values, self._read_to, self.source.channels_apart, staged)
        return values

    def _read_to(self, samples: range, places: Array) -> None:
        """All frames of some samples to `places (N, T, *S, C)`."""
        rows, frames = self.rows[samples.start : samples.stop], self.reduction.frames
        as_stored = self.mask is None and self.reduction.space == 1 and self.lengths.min() == self.lengths.max()
        if as_stored and self.source.read_into(rows, frames, places):
            return
        for block in self._blocks(samples):
            length = self.lengths[block.start]
            here = places[block.start - samples.start : block.stop - samples.start]
            here[:, :length] = self._read_block(block)
            here[:, length:] = here[:, length - 1 : length]

    def _read_block(self, block: range) -> Array:
        """All frames of samples of one block, `(N, T, *S, C)`, at every n-th cell, as float32."""
        frames, source, rows = self.reduction.frames, self.source, self.rows[block.start : block.stop]
        values = read_block(rows, lambda i: source.read(i, frames), lambda some: source.read_several(some, frames))
        values = self._coarse(values)
        if self.mask is not None:
            values = np.stack([fill(each, self.mask[i].numpy()) for i, each in zip(block, values, strict=True)])
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
        return torch.from_numpy(np.stack([self._read(s, p) for s, p in zip(samples, picked, strict=True)]))

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
            grid=self.grid,
            ids=tuple(self.ids[s] for s in samples),
        )

    def sound(self) -> Trajectories:
        """These trajectories, they and what is given with them finite; those too large for memory are read once."""
        self._check_finite(self.inputs.isfinite().flatten(1).all(1).tolist(), "given values")
        if self._resident is None:
            self.statistics()
        elif not bool(self._resident.sum().isfinite()):
            self._check_finite(self._resident.isfinite().flatten(1).all(1).tolist())
        return self

    def _check_finite(self, finite: Sequence[bool], what: str = "values") -> None:
        bad = [name for name, good in zip(self.ids, finite, strict=True) if not good]
        if bad:
            have = f"s {bad[0]} and {len(bad) - 1} more have" if len(bad) > 1 else f" {bad[0]} has"
            raise DataError(
                f"{self.origin}: sample{have} {what} that are not finite; mend the file or make it again "
                "(`ups data validate` says where)."
            )

    def statistics(self) -> ChannelMoments:
        """Mean, standard deviation and range `(C,)` over everything: those of each trajectory, added in their order."""
        self._statistics = self._statistics or self._measured()
        return self._statistics

    def _measured(self) -> ChannelMoments:
        channels, blocks = len(self.task.channels), self._blocks(range(len(self)))

        def moments(i: int) -> Array:
            block, held = blocks[i], self._resident
            values = self._read_block(block) if held is None else held[block.start : block.stop].numpy()
            if isinstance(self.grid, Points):
                return moments_of(values[:, : self.lengths[block.start]], self.grid.cloud.volumes)
            if self.mask is None:
                return moments_of(values[:, : self.lengths[block.start]])
            counting = [v[: self.lengths[i], self.mask[i].numpy()] for i, v in zip(block, values, strict=True)]
            return np.concatenate([moments_of(each[None]) for each in counting], axis=1)

        # torch adds up a channel on one core, and a lone channel on all it has: its last bits depend on their number.
        cores = torch.get_num_threads() if channels == 1 else min(channels, torch.get_num_threads())
        means, squares, least, most = np.concatenate(in_threads(moments, len(blocks), cores), axis=1)
        self._check_finite(np.isfinite(means).all(axis=1).tolist())
        mean, square = (torch.from_numpy(column.mean(axis=0)) for column in (means, squares))
        ends = (torch.from_numpy(column).float() for column in (least.min(axis=0), most.max(axis=0)))
        return ChannelMoments(mean.float(), (square - mean**2).clamp_min(0).sqrt().float(), *ends)


def _reduced(times: Sequence[Array], reduction: Reduction) -> list[Array]:
    """The times that are left of those of each sample; the same array for samples that share one."""
    left = {id(each): each[reduction.frames] for each in {id(each): each for each in times}.values()}
    return [left[id(each)] for each in times]


def alike(source: Source, ids: Sequence[str], reduction: Reduction) -> list[Trajectories]:
    """Samples of a source as trajectories that share a grid, a box and a boundary, most cells first."""
    place = {name: i for i, name in enumerate(source.ids)}
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in ids:
        grid = source.grid_of(place[name])
        groups.setdefault(grid.kind, []).append(name)
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
