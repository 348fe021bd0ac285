"""Says what could be deleted from a run's folder, and how much room that would free."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ups.engine.checkpoint.manifest import NAME, listing
from ups.rundir import RunDir
from ups.tracking import MIRRORS
from ups.types import data_size

WORTH = 10_000  # bytes below which nothing is named


def freeable(run: RunDir) -> str:
    """A sentence on what could be deleted and how much each would free; empty where there is nothing."""
    stages = [path for path in _entries(run.checkpoints()) if path.is_dir()]
    outdated = [path for stage in stages for path in listing(stage)[1:]]
    others = [path for stage in stages for path in _entries(stage) if not NAME.fullmatch(path.name)]
    attempts = run.attempts()
    mirrors = [run.folder / name for name in MIRRORS if (run.folder / name).is_dir()]
    folders = ", ".join(f"{place.name}/" for place in mirrors if bytes_of(place) >= WORTH)
    kinds: dict[str, list[Path]] = {
        "older checkpoints": outdated,
        "damaged checkpoints set aside and leftovers of saves": others,
        f"what is made again when it is needed ({run.cache('').name}/)": [run.cache("")],
        "logs of earlier attempts": [attempts[number] for number in sorted(attempts)[:-1]],
        f"what trackers wrote and `ups track` writes again ({folders})": mirrors,
        f"traces ({run.profile.name}/)": [run.profile],
    }
    sizes = {words: sum(map(bytes_of, paths)) for words, paths in kinds.items()}
    rows = [f"{data_size(size)} of {words}" for words, size in sizes.items() if size >= WORTH]
    return f"In {run.folder} could be deleted: {', '.join(rows)}." if rows else ""


def bytes_of(path: Path) -> int:
    """What a file, or all files in a folder, take up on the disk; links are not followed."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            return sum(map(bytes_of, _entries(path)))
        return path.lstat().st_blocks * 512
    return 0


def _entries(folder: Path) -> Iterable[Path]:
    with contextlib.suppress(OSError):
        return [Path(entry.path) for entry in os.scandir(folder)]
    return []
