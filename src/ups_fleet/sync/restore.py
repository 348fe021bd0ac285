"""Tries the store before a run begins, and brings back a run that is only there, whole or not at all."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ups.files import sync
from ups.progress import OnProgress, Progress
from ups.run_files import ENVIRONMENT
from ups.rundir import RunDir
from ups.types import ConfigError, DataError, counted
from ups_fleet.fetch.addresses import shown
from ups_fleet.fetch.download import Download, Wanted
from ups_fleet.fetch.landing import FOLDER
from ups_fleet.outbox import end_couriers
from ups_fleet.sync.push import CopyReceipt, alone_with, receipt_of, run_id
from ups_fleet.sync.remote_run import Manifest, RemoteRun


def prepare(url: str | None, place: Path, say: Callable[[str], None], *, resume: bool, overwrite: bool) -> str | None:
    """Try the store of a run that is to begin in `place`. With `resume`, a run that is not here but there is brought
    back. The sum of the manifest that is there, which this machine may replace; empty where none is, None without
    a store."""
    if url is None:
        return None
    remote, run = RemoteRun(url, place.name), RunDir(place)
    remote.probe()
    manifest = remote.manifest()
    if manifest is None or overwrite:
        return manifest.sum if manifest else ""
    if run.known() is not None:
        receipt = CopyReceipt.read(receipt_of(run))
        if manifest.run != run_id(run):
            raise ConfigError(
                f"sync: {shown(remote.url)}: holds another run of this name; choose another name or place."
            )
        if receipt.sums and manifest.sum not in receipt.sums:
            raise ConfigError(
                f"sync: {shown(remote.url)}: was written by another machine {_ago(manifest)}, after this one; "
                f"move {place} away, and --resume brings that back."
            )
        return manifest.sum
    if not resume:
        raise ConfigError(
            f"sync: {shown(remote.url)}: holds a run of this name, written {_ago(manifest)}; --resume it, "
            "--overwrite it, or rename."
        )
    bring_back(remote, manifest, place, say)
    return manifest.sum


def remember(run: RunDir, seen: str | None) -> None:
    """Write down, in the folder of a run that this process has begun, which manifest this machine may replace. A
    courier that a killed process has left is ended: what it has published is remembered too."""
    end_couriers(run.folder)
    if seen is None:
        return
    with alone_with(run, lambda: None):
        receipt = CopyReceipt.read(receipt_of(run))
        receipt.trouble = ""
        if seen:
            receipt.add(seen)
        receipt.write(receipt_of(run))


def bring_back(remote: RemoteRun, manifest: Manifest, place: Path, say: Callable[[str], None]) -> None:
    """All files of a manifest, each proven by its SHA-256, in a folder beside `place` that then becomes it. A kill
    leaves what has come, for the next time."""
    if ENVIRONMENT not in manifest.files:
        raise DataError(f"{shown(remote.url)}: holds no run that had begun; --overwrite it, or use another place.")
    total = sum(int(row["bytes"]) for row in manifest.files.values())
    beside = place.with_name(f".{place.name}.restoring")
    say(
        f"{place}: is brought back from {shown(remote.url)}, {counted(len(manifest.files), 'file')} of "
        f"{total / 1e6:.1f} MB."
    )
    for path, row in manifest.files.items():
        wanted = Wanted(remote.file(str(row["key"])), path, sha256=str(row["sha256"]))
        Download(wanted, beside, _unheard()).fetch()
    stray = [path for path in _files(beside) if path not in manifest.files]
    for path in stray:  # of an earlier manifest
        (beside / path).unlink()
    shutil.rmtree(beside / FOLDER, ignore_errors=True)
    try:
        if place.exists():
            place.rmdir()
        beside.rename(place)
    except OSError as error:
        raise DataError(
            f"{place}: is in the way of the run that was brought back ({error.strerror}); move it."
        ) from None
    sync(place.parent)


def _files(folder: Path) -> list[str]:
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return [path.as_posix() for path in paths if path.parts[0] != FOLDER]


def _unheard() -> OnProgress:
    def report(_: Progress) -> None:
        """Files are many and small."""

    return report


def _ago(manifest: Manifest) -> str:
    return f"{counted(round(max(0.0, time.time() - manifest.time) / 60), 'minute')} ago"
