"""One pass of copying a run: what is final and new goes to the store, then a manifest makes it count."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ups.engine.checkpoint.manifest import MANIFEST, newest_whole, read_manifest
from ups.files import CHUNK, sha256, stamp, write_atomic
from ups.parsing import fields_among, read_json
from ups.rundir import RunDir
from ups.types import DataError
from ups_fleet.fetch.landing import alone
from ups_fleet.fetch.patience import ChangedError
from ups_fleet.sync.remote_run import Manifest, RemoteRun

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


SUMS = 8  # manifests that are remembered


@dataclass
class CopyReceipt:
    """What is known of the copy of a run: the sums of manifests that may be there, as this machine has seen or written
    them (the last word of a process that was killed may arrive late), the SHA-256 of the verdict that is there, and why
    the last attempt failed."""

    sums: list[str] = field(default_factory=list)
    verdict: str = ""
    time: float = 0.0
    trouble: str = ""
    hashes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> CopyReceipt:
        """What was written; a new one where there is none, or something else in its place."""
        return cls(**fields_among(read_json(path), cls()))

    def add(self, sum: str) -> None:
        """Remember a manifest that may be there."""
        self.sums = [*(known for known in self.sums if known != sum), sum][-SUMS:]

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)  # a folder that was taken away is not made again
        write_atomic(path, json.dumps(asdict(self), indent=1) + "\n")


def receipt_of(run: RunDir) -> Path:
    return run.sync("receipt.json")


def alone_with(run: RunDir, beat: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """While the block runs no other process copies this run, or writes its receipt; one that does is waited for."""
    place = run.sync("receipt.lock")
    place.parent.mkdir(exist_ok=True)
    return alone(place, beat)


def run_id(run: RunDir) -> str:
    return str(read_json(run.environment).get("run", ""))


def _of_stages_without(files: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoints in the store of stages that have none in the folder: somebody may have deleted those."""
    stages = {path.split("/")[1] for path in files if path.startswith("checkpoints/")}
    return {p: row for p, row in there.items() if p.startswith("checkpoints/") and p.split("/")[1] not in stages}


def _untouched(row: Mapping[str, Any], size: int, tag: str) -> bool:
    """Whether a file in the store is still the one that was copied there; what is lost or changed is copied again."""
    return bool(size == row["bytes"] and row.get("tag", tag) == tag)


def push(run: RunDir, remote: RemoteRun, beat: Callable[[], None]) -> None:
    """Copy what is not there yet. A DataError where another machine has written there since."""
    place, run_is = receipt_of(run), run_id(run)
    if not run_is:  # an empty folder must not take the place of a good copy
        raise DataError(f"{run.folder}: is gone, or is no run's folder any more; its copy stays as it is.")
    receipt, before = CopyReceipt.read(place), remote.manifest()
    if before is not None and before.sum not in receipt.sums:
        raise DataError(f"{remote.url}: another machine has written there since; this one copies nothing more.")
    named = before.files if before is not None and before.run == run_is else {}
    listed = remote.listed() if named else {}
    there = {path: row for path, row in named.items() if _untouched(row, *listed.get(row["key"], (-1, "")))}
    files: dict[str, dict[str, Any]] = {}
    for entry in entries(run):
        beat()
        try:
            digest = hashed(entry, receipt.hashes, beat)
            row = {"bytes": entry.size, "sha256": digest}
            held = there.get(entry.path, {})
            if {key: held.get(key) for key in row} == row:
                files[entry.path] = dict(held)
                continue
            files[entry.path] = {**row, **remote.put(entry.source, entry.path, entry.size, digest, beat)}
        except FileNotFoundError:
            if entry.sha256:  # of a checkpoint that is no longer kept: all of the newer one takes its place
                raise ChangedError(f"{entry.source} was taken away") from None
    if run_id(run) != run_is:
        raise ChangedError(f"{run.folder} was taken away")
    manifest = Manifest.of(run_is, {**_of_stages_without(files, there), **files})
    receipt.hashes = {path: row for path, row in receipt.hashes.items() if path in files}
    receipt.add(manifest.sum)
    receipt.write(place)  # before it is there: a kill in between must not make a stranger of this machine
    remote.publish(manifest, before)
    receipt.trouble, receipt.time = "", manifest.time
    receipt.verdict = str(files.get(run.verdict.name, {}).get("sha256", ""))
    receipt.write(place)
