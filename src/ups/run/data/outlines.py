"""Outline: the shape of each data set of a run, known before any of it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ups.data.joined import check_dynamics
from ups.data.layouts import LAYOUTS, FileSpec
from ups.data.reduction import thinning
from ups.data.splits import PARTS, make_split
from ups.data.trajectories import RESIDENT
from ups.data.windows import CELLS, at_once
from ups.definition import Definition, TaskFacts
from ups.models.config import SimulatorConfig
from ups.physics import TASKS
from ups.physics.symmetries import mirrors_of
from ups.run.config import RunConfig
from ups.run.data.data_config import Between, DataConfig
from ups.run.data.datasets import DataSet, open_sets, unsaid
from ups.run.data.divide import check_held, picks_between_walls
from ups.run.data.doubts import question
from ups.run.data.generate import equations_of
from ups.run.data.params import ParamRange
from ups.tensors import Window, numeric_params
from ups.types import Grid, Points, TaskSpec, UpsError, check_known


@dataclass(frozen=True)
class Outline:
    """One data set as it will be: nothing of it needs to be there."""

    task: TaskSpec
    shape: tuple[int, ...]
    frames: int
    counts: Mapping[str, int]  # trajectories for train, valid and test
    periodic: tuple[bool, ...]
    disk: int  # bytes of its file
    made: bool  # by the run itself
    corner: tuple[float, ...] = ()  # where the grid begins, as `Grid.corner` says
    mirrored: bool = False  # whether mirror images of all cells are among what is for training
    stored_grids: frozenset[tuple[int, ...]] = frozenset()  # all cells of files, of which those of training are picked
    points: Points | None = None  # that values lie at, where these are not the cells of a grid
    question: str = ""  # what a user must say of it before anything is trained

    def with_more(self, other: Outline) -> Outline:
        """This data set and another of the same task."""
        check_dynamics(self.task, other.task)
        counts = {part: self.counts[part] + other.counts[part] for part in self.counts}
        finest = max(self, other, key=lambda outline: math.prod(outline.shape))
        made, disk = self.made or other.made, self.disk + other.disk
        both = dataclasses.replace(
            self, shape=finest.shape, points=finest.points, corner=finest.corner, counts=counts, disk=disk, made=made
        )
        return dataclasses.replace(
            both,
            frames=min(self.frames, other.frames),
            mirrored=self.mirrored or other.mirrored,
            stored_grids=self.stored_grids | other.stored_grids,
            question=self.question or other.question,
        )

    def has_finer(self, factor: int) -> bool:
        """Whether some of its files have so many times the cells along each axis."""
        cells = tuple(n * factor for n in self.shape)
        return any(thinning(stored, cells) is not None for stored in self.stored_grids)

    @property
    def frame(self) -> int:
        """Numbers in a frame."""
        return math.prod(self.shape) * len(self.task.channels)

    def window(self, batch: int, context: int, targets: int) -> Window:
        """A window of the right shapes on the current device; its numbers lie between 0 and 1."""
        spec, channels = self.task, len(self.task.channels)
        given = len(spec.given)
        return Window(
            task=spec,
            context=torch.rand(batch, context, *self.shape, channels),
            targets=torch.rand(batch, targets, *self.shape, channels),
            inputs=torch.rand(batch, *self.shape, given),
            params=torch.rand(batch, len(numeric_params(spec))),
            dt=torch.ones(batch),
            grid=self.grid,
        )

    @property
    def grid(self) -> Grid:
        """The finest grid that is trained on, in the box of the task, or the points."""
        if self.points is not None:
            return self.points
        return Grid(self.shape, self.periodic, self.task.bounds, self.corner)

    @property
    def resolved(self) -> tuple[int, ...]:
        """The cells of the grid that tokens stand for."""
        return self.grid.resolved

    @property
    def stored(self) -> int:
        """Frames of all trajectories."""
        return self.frames * sum(self.counts.values())

    def whole(self, batch: int, context: int, part: str, device: str = "cpu") -> tuple[int, int, int]:
        """Whole trajectories of a part: (samples in a window, frames after the context, windows)."""
        size = min(at_once(batch, self.frames, self.shape, CELLS.get(device, 0)), self.counts[part] or 1)
        return size, max(1, self.frames - context), -(-self.counts[part] // size)

    def resident(self, *parts: str) -> int:
        """Bytes of host memory for the parts that are kept there."""
        sizes = [4 * self.counts[part] * self.frames * self.frame for part in parts]
        return sum(size for size in sizes if size <= RESIDENT)


def shares_of(config: RunConfig, stage: str, sets: Sequence[Outline], ranks: int | None = None) -> list[Window]:
    """What one of so many ranks (the config's by default) is given of a batch of each data set."""
    settings, world = config.stage(stage), ranks or config.dist.world

    def share(data: Outline) -> Window:
        batch = -(-settings.batch_of(data.task.name) // world)
        return data.window(batch, config.looks_back(data.task), settings.ahead)

    return [share(data) for data in sets]


def outlines(config: RunConfig, opened: Sequence[DataSet] = ()) -> list[Outline]:
    """The data sets of a run, one for each task: from their equations, or from the headers of their files, which are
    not read again where the run has `opened` them."""
    configs, simulator = config.data, config.model.simulator
    with ExitStack() as stack:
        there = {name: data for name, data in configs.items() if data.there}
        known = opened if len(there) == len(configs) else ()
        sets = known or open_sets(there, Path(), unsaid, stack, simulator=simulator)
        outlined = [_of_files(data) for data in sets]
    made = [_to_be_made(name, data, simulator) for name, data in configs.items() if not data.there]
    tasks: dict[str, Outline] = {}
    for outline in (*outlined, *made):
        name = outline.task.name
        tasks[name] = tasks[name].with_more(outline) if name in tasks else outline
    # As in the config; a task that only its files name has no place there and comes first.
    order = [Definition.of(data.task).name for data in configs.values()]
    return sorted(tasks.values(), key=lambda o: order.index(o.task.name) if o.task.name in order else -1)


def _of_files(data: DataSet) -> Outline:
    """A data set whose files are there."""
    parts = {part: data.parts(part) for part in PARTS}
    every = [p for part in parts.values() for p in part]
    held_out = {name for entry in data.entries for name in entry.config.split.hold_out}
    return Outline(
        task=data.task,
        shape=data.shape,
        frames=min(int(p.lengths.max()) for p in every),
        counts={part: sum(map(len, trajectories)) for part, trajectories in parts.items()},
        periodic=parts["train"][0].grid.periodic,
        points=data.points,
        disk=sum(path.stat().st_size for entry in data.entries for path in entry.source.files()),
        made=False,
        corner=data.corner,
        mirrored=data.mirrored,
        stored_grids=frozenset(p.source.grid.shape for p in every),
        question=next(iter(question([entry.source for entry in data.entries], held_out)), ""),
    )


def _to_be_made(name: str, data: DataConfig, simulator: SimulatorConfig) -> Outline:
    """A data set that its equation will make."""
    equations = equations_of(data.generation())
    first = equations[0]
    spec, grid = first.spec(), data.store.grid(first.grid(data.resolution or first.task.resolution))
    task = TaskFacts.of(data.definition, spec, TASKS, f"data.{name}").task
    times = np.asarray(first.times()[: data.frames])[data.store.frames]
    file = FileSpec(spec, first.params(), grid, times, data.samples, {})
    split = data.split
    try:
        check_known("parameter", split.hold_out, [p.name for p in task.parameters])
        for key, wanted in split.hold_out.items():
            if not isinstance(wanted, Between) and not isinstance(data.params.get(key), ParamRange):
                check_held(key, wanted, [equation.params()[key] for equation in equations])
        shape = data.reduce.cells(grid, task.name)
        ids = [f"{i}/{n}" for i in range(len(equations)) for n in range(data.samples)]
        cut = make_split(ids, split.convention, split.fractions, data.seed, [i.split("/")[0] for i in ids])
        counts: dict[str, int] = {part: len(cut.part(part)) for part in PARTS}
    except UpsError as error:
        raise type(error)(f"data.{name}: {error}") from None
    frames = len(times[data.reduce.frames])
    if split.time is not None:
        pieces = dict(zip(PARTS, (1, split.pieces, split.pieces), strict=True))
        frames = min(int(frames * share) // n for share, n in zip(split.time, pieces.values(), strict=True))
        counts = {part: n * len(ids) for part, n in pieces.items()}
    picked = simulator.images_in("train", task.name) and picks_between_walls(data.reduce, grid, task)
    mirrored = picked and mirrors_of(task) is not None
    counts["train"] *= 2**task.ndim if mirrored else 1
    disk = LAYOUTS[spec.storage.kind](file).nbytes() * len(equations)
    corner, stored = data.reduce.corner(grid, task.bounds), frozenset({grid.shape})
    return Outline(task, shape, frames, counts, grid.periodic, disk, True, corner, mirrored, stored)
