"""Opens the data sets of a run: makes missing files, joins files by task, and divides them into parts."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ups.data import Joined, Source, open_source, open_together, renamed, same_task
from ups.data.axes import uneven_axes
from ups.data.axis_order import in_order, reordering
from ups.data.checksums import Digest, Memory, content
from ups.data.neighbours import check_neighbours
from ups.data.splits import PARTS, Split
from ups.data.trajectories import Trajectories, alike
from ups.data.views import MIRRORED
from ups.definition import Definition
from ups.eval.results import DataFact
from ups.files import is_pattern
from ups.models.config import SimulatorConfig
from ups.physics import TASKS
from ups.progress import OnProgress, Say
from ups.run.data.data_config import DataConfig
from ups.run.data.divide import cut_besides, divided, left_out, with_images
from ups.run.data.generate import generate
from ups.run.data.sphere import Sphere
from ups.rundir import RunDir
from ups.types import ConfigError, DataError, Points, TaskSpec, UpsError, few
from ups.wings import elsewhere

# Remarks of a reader that a run passes on; `ups data info` has all of them.
REMARKS = 6


def unsaid(_: object) -> None:
    """Not shown."""


@dataclass(frozen=True)
class DataEntry:
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
    entries: tuple[DataEntry, ...]
    _parts: dict[str, list[Trajectories]] = field(default_factory=dict)

    @property
    def first(self) -> DataEntry:
        return self.entries[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells per axis of the finest grid that is trained on, or the number of points."""
        return max((part.shape for part in self.parts("train")), key=lambda shape: int(np.prod(shape)))

    @property
    def resolved(self) -> tuple[int, ...]:
        """Cells per axis of the grid that tokens stand for: the finest that the data resolve."""
        return max((part.grid.resolved for part in self.parts("train")), key=lambda shape: int(np.prod(shape)))

    @property
    def points(self) -> Points | None:
        """The points of the largest number that is trained on; None where there are grids."""
        grid = next(part.grid for part in self.parts("train") if part.shape == self.shape)
        return grid if isinstance(grid, Points) else None

    @property
    def corner(self) -> tuple[float, ...]:
        """Where that grid begins, as `Grid.corner` says."""
        return next(part.grid.corner for part in self.parts("train") if part.shape == self.shape)

    @property
    def step(self) -> float:
        """Time between two frames that are trained on, of the first sample; 1 for a steady task."""
        return self.parts("train")[0].dt

    def parts(self, name: str) -> list[Trajectories]:
        """The trajectories of one part, those that share a grid together."""
        if name not in self._parts:
            try:
                self._parts[name] = [part for entry in self.entries for part in entry.parts(name)]
            except DataError as error:
                raise DataError(_within(self.task.name, error)) from None
        return self._parts[name]

    def with_images(self) -> DataSet:
        """This data set with mirror images of all cells for training, where the cells in use have none."""
        pairs = ((entry, with_images(entry.source, entry.split, entry.config.reduce)) for entry in self.entries)
        return DataSet(self.task, tuple(DataEntry(entry.config, *both) for entry, both in pairs))

    @property
    def mirrored(self) -> bool:
        """Whether there are some."""
        return any(MIRRORED in name for entry in self.entries for name in entry.split.train)

    def values(self) -> dict[str, tuple[float, ...]]:
        """The values of each parameter in training."""
        rows = np.concatenate([part.params.numpy() for part in self.parts("train")])
        names = self.parts("train")[0].numbers
        return {name: tuple(map(float, np.unique(rows[:, i]))) for i, name in enumerate(names)}

    def fact(self, digests: Mapping[Path, Digest] | None = None) -> DataFact:
        """Where the data come from, what decides their bytes, and how much there is; `digests` are those of files."""
        sources = [entry.source for entry in self.entries]
        splits = [entry.split for entry in self.entries]
        counts = " / ".join(str(sum(len(getattr(split, part)) for split in splits)) for part in PARTS)
        counts += ", mirror images included" if self.mirrored else ""
        grids = dict.fromkeys(part.shape for part in self.parts("train"))
        names = ", ".join(dict.fromkeys(source.path.name for source in sources))
        values = {name: f"{min(v):g} … {max(v):g}" for name, v in self.values().items() if len(v) > 1}
        params = {**sources[0].params, **values}
        return DataFact(
            task=self.task.name,
            source=names,
            version="; ".join(version_of(source, digests) for source in sources),
            samples=counts,
            grid=" and ".join(" × ".join(map(str, grid)) for grid in grids),
            frames=max(len(part.times) for part in self.parts("train")),
            params=", ".join(f"{k} = {v}" for k, v in params.items()),
        )


def version_of(source: Source, digests: Mapping[Path, Digest] | None = None) -> str:
    """What decides the bytes of a source: how its file was made, or what its files hold."""
    made, files = source.attributes().get("ups_identity"), source.files()
    if made is not None and len(files) == 1:
        return str(made)
    known = digests or {}
    rows = [known[path] for path in files] if all(path in known for path in files) else Memory.of(files)
    return content(rows)


def _within(task: str, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(f"{task}: ") else f"{task}: {text}"


def open_files(files: str | Sequence[str], definition: Definition) -> Source:
    """One source over a file, a folder, a pattern, what was fetched from elsewhere, or a list of these."""
    patterns = [files] if isinstance(files, str) else list(files)
    paths: list[Path] = []
    for pattern in patterns:
        if elsewhere().names(pattern):
            paths += elsewhere().paths(pattern)
            continue
        matches = sorted(glob.glob(pattern, recursive=True)) if is_pattern(pattern) else [pattern]
        if not matches:
            raise DataError(f"{pattern}: fits no file; check the pattern and the folder.")
        paths += [Path(match) for match in matches]
    if len(paths) == 1:
        return open_source(paths[0], TASKS, definition)
    return open_together(common(paths), paths, TASKS, definition)


def common(paths: Sequence[Path]) -> Path:
    """The folder that all files are in."""
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


@contextmanager
def opened(data: DataConfig, folder: Path, following: OnProgress, known: Path | None = None) -> Iterator[DataEntry]:
    """The data of one entry of a config, made first where it names no file and the folder `known` has none of it."""
    if data.split.files:
        names = [part for part in PARTS if part in data.split.files]
        parts = {part: open_files(data.split.files[part], data.definition) for part in names}
        _check_apart({f"split.files.{part}": source for part, source in parts.items()})
        paths = [path for source in parts.values() for path in source.files()]
        source: Source = Joined(common(paths), list(parts.values()), names)
    elif data.file:
        source = open_files(data.file, data.definition)
    else:
        paths = generate(data.generation(), folder, following, known=known)
        source = open_files([str(path) for path in paths], data.definition)
    with source:
        check_axes(source)
        check_neighbours(source)
        yield DataEntry(data, *divided(data, source))


def check_axes(source: Source) -> None:
    """A network sees cells as equally wide: other axes are refused rather than taken for what they are not."""
    if uneven := uneven_axes(source.problems):
        raise DataError(
            f"{source.path}: the cells along {', '.join(uneven)} are not equally wide; resample the data with `ups "
            "data import --resample`, and use what it writes."
        )


def _check_apart(sources: Mapping[str, Source]) -> None:
    """No file is read twice: a trajectory could be for training in one place and for testing in another."""
    seen: dict[Path, str] = {}
    for name, source in sources.items():
        for path in {path.resolve() for path in source.files()}:
            if path in seen:
                raise ConfigError(f"{path}: is read by {seen[path]} and by {name}; name it once.")
            seen[path] = name


def joined(entries: Sequence[DataEntry]) -> list[DataSet]:
    """Entries of the same task as one data set each, in the order in which the tasks come first."""
    by_task: dict[str, list[DataEntry]] = {}
    for entry in entries:
        by_task.setdefault(entry.source.task.name, []).append(entry)
    sets = []
    for members in by_task.values():
        _check_apart({f"entry {i + 1} of {entry.source.task.name}": entry.source for i, entry in enumerate(members)})
        task = same_task([entry.source for entry in members])
        own = [DataEntry(entry.config, renamed(entry.source, task), entry.split) for entry in members]
        sets.append(DataSet(task, tuple(own)))
    return sets


def as_known(sets: Sequence[DataSet], known: Mapping[str, TaskSpec]) -> list[DataSet]:
    """Data sets that are put to a simulator as they are. Fields in another order than its own would be taken for each
    other, and are refused; all else as in `aligned`."""
    sets = aligned(sets, known)
    for data in sets:
        own = known.get(data.task.name, data.task)
        for ours, theirs in ((own.channels, data.task.channels), (own.given, data.task.given)):
            if ours != theirs and sorted(ours) == sorted(theirs):
                raise DataError(
                    f"{data.task.name}: has the fields {', '.join(theirs)}, but the simulator was trained on "
                    f"{', '.join(ours)}; say this order in the task (`fields`, `inputs`)."
                )
    return sets


def aligned(sets: Sequence[DataSet], known: Mapping[str, TaskSpec], say: Say = unsaid) -> list[DataSet]:
    """Data sets with parameters, and the words that these may be, in the order of a simulator that knows the tasks; new
    ones come last. A network gets a word as its place among the choices, so the order matters, and so does
    that of the axes. Fields and inputs keep the order of the data, for `models.inherit` matches them by name."""
    for data in (data for data in sets if data.task.name in known):
        if note := reordering(data.task, known[data.task.name]):
            say(f"{data.task.name}: {note}")
    return [_aligned(data, known[data.task.name]) if data.task.name in known else data for data in sets]


def _aligned(data: DataSet, known: TaskSpec) -> DataSet:
    old = {p.name: p.choices for p in known.parameters}
    params = tuple(
        dataclasses.replace(p, choices=tuple(dict.fromkeys((*old.get(p.name, ()), *p.choices)))) if p.choices else p
        for p in data.task.parameters
    )
    order = [*old, *(p.name for p in params if p.name not in old)]
    params = tuple(sorted(params, key=lambda p: order.index(p.name)))
    task = dataclasses.replace(in_order(data.task, known), parameters=params)
    entries = [DataEntry(entry.config, renamed(entry.source, task), entry.split) for entry in data.entries]
    return DataSet(task, tuple(entries))


def fetch_data(configs: Mapping[str, DataConfig], following: OnProgress) -> None:
    """Fetch what the configs name from elsewhere and is not on this machine yet."""
    for name, data in configs.items():
        try:
            elsewhere().provide(data.words, following)
        except UpsError as error:
            raise type(error)(f"data.{name}: {error}") from None


def open_sets(
    configs: Mapping[str, DataConfig],
    folder: Path,
    following: OnProgress,
    stack: ExitStack,
    say: Say = unsaid,
    data_from: str | None = None,
    simulator: SimulatorConfig | None = None,
) -> list[DataSet]:
    """The data sets of a config, one for each task, open until `stack` closes; `say` gets what readers noticed. What
    the run in the folder `data_from` has made is not made again. To be trained on are images too, if a `simulator` of
    this config learns from them."""
    known = None if data_from is None else RunDir(Path(data_from)).cache("data")
    entries: dict[str, DataEntry] = {}
    for name, data in configs.items():
        try:
            entries[name] = stack.enter_context(opened(data, folder, following, known))
        except UpsError as error:
            text = str(error)
            raise type(error)(text if text.startswith(("/", "data.")) else f"data.{name}: {text}") from None
    sets = joined(list(entries.values()))
    for name, entry in entries.items():
        # As one of all of its task: what is a parameter is known of all together.
        task = next(data.task for data in sets if data.task.name == entry.source.task.name)
        for remark in noticed(renamed(entry.source, task))[:REMARKS] if entry.config.there else ():
            say(f"data.{name}: {remark}")
        for words in Sphere(entry.source).words():
            say(f"data.{name}: {words}")
        if unused := entry.config.unused:
            say(f"data.{name}: {few(unused)} would say how data are made, and its files are there: not used.")
        if words := cut_besides(entry.split):
            say(f"data.{name}: {words}")
        if shared := left_out(entry.config, entry.source, entry.split):
            say(f"data.{name}: {shared}")
    if simulator is None:
        return sets
    return [data.with_images() if simulator.images_in("train", data.task.name) else data for data in sets]


def noticed(source: Source) -> list[str]:
    """What a reader noticed, the worst first."""
    return [*(f"PROBLEM: {problem}" for problem in source.problems), *source.all_notes]
