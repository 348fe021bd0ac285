"""From arrays in memory to a trained simulator, in one call: `ups.fit(data, minutes=5)`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.config import as_flag, giving_way, load
from ups.data import Source, defined, renamed
from ups.data.readers.array_dims import VALUES, role_of
from ups.data.readers.memory import array_of, open_memory
from ups.data.reduction import Reduction
from ups.data.splits import FEW_TRAJECTORIES, PARTS, make_split
from ups.data.trajectories import alike
from ups.data.write_well import write_data_set
from ups.definition import CHANNEL, SAMPLE, TIME, Definition
from ups.engine.ranks.dist import device_of
from ups.engine.train import Precision
from ups.eval.report import Report
from ups.jobs.import_data import TOO_FEW, cut_in_time, too_few_to_divide
from ups.jobs.recipe.data_profile import IN_TIME, OF_FEW, DataProfile, held_as_they_are, recipe
from ups.jobs.recipe.pricing import Pricing
from ups.jobs.recipe.proposal import dotted
from ups.models import Simulator
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import DataConfig
from ups.run.data.datasets import DataEntry, open_files, open_sets
from ups.run.data.doubts import lost_digits, question
from ups.run.load import load as load_simulator
from ups.run.run import run_alone
from ups.run.start import ANEW, Start
from ups.rundir import RunDir
from ups.types import Array, ConfigError, counted

# The share of the time that goes into a codec that has something to learn.
CODEC = 0.15
# Seconds of training that are over sooner than a size could be chosen: the smallest is taken.
PRICED = 10.0
# Settings that say how large the network is.
SIZED = ("model.network", *(f"model.operator.{key}" for key in ("size", "width", "depth", "heads")), "start_from")
SPACE = ("x", "y", "z")
CHANNELS = 8  # in the last axis of an array that nobody explained; more may be cells


@dataclass(frozen=True, eq=False)
class Data:
    """Trajectories in memory.

    Args:
        values: An array (numpy, torch, xarray), a dict of arrays by channel, or an `xarray.Dataset`.
        dims: The axes of an array, in any order: `sample`, `time`, those of space by their names, `channel`. Without
            them it is `(sample, time, x[, y[, z]], channel)`, or of three axes `(sample, time, x)`; xarray brings its
            own names.
        coords: The coordinates of an axis, by name (`t` or `time`, `x`, …).
        params: By name a number or a word, or one per sample.
        inputs: By name the fields that are given and do not change in time.
        mask: True where a cell counts.
        task: The rest, as `ups.Definition` says it: name, fields, which axes are periodic, laws.
    """

    values: Any
    dims: Sequence[str] = ()
    coords: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    mask: Any = None
    task: Definition | str | None = None

    def source(self) -> Source:
        """The trajectories, as any file of them would be read."""
        definition = Definition.of(self.task)
        definition = definition if definition.name else replace(definition, name="data")
        arrays, dims = _named(self.values)
        beside = {**self.coords, **self.inputs, **({} if self.mask is None else {"mask": self.mask})}
        words = {k: v for k, v in self.params.items() if isinstance(v, str)}
        columns = {k: array_of(v, k) for k, v in self.params.items() if k not in words}
        _check_columns(columns)
        if twice := [name for name in self.params if name in arrays or name in self.inputs]:
            raise ConfigError(f"{twice[0]} is among the arrays and under params; give it once.")
        _check_axes(self.dims, arrays, dims, definition)
        if not dims:
            definition = replace(definition, dims=tuple(self.dims) or definition.dims or _usual(arrays, definition))
            inputs = {name: (name,) for name in self.inputs} | definition.inputs
            definition = replace(definition, inputs=inputs, mask="mask" if self.mask is not None else definition.mask)
        else:
            space = [d for d in _widest(dims) if d not in (SAMPLE, TIME, CHANNEL)]
            dims |= {name: (name,) for name in self.coords}
            dims |= {name: tuple(space) for name in (*self.inputs, *(["mask"] if self.mask is not None else []))}
        definition = replace(definition, parameters={**definition.parameters, **words})
        source = open_memory({**arrays, **beside}, definition, dims, columns)
        self._check_used(source, (*beside, *columns))
        return defined(source, definition, TASKS)

    @staticmethod
    def _check_used(source: Source, names: Sequence[str]) -> None:
        """What the user gives by name is used, or said not to fit: a file may hold more than is needed, a call not."""
        for name in names:
            if any(note.startswith(f"array {name} (") for note in source.notes):
                shape = " × ".join(map(str, source.grid.shape))
                raise ConfigError(
                    f"{name} does not fit {counted(len(source), 'sample')} of {counted(len(source.times), 'frame')} on "
                    f"{shape} cells."
                )


def _named(values: Any) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Arrays by name, and the names of their axes where they bring them."""
    if hasattr(values, "data_vars"):  # xarray.Dataset
        arrays = {str(name): values[name] for name in (*values.data_vars, *values.coords)}
        return {n: a.values for n, a in arrays.items()}, {n: tuple(map(str, a.dims)) for n, a in arrays.items()}
    if hasattr(values, "dims") and hasattr(values, "coords"):  # xarray.DataArray
        name = str(values.name or "values")
        arrays = {name: values, **{str(key): values.coords[key] for key in values.coords}}
        return {n: a.values for n, a in arrays.items()}, {n: tuple(map(str, a.dims)) for n, a in arrays.items()}
    if isinstance(values, Mapping):
        return {str(name): array_of(value, str(name)) for name, value in values.items()}, {}
    return {VALUES: array_of(values, VALUES)}, {}


def _check_columns(columns: Mapping[str, Array]) -> None:
    """Every parameter is one value, or one per sample."""
    for name, values in columns.items():
        if max(values.shape, default=1) != values.size:
            shape = " × ".join(map(str, values.shape))
            raise ConfigError(f"{name} has {shape} values; give one, or one per sample, and each column its own name.")


def _check_axes(
    axis_names: Sequence[str], arrays: Mapping[str, Array], dims: Mapping[str, tuple[str, ...]], definition: Definition
) -> None:
    """ConfigError unless every axis of the arrays is named once and one of them is of space. `axis_names`, if given,
    name each axis of a lone array."""
    if dims:
        known = set(definition.datasets.values())
        strange = [d for d in _widest(dims) if d not in known and not role_of(d, {}, definition)]
        if strange:
            raise ConfigError(
                f"nothing says what the dimension '{strange[0]}' is; rename it to sample, time, x, y, z or channel, or "
                f"give task=ups.Definition(datasets={{'sample': '{strange[0]}'}})."
            )
        return
    shape = max((a.shape for a in arrays.values()), key=len, default=())
    named = replace(definition, dims=tuple(axis_names) or definition.dims)
    if len(named.dims) == len(shape) and not named.space:
        raise ConfigError(
            f"dims={[*map(str, named.dims)]} names no axis of space, and data without one, as those of ordinary "
            "differential equations, cannot be learnt by ups; name the axis of space if there is one."
        )
    wrong = len(named.dims) < len(shape) or (axis_names and len(arrays) == 1 and len(axis_names) != len(shape))
    if named.dims and (wrong or not named.space or len(set(named.layout)) != len(named.dims)):
        usual = [str(SAMPLE), str(TIME), *SPACE][: max(3, len(shape) - (len(shape) > 3))]
        raise ConfigError(
            f"dims={[*map(str, named.dims)]} does not name the axes of {' × '.join(map(str, shape))} numbers; name "
            f"each of them once, and at least one of space, such as dims={usual + [str(CHANNEL)] * (len(shape) > 3)}."
        )


def _widest(dims: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The axes of the array that has most of them."""
    return max(dims.values(), key=len)


def _usual(arrays: Mapping[str, Any], definition: Definition) -> tuple[str, ...]:
    """The axes of arrays that nobody named: `(sample, time, x[, y[, z]], channel)`; each channel by itself where there
    are several arrays."""
    rank = max((np.ndim(a) for a in arrays.values()), default=0)
    apart = len(arrays) > 1 or rank == 3
    axes = rank - 2 if apart else rank - 3
    if not 1 <= axes <= len(SPACE):
        raise ConfigError(
            f"an array of {counted(rank, 'axis')} is not (sample, time, x[, y[, z]], channel); say with dims=[…] what "
            "they are."
        )
    last = max(np.shape(a)[-1] for a in arrays.values())
    if not apart and not definition.fields and last > CHANNELS and axes < len(SPACE):
        shape = " × ".join(map(str, np.shape(next(iter(arrays.values())))))
        cells = [str(axis) for axis in (SAMPLE, TIME, *SPACE[: axes + 1])]
        raise ConfigError(
            f"{shape} numbers may be one field in {axes + 1}D, or {last} channels: say which with dims={cells} or "
            f"dims={[*cells[:-1], str(CHANNEL)]}."
        )
    return (SAMPLE, TIME, *SPACE[:axes], *(() if apart else (CHANNEL,)))


def _proposed(
    sets: Sequence[DataProfile],
    device: str,
    minutes: float,
    settings: Mapping[str, Any],
    choice: tuple[str, int, Precision] | None = None,
) -> dict[str, Any]:
    """The recipe for these data, as flags. Where a size, a batch and a precision were chosen, they are among them, and
    a race of sizes follows, but for models in shares, which do not race. Where `settings` name a codec or `start_from`,
    some of the time goes to training the codec; where they name an optimizer, the recipe's learning rate is left
    out."""
    usual = settings.get("model.network.size", "small" if settings.get("start_from") else "tiny")
    size = str(settings.get("model.operator.size", usual if choice is None else choice[0]))
    flags = dotted(recipe(sets, device_of(device).type, size)) if sets else {}
    if choice is not None:
        flags |= dict(zip(("model.operator.size", "batch", "operator.train.precision"), choice, strict=True))
        flags |= {} if settings.get("dist.strategy") == "fsdp" else {"tune": "auto"}
    codec = [key for key in settings if key.startswith(("model.codec", "codec."))]
    if codec or not sets or settings.get("start_from"):
        flags = {key: value for key, value in flags.items() if not key.startswith(("model.codec", "codec."))}
        flags["codec.train.seconds"] = 60 * minutes * CODEC
        minutes *= 1 - CODEC
    if start := settings.get("start_from"):
        training = {key: value for key, value in flags.items() if not key.startswith("model.")}
        flags = {**training, **(_networks(load_simulator(start)) if sets else {})}
    if {"train.optimizer", "operator.train.optimizer"} & settings.keys():
        flags.pop("operator.train.lr", None)
    return {**flags, "operator.train.seconds": 60 * minutes}


@dataclass(frozen=True)
class FitRequest:
    """What `ups.fit` is to do, beside the data; `place` says as flags where the run is."""

    minutes: float
    device: str
    settings: Mapping[str, Any]
    place: Mapping[str, Any]

    def config(
        self,
        files: Mapping[str, Any],
        sets: Sequence[DataProfile] = (),
        seen: Mapping[str, Any] | None = None,
        choice: tuple[str, int, Precision] | None = None,
    ) -> RunConfig:
        """The config for data in `files`, with what was `seen` of them; both are flags."""
        proposed = _proposed(sets, self.device, self.minutes, self.settings, choice)
        proposed = giving_way(run_config(), proposed, self.settings)
        return load(run_config(), None, {**self.place, **files, **proposed, **self.settings, **(seen or {})})

    def sized(
        self, files: Mapping[str, Any], sets: Sequence[DataProfile], seen: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """The config with the size, the batch and the precision that the minutes have room for."""
        seconds = 60 * self.minutes
        if seconds < PRICED or any(key.startswith(SIZED) for key in self.settings):
            return self.config(files, sets, seen)
        prices = Pricing(
            lambda size, batch: self.config(files, sets, seen, (size, batch, "fp32")), device_of(self.device)
        )
        best = prices.choose(seconds)
        return self.config(files, sets, seen, (best.size, best.batch, best.precision))


def _single(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with whole sections split into keys, so that the keys they leave out keep the recipe's values."""
    flags: dict[str, Any] = {}
    for key, value in settings.items():
        names = key.split(".")
        if names[0] in ("train", "model", "codec", "operator") and isinstance(value, Mapping):
            flags |= _single({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flags[key] = as_flag(value) if isinstance(value, Path) else value
    return flags


def _networks(simulator: Simulator) -> dict[str, Any]:
    """How the networks of a simulator are made, as flags."""
    return {
        f"model.{name}.{key.name}": getattr(part.config, key.name)
        for name, part in simulator.parts.items()
        for key in fields(part.config)
    }


def _looked_at(sources: Sequence[Source], settings: Mapping[str, Any]) -> list[DataProfile]:
    """What sources hold, by task; how states go on of a task that the simulator to start from knows, it says."""
    sets, start = held_as_they_are(sources), settings.get("start_from")
    known = load_simulator(start).codec.tasks if start else {}
    return [replace(h, start=known[h.task.name].dynamics) if h.task.name in known else h for h in sets]


def _seen(entries: Sequence[DataEntry], sets: Sequence[DataProfile], config: RunConfig) -> dict[str, Any]:
    """What was seen of how the states of data sets go on, as flags that define their tasks."""
    flags: dict[str, Any] = {}
    for label, data in config.data.items():
        own, names = Definition.of(data.task), {each.source.task.name for each in entries if each.config == data}
        for here in (here for here in sets if here.task.name in names):
            whole = here.facts(own).definition
            flags |= {f"data.{label}.task": as_flag(whole.plain())} if whole != own else {}
    return flags


def _given(data: Any) -> list[Data]:
    """The trajectories of one task, or of several, which a dict has by their names."""
    if isinstance(data, Mapping | list | tuple) and not data:
        raise ConfigError("there are no data; give an array (sample, time, x[, y[, z]], channel), or some in a dict.")
    inside = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else []
    several = [isinstance(each, Data) for each in inside]
    if not any(several):
        return [data if isinstance(data, Data) else Data(data)]
    if not isinstance(data, Mapping) or not all(several):
        raise ConfigError("several tasks are a dict of ups.Data by their names: ups.fit({'waves': …, 'heat': …}).")
    tasks = [Definition.of(each.task) for each in inside]
    named = [task if task.name else replace(task, name=str(key)) for key, task in zip(data, tasks, strict=True)]
    return [replace(each, task=task) for each, task in zip(inside, named, strict=True)]


def _places(sources: Sequence[Source], folder: Path) -> dict[str, Path]:
    """Where the data of each task are written."""
    places: dict[str, Path] = {}
    for task in (source.task.name for source in sources):
        if task in places:
            raise ConfigError(f"two sets of data are called {task}; give each a task of its own, or join their arrays.")
        places[task] = folder / task
    return places


def _split(source: Source, screen: Screen) -> tuple[Source, Mapping[str, Sequence[str]]]:
    """The trajectories to write and those of each part; refused are parameters and masks that say nothing."""
    if source.task.domain != "grid":
        raise ConfigError(
            f"{source.task.name}: {source.grid.words} are learnt from a file: write them with "
            "numpy.savez('data.npz', points=…, u=…), and call ups.fit('data.npz')."
        )
    alike(source, source.ids, Reduction())
    if too_few_to_divide(source):
        screen.say(TOO_FEW)
        return cut_in_time(source, IN_TIME)
    split = make_split(source.ids, fractions=OF_FEW) if len(source.ids) < FEW_TRAJECTORIES else make_split(source.ids)
    return source, {part: split.part(part) for part in PARTS}


def _cut_where_it_lies(data: DataConfig, settings: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """How the files of a path are divided, as flags, where they are too few to be divided as others are."""
    if any(key.startswith("data.data.split") for key in settings) or not data.file:
        return {}
    with open_files(data.file, data.definition) as source:
        few = too_few_to_divide(source)
    if few:
        screen.say(TOO_FEW)
    return {"data.data.split.time": list(IN_TIME)} if few else {}


def fit(
    data: Any,
    minutes: float,
    name: str,
    out: Path,
    device: str,
    settings: Mapping[str, Any],
    screen: Screen,
    start: Start = ANEW,
) -> tuple[Simulator, RunDir, Report]:
    """Write `data` as data sets beside the run's folder, train on them, and judge what was learnt, all in `minutes`.

    A path is read where it lies. What `settings` do not say is as `ups init` proposes it for these data; every frame
    and cell is kept.
    """
    began = time.perf_counter()
    if isinstance(minutes, bool) or not isinstance(minutes, int | float | np.number):
        raise ConfigError(f"minutes is {minutes!r}, but must be a number.")
    if not minutes > 0:
        raise ConfigError(f"minutes is {minutes}, but training takes some time; give a number above 0.")
    start = replace(start, began=time.time() if start.began is None else start.began, minutes=float(minutes))
    settings = _single(settings)
    place = {"name": as_flag(name), "out": as_flag(out), "device": as_flag(device)}
    request = FitRequest(float(minutes), device, settings, place)

    if isinstance(data, str | Path):
        file: dict[str, Any] = {"data.data.file": as_flag(str(data))}
        file |= _cut_where_it_lies(request.config(file).data["data"], settings, screen)
        with ExitStack() as stack:
            opened = open_sets(request.config(file).data, Path(), screen.following, stack)
            entries = [entry for data_set in opened for entry in data_set.entries]
            sets = _looked_at([entry.source for entry in entries], settings)
            config = request.sized(file, sets, _seen(entries, sets, request.config(file)))
        folder, report = run_alone(config, screen, replace(start, before=("data", time.perf_counter() - began)))
        return load_simulator(folder.folder, device), folder, report
    with ExitStack() as stack:
        given = _given(data)
        sources = [stack.enter_context(each.source()) for each in given]
        places = _places(sources, out / f"{name}-data")
        for source in sources:
            problems = [f"PROBLEM: {problem}" for problem in lost_digits(source)]
            for words in (*problems, *(f"note: {note}" for note in source.notes)):
                screen.say(words.replace(": ", f": {source.task.name}: ", 1) if len(sources) > 1 else words)
            for words in question([source]):
                raise ConfigError(f"{source.task.name}: {words}; or give it as one of `params`.")
        # Before anything is written.
        divided = [_split(source, screen) for source in sources]
        sets = _looked_at(sources, settings)
        for words in (f"{here.task.name}: {note}" for here in sets for note in here.notes):
            screen.say(words)
        files = {f"data.{task}.file": as_flag(path) for task, path in places.items()}
        request.config(files, sets)  # refuses settings that are wrong
        if not start.overwrite and any(path.exists() for path in (out / name, *places.values())):
            raise ConfigError(f"{out / name}: is there already; give another name=…, or overwrite=True.")
        for each, here, (source, parts), there in zip(given, sets, divided, places.values(), strict=True):
            task = replace(source.task, dynamics=here.facts(Definition.of(each.task)).dynamics)
            write_data_set(renamed(source, task), there.parent, there.name, parts, overwrite=start.overwrite)
        config = request.sized(files, sets)
    folder, report = run_alone(config, screen, replace(start, before=("data", time.perf_counter() - began)))
    return load_simulator(folder.folder, device), folder, report
