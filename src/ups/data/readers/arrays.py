"""ArraySource: reads named arrays as trajectories, for every format whose files hold plain arrays."""

from __future__ import annotations

import dataclasses
import math
import os
import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np

from ups.data.axes import dates_as_numbers
from ups.data.inflation import LZMAError
from ups.data.sample_blocks import side_by_side
from ups.data.source import Source, SourceFacts, check_frame
from ups.definition import CHANNEL, SAMPLE, TIME
from ups.types import Array, DataError, Params

Where = tuple[int | slice, ...]
# Numbers up to which an array of one axis at most is read with the header: coordinates and parameters.
SMALL = 2**16
KEPT_BYTES = 2**30
# What a variable is: an array, a parameter whatever it is called, or a number that is one where it is asked for.
ARRAY, PARAMETER, OFFERED = "array", "parameter", "offered"
# What libraries raise on files that are not theirs, or not whole.
APART = "where lengths differ, each trajectory to a file of its own, all in one folder"
DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, SystemError, SyntaxError),
    *(AttributeError, ArithmeticError, MemoryError, AssertionError, TokenError),
    *(BadZipFile, LZMAError, zlib.error, struct.error),
)


@dataclass(frozen=True)
class Variable:
    """An array of a file: `key` finds it there, `dims` names its axes ("" is an axis of length 1 that means nothing).

    Numbers in `fill` stand for nothing there; the others are multiplied by `scale`, then `offset` is added.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dims: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fill: tuple[float, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    content: Array | None = None
    """The whole of it, where it is small and was read with the header."""
    kind: str = ARRAY
    valid: tuple[float, float] = (-math.inf, math.inf)
    """Numbers outside it stand for nothing: as they are stored, or `valid_unpacked`."""
    valid_unpacked: bool = False

    @property
    def channels(self) -> int:
        return self.shape[self.dims.index(CHANNEL)] if CHANNEL in self.dims else 1

    @property
    def is_number(self) -> bool:
        return self.dtype.kind in "biuf"

    @property
    def words(self) -> str:
        """Name and shape, for a sentence."""
        return f"{self.key} ({' × '.join(map(str, self.shape)) or 'a single value'})"

    def decoded(self, stored: Array) -> Array:
        """Floating-point numbers as they are stored; whole numbers, truth values and dates as floats."""
        kind, size = stored.dtype.kind, stored.dtype.itemsize
        if kind in "mM":
            return dates_as_numbers(stored)
        if {kind, self.dtype.kind} == {"i", "u"}:
            stored = stored.astype(self.dtype)
        target = np.dtype(f"f{min(size, 8)}" if kind == "f" else "f4" if size <= 2 else "f8")
        packed = (self.scale, self.offset) != (1.0, 0.0)
        values = stored.astype(np.dtype("f8") if packed else target, copy=False)
        nothing = [number for number in self.fill if not np.isnan(number)]
        if nothing:
            values = np.where(np.isin(stored, np.asarray(nothing, stored.dtype)), np.nan, values)
        seen = values * self.scale + self.offset if packed else values
        low, high = self.valid
        if low > -math.inf or high < math.inf:
            judged = seen if self.valid_unpacked else stored
            seen = np.where((judged < low) | (judged > high), np.nan, seen)
        return seen


def is_small(shape: tuple[int, ...]) -> bool:
    """Whether an array can be but a coordinate or a parameter, and is read with the header of its file."""
    return sum(n > 1 for n in shape) <= 1 and max(shape, default=1) <= SMALL


class ArrayStore(ABC):
    """The arrays of one file. It may be pickled, used after a fork and read by several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def read(self, key: str, where: Where) -> Array:
        """Part of an array: a place or a slice along each of its axes."""

    def close(self) -> None:  # noqa: B027  (most keep nothing open)
        """Let go of what is open; the next read opens it again."""


class Kept:
    """Arrays that cannot be read in part, kept in memory up to a number of bytes in all; the oldest go first."""

    _arrays: ClassVar[OrderedDict[tuple[Any, ...], Array]] = OrderedDict()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def get(cls, path: Path, key: str, load: Callable[[], Array]) -> Array:
        status = os.stat(path)
        entry = (str(path), status.st_mtime_ns, status.st_size, key, os.getpid())
        with cls._lock:
            if entry in cls._arrays:
                cls._arrays.move_to_end(entry)
                return cls._arrays[entry]
        values = load()
        with cls._lock:
            cls._arrays[entry] = values
            while len(cls._arrays) > 1 and sum(a.nbytes for a in cls._arrays.values()) > KEPT_BYTES:
                cls._arrays.popitem(last=False)
        return values

    @classmethod
    def renew_lock(cls) -> None:
        """A child of a fork has a lock of its own: the parent's may have been held."""
        cls._lock = threading.Lock()


os.register_at_fork(after_in_child=Kept.renew_lock)


@contextmanager
def naming_fault(path: Path, part: str) -> Iterator[None]:
    """Turns what a library raises on damaged bytes into a DataError that says which part cannot be read."""
    try:
        yield
    except DAMAGE as error:
        raise DataError(f"{path}: {part} cannot be read, the file is damaged; fetch or write it again.") from error


@dataclass(frozen=True)
class Columns:
    """What is known of each sample beside its values: `times` `(T,)` or `(N, T)`, and parameters, one value each."""

    times: Array
    params: Mapping[str, Array]

    def times_of(self, index: int) -> Array:
        times: Array = self.times[index] if self.times.ndim == 2 else self.times
        return times

    def params_of(self, index: int) -> Params:
        return {name: plain(values[index % len(values)]) for name, values in self.params.items()}


class ColumnSource(Source):
    """A source whose parameters may differ from sample to sample, as its columns say."""

    _columns: Columns

    def params_of(self, index: int) -> Params:
        return {**self.params, **self._columns.params_of(self._position(index))}


class ArraySource(ColumnSource):
    """Variables with named axes, those of space in the order of `space`, read a few frames at a time. `flipped` are
    axes that are stored from high to low."""

    nan_is_mask = True

    def __init__(
        self,
        store: ArrayStore,
        facts: SourceFacts,
        columns: Columns,
        fields: tuple[Variable, ...],
        inputs: tuple[Variable, ...],
        space: tuple[str, ...],
        flipped: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(store.path, facts)
        check_frame(store.path, facts)
        self._store, self._columns = store, columns
        self._fields, self._given, self._space, self._flipped = fields, inputs, space, flipped

    def _values(self, index: int, frames: slice) -> Array:
        values: Array = self._joined(self._fields, range(index, index + 1), frames)[0]
        return values

    def _inputs(self, index: int) -> Array:
        if not self._given:
            return super()._inputs(index)
        given: Array = self._joined(self._given, range(index, index + 1), slice(0, 1))[0, 0]
        return given

    def beside(self, index: int) -> range:  # noqa: ARG002
        """All samples: arrays have one grid, and as many times for each."""
        return range(len(self))

    def _values_of(self, samples: range, frames: slice) -> Array:
        return self._joined(self._fields, samples, frames)

    def _inputs_of(self, samples: range) -> Array:
        if not self._given:
            return super()._inputs_of(samples)
        given: Array = self._joined(self._given, samples, slice(0, 1))[:, 0]
        return given

    def times_of(self, index: int) -> Array:
        return self._columns.times_of(self._position(index))

    def close(self) -> None:
        self._store.close()

    def _joined(self, variables: tuple[Variable, ...], samples: range, frames: slice) -> Array:
        many = f"samples {self.ids[samples[0]]} to {self.ids[samples[-1]]}"
        with naming_fault(self.path, many if len(samples) > 1 else f"sample {self.ids[samples[0]]}"):
            pieces = [self._piece(variable, samples, frames) for variable in variables]
        return np.ascontiguousarray(side_by_side(pieces))

    def _piece(self, variable: Variable, samples: range, frames: slice) -> Array:
        """`(N, T', *S, C)` of one variable; an axis that it does not have is repeated along."""
        many = len(samples) > 1  # one is named by its number, which some formats read faster than a piece of one
        chosen = slice(samples.start, samples.stop) if many else samples[0]
        places: dict[str, int | slice] = {SAMPLE: chosen, TIME: frames, "": 0}
        stored = self._store.read(variable.key, tuple(places.get(name, slice(None)) for name in variable.dims))
        there = [name for name in variable.dims if name and (many or name != SAMPLE)]
        order = (SAMPLE, TIME, *self._space, CHANNEL)
        values = variable.decoded(stored).transpose([there.index(name) for name in order if name in there])
        values = values.reshape([stored.shape[there.index(name)] if name in there else 1 for name in order])
        flips = tuple(i for i, name in enumerate(order) if name in self._flipped)
        values = np.flip(values, flips) if flips else values
        steps = values.shape[1] if TIME in there else len(range(*frames.indices(max(1, frames.stop or 1))))
        return np.broadcast_to(values, (len(samples), steps, *self.grid.shape, values.shape[-1]))


def plain(value: Any) -> float | str:
    """A stored number or word as Python's own."""
    if isinstance(value, bytes):
        return value.decode()
    return str(value) if isinstance(value, str) else float(value)
