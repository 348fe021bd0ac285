"""One pass of copying a run: what is new goes to the store, then a manifest makes it count."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ups.files import write_atomic
from ups.parsing import fields_among, read_json
from ups.rundir import RunDir
from ups.types import DataError
from ups_fleet.fetch.landing import alone
from ups_fleet.fetch.patience import ChangedError
from ups_fleet.sync.remote_run import Manifest, RemoteRun
from ups_fleet.sync.snapshot import entries, hashed

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
