"""Disks that are too small or cannot be written: a file system of its own where a run keeps its checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def can_mount() -> bool:
    """Whether this process may."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def put(setting: str, home: Path) -> None:
    """A disk as `setting` says ("disk of 200k", "disk that is read-only") for the checkpoints of the run at `home`."""
    place = home / "checkpoints"
    place.mkdir()
    size = setting.rpartition(" ")[2] if setting.startswith("disk of") else "64m"
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    if setting.endswith("read-only"):
        _mount("-o", "remount,ro", str(place))


def mend(home: Path) -> None:
    """Make it large and writable, keeping what it holds."""
    _mount("-o", "remount,rw,size=64m", str(home / "checkpoints"))


@contextlib.contextmanager
def cleared(home: Path) -> Iterator[None]:
    """Nothing is mounted below `home` afterwards."""
    try:
        yield
    finally:
        if os.path.ismount(home / "checkpoints"):
            subprocess.run(["umount", "-l", str(home / "checkpoints")], check=False, capture_output=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
