"""Looks into a few samples of data and derives the recipe that fits them, for `ups init` and `ups.fit`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ups.data import Source, open_source, renamed, same_task
from ups.data.gridded import gridded
from ups.data.joined import stems
from ups.data.neighbours import check_neighbours
from ups.data.splits import FEW_TRAJECTORIES, parts_of
from ups.definition import Definition, TaskFacts, definition_from, is_file_name
from ups.jobs.inspect import single_cells, uneven_times
from ups.jobs.recipe.signs import (
    ANY_PACE,
    LOOKED_AT,
    Triple,
    all_uneven,
    driven,
    hides,
    known_numbers,
    pace,
    sampled,
    seamless,
    triples,
    uneven,
    wrapping,
)
from ups.models.advection import Advection, moved
from ups.physics import EQUATIONS, TASKS
from ups.physics.random import Draw
from ups.physics.solver import initial_states
from ups.run.data.datasets import REMARKS, check_axes, common, noticed
from ups.run.data.doubts import doubts_of, question
from ups.run.data.sphere import Sphere, wrapping_already
from ups.run.sizing import RULES
from ups.tensors import NOT_TOLD, numeric_params, told_apart
from ups.types import UNKNOWN, Array, ConfigError, DataError, Dynamics, Grid, TaskSpec, counted, counted_from

FRAMES = 41  # of a trajectory, about which are kept: a rollout of many small steps takes long to train and to judge
IN_ALL = 1000  # frames, about, that few trajectories keep, unless they are slow
CELLS = {"cpu": {1: 256, 2: 64, 3: 16}, "cuda": {1: 1024, 2: 128, 3: 64}}  # along an axis, about which are kept
LEFT = 8  # cells along an axis, at least, where some are left out
FEW = 5  # trajectories, under which they are cut in time
FIRST_LOOK = 8  # samples, about, whose first frames are looked at
IN_TIME = (0.7, 0.15, 0.15)  # the parts of the time of very few
OF_FEW = (0.6, 0.15, 0.25)  # the parts of fewer: to train on, to validate on and to test on
EXPLAINED = 0.9  # of what changes in a step, by a move alone, at least
WORTH = 0.05  # of that, which a parameter explains at least that the others do not


@dataclass(frozen=True)
class Glance:
    """Two frames `(2, *S, C)` of a sample, one after the other, the time between them, and its parameters."""

    frames: Array
    dt: float
    params: tuple[float, ...]
    periodic: tuple[bool, ...]


@dataclass(frozen=True)
class DataProfile:
    """The data of one task: its files, none where they are to be made, and what is in them."""

    task: TaskSpec
    files: tuple[str, ...]
    lengths: tuple[int, ...]  # frames of each sample
    cells: tuple[int, ...]
    definition: str  # the name or the YAML file that the user gave
    uneven: bool  # no first frame is uniform, or there is none: a change can be measured by the sample
    resolved: tuple[int, ...] = ()  # cells along each axis of a grid that holds what they, or the points, do
    seen: tuple[Glance, ...] = ()  # frames of a few samples
    past: tuple[Triple, ...] = ()  # more frames of a few samples
    hidden: bool = False  # what comes next is in the frame before the last too
    observed: Dynamics = UNKNOWN  # how its states were seen to go on
    start: Dynamics | None = None  # how they do, as the simulator to start from says
    seamless: tuple[str, ...] = ()  # axes that may wrap, though nobody says so
    around: tuple[str, ...] = ()  # all axes that wrap, where one of them is a longitude of which nobody says so
    blown: tuple[str, ...] = ()  # samples that end without a finite value
    divided: bool = False  # its folders say what is for training, validation and testing
    pace: tuple[int, int] = (ANY_PACE, ANY_PACE)  # so many frames apart, a step changes little, and so many at most
    notes: tuple[str, ...] = ()  # what its reader noticed, and what is doubtful

    @property
    def dynamics(self) -> Dynamics:
        """How its states go on."""
        return self.facts(Definition()).dynamics

    def facts(self, user: Definition) -> TaskFacts:
        """All that is known of its task, and what a user says of it."""
        return TaskFacts(user, self.task, start=self.start, seen=self.observed)

    @property
    def samples(self) -> int:
        return len(self.lengths)

    @property
    def usual(self) -> int:
        """Every so many frames would be kept if all samples were as long as most: of few samples fewer are left out,
        unless a step changes little all the same, and never so many that it changes too much."""
        length, (slow, fast) = sorted(self.lengths)[self.samples // 2], self.pace
        return min(every_of(length, FRAMES), max(every_of(length, IN_ALL // self.samples or 1), slow), fast)

    @property
    def every(self) -> int:
        """Every so many frames are kept: of the shortest sample three are left."""
        return max(1, min(self.usual, (min(self.lengths) - 1) // 2))

    @property
    def remarks(self) -> list[str]:
        """What there is to say of it."""
        short = (
            f"the shortest trajectory has {counted(min(self.lengths), 'frame')}, so frames are kept {self.every} apart"
        )
        fewer = [f"{short}; without it {self.usual} would do"] if self.every < self.usual else []
        named, verb = ("sample", "ends") if len(self.blown) == 1 else ("samples", "end")
        ends = f"{named} {', '.join(self.blown)} {verb} without a finite value, and a run refuses such"
        lost = [f"{ends}: mend or leave out what `ups data validate` names"] if self.blown else []
        return [*self.notes, *wrapping(self.seamless), *fewer, *lost]

    def left_out(self, kind: str) -> list[str]:
        """Which frames and cells are not used, in words."""
        thin, frames = self.thin(kind), counted_from(self.lengths, "frame")
        near = (
            "; further apart, they would change by more than half of their deviation"
            if self.every == self.pace[1]
            else ""
        )
        axes = "each axis" if self.task.ndim > 1 else "the axis"
        parts = [f"every {_ordinal(self.every)} of {frames} is used{near}"] if self.files and self.every > 1 else []
        what = f"cell along {axes}" if self.task.domain == "grid" else "point"
        parts += [f"every {_ordinal(thin)} {what} is used"] if thin > 1 else []
        return [f"{'; '.join(parts)} (`reduce` in the config)"] if parts else []

    @property
    def place(self) -> str:
        """Where it lies."""
        return self.files[0] if self.files else self.task.name

    @property
    def words(self) -> str:
        spec, cells = self.task, " × ".join(map(str, self.cells))
        what = counted(self.samples, "sample")
        if not spec.steady:
            what = f"{counted(self.samples, 'trajectory')} × {counted_from(self.lengths, 'frame')}"
        title = spec.name if spec.title in ("", spec.name) else f"{spec.title} ({spec.name})"
        return (
            f"{title}: {what} × {cells} {'cells' if spec.domain == 'grid' else 'points'} × {', '.join(spec.channels)}"
        )

    def thin(self, kind: str) -> int:
        """Every so many cells are kept; all of data that are made, or whose files are not named."""
        if not self.files:
            return 1
        if self.task.domain != "grid":
            return every_of(self.cells[0], CELLS[kind][self.task.ndim] ** self.task.ndim)
        most = every_of(max(self.cells), CELLS[kind][self.task.ndim])
        return next(n for n in range(most, 0, -1) if n == 1 or all(c % n == 0 and c >= LEFT * n for c in self.cells))

    def left(self, kind: str) -> tuple[int, ...]:
        """The cells that are left along each axis, of the grid that tokens stand for."""
        thin, axes = self.thin(kind), 1 if self.task.domain == "grid" else self.task.ndim
        return tuple(round(n / thin ** (1 / axes)) for n in self.resolved or self.cells)

    def section(self, kind: str) -> dict[str, Any]:
        """The entry of a config."""
        entry: dict[str, Any] = {"file": self.files[0] if len(self.files) == 1 else list(self.files)}
        if not self.files:
            entry = {"task": self.task.name, "samples": self.samples, "resolution": self.cells[0]}
            entry |= {"scheme": "accurate"}
        elif self.definition:
            entry["task"] = self.definition
        own = definition_from(self.definition) if self.definition else Definition()
        whole = self.facts(own).definition
        whole = replace(whole, periodic=self.around) if self.around else whole
        if whole != own:
            entry["task"] = whole.plain()
        thin = {"space": self.thin(kind)} | ({} if self.task.steady else {"time": self.every})
        thin = {name: every for name, every in thin.items() if every > 1}
        cut: dict[str, Any] = {"time": list(IN_TIME)} if self.samples < FEW else {"fractions": list(OF_FEW)}
        pieces = int(min(self.lengths) / self.every * IN_TIME[-1]) // FRAMES
        cut |= {"pieces": pieces} if pieces > 1 and self.samples < FEW else {}
        if self.divided or self.samples >= FEW_TRAJECTORIES:  # of a tenth of fewer a test could tell nothing
            cut = {}
        return {**entry, **({"reduce": thin} if thin else {}), **({"split": cut} if cut else {})}


def every_of(count: int, wanted: int) -> int:
    """The stride that takes about `wanted` of `count`."""
    return max(1, count // wanted)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def holdings(files: Sequence[Path], task: str) -> list[DataProfile]:
    """What files hold, by task; without files, a task that is made."""
    if not files:
        return [_made(task or "burgers1d")]
    definition = definition_from(task) if task else None
    sources = []
    for path in files:
        with open_source(path, TASKS, definition) as source:  # what is read later opens it again
            sources.append(source)
    sources = _of_one_task(sources)
    outlines = []
    for path, source in zip(files, sources, strict=True):
        with source:
            outlines.append(_outline(source, (str(path),), task))
    every = {here.task.name: here.every for here in _joined(outlines)}  # together they may be many
    per_file = []
    for here, source in zip(outlines, sources, strict=True):
        with source:
            per_file.append(_looked_into(source, here, every[here.task.name], here.thin("cpu")))
    return [replace(here, notes=(*_question(here, sources), *here.notes)) for here in _by_task(per_file)]


def _constant(here: DataProfile) -> list[str]:
    """A sentence where channels have one value in all that was looked at."""
    frames = [triple.frames.reshape(-1, len(here.task.channels)) for triple in here.past]
    if not frames:
        return []
    low, high = np.min([each.min(0) for each in frames], 0), np.max([each.max(0) for each in frames], 0)
    still = [name for name, same in zip(here.task.channels, low == high, strict=True) if same]
    words = "has the same value in all that was looked at, and nothing can be learnt of it: leave it out of `fields`"
    return [f"{name} {words}" for name in still]


def _question(here: DataProfile, sources: Sequence[Source]) -> list[str]:
    """What is asked of the sources of a task together."""
    return [f"QUESTION: {words}" for words in question([s for s in sources if s.task.name == here.task.name])]


def _of_one_task(sources: Sequence[Source]) -> list[Source]:
    """The sources, those of a task's name under one task with the parameters of all; DataError where they differ."""
    names = dict.fromkeys(source.task.name for source in sources)
    tasks = {name: same_task([source for source in sources if source.task.name == name]) for name in names}
    return [renamed(source, tasks[source.task.name]) for source in sources]


def held_as_they_are(sources: Iterable[Source]) -> list[DataProfile]:
    """What sources hold, by task, of which every frame and cell is kept."""
    return _by_task([_looked_into(source, _outline(source, (), ""), every=1, thin=1) for source in sources])


def _outline(source: Source, files: tuple[str, ...], task: str) -> DataProfile:
    """What a source holds, but for frames of its samples; of one that is named, with what there is to say of it."""
    check_neighbours(source)
    check_axes(source)
    for words in single_cells(source):
        raise DataError(f"{source.path}: {words}.")
    sphere, stated = Sphere(source), task and definition_from(task).periodic is not None
    around = () if stated else sphere.unsaid
    here = DataProfile(
        task=source.task,
        files=files,
        lengths=source.lengths(),
        cells=source.grid.shape,
        resolved=source.grid.resolved,
        definition=task,
        uneven=source.task.steady or all_uneven(source, FIRST_LOOK),
        divided=_divided(source),
        around=(*wrapping_already(source), *around) if around else (),
    )
    if not files:
        return here
    remarks = (
        *sphere.words(written=bool(around)),
        *uneven_times(source),
        *noticed(source)[:REMARKS],
        *doubts_of(source),
    )
    here = replace(here, notes=remarks)
    most = 1 if source.task.steady else every_of(max(here.lengths), FRAMES)
    return replace(here, pace=pace(source, most, here.thin("cpu")))


def _looked_into(source: Source, here: DataProfile, every: int, thin: int) -> DataProfile:
    """The profile with frames of a few samples of a source, as far apart as they will be in training."""
    if source.task.steady:
        return here
    shown = gridded(source)
    seen, past = tuple(glances(shown, every)), tuple(triples(shown, every, thin if shown is source else 1))
    return replace(here, seen=seen, past=past, seamless=seamless(source), blown=_blown(source))


def _divided(source: Source) -> bool:
    """Whether folders of its files say what is for training and what for testing."""
    return "test" in (parts_of(source.ids) or {}).values()


def _in_folders(files: Sequence[str]) -> bool:
    """Whether files lie in folders that say it."""
    paths = [Path(file) for file in files]
    return bool(paths) and "test" in (parts_of(stems(common(paths), paths)) or {}).values()


def _blown(source: Source) -> tuple[str, ...]:
    """Which of a few samples have a channel without any finite value in their last frame."""
    lengths = source.lengths()
    ends = {i: source.read(i, slice(lengths[i] - 1, None)) for i in sampled(source, FIRST_LOOK)}
    return tuple(source.ids[i] for i, end in ends.items() if not np.isfinite(end).any(tuple(range(end.ndim - 1))).all())


def _joined(per_file: Iterable[DataProfile]) -> list[DataProfile]:
    """Holdings of one task joined."""
    tasks: dict[str, DataProfile] = {}
    for here in per_file:
        name, earlier = here.task.name, tasks.get(here.task.name)
        if earlier is not None:
            uneven, seen, past = earlier.uneven and here.uneven, earlier.seen + here.seen, earlier.past + here.past
            wraps, around = (
                tuple(axis for axis in before if axis in now)
                for before, now in ((earlier.seamless, here.seamless), (earlier.around, here.around))
            )
            files, lengths = earlier.files + here.files, earlier.lengths + here.lengths
            here = replace(here, files=files, lengths=lengths, uneven=uneven, seen=seen, past=past, seamless=wraps)
            here = replace(here, blown=earlier.blown + here.blown, divided=_in_folders(files), around=around)
            notes = tuple(dict.fromkeys(earlier.notes + here.notes))
            slow, fast = zip(earlier.pace, here.pace, strict=True)
            here = replace(here, pace=(min(slow), min(fast)), notes=notes)
        tasks[name] = here
    return list(tasks.values())


def _by_task(per_file: Sequence[DataProfile]) -> list[DataProfile]:
    """Holdings of one task joined, and what their samples say together; DataError where nothing can be learnt."""
    tasks = _joined(per_file)
    for holding in tasks:
        if holding.samples < FEW and holding.task.steady:
            raise DataError(
                f"{holding.place}: {holding.samples} steady states cannot be cut into data to train on, to validate "
                f"on and to test on; at least {FEW} can."
            )
        if not told_apart(holding.task):
            raise DataError(f"{holding.place}: {NOT_TOLD}")
    several = [hides(h.past) for h in tasks]
    return [
        replace(
            h,
            observed=_observed(h, any(several) and not hidden),
            notes=(*h.notes, *_constant(h)),
            hidden=hidden,
            seen=(),
            past=(),
        )
        for h, hidden in zip(tasks, several, strict=True)
    ]


def _observed(here: DataProfile, memoryless: bool) -> Dynamics:
    """How the states of a task were seen to go on."""
    return Dynamics(memoryless, driven(here.past), winds_in(here.task, here.seen))


def glances(source: Source, every: int) -> list[Glance]:
    """The first frame of a few samples, and the one `every` frames later. Samples that are shorter, or do not say their
    parameters, are left out."""
    result = []
    for i in sampled(source, LOOKED_AT):
        params, times = known_numbers(source, i), source.times_of(i)
        if len(times) <= every or not params:  # none are known, or its task has none
            continue
        frames = source.read(i, slice(0, every + 1, every)).astype(np.float64)
        result.append(Glance(frames, float(times[every] - times[0]), params, source.grid_of(i).periodic))
    return result


def winds_in(task: TaskSpec, seen: Sequence[Glance]) -> tuple[str, ...]:
    """The parameters that carry states along: those of which the equation says so, or which explain nearly all of what
    was seen to change, each a part of it. None where an axis does not wrap, or nothing varies."""
    if known := task.dynamics.advected_by:
        return known
    if len({glance.frames.shape for glance in seen}) != 1 or not all(all(glance.periodic) for glance in seen):
        return ()
    frames = np.stack([glance.frames for glance in seen])
    frames /= np.maximum(frames.std(tuple(range(frames.ndim - 1))), 1e-30)
    if task.steady or not np.isfinite(frames).all() or min(frames.shape[2:-1]) < 4:
        return ()
    params = np.array([glance.params for glance in seen])
    names = numeric_params(task)
    chosen = [i for i in range(len(names)) if np.ptp(params[:, i]) > 0]
    dt = np.array([glance.dt for glance in seen])
    if not chosen or (best := _explained(frames, params[:, chosen], dt)) < EXPLAINED:
        return ()
    for i in list(chosen):
        others = [j for j in chosen if j != i]
        if others and _explained(frames, params[:, others], dt) > best - WORTH:
            chosen = others
    return tuple(names[i] for i in chosen)


def _explained(frames: Array, params: Array, dt: Array) -> float:
    """The part of what changes from one frame to the next, `(B, 2, *S, C)`, that a move by these parameters is."""
    z, numbers, times = (torch.as_tensor(x, dtype=torch.float32) for x in (frames, params, dt))
    periodic = (True,) * (z.ndim - 3)
    with torch.no_grad():
        way = Advection.fitted(numbers, times.unsqueeze(1), z, periodic).way(numbers, times)
        left = z[:, 1] - moved(z[:, 0], way, Grid(tuple(z.shape[2:-1]), periodic))
    change = (z[:, 1] - z[:, 0]).square().sum()
    return 1.0 - float(left.square().sum() / change) if change > 0 else 0.0


def recipe(sets: Sequence[DataProfile], kind: str, size: str) -> dict[str, Any]:
    """How a simulator of some tasks, with a network of a named size, is made and trained on a kind of device: the
    sections of a config, without the size."""
    patch = [_patch(sets, kind, ndim, most) for ndim, most in enumerate((4, 2 if kind == "cpu" else 4, 2), start=1)]
    dim = max(len(h.task.channels) * patch[h.task.ndim - 1] ** h.task.ndim for h in sets)
    step_scale = "sample" if all(h.uneven for h in sets) else "task"
    options: dict[str, Any] = {"context": 2} if any(h.hidden for h in sets) else {}
    options |= {"per_task_layers": True} if len(sets) > 1 else {}
    return {
        "model": {
            "codec": {"dim": 16 * math.ceil(dim / 16), "patch": patch},
            "operator": {"step_scale": step_scale, **options},
        },
        "codec": {"train": {"steps": 0}},
        "operator": {
            "loss": {"increment": 0.0},
            "train": {"lr": RULES.get(size, RULES["small"]).rate, "optimizer": "muon", "ema": 0.99},
        },
    }


def _patch(sets: Sequence[DataProfile], kind: str, ndim: int, most: int) -> int:
    """The cells of a patch along an axis: a half, a quarter … of `most` where an axis has no room for two patches."""
    least = min((n for h in sets if h.task.ndim == ndim for n in h.left(kind)), default=2 * most)
    while most > 1 and 2 * most > least:
        most //= 2
    return most


def _made(task: str) -> DataProfile:
    """A generated task, small enough for a laptop."""
    if is_file_name(task) or task not in EQUATIONS:
        raise ConfigError(f"there is no task '{task}' to make data of; `ups data tasks` lists them, or name FILES.")
    spec = TASKS[task]
    cells = {1: 128, 2: 32, 3: 16}[spec.ndim]
    equation = EQUATIONS[task]()
    frames = 1 if spec.steady else len(equation.times())
    starts = initial_states(equation, Draw(0, range(FIRST_LOOK)), equation.grid(cells)).numpy()
    return DataProfile(
        task=spec,
        files=(),
        lengths=(frames,) * 128,
        cells=(cells,) * spec.ndim,
        definition="",
        uneven=spec.steady or all(uneven(state, state) for state in starts),
    )
