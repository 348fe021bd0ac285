"""A Source: the trajectories of one file, read lazily, and what was noticed when it was opened."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from ups.types import Array, DataError, Domain, Params, TaskSpec, Trajectory

UNFINISHED = ".part"
BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Facts:
    """What a file says about itself; `notes` are harmless observations, `problems` contradictions, a sentence each."""

    task: TaskSpec
    params: Params
    domain: Domain
    times: Array
    ids: tuple[str, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class Remarks:
    """Where a reader writes down what it notices."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Source(ABC):
    """A sequence of trajectories: `source[i]` is a whole one, `read(i, frames)` only some of its frames.

    Opening reads the shapes and the coordinates; a read of k frames reads these k frames and nothing else. A source
    may be pickled, and may be used after a fork: each process opens the file for itself, at its first read.
    """

    def __init__(self, path: Path, facts: Facts) -> None:
        self.path = path
        self.task = facts.task
        self.params = facts.params
        self.domain = facts.domain
        self.times = facts.times
        self.ids = facts.ids
        self.notes = facts.notes
        self.problems = facts.problems
        self._handle: Any = None
        self._owner = 0

    @abstractmethod
    def _values(self, file: Any, index: int, frames: slice) -> Array:
        """`(T', *S, C)`: the chosen frames of sample `index`."""

    def _inputs(self, file: Any, index: int) -> Array:  # noqa: ARG002  (most families are given nothing)
        """`(*S, C_in)`: what is given with sample `index`."""
        return np.zeros((*self.domain.shape, 0), np.float32)

    def read(self, index: int, frames: slice = slice(None)) -> Array:
        """Frames of one sample, `(T', *S, C)`, in the number format they are stored in; `frames` steps forward."""
        start, stop, step = frames.indices(len(self.times_of(index)))
        if step < 1:
            raise ValueError(f"frames are read forward in time, so a step of {step} is impossible")
        at = self._position(index)
        with naming_damage(self.path, f"sample {self.ids[at]}"):
            return _native(self._values(self._file(), at, slice(start, max(start, stop), step)))

    def inputs(self, index: int) -> Array:
        """What is given rather than predicted, `(*S, C_in)`; C_in is 0 for most tasks."""
        at = self._position(index)
        with naming_damage(self.path, f"sample {self.ids[at]}"):
            return _native(self._inputs(self._file(), at))

    def attributes(self) -> dict[str, Any]:
        """The root attributes of the file, as stored."""
        with naming_damage(self.path, "its list of attributes"):
            return dict(self._file().attrs)

    def params_of(self, index: int) -> Params:  # noqa: ARG002  (only some formats vary them within a file)
        """Parameters of one sample."""
        return self.params

    def times_of(self, index: int) -> Array:  # noqa: ARG002
        """Times of one sample, `(T,)`."""
        return self.times

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Trajectory:
        values, inputs = self.read(index), self.inputs(index)
        times, params = self.times_of(index), self.params_of(index)
        return Trajectory(self.ids[index], self.task, values, self.domain, times, params, inputs)

    def close(self) -> None:
        """Let go of the file; the next read opens it again."""
        if self._handle is not None:
            self._handle.close()
        self._handle = None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def _file(self) -> Any:
        # HDF5 keeps state per process: a handle that came through a fork must never be read from.
        if self._handle is None or self._owner != os.getpid():
            self.close()
            self._handle, self._owner = open_file(self.path), os.getpid()
        return self._handle

    def _position(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path}: there is no sample {index}, only {len(self)} of them")
        return index % len(self)


class Joined(Source):
    """Several sources of one task, one after the other; an id is `<file stem>/<id>`."""

    def __init__(self, path: Path, parts: Sequence[Source]) -> None:
        first = parts[0]
        for part in parts[1:]:
            if part.task.fields != first.task.fields or part.domain.shape != first.domain.shape:
                raise DataError(
                    f"{part.path}: holds {part.task.channels} on {part.domain.shape} cells, but {first.path} beside it "
                    f"holds {first.task.channels} on {first.domain.shape}; they cannot be read as one data set."
                )
        common = {k: v for k, v in first.params.items() if all(part.params.get(k) == v for part in parts)}
        ids = tuple(f"{part.path.stem}/{name}" for part in parts for name in part.ids)
        notes = tuple(f"{part.path.name}: {note}" for part in parts for note in part.notes)
        problems = tuple(f"{part.path.name}: {problem}" for part in parts for problem in part.problems)
        super().__init__(path, Facts(first.task, common, first.domain, first.times, ids, notes, problems))
        self.parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def _locate(self, index: int) -> tuple[Source, int]:
        index = self._position(index)
        which = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.parts[which], index - int(self._starts[which])

    def read(self, index: int, frames: slice = slice(None)) -> Array:
        part, at = self._locate(index)
        return part.read(at, frames)

    def inputs(self, index: int) -> Array:
        part, at = self._locate(index)
        return part.inputs(at)

    def __getitem__(self, index: int) -> Trajectory:
        part, at = self._locate(index)
        return dataclasses.replace(part[at], id=self.ids[index])

    def params_of(self, index: int) -> Params:
        part, at = self._locate(index)
        return part.params_of(at)

    def times_of(self, index: int) -> Array:
        part, at = self._locate(index)
        return part.times_of(at)

    def attributes(self) -> dict[str, Any]:
        return self.parts[0].attributes()

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _values(self, file: Any, index: int, frames: slice) -> Array:  # noqa: ARG002
        return self.read(index, frames)  # from the part that holds it, which has a file of its own


def open_file(path: Path) -> Any:
    """An HDF5 file opened for reading, or a DataError that says in one sentence why it cannot be."""
    if path.suffix == UNFINISHED:
        raise DataError(f"{path}: is unfinished; run the same `ups data generate` command again to finish it.")
    try:
        if os.path.isdir(path):
            raise DataError(f"{path}: is a folder, not a file; name a file in it.")
        if path.stat().st_size == 0:
            raise DataError(f"{path}: is empty; fetch or generate it again.")
        file = h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check the path.") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read by this user; change its permissions.") from None
    except OSError as error:
        if "truncated" in str(error):
            raise DataError(f"{path}: is truncated, its end is missing; fetch or generate it again.") from error
        raise DataError(f"{path}: is not an HDF5 file, or is damaged; check what it is and fetch it again.") from error
    with naming_damage(path, "its header"):
        complete = file.attrs.get("ups_complete", True)
    if not complete:
        file.close()
        raise DataError(f"{path}: is unfinished; run the same `ups data generate` command again to finish it.")
    return file


@contextmanager
def naming_damage(path: Path, part: str) -> Iterator[None]:
    """Turns what HDF5 raises on damaged bytes into a DataError that says which part cannot be read."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise DataError(f"{path}: {part} cannot be read, the file is damaged; fetch or generate it again.") from error


def dataset(parent: Any, name: str, shape: Sequence[int | None], meaning: str) -> Any:
    """The floating-point data set `name`, its shape as expected; `None` stands for any length."""
    where = f"{parent.file.filename}: data set '{f'{parent.name}/{name}'.lstrip('/')}'"
    node = parent[name] if name in parent else None  # noqa: SIM401  (get would hide a damaged one)
    if not isinstance(node, h5py.Dataset):
        held = [str(key) for key in parent]
        listed = ", ".join(held[:8]) + (", …" if len(held) > 8 else "")
        raise DataError(f"{where} is missing (there are: {listed or 'none'}); check the file or name another --task.")
    if node.dtype.kind != "f":
        raise DataError(f"{where} holds {node.dtype}, where floating-point numbers were expected; check the file.")
    fits = len(node.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, node.shape, strict=True))
    if not fits:
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        found = " × ".join(map(str, node.shape)) or "a single number"
        raise DataError(f"{where} is {found}, where {wanted} ({meaning}) was expected; check the file or its task.")
    return node


def is_uniform(axis: Array) -> bool:
    """Whether steps agree to a thousandth of a step, beyond the rounding of the stored numbers."""
    steps = np.diff(axis.astype(np.float64))
    rounding = 4 * np.finfo(axis.dtype).eps * float(np.max(np.abs(axis)))
    return bool(np.ptp(steps) <= 1e-3 * abs(steps.mean()) + rounding)


def fingerprints(source: Source) -> dict[str, str]:
    """A hash per sample id, from its first, middle and last frame; equal trajectories have equal hashes."""
    result = {}
    for index, name in enumerate(source.ids):
        last = len(source.times_of(index)) - 1
        digest = hashlib.sha256()
        for t in sorted({0, last // 2, last}):
            digest.update(np.ascontiguousarray(source.read(index, slice(t, t + 1))).tobytes())
        result[name] = digest.hexdigest()[:16]
    return result


def duplicates(sources: Iterable[Source]) -> list[tuple[str, str]]:
    """Pairs `(sample, its earlier twin)`, each written `file:id`, within and across files."""
    seen: dict[str, str] = {}
    pairs = []
    for source in sources:
        for name, digest in fingerprints(source).items():
            label = f"{source.path.name}:{name}"
            if digest in seen:
                pairs.append((label, seen[digest]))
            seen.setdefault(digest, label)
    return pairs


def blocks(source: Source, index: int) -> Iterator[Array]:
    """The frames of one sample in pieces of at most 64 MiB, or of one frame where a frame is larger."""
    frame = max(1, int(np.prod(source.domain.shape)) * len(source.task.channels) * 8)
    step = max(1, BLOCK_BYTES // frame)
    for start in range(0, len(source.times_of(index)), step):
        yield source.read(index, slice(start, start + step))


def _native(values: Array) -> Array:
    """The same numbers in this machine's byte order, which torch insists on."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)
