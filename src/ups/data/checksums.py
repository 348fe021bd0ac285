"""Computes the SHA-256 of data files (of large ones by samples), and remembers it until a file is touched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

from ups.data.source import Source
from ups.files import has_its_sum, read_at, sha256, stamp, sum_of, sync, write_atomic
from ups.parsing import read_json
from ups.types import DataError

# A file touched so short a time before it was hashed may be touched again without a trace.
RECENT = 2_000_000_000
# What was written so long ago no longer waits for the disk: Linux lets it wait half a minute.
WAITING = 600_000_000_000
# Larger files are known by samples: so many blocks of so many bytes, the first and the last and evenly between them.
WHOLE, BLOCKS, BLOCK = 2 * 2**30, 64, 2**20
# A glance: as much as two machines compare of a file that both should see.
GLANCES, GLANCE = 3, 4096
THREADS = min(8, os.cpu_count() or 1)
TRIES = 5  # to read a file of which others make links meanwhile

Digest = Mapping[str, Any]  # {"bytes": …, "sha256": …}, or "sampled" in the place of "sha256"


def is_digest(value: object) -> bool:
    """Whether a record of a file says all that it has to."""
    if not isinstance(value, dict) or type(value.get("bytes")) is not int:
        return False
    return isinstance(value.get("sha256", value.get("sampled")), str)


class Memory:
    """The digests of files, and JSON files that remember those of untouched ones.

    Untouched: device, inode, size and the times of the last change of content and of inode are the same. No program
    can set the last of them back, so a file that is edited in place is read again whatever it does to its mtime.
    """

    def __init__(self, file: Path, shared: Path | None = None) -> None:
        """`shared`: another such file, of several memories, that is asked for what this one does not know."""
        self.files = [path for path in (file, shared) if path is not None]
        self._entries = {name: entry for path in reversed(self.files) for name, entry in read_json(path).items()}
        self._fresh: dict[str, Any] = {}  # what was not known before
        self.touched: list[Path] = []  # large files that somebody touched, and whose samples are what they were

    def digest(self, path: Path, sampled: bool | None = None) -> dict[str, Any]:
        """Size and SHA-256 of a file; of samples if `sampled`, of all of it if not, by default as its size asks for."""
        try:
            stamp = _stamp(path)
            if not path.is_file():
                raise DataError(f"{path}: is no file (a folder, a pipe or a device); name another.")
            name = os.path.abspath(path)
            known = self._entries.get(name)
            known = known if isinstance(known, dict) and has_its_sum(known) else {}
            stamp = stamp if known.get("stamp") == stamp else _settled(path, stamp)
            entry = known if known.get("stamp") == stamp else {"stamp": stamp}
            size = stamp[2]
            kind = "sampled" if (size > WHOLE if sampled is None else sampled) else "sha256"
            if kind not in entry:
                for _ in range(TRIES):
                    entry = {**entry, kind: sample(path, size) if kind == "sampled" else sha256(path)}
                    if (after := _stamp(path)) == stamp:
                        break
                    if after[:-1] != stamp[:-1]:
                        raise DataError(f"{path}: is written to while it is read; wait until it is whole.")
                    stamp = entry["stamp"] = after  # a link to it was made or removed; its content may be what it was
                else:
                    raise DataError(f"{path}: is touched again and again while it is read; wait until that ends.")
                if kind == "sampled" and known.get(kind) == entry[kind]:
                    self.touched.append(path)
                if time.time_ns() - max(stamp[3:]) > RECENT:
                    self._entries[name] = self._fresh[name] = {**entry, "sum": sum_of(entry)}
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
        return {"bytes": size, kind: entry[kind]}

    def digests(self, paths: Iterable[Path], sampled: Iterable[bool | None] = repeat(None)) -> list[dict[str, Any]]:
        """The digests of many files, in their order; `sampled` as in `digest`, for each."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self.digest, paths, sampled))

    @classmethod
    def of(cls, paths: Iterable[Path]) -> list[dict[str, Any]]:
        """The digests of files that nobody remembers, or is to remember."""
        return cls(Path(os.devnull)).digests(paths)

    def save(self) -> None:
        """Write down what was learnt; OSError where that cannot be."""
        for path in self.files if self._fresh else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Read again: others may have written to it since.
            write_atomic(path, json.dumps({**read_json(path), **self._fresh}, indent=1))
        self._fresh = {}


def checksum(source: Source, memory: Path) -> str:
    """The SHA-256 of all bytes of a source; `memory` is a file that remembers those of untouched files."""
    known = Memory(memory)
    total = hashlib.sha256()
    for digest in known.digests(source.files(), repeat(False)):
        total.update(digest["sha256"].encode())
    try:
        known.save()
    except OSError as error:
        raise DataError(f"{memory}: cannot be written ({error.strerror}); name another cache.folder.") from None
    return total.hexdigest()


def content(digests: Iterable[Digest]) -> str:
    """What some files hold, in a word: a SHA-256 over theirs, and whether one of them is known by samples alone."""
    rows = list(digests)
    total = hashlib.sha256("".join(str(row.get("sha256", row.get("sampled"))) for row in rows).encode()).hexdigest()
    return f"sha256 {total[:12]}{' sampled' if any('sampled' in row for row in rows) else ''}"


def sample(path: Path, size: int, blocks: int = BLOCKS, block: int = BLOCK) -> str:
    """The SHA-256 of blocks of a file: the first, the last, and others evenly between them; of all of a small file."""
    hashed, buffer = hashlib.sha256(), memoryview(bytearray(min(block, size)))
    count = min(blocks, -(-size // block))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for number in range(count):
            place = number * (size - len(buffer)) // max(1, count - 1)
            hashed.update(buffer[: read_at(descriptor, buffer, place)])
    finally:
        os.close(descriptor)
    return hashed.hexdigest()


def glance(path: Path) -> str:
    """Size and a few samples of a file, in words that two machines can compare."""
    try:
        size = path.stat().st_size
        return f"{size} bytes, samples {sample(path, size, GLANCES, GLANCE)[:16]}"
    except OSError as error:
        return f"nothing ({error.strerror})"


def untouched(path: Path) -> list[int] | None:
    """What changes when somebody touches a file; None if that was a moment ago, or nobody can say."""
    try:
        stamp = _stamp(path)
    except OSError:
        return None
    return stamp if time.time_ns() - max(stamp[3:]) > RECENT else None


def _settled(path: Path, stamp: list[int]) -> list[int]:
    """The stamp of a file that is on its disk; `stamp` is what it was. Who has a file mapped into memory changes what
    waits to be written without a trace; once it is written, the next change is stamped again. Larger files, which are
    known by samples, are left as they are: to write them out takes as long as to read them."""
    if stamp[2] <= WHOLE and time.time_ns() - max(stamp[3:]) < WAITING:
        with contextlib.suppress(OSError):  # a disk that cannot be written to waits for nothing
            sync(path)
    return _stamp(path)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, *stamp(status)]
