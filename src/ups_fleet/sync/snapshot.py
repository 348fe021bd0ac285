"""Decides which files of a run's folder are copied: those that are final, or grow at their end only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.engine.checkpoint.manifest import MANIFEST, newest_whole, read_manifest
from ups.files import CHUNK, sha256, stamp
from ups.rundir import RunDir

LARGEST_DATA = 2 << 30  # bytes of data that the run has made, above which they are made again instead
UNFINISHED = (".part", ".journal", ".lock")


@dataclass(frozen=True)
class CopiedFile:
    """A file of a run: its path below the folder, how many bytes of it there were, and their SHA-256 where that is
    known from elsewhere. `urgent`: it is worth a copy at once."""

    path: str
    source: Path
    size: int
    sha256: str
    urgent: bool


def entries(run: RunDir) -> Iterator[CopiedFile]:
    """What is worth copying now. Checkpoints come first, so that the log says at least as much as they do."""
    yield from _checkpoints(run)
    facts = (run.config, run.environment, run.data, run.statistics, run.stages, run.ledger, run.phases)
    ends = (run.verdict, run.report, run.results, run.trajectories, run.artifact("simulator"))
    for path in (*facts, *ends):
        yield from _file(run, path, urgent=path in ends)
    made = run.cache("data")
    for path in sorted(made.rglob("*")) if made.is_dir() else ():
        if path.suffix not in UNFINISHED and not path.name.startswith("."):
            yield from (entry for entry in _file(run, path, urgent=False) if entry.size <= LARGEST_DATA)
    logs = [path for path in sorted(run.logs.rglob("*")) if path.is_file()] if run.logs.is_dir() else []
    for path in (run.metrics, run.journal, *logs):
        yield from _file(run, path, urgent=False)


def _checkpoints(run: RunDir) -> Iterator[CopiedFile]:
    """The newest checkpoint of each stage that is whole; its manifest has the SHA-256 of its files."""
    stages = sorted(run.checkpoints().iterdir()) if run.checkpoints().is_dir() else []
    for stage in stages:
        newest = newest_whole(stage)
        if newest is None:
            continue
        files: Mapping[str, Mapping[str, Any]] = read_manifest(newest)["files"]
        place = f"checkpoints/{stage.name}/{newest.name}"
        for name, row in files.items():
            yield CopiedFile(f"{place}/{name}", newest / name, int(row["bytes"]), str(row["sha256"]), urgent=True)
        yield from _file(run, newest / MANIFEST, urgent=True)


def _file(run: RunDir, path: Path, urgent: bool) -> Iterator[CopiedFile]:
    try:
        if path.is_file() and not path.is_symlink():
            yield CopiedFile(path.relative_to(run.folder).as_posix(), path, path.stat().st_size, "", urgent)
    except OSError:  # it was replaced or taken away just now
        return


def glimpse(run: RunDir) -> tuple[frozenset[object], frozenset[object]]:
    """What the urgent files are now, and all others, in things that can be compared; no file is read."""
    urgent, others = set[object](), set[object]()
    try:
        for entry in entries(run):
            (urgent if entry.urgent else others).add((entry.path, *stamp(entry.source.stat())))
    except (OSError, ValueError, KeyError):  # a checkpoint was replaced just now
        others.add(object())
    return frozenset(urgent), frozenset(others)


def hashed(entry: CopiedFile, known: dict[str, Any], beat: Callable[[], None]) -> str:
    """The SHA-256 of an entry; `known` remembers those of files that nobody has touched since."""
    if entry.sha256:
        return entry.sha256
    lies = [*stamp(entry.source.stat()), entry.size]
    row = known.get(entry.path)
    if isinstance(row, dict) and row.get("stamp") == lies:
        return str(row["sha256"])
    digest = (
        _prefix(entry.source, entry.size, beat) if entry.source.stat().st_size != entry.size else sha256(entry.source)
    )
    known[entry.path] = {"stamp": lies, "sha256": digest}
    return digest


def _prefix(path: Path, size: int, beat: Callable[[], None]) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(CHUNK, size))):
            total.update(block)
            size -= len(block)
            beat()
    return total.hexdigest()
