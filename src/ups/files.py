"""Files written whole or not at all (a draft beside them, flushed, renamed), read by position, hashed, and held."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHUNK = 1 << 22
_FLOCK = struct.Struct("hhqqi4x")  # the kernel's struct flock: kind, whence, start, length, process
_held: dict[tuple[int, int], int] = {}  # by device and inode: the process that holds it, this one or one it came from


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it becomes `path`, durably, if the block ends well, and vanishes if not."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield beside
        sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """The whole file or the old one."""
    with draft(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def starts_with(path: Path, *signatures: bytes) -> bool:
    """Whether a file begins with one of these bytes; never raises."""
    try:
        with open(path, "rb", buffering=0) as file:
            beginning = file.read(max(map(len, signatures)))
    except (OSError, ValueError):
        return False
    return beginning.startswith(signatures)


def read_at(descriptor: int, into: memoryview, place: int) -> int:
    """Fill `into` with the bytes of an open file from `place` on; fewer only where the file ends before."""
    done = 0
    while done < len(into) and (more := os.preadv(descriptor, (into[done:],), place + done)):
        done += more
    return done


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path, cold: bool = False) -> str:
    """The SHA-256 of a file; `cold` asks the system to forget what it remembers of it: it is read from the disk."""
    hashed = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if cold and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def sum_of(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of all a manifest says, so that a flipped digit in it is seen."""
    content = {name: value for name, value in manifest.items() if name != "sum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def hold(path: Path) -> int:
    """Hold a new file until this process ends, however it ends, or `release`s it; a descriptor for that.

    A record lock: unlike flock's it belongs to this process alone, and copies of it (os.fork) do not hold it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = os.fstat(handle)
    _held[status.st_dev, status.st_ino] = os.getpid()
    return handle


def release(handle: int) -> None:
    status = os.fstat(handle)
    _held.pop((status.st_dev, status.st_ino), None)
    os.close(handle)


def holder(path: Path) -> int | None:
    """The process that holds a file; None if nobody does, or it is not there.

    0 if it is out of this process's sight (in another container), or if the file may not be looked at.
    """
    try:
        status = path.lstat()
        if _held.get((status.st_dev, status.st_ino)) == os.getpid():
            return os.getpid()  # and not opened: closing it again would release it
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(handle)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)
