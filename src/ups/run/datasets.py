"""The data sets of a run: files that are there or are made first, joined by task, cut in three, as windows."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ups.data import Joined, Source, open_source, renamed, same_task
from ups.data.sampler import Validations
from ups.data.splits import PARTS, Split, given_split, held_out, make_split
from ups.data.trajectories import Trajectories, alike, balanced
from ups.data.views import CutInTime
from ups.data.windows import CELLS, Samples, Windows
from ups.definition import Definition
from ups.engine.ranks.dist import Dist
from ups.engine.train import Progress
from ups.eval.results import DataFact
from ups.physics import TASKS
from ups.run.config import RunConfig
from ups.run.data_config import DataConfig
from ups.run.generate import Report as Following
from ups.run.generate import generate
from ups.stages import StageConfig
from ups.types import ConfigError, DataError, TaskSpec, UpsError

Say = Callable[[str], None]
Watch = Callable[[Progress], None]
# Parameter sets up to which each of them is in every part of a split.
STRATA = 64


@dataclass(frozen=True)
class Screen:
    """Where a run shows what it does: sentences, the making of data, the progress of training."""

    say: Say
    following: Following
    watch: Watch

    @classmethod
    def silent(cls) -> Screen:
        """For ranks whose words nobody reads."""
        return cls(_nothing, _nothing, _nothing)


def _nothing(_: object) -> None:
    """Not shown."""


@dataclass(frozen=True)
class Entry:
    """The data of one entry of a config, cut in three."""

    config: DataConfig
    source: Source
    split: Split

    def parts(self, name: str) -> list[Trajectories]:
        """The trajectories of one part, those that share a grid together; nothing is read yet."""
        return alike(self.source, self.split.part(name), self.config.reduce)


@dataclass
class DataSet:
    """All trajectories of one task: of one or several entries of a config."""

    task: TaskSpec
    entries: tuple[Entry, ...]
    _parts: dict[str, list[Trajectories]] = field(default_factory=dict)

    @property
    def first(self) -> Entry:
        return self.entries[0]

    @property
    def grid(self) -> tuple[int, ...]:
        """Cells per axis of the tokens: the finest grid that is trained on."""
        return max((part.shape for part in self.parts("train")), key=lambda shape: int(np.prod(shape)))

    @property
    def step(self) -> float:
        """Time between two frames that are trained on, of the first sample; 0 for a steady task."""
        part = self.parts("train")[0]
        return part.dt if len(part.times) > 1 else 0.0

    def parts(self, name: str) -> list[Trajectories]:
        """The trajectories of one part, those that share a grid together."""
        if name not in self._parts:
            try:
                self._parts[name] = [part for entry in self.entries for part in entry.parts(name)]
            except DataError as error:
                raise DataError(_within(self.task.name, error)) from None
        return self._parts[name]

    def values(self) -> dict[str, tuple[float, ...]]:
        """The values of each parameter in training, where there are several."""
        rows = np.concatenate([part.params.numpy() for part in self.parts("train")])
        names = self.parts("train")[0].numbers
        columns = {name: np.unique(rows[:, i]) for i, name in enumerate(names)}
        return {name: tuple(map(float, column)) for name, column in columns.items() if len(column) > 1}

    def fact(self) -> DataFact:
        """Where the data come from, what decides their bytes, and how much there is."""
        sources = [entry.source for entry in self.entries]
        splits = [entry.split for entry in self.entries]
        counts = " / ".join(str(sum(len(getattr(split, part)) for split in splits)) for part in PARTS)
        grids = dict.fromkeys(part.shape for part in self.parts("train"))
        names = ", ".join(dict.fromkeys(source.path.name for source in sources))
        values = {name: f"{min(v):g} … {max(v):g}" for name, v in self.values().items()}
        params = {**sources[0].params, **values}
        return DataFact(
            task=self.task.name,
            source=names,
            version="; ".join(version_of(source) for source in sources),
            samples=counts,
            grid=" and ".join(" × ".join(map(str, grid)) for grid in grids),
            frames=max(len(part.times) for part in self.parts("train")),
            params=", ".join(f"{k} = {v}" for k, v in params.items()),
        )


def version_of(source: Source) -> str:
    """What decides the bytes of a source: how its file was made, or the sizes of its files."""
    made = source.attributes().get("ups_identity")
    if made is not None and len(source.files()) == 1:
        return str(made)
    return f"{sum(path.stat().st_size for path in source.files())} bytes"


def _within(task: str, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(f"{task}: ") else f"{task}: {text}"


def open_files(files: str | Sequence[str], definition: Definition) -> Source:
    """One source over a file, a folder, a pattern, or a list of these."""
    patterns = [files] if isinstance(files, str) else list(files)
    paths: list[Path] = []
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
        if not matches:
            raise DataError(f"{pattern}: fits no file; check the pattern and the folder.")
        paths += [Path(match) for match in matches]
    if len(paths) == 1:
        return open_source(paths[0], TASKS, definition)
    with ExitStack() as stack:
        sources = [stack.enter_context(open_source(path, TASKS, definition)) for path in paths]
        joined = Joined(_common(paths), sources)
        stack.pop_all()
    return joined


def _common(paths: Sequence[Path]) -> Path:
    """The folder that all files are in."""
    folders = [path.absolute().parent for path in paths]
    inside = [f for f in folders[0:1] for f in (f, *f.parents) if all(f in (g, *g.parents) for g in folders)]
    return inside[0]


@contextmanager
def opened(data: DataConfig, folder: Path, following: Following) -> Iterator[Entry]:
    """The data of one entry of a config, made first where it names no file."""
    if data.split.files:
        parts = {part: open_files(data.split.files[part], data.definition) for part in PARTS}
        source: Source = Joined(folder, [parts[part] for part in PARTS], list(PARTS))
    elif data.file:
        source = open_files(data.file, data.definition)
    else:
        paths = generate(data.generation(), folder, following)
        source = open_files([str(path) for path in paths], data.definition)
    with source:
        check_axes(source)
        cut, split = divided(data, source)
        yield Entry(data, cut, split)


def check_axes(source: Source) -> None:
    """A network sees cells as equally wide: other axes are refused rather than taken for what they are not."""
    wrong = (problem for problem in source.problems if "axis is not uniform" in problem and "t axis" not in problem)
    uneven = next(wrong, None)
    if uneven is not None:
        raise DataError(
            f"{source.path}: {uneven}; resample the data to uniform cells with `ups data import --resample`."
        )


def divided(data: DataConfig, source: Source) -> tuple[Source, Split]:
    """The parts of a source as its config asks for them, and the source in which they are."""
    settings, seed = data.split, data.seed
    if settings.time is not None:
        cut = CutInTime(source, settings.time)
        return cut, given_split(cut.ids, cut.parts, "in time", settings.time, seed)
    if settings.files or all(name.split("/")[0] in PARTS for name in source.ids):
        where = {name: name.split("/")[0] for name in source.ids}
        return source, given_split(source.ids, where, "as given")
    if settings.hold_out:
        for name in settings.hold_out:
            if name not in {p.name for p in source.task.parameters}:
                raise ConfigError(f"split.hold_out names {name}, which is no parameter of {source.task.name}.")
        out = [
            all(_is_one_of(source.params_of(i).get(k), values) for k, values in settings.hold_out.items())
            for i in range(len(source))
        ]
        return source, held_out(source.ids, out, settings.convention, settings.fractions, seed)
    params = [tuple(source.params_of(i).items()) for i in range(len(source))]
    grids = [source.domain_of(i).shape for i in range(len(source))]
    strata = list(zip(params if len(set(params)) <= STRATA else [()] * len(params), grids, strict=True))
    return source, make_split(source.ids, settings.convention, settings.fractions, seed, strata)


def _is_one_of(value: float | str | None, values: Sequence[float | str]) -> bool:
    """Equal words, or numbers equal to the precision of float32."""
    numbers = [v for v in values if not isinstance(v, str)]
    if isinstance(value, str) or value is None:
        return value in values
    return any(abs(value - v) <= 1e-5 * max(abs(value), abs(v)) for v in numbers)


def joined(entries: Sequence[Entry]) -> list[DataSet]:
    """Entries of the same task as one data set each, in the order in which the tasks come first."""
    by_task: dict[str, list[Entry]] = {}
    for entry in entries:
        by_task.setdefault(entry.source.task.name, []).append(entry)
    sets = []
    for members in by_task.values():
        task = same_task([entry.source for entry in members])
        own = [Entry(entry.config, renamed(entry.source, task), entry.split) for entry in members]
        sets.append(DataSet(task, tuple(own)))
    return sets


def open_sets(configs: Mapping[str, DataConfig], folder: Path, following: Following, stack: ExitStack) -> list[DataSet]:
    """The data sets of a config, one for each task, open until `stack` closes."""
    entries = []
    for name, data in configs.items():
        try:
            entries.append(stack.enter_context(opened(data, folder, following)))
        except UpsError as error:
            text = str(error)
            raise type(error)(text if text.startswith(("/", "data.")) else f"data.{name}: {text}") from None
    return joined(entries)


def windows_of(
    config: RunConfig,
    sets: Sequence[DataSet],
    settings: StageConfig,
    dist: Dist,
    encoded: Sequence[Samples] = (),
    validations: Callable[[], Validations] = tuple,
) -> Windows:
    """What a stage is trained and validated on; `encoded` parts take the place of those for training."""
    train, valid = ([part for data in sets for part in data.parts(name)] for name in ("train", "valid"))
    mix = config.mix if len(sets) > 1 else None
    return Windows(
        encoded or train,
        valid,
        settings.batch,
        config.context,
        settings.unroll,
        config.seed,
        ranks=dist,
        mix=mix,
        validations=validations,
        cells=CELLS.get(dist.device.type, 0),
        draws=[balanced(part.params) for part in train],
    )
