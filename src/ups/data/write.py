"""Writes PDEBench files: a kill at any moment loses at most the batches in flight, and a file of that name is whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.layouts import LAYOUTS, FileSpec
from ups.data.source import UNFINISHED
from ups.files import check_file_size, no_room, publish, target_of
from ups.lazy_imports import h5py
from ups.types import Array, ConfigError, DataError


class TrajectoryWriter:
    """One file being written: `NAME.part` and a journal beside it until `publish` gives it its name.

    The HDF5 structure is laid out first, with every data set contiguous and its place fixed; samples then go straight
    to their place on disk, and a batch counts as done only after it has been flushed and the journal says so. A kill
    therefore never damages the structure, and `done` tells where to go on.
    """

    def __init__(self, path: Path, spec: FileSpec) -> None:
        self.path, self._old = _target(path)
        self.spec = spec
        self.layout = LAYOUTS[spec.task.storage.kind](spec)
        self.part, self.journal = _unfinished(self.path)
        self.done = 0
        self.measured: list[dict[str, float]] = []

    @contextmanager
    def open(self) -> Iterator[TrajectoryWriter]:
        """Take the file (nobody else may write it meanwhile), find out what is done, lay out what is not there."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            check_file_size(self.path, self.layout.nbytes(), "ask for fewer --samples")
            for path in (self.part, self.journal):
                _refuse_stranger(path)
            self._log = open(self.journal, "a+")  # noqa: SIM115
        except OSError as error:
            raise DataError(
                f"{self.path.parent}: cannot be written to ({error.strerror}); choose another --out."
            ) from None
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._log.close()
            raise DataError(
                f"{self.part}: another process is writing it; wait for it or choose another --out."
            ) from None
        try:
            self._recover()
            with h5py.File(self.part, "r") as file:
                self._places = self.layout.places(file)
            self._fd = os.open(self.part, os.O_WRONLY)
            try:
                yield self
            finally:
                os.close(self._fd)
        except OSError as error:
            raise DataError(
                f"{self.part}: cannot be written ({error.strerror or error}); make room or choose another --out, and "
                f"run the same command again to go on from sample {self.done}."
            ) from error
        finally:
            self._log.close()

    def _recover(self) -> None:
        self._log.seek(0)
        lines = []
        for text in self._log.read().splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break  # the line being written when the process was killed
        identity = json.loads(json.dumps(self.spec.identity))
        if lines and self.part.exists():
            if lines[0] != identity:
                other = ", ".join(f"{k} {lines[0].get(k)}" for k in identity if lines[0].get(k) != identity[k])
                raise ConfigError(
                    f"{self.part}: was begun with other settings ({other}); finish it with those, or start again with "
                    f"--overwrite."
                )
            if self._whole_structure():
                self.done = max((line["done"] for line in lines[1:]), default=0)
                self.measured = [line["measured"] for line in lines[1:]]
                return
        self._lay_out(identity)

    def _whole_structure(self) -> bool:
        """Whether the structure can be read: a kill inside HDF5's own writing may have spoilt it."""
        try:
            with h5py.File(self.part, "r") as file:
                self.layout.places(file)
        except (OSError, KeyError, RuntimeError):
            return False
        return True

    def _lay_out(self, identity: Mapping[str, Any]) -> None:
        need, free = self.layout.nbytes(), shutil.disk_usage(self.part.parent).free
        if need > free:
            raise DataError(
                f"{self.part.parent}: has {free / 1e9:.3g} GB free, but {self.path.name} needs {need / 1e9:.3g} GB; "
                f"make room, choose another --out, or ask for fewer --samples."
            ) from no_room()
        self._log.seek(0)
        self._log.truncate()
        with h5py.File(self.part, "w", libver=("earliest", "v110")) as file:
            file.attrs["ups_complete"] = False
            self.layout.lay_out(file)
        self._note(identity)

    def _note(self, line: Mapping[str, Any]) -> None:
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()
        os.fsync(self._log.fileno())

    def write(self, first: int, frames: Array, inputs: Array, measured: dict[str, float]) -> None:
        """Samples `first` … of `(B, T, *S, C)` frames and `(B, *S, C_in)` inputs; on return they are on disk."""
        for start, values in zip(self._places, self.layout.pieces(frames, inputs), strict=True):
            data = np.ascontiguousarray(values, dtype="<f4")
            for i, sample in enumerate(data):
                self._place(sample.tobytes(), start(first + i))
        os.fsync(self._fd)
        self.done = first + len(frames)
        self.measured.append(measured)
        self._note({"done": self.done, "measured": measured})

    def _place(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def publish(self, attributes: Mapping[str, Any]) -> Path:
        """Write the attributes, mark the file whole, flush, and give it its name in one step."""
        with h5py.File(self.part, "r+") as file:
            for key, value in attributes.items():
                file.attrs[key] = value
            file.attrs["ups_complete"] = True
        publish(self.part, self.path, self._old)
        self.journal.unlink()
        return self.path


def discard(path: Path) -> None:
    """Remove what was begun of a file, and its journal; the file itself stays until another takes its place."""
    for unfinished in _unfinished(_target(path)[0]):
        unfinished.unlink(missing_ok=True)


def _target(path: Path) -> tuple[Path, os.stat_result | None]:
    """The file behind a path that may be a symlink, and its status."""
    try:
        return target_of(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another --out.") from None


def _unfinished(path: Path) -> tuple[Path, Path]:
    """The file while it is written, and the journal of what is done."""
    part = path.with_name(path.name + UNFINISHED)
    return part, part.with_name(part.name + ".journal")


def _refuse_stranger(path: Path) -> None:
    """Names that anyone can guess: a link there would have another file written."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EEXIST, f"{path.name} is there and is no file; remove it", str(path))
