"""Finds or makes trajectories beyond training: the same task on finer grids and at other parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ups.config import fingerprint, load
from ups.data import open_source, renamed
from ups.data.reduction import thinning
from ups.data.trajectories import Trajectories, alike
from ups.models import Simulator
from ups.models.questions import reach
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import RunConfig
from ups.run.data.data_config import GenerateConfig
from ups.run.data.datasets import DataEntry, DataSet
from ups.run.data.fitting import spaced
from ups.run.data.generate import equation_of, generate
from ups.tensors import Window, numeric_params
from ups.types import ConfigError, DataError, Params, PhysicsError, counted

Key = frozenset[tuple[str, float | str]]  # a set of parameters, whatever the order in which they are said
LOOKED_AT = 64  # trajectories of a file whose first frames are held against what training saw
# Lengths of trajectories up to which those of each are judged by themselves.
LENGTHS = 4
BESIDE = 0.1  # of the range of a parameter of training (see `reach`), by which the run's own parts may leave it
UNEVEN = 1e-3  # of a time step, by which it may differ from another that is meant to be the same
# Added to the seed of the training data: what is made for judging shares no trajectory with it.
APART = 1_000_003
# Why trajectories that the config asks for cannot be had.
UNAVAILABLE = (ConfigError, DataError, PhysicsError)


@dataclass(frozen=True)
class EvalSet:
    """Trajectories to judge on: the name of the split, and sentences on where they leave what training saw.

    They are those of `part`, and of `more` on the same number of cells. `frames`: only those of so many frames, or the
    first so many of all that have them, where `cut`.
    """

    split: str
    part: Trajectories
    outside: tuple[str, ...] = ()
    more: tuple[Trajectories, ...] = ()
    frames: int | None = None
    cut: bool = False

    @property
    def count(self) -> int:
        """How many trajectories there are."""
        return sum(map(len, (self.part, *self.more)))


def by_length(parts: Sequence[Trajectories], split: str, context: int) -> tuple[list[EvalSet], list[str]]:
    """Trajectories of one task by grid and length, those of most samples first; and what there is to say of them.

    Of many lengths, all are judged over as many frames as the shortest has.
    """
    name, steady = parts[0].task.name, parts[0].task.steady
    notes: list[str] = []
    counted_exams: list[tuple[int, EvalSet]] = []
    for shape in dict.fromkeys(part.shape for part in parts):
        first, *more = (part for part in parts if part.shape == shape)
        lengths, label = np.concatenate([part.lengths for part in (first, *more)]), f"{split}, {cells_of(shape)}"
        exam = EvalSet(label, first, more=tuple(more))
        if steady:
            counted_exams.append((len(lengths), exam))
            continue
        long = lengths[lengths > context]
        if short := len(lengths) - len(long):
            notes.append(
                f"{name}: {short} of {counted(len(lengths), 'trajectory')} ({split}) not judged: no frame follows the "
                f"{context} given."
            )
        counts = dict(zip(*np.unique(long, return_counts=True), strict=True))
        if len(counts) > LENGTHS:
            least = int(long.min())
            notes.append(
                f"{name}: trajectories ({split}) have {len(counts)} lengths; all are judged over {least} frames."
            )
            counted_exams.append(
                (len(long), dataclasses.replace(exam, split=f"{label}, {least} frames", frames=least, cut=True))
            )
            continue
        for length, count in counts.items():
            counted_exams.append(
                (int(count), dataclasses.replace(exam, split=f"{label}, {length} frames", frames=int(length)))
            )
    if not counted_exams:
        raise DataError(f"{name}: no trajectory ({split}) is longer than its context; give it longer ones.")
    (most, main), *rest = sorted(counted_exams, key=lambda pair: -pair[0])
    others = [exam for _, exam in rest]
    if others:
        alike, *apart = (exam.split.removeprefix(f"{split}, ") for exam in (main, *others))
        every = counted(most + sum(count for count, _ in rest), "trajectory")
        notes.append(
            f"{name}: its first error is of {most} of {every} ({split}), those of {alike}; {'; '.join(apart)} apart."
        )
    return [dataclasses.replace(main, split=split), *others], notes


def outside_of(simulator: Simulator, parts: Sequence[Trajectories], beside: float = BESIDE) -> list[str]:
    """A sentence for each parameter, and for the time step, of trajectories of one task that training did not see.

    Those that are drawn as those of training are may lie a part `beside` the range of these, which is no news.
    """
    task, params, ranges = parts[0].task, torch.cat([part.params for part in parts]), simulator.ranges()
    for column, name in zip(params.unbind(1), numeric_params(task), strict=True):
        low, high = ranges[task.name][name]
        first, last = reach(low, high, beside)
        near = (column >= first) & (column <= last)
        column.copy_(torch.where(near, column.clamp(low, high), column))
    low, high = ranges[task.name]["dt"]
    steps = [] if task.steady else [dt for part in parts for dt in part.clock.range]
    # Times that are stored in float32 make steps of their own, which nobody has to hear of.
    strange = [dt for dt in steps if not low - UNEVEN * low <= dt <= high + UNEVEN * high]
    outside = [simulator.outside(params, task.name, dt) for dt in (None, *strange)]
    return list(dict.fromkeys(sentence for sentences in outside for sentence in sentences))


def strange_of(simulator: Simulator, parts: Sequence[Trajectories]) -> list[str]:
    """How first frames and inputs lie outside training, said once of all trajectories on one grid."""
    grids: dict[tuple[int, ...], list[Window]] = {}
    for part in parts:
        rows = [*range(min(len(part), LOOKED_AT))]
        grids.setdefault(part.shape, []).append(part.window(rows, [0] * len(rows), 1, 0))
    sentences = []
    for first, *more in grids.values():
        context = torch.cat([window.context for window in (first, *more)])
        inputs = torch.cat([window.inputs for window in (first, *more)])
        sentences += simulator.strange(dataclasses.replace(first, context=context, inputs=inputs))
    return list(dict.fromkeys(sentences))


def exams(
    config: RunConfig, data: DataSet, simulator: Simulator, place: Path, screen: Screen, stack: ExitStack
) -> Iterator[EvalSet | str]:
    """Sets of parameters by themselves, zero-shot resolutions and unseen parameters that the config asks of one task.

    One that cannot be had is a sentence in its place: it does not cost the run its report. A request to stop, or a disk
    that fails, is no such thing: it ends the run.
    """
    if config.evaluation.apart:
        yield from by_parameters(data, config.evaluation.given_to(simulator.context))
    made = Maker(config, data, simulator, place, screen, stack)
    for factor in config.evaluation.zero_shot:
        cells = tuple(n * factor for n in data.shape)
        for entries in made.by_fineness(cells):
            try:
                yield made.at_resolution(cells, "test", entries)
            except UNAVAILABLE as error:
                yield f"{data.task.name} at {cells_of(cells)} could not be judged: {error}"
    for params in config.evaluation.unseen.get(data.task.name, ()):
        try:
            yield made.at_parameters(params)
        except UNAVAILABLE as error:
            yield f"{data.task.name} at {named(params)} could not be judged: {error}"


def by_parameters(data: DataSet, context: int) -> Iterator[EvalSet | str]:
    """The test trajectories of each set of parameters by themselves, apart on each grid; none where all have the same
    parameters. A set in which no frame follows the `context` is a sentence."""
    named: dict[Key, Params] = {}  # in the order in which the first has them
    by_params: dict[Key, dict[tuple[int, ...], list[Trajectories]]] = {}
    for entry in data.entries:
        rows = {name: row for row, name in enumerate(entry.source.ids)}
        sets: dict[Key, list[str]] = {}
        for name in entry.split.part("test"):
            params = entry.source.params_of(rows[name])
            sets.setdefault(key := frozenset(params.items()), []).append(name)
            named.setdefault(key, params)
        for key, ids in sets.items():
            for part in alike(entry.source, ids, entry.config.reduce):
                by_params.setdefault(key, {}).setdefault(part.shape, []).append(part)
    if len(by_params) < 2:
        return
    for label, grids in zip(labels_of([named[key] for key in by_params]), by_params.values(), strict=True):
        for shape, parts in grids.items():
            split = label if len(grids) == 1 else f"{label}, {cells_of(shape)}"
            if not data.task.steady and max(int(part.lengths.max()) for part in parts) <= context:
                yield f"{data.task.name} ({split}) could not be judged: no frame follows the {context} given."
            else:
                yield EvalSet(split, parts[0], more=tuple(parts[1:]))


def labels_of(sets: Sequence[Params]) -> list[str]:
    """The names of the splits of several sets of parameters, by those in which they differ."""
    differing = [name for name in sets[0] if len({params.get(name) for params in sets}) > 1]
    return [f"test, {named({name: params[name] for name in differing if name in params})}" for params in sets]


@dataclass
class Maker:
    """Gives trajectories of one task that training did not have; files it makes are kept in `place`."""

    config: RunConfig
    data: DataSet
    simulator: Simulator
    place: Path
    screen: Screen
    stack: ExitStack

    def by_fineness(self, cells: tuple[int, ...]) -> list[tuple[DataEntry, ...]]:
        """The entries of which a grid of `cells` can be picked, and those of which it cannot, where there are any."""
        fine = tuple(e for e in self.data.entries if thinning(e.source.grid.shape, cells) is not None)
        return [group for group in (fine, tuple(e for e in self.data.entries if e not in fine)) if group]

    def at_resolution(
        self, cells: tuple[int, ...], split: str, entries: Sequence[DataEntry], samples: int | None = None
    ) -> EvalSet:
        """Trajectories on a grid of `cells`, of each of `entries`: those of `split` where their files are fine enough,
        else new ones. `samples`: so many in all."""
        label = f"{cells_of(cells)}{' (zero-shot)' if cells != self.data.shape else ''}"
        steps = [thinning(entry.source.grid.shape, cells) for entry in entries]
        most = [None] * len(entries) if samples is None else shares(samples, len(entries))
        picked = [
            Trajectories(e.source, e.split.part(split)[:count], dataclasses.replace(e.config.reduce, space=step))
            for e, step, count in zip(entries, steps, most, strict=True)
            if step is not None
        ]
        if picked:
            return EvalSet(f"{split}, {label}", picked[0], more=tuple(picked[1:]))
        # Of several sets of parameters of an entry new ones are made of the first alone, and the split's name says so.
        values, counts = self.data.values(), shares(samples or self.config.evaluation.samples, len(entries))
        sets = [{k: v for k, v in e.source.params_of(0).items() if len(values.get(k, ())) > 1} for e in entries]
        words = " and ".join(dict.fromkeys(named(params) for params in sets if params))
        first, *more = (self._made(entry, {}, cells, count) for entry, count in zip(entries, counts, strict=True))
        return EvalSet(f"new trajectories, {words + ', ' if words else ''}{label}", first, more=tuple(more))

    def at_parameters(
        self, params: Mapping[str, float | str], cells: tuple[int, ...] | None = None, samples: int | None = None
    ) -> EvalSet:
        """New trajectories at other parameters, on the trained grid or on one of `cells`."""
        trained = self.data.shape
        part = self._made(self.data.first, params, cells or trained, samples or self.config.evaluation.samples)
        label = named(params) + (f", {cells_of(cells)}" if cells and cells != trained else "")
        outside = self.simulator.outside(part.params, self.data.task.name)
        kind = "outside the trained range" if outside else "within the trained range"
        return EvalSet(f"new trajectories, {label} ({kind})", part, tuple(outside))

    def _made(
        self, data: DataEntry, params: Mapping[str, float | str], cells: tuple[int, ...], samples: int
    ) -> Trajectories:
        """New trajectories by the scheme of an entry's data, from a seed of their own."""
        source, spec, own = data.source, self.data.task, DataSet(self.data.task, (data,))
        name = spec.equation
        if not name:
            raise ConfigError(f"{spec.name} has no equation here that could make new data; name a file with --file.")
        trained, store = own.shape, data.config.store
        thin = data.config.reduce.space if cells == trained else 1
        known = data.config.model_dump(include=set(GenerateConfig.model_fields))
        scheme = data.config.scheme or source.attributes().get("ups_scheme")
        # A finer grid than the file's is picked from the one that the file was solved on, where that is possible.
        every = store.space
        if every > 1 and cells != trained:
            every = thinning(tuple(n * every for n in source.grid.shape), cells) or 1
        wanted = {
            **known,
            "task": name,
            "params": {**source.params_of(0), **params},
            "scheme": None if scheme is None else str(scheme),
            "resolution": cells[0] * thin * every,
            "store": dataclasses.asdict(dataclasses.replace(store, space=every)),
            "samples": samples,
            "seed": data.config.seed + APART,
            "batch": None,
        }
        made = load(GenerateConfig, overrides=wanted)
        solved_on = tuple(n // (thin * every) for n in equation_of(made).grid(made.resolution or cells[0]).shape)
        if solved_on != cells:
            raise ConfigError(
                f"{name} is solved on {cells_of(solved_on)}, not on {cells_of(cells)}; choose such a resolution."
            )
        (path,) = generate(made, self.place / fingerprint(made), self.screen.following)
        fresh = renamed(self.stack.enter_context(open_source(path, TASKS, name)), spec)
        return Trajectories(fresh, fresh.ids, spaced(fresh, own.step, own, thin))


def shares(count: int, of: int) -> list[int]:
    """A number divided as evenly as can be, and no share 0."""
    return [max(1, (count + i) // of) for i in reversed(range(of))]


def cells_of(cells: Sequence[int]) -> str:
    """A grid in words."""
    return f"{' × '.join(map(str, cells))} cells"


def named(params: Mapping[str, float | str]) -> str:
    """Parameters in words."""
    return ", ".join(f"{k} = {v:g}" if isinstance(v, float | int) else f"{k} = {v}" for k, v in params.items())
