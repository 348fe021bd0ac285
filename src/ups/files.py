"""Files written whole or not at all (a draft beside them, flushed, renamed over the old one), or read by position."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it becomes `path`, durably, if the block ends well, and vanishes if not."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield beside
        _sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """The whole file or the old one."""
    with draft(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def read_at(descriptor: int, into: memoryview, place: int) -> int:
    """Fill `into` with the bytes of an open file from `place` on; fewer only where the file ends before."""
    done = 0
    while done < len(into) and (more := os.preadv(descriptor, (into[done:],), place + done)):
        done += more
    return done


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
