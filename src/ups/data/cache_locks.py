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
    """Hold a lock on a file, made if it is missing, while the block runs; the lock ends with the process.

    Args:
        path: The file.
        wait: Whether to wait while another process holds it.

    Yields:
        Whether the lock is held: False if another process holds it and `wait` is not set.
    """
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
    """Lock the cache of a manifest against removal; the lock lasts until the descriptor returned is closed."""
    handle = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(OSError):  # without locks, only the seals of cache.py show a removal
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


@contextmanager
def unread(manifest: Path) -> Iterator[None]:
    """Keep others from reading the cache of a manifest while the block removes it; DataError if a run is reading it."""
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
