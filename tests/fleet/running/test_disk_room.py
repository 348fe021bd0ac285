"""A disk without room: one sentence, a verdict, and what could be deleted."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ups.config import load
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.checkpoint.store import Snapshot
from ups.run.config import RunConfig, run_config
from ups.run.disk_room import bytes_of, freeable
from ups.run.run import Run
from ups.run.start import Start
from ups.rundir import RunDir
from ups.types import DataError, data_size
from ups.verdict import Ending, classify, with_remedy
from ups_fleet.running.supervised import supervise
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.supervisor import Supervisor


def test_what_could_be_deleted_is_named_with_its_size_and_the_newest_checkpoint_is_not(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    store = CheckpointStore(run.checkpoints("codec"))
    for step in (1, 2):
        store.save(Snapshot(step, {"w": torch.ones(100_000)}))
        store.wait()
    assert "older checkpoints" in freeable(run)
    older, newest = (run.checkpoints("codec") / f"step-00000000{step}" for step in (1, 2))
    assert f"{data_size(bytes_of(older))} of older checkpoints" in freeable(run)
    older = older.rename(newest.with_name("step-000000001.damaged-0123abcd"))
    assert f"{data_size(bytes_of(older))} of damaged checkpoints set aside" in freeable(run)
    for number in (1, 2):
        run.attempt_logs(number).mkdir(parents=True)
        (run.attempt_logs(number) / "rank-0.log").write_bytes(os.urandom(number * 50_000))
    run.cache("data").mkdir(parents=True)
    (run.cache("data") / "file").symlink_to(newest)
    words = freeable(run)
    logs = data_size(bytes_of(run.attempt_logs(1)))
    assert f"{logs} of logs of earlier attempts" in words, "those of the last attempt are needed"
    assert "cache/" not in words, "a link is worth nothing"
    (run.cache("data") / "other").write_bytes(bytes(200_000))
    assert f"{data_size(bytes_of(run.cache('')))} of what is made again when it is needed (cache/)" in freeable(run)
    assert "trackers" not in freeable(run)
    for name in ("csv", "tensorboard"):
        (run.folder / name).mkdir()
    (run.folder / "tensorboard" / "events").write_bytes(bytes(300_000))
    mirror = data_size(bytes_of(run.folder / "tensorboard"))
    assert f"{mirror} of what trackers wrote and `ups track` writes again (tensorboard/)" in freeable(run)


def test_a_folder_with_nothing_to_delete_promises_nothing(tmp_path: Path) -> None:
    assert freeable(RunDir(tmp_path / "none")) == ""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def settings(disk: Path) -> RunConfig:
    return load(run_config(), None, {"out": str(disk), "data.a.task": "advection1d", "data.a.samples": 10})


def fill(disk: Path) -> None:
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))


@pytest.mark.parametrize("left", ["the reserve of a run that was killed", "the verdict of one that ended"])
def test_a_resume_without_any_room_is_a_sentence_and_a_verdict(disk: Path, left: str) -> None:
    run = Run.open(settings(disk)).folder
    run.close()
    if "reserve" in left:
        run.reserve.write_bytes(bytes(64 * 1024))
    else:
        run.write(run.verdict, {"verdict": "PREEMPTED", "code": 15})
    fill(disk)
    sentences: list[str] = []
    assert (
        supervise(settings(disk), command="ups_fleet.cli.worker", start=Start(resume=True), say=sentences.append)
        == Ending.STORAGE
    )
    assert json.loads(run.verdict.read_text())["verdict"] == "STORAGE"
    sentence = next(sentence for sentence in sentences if sentence.startswith("STORAGE: "))
    assert "No space left on device" in sentence or "has 0 GB free" in sentence
    assert "ree some space" in sentence or "make room" in sentence
    assert not any("Traceback" in sentence for sentence in sentences)


def remount(disk: Path, *, writable: bool) -> None:
    subprocess.run(["mount", "-o", f"remount,{'rw' if writable else 'ro'}", str(disk)], check=True)


def test_a_disk_that_is_read_only_at_the_start_is_storage_and_may_be_mounted_again(disk: Path) -> None:
    Run.open(settings(disk)).folder.close()
    remount(disk, writable=False)
    sentences: list[str] = []
    assert (
        supervise(settings(disk), command="ups_fleet.cli.worker", start=Start(resume=True), say=sentences.append)
        == Ending.STORAGE
    )
    assert "Read-only file system" in sentences[-1]
    assert "mount it again" in sentences[-1]
    assert "ree some space" not in sentences[-1]


class ReadOnlyAfterwards(ProcessLauncher):
    """The disk of the run turns read-only when the ranks have ended."""

    def __init__(self, disk: Path) -> None:
        super().__init__()
        self.disk = disk

    def kill(self) -> None:
        super().kill()
        remount(self.disk, writable=False)


def test_a_disk_that_turns_read_only_before_the_verdict_is_storage(disk: Path) -> None:
    """The ranks have succeeded, and nobody will ever read it."""
    success = "import os, pathlib; pathlib.Path(os.environ['UPS_HOME'], '.success.json').write_text('{}')"
    job = RankJob((sys.executable, "-c", success))
    verdict = Supervisor(job, disk / "run", say=lambda _: None, launcher=ReadOnlyAfterwards(disk)).supervise()
    assert verdict.ending == Ending.STORAGE
    assert "Mount its disk again" in verdict.cause
    remount(disk, writable=True)
    assert not RunDir(disk / "run").verdict.exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT])
def test_a_mistake_that_is_the_disks_is_storage(number: int) -> None:
    error = DataError("the file cannot be read.")
    error.__cause__ = OSError(number, os.strerror(number))
    assert classify(error).ending == Ending.STORAGE
    error.__cause__ = OSError(errno.EACCES, "no")
    assert classify(error).ending == Ending.USER


def test_the_remedy_is_named_once_and_a_path_is_none() -> None:
    assert with_remedy("/data/freesurfer: No space left on device", "").endswith("Free some space and --resume.")
    assert with_remedy("a: full; make room.", "Delete b.") == "a: full; make room. Delete b."
    for told in ("its disk is full; free some space and --resume.", "it stopped; free the disk and --resume."):
        assert with_remedy(told, "") == told
    assert "ree some" not in with_remedy("a: Input/output error", "Delete b.")


def test_a_new_run_without_any_room_is_a_sentence(disk: Path) -> None:
    fill(disk)
    sentences: list[str] = []
    assert supervise(settings(disk), command="ups_fleet.cli.worker", say=sentences.append) == Ending.STORAGE
    assert "No space left on device" in sentences[-1]
