"""A disk that refuses to hold a run: how the run ends then, and what could be deleted from its folder."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from ups.engine.checkpoint.manifest import NAME, listing
from ups.rundir import RunDir
from ups.types import UpsError, data_size
from ups.verdict import Ending, Verdict, classify, now, with_remedy
from ups.wings import made_again

WORTH = 10_000  # bytes below which nothing is named


def freeable(run: RunDir) -> str:
    """A sentence on what could be deleted and how much each would free; empty where there is nothing."""
    stages = [path for path in _entries(run.checkpoints()) if path.is_dir()]
    outdated = [path for stage in stages for path in listing(stage)[1:]]
    others = [path for stage in stages for path in _entries(stage) if not NAME.fullmatch(path.name)]
    attempts = run.attempts()
    kinds: dict[str, list[Path]] = {
        "older checkpoints": outdated,
        "damaged checkpoints set aside and leftovers of saves": others,
        f"what is made again when it is needed ({run.cache('').name}/)": [run.cache("")],
        "logs of earlier attempts": [attempts[number] for number in sorted(attempts)[:-1]],
        **{f"{words} ({name}/)": [run.folder / name] for name, words in made_again().items()},
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


def say(sentence: str) -> None:
    """Tell the person at the terminal, or the log of a service."""
    with contextlib.suppress(OSError, ValueError):  # the streams of whoever called may be closed or full
        print(f"ups: {sentence}", file=sys.stderr, flush=True)


def refused(folder: RunDir, error: OSError | UpsError, say: Callable[[str], None] = say) -> Ending:
    """How a run ends that its disk has refused to hold; any other error is raised again."""
    if classify(error).ending != Ending.STORAGE:
        raise error
    words = str(error) if isinstance(error, UpsError) else f"{folder.folder}: {error}"
    cause = with_remedy(words, freeable(folder))
    verdict = Verdict(Ending.STORAGE, cause, kind=type(error).__name__, time=now())
    for room in (folder.reserve, folder.job):  # the verdict takes their place
        with contextlib.suppress(OSError):  # the disk may have been mounted read-only
            room.unlink(missing_ok=True)
    try:
        verdict.write(folder.verdict)
    except OSError as refusal:
        say(f"{folder.verdict}: the verdict could not be written ({refusal.strerror}).")
    say(f"{verdict.ending.name}: {verdict.cause}")
    return verdict.ending
