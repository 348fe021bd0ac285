"""Disks that are too small or read-only, mounted where a run keeps its checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

from ups.rundir import RunDir


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def mount(setting: str, run: RunDir) -> None:
    """A disk as `setting` says ("disk of 200k", "disk that is read-only") for the checkpoints of a run."""
    folder = run.checkpoints()
    folder.mkdir()
    size = setting.rpartition(" ")[2] if setting.startswith("disk of") else "64m"
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    if setting.endswith("read-only"):
        _mount("-o", "remount,ro", str(folder))


def mend(run: RunDir) -> None:
    """Make it large and writable, keeping what it holds."""
    _mount("-o", "remount,rw,size=64m", str(run.checkpoints()))


@contextlib.contextmanager
def unmounted_after(run: RunDir) -> Iterator[None]:
    """Nothing is mounted in the run's folder afterwards."""
    try:
        yield
    finally:
        if os.path.ismount(run.checkpoints()):
            subprocess.run(["umount", "-l", str(run.checkpoints())], check=False, capture_output=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
