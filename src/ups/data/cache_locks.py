"""Locks latent caches while they are built, and while published ones are read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ups.types import DataError


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[bool]:
    """A lock that ends with the process; whether it was to be had."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def lock_for_reading(manifest: Path) -> int:
    """A descriptor that, as long as it is open, keeps others from taking the cache away."""
    handle = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(OSError):  # on a file system without locks the seals alone show it
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


@contextmanager
def unread(manifest: Path) -> Iterator[None]:
    """The block may take a cache away; a DataError where a run is reading it."""
    try:
        handle = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it has none, so nobody can read it
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DataError(
            f"{manifest.parent}: a run is training from it; wait for that, or name another cache.folder."
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(handle)
