"""Namespaces, mounts, another user and control groups for the fault lab; whether this machine allows each is tried."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pwd
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ups_fleet.supervise.children import fork
from ups_fleet.supervise.forked_functions import run_copy

# Constants of unshare(2), mount(2) and umount2(2).
NEW_MOUNTS, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x20000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
# Where control groups of version 1 and 2 lie.
GROUPS_1, GROUPS_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def unshare(kinds: int) -> None:
    """Move this process into new namespaces of these kinds: one or more of NEW_MOUNTS, NEW_PIDS and NEW_NETWORK.

    Mounts made afterwards are seen by no other process, and vanish with this one.
    """
    _checked(ctypes.CDLL(None, use_errno=True).unshare(kinds))
    if kinds & NEW_MOUNTS:
        _mount("none", "/", None, MS_REC | MS_PRIVATE)


def mount_memory(folder: Path, size: str) -> None:
    """A file system in memory, of so many bytes (`200k`, `4m`), on a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("tmpfs", str(folder), "tmpfs", 0, f"size={size}")


def remount(folder: Path, size: str, *, writable: bool = True) -> None:
    """Give a file system in memory another size, or make it read-only; it keeps what it holds."""
    _mount("tmpfs", str(folder), "tmpfs", MS_REMOUNT | (0 if writable else MS_RDONLY), f"size={size}")


def make_read_only(folder: Path) -> None:
    """Let nobody open a file below a folder for writing any more; files that are open stay so.

    The system mounts no disk read-only that somebody has open for writing, so the folder is mounted over itself.
    """
    _mount(str(folder), str(folder), None, MS_BIND)
    _mount("none", str(folder), None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def unmount(folder: Path) -> None:
    """Undo the last mount on a folder."""
    _checked(ctypes.CDLL(None, use_errno=True).umount2(str(folder).encode(), MNT_DETACH))


def mount_processes() -> None:
    """/proc of this process's own namespace."""
    _mount("proc", "/proc", "proc", 0)


def become_nobody() -> None:
    """Turn this process, which is root's, into one of the user `nobody`, for good."""
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)


class MemoryGroup:
    """A control group whose processes the kernel kills when they need more memory than a limit; of either version."""

    def __init__(self, name: str) -> None:
        self._version_2 = not (GROUPS_1 / "memory.limit_in_bytes").exists()
        self.folder = (GROUPS_2 if self._version_2 else GROUPS_1) / name

    def create(self, limit: int) -> None:
        """Make the group; `limit` is in bytes."""
        self.folder.mkdir(exist_ok=True)
        name = "memory.max" if self._version_2 else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(limit))
        with contextlib.suppress(OSError):  # where there is swap, it would be taken instead
            (self.folder / ("memory.swap.max" if self._version_2 else "memory.swappiness")).write_text("0")

    def used(self) -> int:
        """Bytes that its processes have taken."""
        return int((self.folder / ("memory.current" if self._version_2 else "memory.usage_in_bytes")).read_text())

    def add(self, pid: int) -> None:
        """Put a process into the group."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self, wait: float = 5.0) -> None:
        """Delete the group once none of its processes is left; after `wait` seconds it stays."""
        end = time.monotonic() + wait
        while self.folder.exists():
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.02)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    _checked(ctypes.CDLL(None, use_errno=True).mount(*words, ctypes.c_ulong(flags), options.encode() or None))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _try_mounts() -> None:
    unshare(NEW_MOUNTS)
    mount_memory(Path("/mnt" if os.path.isdir("/mnt") else "/tmp"), "64k")


def _try_pids() -> None:
    unshare(NEW_MOUNTS | NEW_PIDS)
    if fork(mount_processes).wait():
        raise OSError("/proc cannot be mounted in a namespace of processes")


def _try_group() -> None:
    group, child = MemoryGroup(f"ups-lab-{uuid.uuid4().hex[:8]}"), fork(lambda: time.sleep(5))
    try:
        group.create(1 << 26)
        group.add(child.pid)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        group.remove()


# What a case may need, as the table of faults calls it, and what fails where the machine does not allow it.
TRIES: dict[str, Callable[[], None]] = {
    "root": become_nobody,
    "mount namespaces": _try_mounts,
    "process namespaces": _try_pids,
    "network namespaces": lambda: unshare(NEW_NETWORK),
    "memory control groups": _try_group,
}


def _attempt(name: str) -> None:
    TRIES[name]()


@functools.cache
def allowed(name: str) -> bool:
    """Whether this machine allows this user one of TRIES, which is tried in a process of its own."""
    return run_copy(_attempt, name, seconds=20).well


def missing(needs: tuple[str, ...]) -> str:
    """The first of `needs` that this machine does not allow, `root` if we are not; empty where all are allowed."""
    lacking = [name for name in needs if not allowed(name)]
    return "root" if lacking and os.geteuid() != 0 else next(iter(lacking), "")
