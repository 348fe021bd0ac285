"""What a run will be, known before any of it is there; one that could not come to its end is refused here."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ups.data.layouts import LAYOUTS, FileSpec
from ups.data.splits import PARTS, make_split
from ups.data.trajectories import RESIDENT
from ups.data.windows import CELLS, at_once
from ups.definition import Definition
from ups.engine.optim import HIDDEN, matrices
from ups.models.config import FORECASTER
from ups.models.inherit import same_networks
from ups.models.simulator import Simulator, assemble
from ups.physics import TASKS
from ups.physics.symmetries import mirrors_of
from ups.run.config import RunConfig
from ups.run.data_config import Between, DataConfig
from ups.run.datasets import DataSet, open_sets
from ups.run.divide import check_held, check_mirrored
from ups.run.gates_check import champion_folder, require_measurable
from ups.run.generate import equations_of
from ups.run.load import load, part_kinds
from ups.run.params import Range
from ups.stages import STAGES
from ups.tensors import NOT_TOLD, Window, numbers_of, told_apart
from ups.types import ConfigError, TaskSpec, UpsError, check_known, counted


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
    one_sided: bool = False  # whether cells were left out between walls: no such grid is its own mirror image
    stored_so: bool = False  # whether files have no other cells

    def with_more(self, other: Outline) -> Outline:
        """This data set and another of the same task."""
        counts = {part: self.counts[part] + other.counts[part] for part in self.counts}
        grid = max(self.grid, other.grid, key=math.prod)
        made, disk = self.made or other.made, self.disk + other.disk
        frames, one = min(self.frames, other.frames), self.one_sided or other.one_sided
        both = dataclasses.replace(self, grid=grid, frames=frames, counts=counts, disk=disk, made=made)
        return dataclasses.replace(both, one_sided=one, stored_so=self.stored_so or other.stored_so)

    @property
    def frame(self) -> int:
        """Numbers in a frame."""
        return math.prod(self.grid) * len(self.task.channels)

    def window(self, batch: int, context: int, targets: int) -> Window:
        """A window of the right shapes on the current device; its numbers lie between 0 and 1."""
        spec, channels = self.task, len(self.task.channels)
        given = len(spec.given)
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


def shares_of(config: RunConfig, stage: str, sets: Sequence[Outline], ranks: int | None = None) -> list[Window]:
    """What one of so many ranks (the config's by default) is given of a batch of each data set."""
    settings, world = config.stage(stage), ranks or config.dist.world

    def share(data: Outline) -> Window:
        task = data.task.name
        return data.window(-(-settings.batch_of(task) // world), config.looks_back(task), settings.ahead)

    return [share(data) for data in sets]


def outlines(configs: Mapping[str, DataConfig], opened: Sequence[DataSet] = ()) -> list[Outline]:
    """The data sets of a run, one for each task: from their equations, or from the headers of their files, which are
    not read again where the run has `opened` them."""
    with ExitStack() as stack:
        there = {name: data for name, data in configs.items() if data.there}
        known = opened if len(there) == len(configs) else ()
        sets = known or open_sets(there, Path(), lambda progress: None, stack)  # noqa: ARG005  (nothing is made)
        outlined = [_of_files(data) for data in sets]
    made = [_to_be_made(name, data) for name, data in configs.items() if not data.there]
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
    stored_so = any(p.domain.one_sided(data.task.bounds) for p in every)
    return Outline(
        task=data.task,
        grid=data.grid,
        frames=min(int(p.lengths.max()) for p in every),
        counts={part: sum(map(len, trajectories)) for part, trajectories in parts.items()},
        periodic=parts["train"][0].domain.periodic,
        disk=sum(path.stat().st_size for entry in data.entries for path in entry.source.files()),
        made=False,
        one_sided=stored_so or any(p.reduction.space > 1 and not all(p.domain.periodic) for p in every),
        stored_so=stored_so,
    )


def _to_be_made(name: str, data: DataConfig) -> Outline:
    """A data set that its equation will make."""
    equations = equations_of(data.generation())
    first = equations[0]
    spec, domain = first.spec(), data.store.domain(first.domain(data.resolution or first.task.resolution))
    task = data.definition.applied(spec, TASKS, f"data.{name}")
    times = np.asarray(first.times()[: data.frames])[data.store.frames]
    file = FileSpec(spec, first.params(), domain, times, data.samples, {})
    split = data.split
    try:
        check_known("parameter", split.hold_out, [p.name for p in task.parameters])
        for key, wanted in split.hold_out.items():
            if not isinstance(wanted, Between) and not isinstance(data.params.get(key), Range):
                check_held(key, wanted, [equation.params()[key] for equation in equations])
        check_mirrored(task.name, data.mirrored and domain.one_sided(task.bounds))
        grid = data.reduce.cells(domain, task.name)
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
    counts["train"] *= 2**task.ndim if data.mirrored else 1
    disk = LAYOUTS[spec.storage.kind](file).nbytes() * len(equations)
    one_sided, stored_so = (
        space > 1 and not all(domain.periodic) for space in (data.store.space * data.reduce.space, data.store.space)
    )
    return Outline(task, grid, frames, counts, domain.periodic, disk, True, one_sided, stored_so)


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
    tasks = [data.task for data in sets]
    simulator = assemble(tasks, configs, config.model.simulator, grids, config.seed, empty, kinds)
    simulator.learn_corners({data.task.name: data.corner for data in sets if isinstance(data, DataSet)})
    return simulator


def check(config: RunConfig) -> list[Outline]:
    """The data sets of a run as they will be; refused in a sentence where it could not be trained or judged to its end.

    Nothing is made: files are opened for their headers, and the networks are built as shapes without memory.
    """
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    if config.cache.use and config.cache.folder:
        _makeable(Path(config.cache.folder))
    sets = outlines(config.data)
    known = {data.task.name: data.task for data in sets}
    _gates(config, sets)
    for task, wanted in config.evaluation.unseen.items():
        if task not in known:
            raise ConfigError(f"evaluation.unseen names {task}, which no data set holds; they hold {', '.join(known)}.")
        if wanted and not known[task].equation:
            raise ConfigError(
                f"evaluation.unseen names {task}, which obeys no built-in equation, so no such data can be made; hold "
                "values out of its files with split.hold_out."
            )
    if config.mix.weights and set(config.mix.weights) != set(known):
        odd = min(set(config.mix.weights) ^ set(known))
        raise ConfigError(f"mix.weights needs a number for each task of the data and no other; look at {odd}.")
    for name, stage in config.stages.items():
        if not any(stage.learns(data.task) for data in sets):
            raise ConfigError(
                f"stage {name} learns none of {', '.join(known)}; leave it out of plan, or add data that it learns "
                "(docs/howto-steady.md)."
            )
        stage.check_tasks(config.stage(name), [data.task for data in sets])
        for task in (task for task in config.stage(name).batches if task not in known):
            raise ConfigError(f"{name}.batches names {task}, which no data set holds; they hold {', '.join(known)}.")
    _long_enough(config, sets)
    _mirrored_right(config, sets)
    parent = load(config.start_from) if config.start_from is not None else None
    _inherited(config, parent)
    seen = (*known, *(() if parent is None else parent.codec.tasks))
    operator = config.model.part(FORECASTER)
    for key in operator.by_task:
        for task in () if getattr(operator, key) == "auto" else getattr(operator, key):
            if task not in seen:
                raise ConfigError(
                    f"model.operator.{key} names {task}, which no data set holds; they hold {', '.join(known)}."
                )
    if parent is not None and FORECASTER not in {stage.makes for stage in config.stages.values()}:
        for name in (data.task.name for data in sets if data.task.name not in parent.codec.tasks):
            raise ConfigError(
                f"{config.start_from} has never seen {name}, and the plan trains no '{FORECASTER}' on it; add its "
                f"stage to the plan, or leave {name} out."
            )
    network = new_simulator(config, sets, parent, part_kinds())
    for name, stage in config.stages.items():
        if config.stage(name).train.optimizer == "muon" and not matrices(network.parts[stage.makes]):
            raise ConfigError(
                f"{name}.train.optimizer is muon, but no weight of the part '{stage.makes}' is a matrix of {HIDDEN} or "
                "more a side; use adamw, or a wider network."
            )
    if parent is not None:
        same_networks(network, parent)
    return sets


def _gates(config: RunConfig, sets: Sequence[Outline]) -> None:
    """Every gate can be decided."""
    require_measurable(config.bounds, [(data.task, data.periodic) for data in sets])
    if config.champion is not None:
        tasks = load(champion_folder(config.champion, Path(config.out) / config.name).folder).codec.tasks
        if not any(data.task.name in tasks for data in sets):
            raise ConfigError(
                f"gates.champion: {config.champion} knows {', '.join(tasks)} and no task of this run; name another, "
                "or leave it out."
            )


def _inherited(config: RunConfig, parent: Simulator | None) -> None:
    """Every part that the plan needs and does not make is one of the simulator to start from."""
    made = {stage.makes for stage in config.stages.values()}
    for name in config.parts:
        if name not in made and (parent is None or name not in parent.parts):
            raise ConfigError(f"the plan makes no part '{name}', and {config.start_from} has none; add its stage.")
    for stage in (kind for kind in STAGES.values() if parent is not None and kind.makes in parent.parts):
        changed = [part for part in (*stage.needs, *stage.also_uses) if part in made]
        if changed and stage.makes not in made:
            raise ConfigError(
                f"the plan trains the part '{changed[-1]}' anew, and '{stage.makes}' of {config.start_from} has learnt "
                f"to work with the old one; add stage {stage.name} to the plan, after it."
            )


def _makeable(folder: Path) -> None:
    """Caches are made when the codec has been trained: too late to learn that there is no place for them."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cache.folder is {folder}, but nothing can be written in {there}; name another folder.")


def _mirrored_right(config: RunConfig, sets: Sequence[Outline]) -> None:
    """ConfigError where mirror images would lie on other cells than those in use. Every n-th cell from the first on, of
    a number that n divides, leaves out the last one, so between walls the image lies on other cells. Where an axis
    wraps, it lies on the same ones, moved."""
    images_of = {f"{name}.symmetries": getattr(config.stage(name), "symmetries", False) for name in config.plan}
    images_of["model.simulator.images"] = config.model.simulator.images
    for data in (data for data in sets if data.one_sided and mirrors_of(data.task) is not None):
        for key in (key for key, images in images_of.items() if images is True):
            stage = config.stages.get(key.partition(".")[0])
            if not stage.learns(data.task) if stage is not None else data.task.inputs and not data.task.steady:
                continue
            instead = "exchange" if data.task.ndim == 2 else "false"
            does = "stored (store.space)" if data.stored_so else "used (reduce.space)"
            images = "" if data.stored_so else ", and `mirrored: true` in its data to train on images of all cells"
            raise ConfigError(
                f"{key} is true, but of {data.task.name} only every n-th cell between walls is {does}, and the mirror "
                f"image of those is other cells; write {key}: {instead}{images}."
            )


def _long_enough(config: RunConfig, sets: Sequence[Outline]) -> None:
    for data in sets:
        if not told_apart(data.task):
            raise ConfigError(f"{data.task.name}: {NOT_TOLD}")
        # Judged are the frames after the context, also of a task that is learnt from fewer.
        needed = {(config.context, 1)}.union(
            (config.looks_back(data.task.name), config.stage(s).ahead) for s in config.plan
        )
        for back, ahead in sorted(needed):
            if data.frames < back + ahead and not data.task.steady:
                raise ConfigError(
                    f"{data.task.name}: has {counted(data.frames, 'frame')}, too few for "
                    f"{counted(back, 'frame')} of context and {ahead} after them; reduce time less, or ask "
                    "for less context or unroll."
                )
        given = config.evaluation.given or 0
        if data.frames <= given and not data.task.steady:
            raise ConfigError(
                f"{data.task.name}: has {counted(data.frames, 'frame')}, all of them among the {given} of "
                "evaluation.given: none is left to be judged; give fewer."
            )
