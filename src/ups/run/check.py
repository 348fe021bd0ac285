"""What a run will be, known before any of it is there; one that could not come to its end is refused here."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ups.data import open_source
from ups.data.layouts import LAYOUTS, FileSpec
from ups.data.splits import PARTS, make_split
from ups.data.trajectories import RESIDENT, numbers_in
from ups.data.windows import CELLS, at_once
from ups.models.inherit import same_networks
from ups.models.simulator import Simulator, assemble
from ups.physics import EQUATIONS, TASKS
from ups.run.config import DataConfig, RunConfig
from ups.run.datasets import DataSet
from ups.run.load import load, part_kinds
from ups.tensors import Window, numbers_of
from ups.types import ConfigError, TaskSpec, UpsError


@dataclass(frozen=True)
class Outline:
    """One data set as it will be: nothing of it needs to be there."""

    task: TaskSpec
    grid: tuple[int, ...]
    frames: int
    counts: Mapping[str, int]  # trajectories for train, valid and test
    periodic: tuple[bool, ...]
    disk: int  # bytes of its file
    made: bool  # by the run itself

    @property
    def frame(self) -> int:
        """Numbers in a frame."""
        return math.prod(self.grid) * len(self.task.channels)

    def window(self, batch: int, context: int, targets: int) -> Window:
        """A window of the right shapes on the current device; its numbers lie between 0 and 1."""
        spec, channels = self.task, len(self.task.channels)
        given = sum(len(f.channels) for f in spec.inputs)
        return Window(
            task=spec,
            context=torch.rand(batch, context, *self.grid, channels),
            targets=torch.rand(batch, targets, *self.grid, channels),
            inputs=torch.rand(batch, *self.grid, given),
            params=torch.rand(batch, len(numbers_of(spec))),
            dt=torch.ones(batch),
            periodic=self.periodic,
            box=tuple(hi - lo for lo, hi in spec.bounds),
        )

    @property
    def stored(self) -> int:
        """Frames of all trajectories."""
        return self.frames * sum(self.counts.values())

    def whole(self, batch: int, context: int, part: str, device: str = "cpu") -> tuple[int, int, int]:
        """Whole trajectories of a part: (samples in a window, frames after the context, windows)."""
        size = min(at_once(batch, self.frames, self.grid, CELLS.get(device, 0)), self.counts[part] or 1)
        return size, max(1, self.frames - context), -(-self.counts[part] // size)

    def resident(self, *parts: str) -> int:
        """Bytes of host memory for the parts that are kept there."""
        sizes = [4 * self.counts[part] * self.frames * self.frame for part in parts]
        return sum(size for size in sizes if size <= RESIDENT)


def outline(data: DataConfig) -> Outline:
    """The data set of a config: from its equation, or from the header of its file."""
    if data.file:
        path = Path(data.file)
        with open_source(path, TASKS, data.task) as source:
            task, domain, times, ids = source.task, source.domain, source.times, source.ids
            numbers_in(source, 0)
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        disk = sum(p.stat().st_size for p in files)
    else:
        equation = EQUATIONS[data.task](**data.params)
        task, domain = equation.spec(), equation.domain(data.resolution or equation.task.resolution)
        times = np.asarray(equation.times()[: data.frames])
        ids = tuple(str(i) for i in range(data.samples))
        disk = LAYOUTS[task.storage.kind](FileSpec(task, equation.params(), domain, times, len(ids), {})).nbytes()
    reduce, split = data.reduce, data.split
    for axis, n in enumerate(domain.shape):
        if n % reduce.space:
            raise ConfigError(f"{task.name}: axis {axis} has {n} cells, which {reduce.space} does not divide.")
    grid = tuple(n // reduce.space for n in domain.shape)
    try:
        cut = make_split(ids, split.convention, split.fractions, data.seed)
        counts: dict[str, int] = {part: len(cut.part(part)) for part in PARTS}
    except UpsError as error:
        raise type(error)(f"{task.name}: {error}") from None
    return Outline(task, grid, len(times[reduce.start :: reduce.time]), counts, domain.periodic, disk, not data.file)


def parts_of(config: RunConfig, parent: Simulator | None) -> list[str]:
    """The parts of a run's simulator, in the order in which they are built: those that its plan makes or needs, and
    those of the simulator that it goes on from."""
    names = {*config.parts, *(parent.parts if parent is not None else ())}
    return [name for name in part_kinds() if name in names]


def new_simulator(
    config: RunConfig,
    sets: Sequence[Outline | DataSet],
    parent: Simulator | None = None,
    empty: Collection[str] = (),
) -> Simulator:
    """A simulator with fresh weights on the current device; the parts named in `empty` have shapes and no memory."""
    kinds, grids = part_kinds(), {data.task.name: data.grid for data in sets}
    configs = {name: config.model.part(name) for name in parts_of(config, parent)}
    return assemble([data.task for data in sets], configs, config.model.simulator, grids, config.seed, empty, kinds)


def check(config: RunConfig) -> list[Outline]:
    """The data sets of a run as they will be; refused in a sentence where it could not be trained or judged to its end.

    Nothing is made: files are opened for their headers, and the networks are built as shapes without memory.
    """
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    known = [data.task for data in config.data.values()]
    for task in config.evaluation.unseen:
        if task not in known:
            raise ConfigError(f"evaluation.unseen names {task}, which no data set holds; they hold {', '.join(known)}.")
    if config.cache.use and config.cache.folder:
        _makeable(Path(config.cache.folder))
    sets = [outline(data) for data in config.data.values()]
    _long_enough(config, sets)
    parent = load(config.start_from) if config.start_from is not None else None
    _inherited(config, parent)
    network = new_simulator(config, sets, parent, part_kinds())
    if parent is not None:
        same_networks(network, parent)
    return sets


def _inherited(config: RunConfig, parent: Simulator | None) -> None:
    """Every part that the plan needs and does not make is one of the simulator to start from."""
    made = {stage.makes for stage in config.stages.values()}
    for name in config.parts:
        if name not in made and (parent is None or name not in parent.parts):
            raise ConfigError(f"the plan makes no part '{name}', and {config.start_from} has none; add its stage.")


def _makeable(folder: Path) -> None:
    """Caches are made when the codec has been trained: too late to learn that there is no place for them."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cache.folder is {folder}, but nothing can be written in {there}; name another folder.")


def _long_enough(config: RunConfig, sets: Sequence[Outline]) -> None:
    for data in sets:
        for unroll in (config.stage(name).unroll for name in config.plan):
            if data.frames < config.context + unroll and not data.task.steady:
                raise ConfigError(
                    f"{data.task.name}: has {data.frames} frames, too few for {config.context} frames of context and "
                    f"{unroll} after them; reduce time less, or ask for less context or unroll."
                )
