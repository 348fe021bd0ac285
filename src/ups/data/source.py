"""Source and Reader: the interface of every file format; trajectories are read lazily, opening notes problems."""

from __future__ import annotations

import dataclasses
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ups.definition import Definition
from ups.tensors import numeric_params
from ups.types import Array, ConfigError, DataError, Grid, Params, TaskSpec, Trajectory, few

UNFINISHED = ".part"
# Packed numbers may take so many times as many bytes as their file has, beyond an amount that harms nobody: real
# fields shrink by tens, and only what was made to fill a memory or a day by thousands.
PACKED, HARMLESS = 250, 2**30
ID_BYTES = 100  # of a sample's id in memory
BLOCK_BYTES = 64 * 2**20
UNUSED = "numbers among the attributes are not used"
AS_PARAMETER = "`datasets: {{{0}: {0}}}` in the task makes {0} a parameter"


@dataclass(frozen=True)
class SourceFacts:
    """What a file says about itself.

    Args:
        task: What its samples are of.
        params: Parameters that all samples share.
        grid: The grid of the first sample.
        times: Of its frames.
        ids: The names of the samples.
        notes: Harmless observations, a sentence each.
        problems: Contradictions, a sentence each.
        units: Those it names, by channel, parameter and axis.
        offered: Its numbers that are parameters if they are asked for.
        unplaced: The axes of space of which nothing says where they lie.
        unnamed: Parameters that nobody calls so, and their names in the file.
    """

    task: TaskSpec
    params: Params
    grid: Grid
    times: Array
    ids: tuple[str, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    offered: Mapping[str, float] = field(default_factory=dict)
    unplaced: tuple[str, ...] = ()
    unnamed: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Remarks:
    """Where a reader writes down what it notices."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Source(AbstractContextManager["Source"], ABC):
    """A sequence of trajectories: `source[i]` is a whole one, `read(i, frames)` only some of its frames.

    Opening reads the shapes and the coordinates; a read of k frames reads these k frames and nothing else. A source
    may be pickled, used after a fork and read by several threads at once: a subclass that keeps a file open leaves it
    out of `__getstate__` and opens it again in each process.

    A subclass says where the values lie (`_values`), and overrides what differs from sample to sample.
    """

    # Whether NaN in places that never change means that there is nothing; otherwise it is a fault.
    nan_is_mask: bool = False
    # Whether each channel lies by itself in the file, and `read_into` is fastest where it does so in memory too.
    channels_apart: bool = False

    def __init__(self, path: Path, facts: SourceFacts) -> None:
        self.path, self.task, self.params, self.grid = path, facts.task, facts.params, facts.grid
        self.times, self.ids, self.notes, self.problems = facts.times, facts.ids, facts.notes, facts.problems
        self.units, self.offered, self.unplaced = facts.units, facts.offered, facts.unplaced
        self.unnamed = facts.unnamed

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, with one on the numbers that are offered and that nobody has asked for. It is the last word of all
        files of a task together: alone, each has such numbers."""
        names = list(self.offered)
        verbs = ("are", "tell") if len(names) > 1 else ("is", "tells")
        reason = f"for {'they' if len(names) > 1 else 'it'} {verbs[0]} the same in all files or {verbs[1]} runs apart"
        unused = [f"{UNUSED} ({few(names)}), {reason}; {AS_PARAMETER.format(names[0])}"] if names else []
        return (*self.notes, *unused)

    @abstractmethod
    def _values(self, index: int, frames: slice) -> Array:
        """`(T', *S, C)`: the chosen frames of sample `index`, which is one of 0 … len − 1; `frames` steps forward."""

    def _inputs(self, index: int) -> Array:
        """`(*S, C_in)`: what is given with sample `index`; nothing in most tasks."""
        return np.zeros((*self.grid_of(index).shape, 0), np.float32)

    def read(self, index: int, frames: slice = slice(None)) -> Array:
        """Frames of one sample, `(T', *S, C)`, in the number format they are stored in; `frames` steps forward."""
        start, stop, step = frames.indices(len(self.times_of(index)))
        if step < 1:
            raise ValueError(f"frames are read forward in time, so a step of {step} is impossible")
        return _native(self._values(self._position(index), slice(start, max(start, stop), step)))

    def inputs(self, index: int) -> Array:
        """What is given rather than predicted, `(*S, C_in)`; C_in is 0 for most tasks."""
        return _native(self._inputs(self._position(index)))

    def beside(self, index: int) -> range:
        """The samples that lie one after the other with sample `index` and share its grid and times, so that many of
        them are read in the time of one; it alone in formats that say nothing of it."""
        at = self._position(index)
        return range(at, at + 1)

    def read_several(self, samples: range, frames: slice = slice(None)) -> Array:
        """Frames of some samples that lie `beside` each other, `(N, T', *S, C)`; the numbers that `read` gives."""
        return _native(self._values_of(samples, slice(*frames.indices(len(self.times_of(samples[0]))))))

    def read_into(self, samples: Sequence[int], frames: slice, into: Array) -> bool:  # noqa: ARG002
        """Whether frames of any samples of one grid and length are now in `into (N, T', *S, C)`, in whatever order that
        lies in memory: straight from the file, where a format can. If not, `read` and `read_several` say why."""
        return False

    def inputs_of(self, samples: range) -> Array:
        """What is given with samples that lie `beside` each other, `(N, *S, C_in)`."""
        return _native(self._inputs_of(samples))

    def _values_of(self, samples: range, frames: slice) -> Array:
        return np.stack([self._values(i, frames) for i in samples])

    def _inputs_of(self, samples: range) -> Array:
        return np.stack([self._inputs(i) for i in samples])

    def attributes(self) -> dict[str, Any]:
        """What is stored beside the samples, by name; nothing in most formats."""
        return {}

    def params_of(self, index: int) -> Params:  # noqa: ARG002  (only some formats vary them within a file)
        """Parameters of one sample."""
        return self.params

    def times_of(self, index: int) -> Array:  # noqa: ARG002
        """Times of one sample, `(T,)`."""
        return self.times

    def lengths(self) -> tuple[int, ...]:
        """Frames of each sample."""
        return tuple(len(self.times_of(i)) for i in range(len(self)))

    def grid_of(self, index: int) -> Grid:  # noqa: ARG002
        """The grid of one sample; the same object for samples that share one."""
        return self.grid

    def files(self) -> list[Path]:
        """The files that are read, in order."""
        return sorted(p for p in self.path.rglob("*") if p.is_file()) if self.path.is_dir() else [self.path]

    def assuming(self, params: Params) -> Source:
        """The same trajectories with `params` in the place of what the files say; every number must then be known."""
        names = [p.name for p in self.task.parameters]
        for name in params:
            if name not in names:
                has = f"its parameters are {', '.join(names)}" if names else "it has none"
                raise ConfigError(f"{self.task.name} has no parameter '{name}'; {has}.")
        assumed = _Assuming(self, params)
        known = assumed.params_of(0)
        words = [p.name for p in self.task.parameters if p.choices]
        for name in numeric_params(self.task):
            if isinstance(params.get(name), str) and name not in words:
                raise ConfigError(f"{self.task.name}: {name} is '{params[name]}', but must be a number.")
            if name not in known:
                raise ConfigError(f"{self.path}: says nowhere what its {name} is; give it with --params {name}=….")
        return assumed

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Trajectory:
        values, inputs = self.read(index), self.inputs(index)
        times, params = self.times_of(index), self.params_of(index)
        return Trajectory(self.ids[index], self.task, values, self.grid_of(index), times, params, inputs)

    def close(self) -> None:
        """Let go of what is open; the next read opens it again."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _position(self, index: int) -> int:
        count = len(self.ids)
        if not -count <= index < count:
            raise IndexError(f"{self.path}: there is no sample {index}, only {count} of them")
        return int(index) % count


class View(Source):
    """Another source under other facts: the same trajectories, seen differently. Subclasses say what differs."""

    def __init__(self, source: Source, **changes: Any) -> None:
        facts = {name: getattr(source, name) for name in (f.name for f in dataclasses.fields(SourceFacts))}
        super().__init__(source.path, SourceFacts(**{**facts, **changes}))
        self.source, self.nan_is_mask = source, source.nan_is_mask
        self.channels_apart = source.channels_apart
        self._seen: dict[Grid, Grid] = {}  # grids of the other source, as they are here

    def _values(self, index: int, frames: slice) -> Array:
        return self.source.read(index, frames)

    def _inputs(self, index: int) -> Array:
        return self.source.inputs(index)

    def beside(self, index: int) -> range:
        return self.source.beside(index) if self._keeps("_values") else super().beside(index)

    def _values_of(self, samples: range, frames: slice) -> Array:
        whole = self._keeps("_values")
        return self.source.read_several(samples, frames) if whole else super()._values_of(samples, frames)

    def read_into(self, samples: Sequence[int], frames: slice, into: Array) -> bool:
        return self._keeps("_values") and self.source.read_into(samples, frames, into)

    def _inputs_of(self, samples: range) -> Array:
        return self.source.inputs_of(samples) if self._keeps("_inputs") else super()._inputs_of(samples)

    def _keeps(self, method: str) -> bool:
        """Whether a subclass leaves the numbers of one sample as they are, and so those of several."""
        return getattr(type(self), method) is getattr(View, method)

    def attributes(self) -> dict[str, Any]:
        return self.source.attributes()

    def params_of(self, index: int) -> Params:
        return self.source.params_of(index)

    def times_of(self, index: int) -> Array:
        return self.source.times_of(index)

    def grid_of(self, index: int) -> Grid:
        grid = self.source.grid_of(index)
        if grid not in self._seen:
            self._seen[grid] = self.seen_as(grid)
        return self._seen[grid]

    def seen_as(self, grid: Grid) -> Grid:
        """A grid of the other source as this view has it."""
        return grid

    def files(self) -> list[Path]:
        return self.source.files()

    def close(self) -> None:
        self.source.close()


class _Assuming(View):
    """Another source with some of its parameters replaced."""

    def __init__(self, source: Source, params: Params) -> None:
        super().__init__(source, params={**source.params, **params})
        self._assumed = dict(params)

    def params_of(self, index: int) -> Params:
        return {**self.source.params_of(index), **self._assumed}


@dataclass(frozen=True)
class Reader:
    """A file format.

    Args:
        sniff: Says at little cost whether a path is of it, and never raises.
        open: Makes a source of such a path, told the tasks there are and what the user says of the one in the file,
            which may be nothing. A name, laws and parameters of the user are applied afterwards, to any source.
        suffixes: Of its files, which are looked for in a folder of many.
    """

    sniff: Callable[[Path], bool]
    open: Callable[[Path, Mapping[str, TaskSpec], Definition], Source]
    suffixes: tuple[str, ...] = ()


def check_path(path: Path) -> None:
    """Refuse in a sentence what no reader could open: a path that is missing, empty, unfinished or not to be read."""
    if path.suffix == UNFINISHED and path.exists():
        raise DataError(f"{path}: is unfinished; run the same `ups data generate` command again to finish it.")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DataError(f"{path}: is a pipe or a device, and no file; write its content to a file.")
        if path.stat().st_size == 0 and not path.is_dir():
            raise DataError(f"{path}: is empty; fetch or generate it again.")
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check the path.") from None
    except PermissionError:
        raise denied(path) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be looked at ({error.strerror}); check the path.") from None
    if not os.access(path, os.R_OK):
        raise denied(path)


def check_claim(path: Path, claimed: int, stored: int) -> None:
    """Refuse a file of `stored` bytes that says it holds `claimed` bytes of numbers, where that cannot be."""
    if claimed > HARMLESS + PACKED * stored:
        raise DataError(
            f"{path}: claims {claimed / 1e9:.3g} GB of numbers in a file of {stored / 1e9:.3g} GB, which no field fits "
            "into; it is damaged, or made to fill the memory: fetch or write it again."
        )


def numbered(path: Path, samples: int) -> tuple[str, ...]:
    """The ids of samples that have no names: their numbers. As many as the file can hold."""
    if samples < 1:
        raise DataError(f"{path}: holds no sample; fetch or generate it again.")
    check_claim(path, ID_BYTES * samples, path.stat().st_size if path.is_file() else 0)
    return tuple(f"{i:06d}" for i in range(samples))


def check_frame(path: Path, facts: SourceFacts) -> None:
    """Refuse a file whose axes span a frame that it cannot hold, whatever its data sets have along them."""
    if path.is_file():
        check_claim(path, 8 * math.prod(facts.grid.shape) * len(facts.task.channels), path.stat().st_size)


def denied(path: Path) -> DataError:
    """The error of a file whose permissions forbid reading."""
    return DataError(f"{path}: may not be read by this user; change its permissions.")


def is_uniform(axis: Array) -> bool:
    """Whether steps agree to a thousandth of a step, beyond the rounding of the stored numbers."""
    steps = np.diff(axis.astype(np.float64))
    rounding = 4 * np.finfo(axis.dtype).eps * float(np.max(np.abs(axis)))
    return bool(np.ptp(steps) <= 1e-3 * abs(steps.mean()) + rounding)


def blocks(source: Source, index: int) -> Iterator[Array]:
    """The frames of one sample in pieces of at most 64 MiB, or of one frame where a frame is larger."""
    frame = max(1, int(np.prod(source.grid_of(index).shape)) * len(source.task.channels) * 8)
    step = max(1, BLOCK_BYTES // frame)
    for start in range(0, len(source.times_of(index)), step):
        yield source.read(index, slice(start, start + step))


def _native(values: Array) -> Array:
    """The same numbers in this machine's byte order, which torch insists on."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)
