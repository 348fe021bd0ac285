"""Locks a run for the one process that writes it, and keeps a sign of life that other machines can read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ups.parsing import parse_json
from ups.types import ConfigError

EVERY = 5.0  # seconds between two signs of life
SILENT = 120.0  # seconds without one after which a writer on another machine counts as gone
TRIES = 10  # for a lock: whoever only looks whether it is held, holds it for a moment
LARGEST = 4096  # bytes of a lock's file that are read


class HeldError(ConfigError):
    """Another process is writing the run."""


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock, or held it last and was killed. `boot` names the running system of a machine."""

    host: str
    boot: str
    pid: int
    began: float

    @classmethod
    def me(cls) -> LockHolder:
        began = round(time.time() - 0.01, 3)  # before anything that is written with the same rounding
        return cls(platform.node(), boot(), os.getpid(), began)

    @property
    def here(self) -> bool:
        """Whether it is on this machine, so that its lock is surely seen here."""
        return self.boot == boot()


@dataclass(frozen=True)
class Presence:
    """What a lock tells. `held`: somebody has it, as far as this machine sees; `age`: seconds since the last sign of
    life, by this machine's clock. `writer`: None where nobody has written, or the last one left by itself."""

    held: bool
    writer: LockHolder | None = None
    age: float | None = None

    @property
    def elsewhere(self) -> bool:
        return self.writer is not None and not self.writer.here

    @property
    def fresh(self) -> bool:
        return self.age is not None and self.age < SILENT

    @property
    def alive(self) -> bool:
        """Whether somebody writes the run. On this machine the lock says it. Not every shared filesystem shows locks
        of other machines, and some keep those of a machine that crashed: there the sign of life decides."""
        return self.fresh if self.elsewhere else self.held


def hold(lock: Path, what: str = "run") -> int:
    """Take a lock until this process ends, however it ends, or calls `release`; a HeldError where another has it."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        _take(handle, lock.parent, what)
        before = _written(handle)
        age = max(0.0, time.time() - os.fstat(handle).st_mtime)
        if before is not None and not before.here and age < SILENT:
            raise HeldError(
                f"{lock.parent}: process {before.pid} on {before.host} wrote this {what} {age:.0f} s ago, and its lock "
                f"may not be seen here; stop it there, or wait {SILENT:.0f} s after its last sign of life."
            )
        with contextlib.suppress(OSError):  # a full disk is told where something that matters does not fit
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(LockHolder.me())).encode(), 0)
    except (OSError, HeldError):
        os.close(handle)
        raise
    return handle


def release(handle: int) -> None:
    """Give a lock back; nobody is its writer any more."""
    with contextlib.suppress(OSError):  # the disk may be gone
        os.ftruncate(handle, 0)
    os.close(handle)


def _take(handle: int, folder: Path, what: str) -> None:
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                cause = f"another process is writing this {what}; wait for it or stop it."
                raise HeldError(f"{folder}: {cause}") from None
            time.sleep(0.02)


class SignsOfLife:
    """To be called often: renews the sign of life in a lock now and then. A lock that somebody has deleted is taken
    anew, until `close`, for without it a second writer would be let in. None, or a lock that is not there at first:
    there is none to look after."""

    def __init__(self, lock: Path | None) -> None:
        self.lock, self.due = lock if lock is not None and lock.exists() else None, 0.0
        self.taken: int | None = None

    def __call__(self) -> None:
        if self.lock is None or time.monotonic() < self.due:
            return
        self.due = time.monotonic() + EVERY
        with contextlib.suppress(OSError, HeldError):  # a disk that does not take it has worse to tell
            try:
                os.utime(self.lock)
            except FileNotFoundError:
                self.close()
                self.taken = hold(self.lock)

    def close(self) -> None:
        if self.taken is not None:
            release(self.taken)
            self.taken = None


def look(lock: Path) -> Presence:
    """What a lock tells, without disturbing anyone; an OSError where it may not be looked at or is no file."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Presence(held=False)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{lock.name} is no file")
        writer, age = _written(handle), max(0.0, time.time() - status.st_mtime)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Presence(True, writer, age)
        return Presence(False, writer, age)
    finally:
        os.close(handle)


def _written(handle: int) -> LockHolder | None:
    try:
        values = parse_json(os.pread(handle, LARGEST, 0) or b"null")
        host = " ".join(str(values["host"]).split())[:64]
        return LockHolder(host, str(values["boot"]), int(values["pid"]), float(values["began"]))
    except (ValueError, KeyError, TypeError):
        return None


def boot() -> str:
    """Names this start of this machine's system; the name of the machine where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
