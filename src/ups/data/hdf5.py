"""HDF5 for readers: recognising and opening a file, naming what is damaged, checking data sets, reading by position."""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ups.data.hdf5_safety import check_chunks, check_data_set, check_file
from ups.data.source import Source, SourceFacts, check_frame, check_path, denied
from ups.files import read_at, starts_with
from ups.lazy_imports import h5py
from ups.types import Array, DataError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# What h5py raises on damaged bytes, and what comes of an attribute or a data set of an unexpected type or shape.
DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError)
SMALL_FRAME = 2**16  # bytes, under which frames that are read are not worth a call each


OPEN_FILES = 200  # at a time in one process: systems allow about a thousand in all

NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")

Flavour = Literal["", "well", "matlab", "netcdf", "plain"]


class Handle:
    """An HDF5 file that each process opens for itself at its first read. Of many handles only the latest stay open."""

    _recent: ClassVar[OrderedDict[int, weakref.ref[Handle]]] = OrderedDict()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[Any, int] | None = None

    def file(self) -> Any:
        """The open file, which stays open as long as somebody holds it."""
        # HDF5 keeps state per process: a handle that came through a fork must never be read from. Handle and process
        # are one object, so that threads which open the file at the same time never see half of it.
        opened = self._opened
        if opened is None or opened[1] != os.getpid():
            opened = self._opened = (open_file(self.path), os.getpid())
            self._retire()
        return opened[0]

    def close(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _retire(self) -> None:
        """Let go of the file that was opened longest ago, if there are many; a read in progress still holds it."""
        with Handle._lock:
            Handle._recent[id(self)] = weakref.ref(self)
            Handle._recent.move_to_end(id(self))
            while len(Handle._recent) > OPEN_FILES:
                _, oldest = Handle._recent.popitem(last=False)
                if (handle := oldest()) is not None and handle is not self:
                    handle._opened = None

    @classmethod
    def forget(cls) -> None:
        """A child of a fork has nothing open, and a lock of its own: the parent's may have been held."""
        cls._recent, cls._lock = OrderedDict(), threading.Lock()


os.register_at_fork(after_in_child=Handle.forget)


class Hdf5Source(Source):
    """A source over one HDF5 file, which each process opens for itself at its first read."""

    def __init__(self, path: Path, facts: SourceFacts) -> None:
        super().__init__(path, facts)
        check_frame(path, facts)
        self._handle = Handle(path)

    @abstractmethod
    def _stored(self, file: Any, index: int, frames: slice) -> Array:
        """`(T', *S, C)`: the chosen frames of sample `index`."""

    def _given(self, file: Any, index: int) -> Array:  # noqa: ARG002
        """`(*S, C_in)`: what is given with sample `index`."""
        return super()._inputs(index)

    def _values(self, index: int, frames: slice) -> Array:
        with naming_damage(self.path, f"sample {self.ids[index]}"):
            return self._stored(self._handle.file(), index, frames)

    def _inputs(self, index: int) -> Array:
        with naming_damage(self.path, f"sample {self.ids[index]}"):
            return self._given(self._handle.file(), index)

    def attributes(self) -> dict[str, Any]:
        """The root attributes of the file, as stored."""
        with naming_damage(self.path, "its list of attributes"):
            return dict(self._handle.file().attrs)

    def close(self) -> None:
        self._handle.close()


def flavour(path: Path) -> Flavour:
    """Which kind of HDF5 file a path is, `plain` if none of those that describe themselves; never raises."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ""
    return _flavour(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(4096)
def _flavour(path: Path, changed: int, size: int) -> Flavour:  # noqa: ARG001  (both say that the file is the same)
    if not is_hdf5(path):
        return ""
    if starts_with(path, b"MATLAB 7.3"):
        return "matlab"
    if path.suffix in NETCDF:
        return "netcdf"
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            check_file(file)
            if "dimensions" in file and "t0_fields" in file:
                return "well"
            scales = (file[name] for name in list(file)[:64])
            named = any("DIMENSION_LIST" in node.attrs for node in scales if isinstance(node, h5py.Dataset))
            return "netcdf" if named or "_NCProperties" in file.attrs else "plain"
    except (*DAMAGE, DataError):
        return "plain"


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 files do, whole or not; never raises."""
    if not os.path.isfile(path):
        return False
    try:
        with path.open("rb", buffering=0) as file:
            at, size = 0, os.fstat(file.fileno()).st_size
            while at < size:  # the signature lies at 0, or after a user's own block of 512, 1024, … bytes
                file.seek(at)
                if file.read(len(SIGNATURE)) == SIGNATURE:
                    return True
                at = max(512, 2 * at)
    except OSError:
        return False
    return False


def open_file(path: Path) -> Any:
    """An HDF5 file opened for reading, or a DataError that says in one sentence why it cannot be."""
    check_path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a file; name a file in it.")
    try:
        file = h5py.File(path, "r", locking="best-effort")
    except PermissionError:
        raise denied(path) from None
    except OSError as error:
        if "truncated" in str(error):
            raise DataError(f"{path}: is truncated, its end is missing; fetch or generate it again.") from error
        raise DataError(f"{path}: is not an HDF5 file, or is damaged; check what it is and fetch it again.") from error
    with ExitStack() as stack, naming_damage(path, "its header"):
        stack.callback(file.close)  # what stays open would be taken for the file that is opened next under this name
        check_file(file)
        if not bool(file.attrs.get("ups_complete", True)):
            raise DataError(f"{path}: is unfinished; run the same `ups data generate` command again to finish it.")
        stack.pop_all()
    return file


@contextmanager
def naming_damage(path: Path, part: str) -> Iterator[None]:
    """Turns what HDF5 raises on damaged bytes into a DataError that says which part cannot be read."""
    try:
        yield
    except DAMAGE as error:
        raise DataError(f"{path}: {part} cannot be read, the file is damaged; fetch or generate it again.") from error


def dataset(parent: Any, name: str, shape: Sequence[int | None], meaning: str, kinds: str = "f") -> Any:
    """The data set `name`, of numbers of one of `kinds`, its shape as expected; `None` stands for any length."""
    where = f"{parent.file.filename}: data set '{f'{parent.name}/{name}'.lstrip('/')}'"
    node = parent[name] if name in parent else None  # noqa: SIM401  (get would hide a damaged one)
    if not isinstance(node, h5py.Dataset):
        names = [str(key) for key in parent]
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise DataError(f"{where} is missing (there are: {listed or 'none'}); check the file or name another --task.")
    check_data_set(node)
    if node.dtype.kind not in kinds:
        wanted = "floating-point numbers" if kinds == "f" else "numbers"
        raise DataError(f"{where} holds {node.dtype}, where {wanted} were expected; check the file.")
    fits = len(node.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, node.shape, strict=True))
    if not fits:
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        stored = " × ".join(map(str, node.shape)) or "a single number"
        raise DataError(f"{where} is {stored}, where {wanted} ({meaning}) was expected; check the file or its task.")
    return node


def values_at(node: Any, *where: int | slice) -> Array:
    """`node[where]`: places along the first axes, then at most one slice of frames that steps forward.

    Where the bytes of a data set lie in one piece, as numpy would hold them, they are read by their place in the file:
    the HDF5 library lets one thread in at a time, the system any number.
    """
    start = _start(node)
    if start is None:
        check_chunks(node, where)
        return np.asarray(node[where])
    shape, item = list(node.shape), node.dtype.itemsize
    frames: range | None = None
    for at in where:
        length = shape.pop(0)
        if isinstance(at, slice):
            frames = range(*at.indices(length))
        elif 0 <= at < length:
            start += at * math.prod(shape) * item
        else:
            raise IndexError(f"{node.name} has no place {at} along an axis of {length}")
    size = math.prod(shape) * item
    if frames is not None and len(frames) and frames.step > 1 and size < SMALL_FRAME:
        # One large read is cheaper than many small ones, although most of it is thrown away.
        whole = values_at(node, *where[:-1], slice(frames.start, frames[-1] + 1))
        return whole[:: frames.step]
    # Pieces that lie one after the other in the file: everything, or a frame each.
    pieces = range(1) if frames is None else frames
    if frames is not None and frames.step == 1:
        size, pieces = size * len(frames), range(1)
        start += frames.start * math.prod(shape) * item
    raw = np.empty(size * len(pieces), np.uint8)
    descriptor, view = node.file.id.get_vfd_handle(), raw.data
    for i, at in enumerate(pieces):
        if read_at(descriptor, view[i * size : (i + 1) * size], start + at * size) < size:
            raise OSError("the file ends before the data set does")
    values: Array = raw.view(node.dtype)
    return values.reshape(shape if frames is None else (len(frames), *shape))


def read_samples(node: Any, samples: Sequence[int], frames: slice, into: Array) -> bool:
    """Whether `node[samples, frames]` is now in `into (N, T', …)`, read by its place in the file, samples that lie one
    after the other at once, and without another copy where `into` is one piece of memory. False where it cannot be read
    so: its bytes are not in one piece or other numbers than those of `into`, frames are left out, or the file ends."""
    start, taken = _start(node), range(*frames.indices(node.shape[1]))
    inside = 0 <= min(samples) <= max(samples) < len(node)
    if start is None or node.dtype != into.dtype or taken.step > 1 or not inside:
        return False
    frame = math.prod(node.shape[2:]) * into.itemsize
    each, apart = frame * len(taken), frame * node.shape[1]
    placed = into if into.flags.c_contiguous else np.empty(into.shape, into.dtype)
    descriptor, view, first = node.file.id.get_vfd_handle(), placed.reshape(-1).view(np.uint8).data, 0
    for i in range(1, len(samples) + 1):
        if i < len(samples) and each == apart and samples[i] == samples[i - 1] + 1:
            continue
        piece, place = view[first * each : i * each], start + samples[first] * apart + taken.start * frame
        if read_at(descriptor, piece, place) < len(piece):
            return False
        first = i
    if placed is not into:
        into[...] = placed
    return True


def mapped(node: Any) -> Array:
    """A data set whose bytes lie in one piece, mapped, so that any part of it is read as numpy reads; others as they
    are."""
    start = _start(node)
    if start is None or node.size == 0:
        whole: Array = node
        return whole
    return np.memmap(node.file.filename, node.dtype, "r", start, node.shape)


def _start(node: Any) -> int | None:
    """Where the bytes of a data set begin in the file; None if they are not in one piece or not as numpy holds them."""
    if node.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        return None
    if node.id.get_type() != h5py.h5t.py_create(node.dtype):
        return None
    start: int | None = node.id.get_offset()
    return start
