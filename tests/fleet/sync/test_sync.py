"""A run copied to a store: whole or not at all, never in the way of training, and brought back to the bit."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from copied_runs import one_pass
from safetensors.torch import load_file

from ups.config import load
from ups.files import sha256
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.run import Run, finish_alone
from ups.run.start import Start
from ups.rundir import RunDir
from ups.types import ConfigError, DataError
from ups_fleet.fetch.patience import UnreachableError
from ups_fleet.outbox import Post, couriers_of
from ups_fleet.sync import copier, push, remote_run, restore
from ups_fleet.sync.copier import Copier
from ups_fleet.sync.push import CopyReceipt, entries, receipt_of
from ups_fleet.sync.remote_run import Manifest, RemoteRun

pytest.importorskip("fsspec")

TINY = {
    "name": "tiny",
    "data": {"a": {"task": "advection1d", "scheme": "accurate", "samples": 8, "resolution": 32, "device": "cpu"}},
    "model": {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}},
    "codec": {"batch": 4, "train": {"steps": 2, "validate_every": 0}},
    "operator": {"batch": 4, "train": {"steps": 4, "validate_every": 0, "log_every": 1, "checkpoint_steps": 1}},
    "device": "cpu",
}


def settings(folder: Path, sync: str | None, **changes: object) -> RunConfig:
    data = {"data.a.reduce.time": 40, "evaluation.ensemble": 0}
    return load(run_config(), None, {"out": str(folder / "runs"), "sync": sync, **TINY, **data, **changes})


def a_run(folder: Path) -> RunDir:
    """A folder that looks like that of a run, with a log that grows."""
    run = RunDir(folder / "tiny")
    run.folder.mkdir(parents=True)
    run.config.write_text("name: tiny\n")
    run.environment.write_text(json.dumps({"run": "abc", "fingerprint": "f"}))
    run.metrics.write_text('{"step": 1}\n')
    run.verdict.write_text('{"verdict": "SUCCESS"}\n')
    (run.folder / ".secret").write_text("planted")
    return run


def nothing() -> None:
    """No sign of life is needed."""


def test_what_is_final_is_copied_and_secrets_are_not(tmp_path: Path) -> None:
    run, remote = a_run(tmp_path), RemoteRun((tmp_path / "bucket").as_uri(), "tiny")
    push.push(run, remote, nothing)
    manifest = remote.manifest()
    assert manifest is not None
    assert set(manifest.files) == {"config.yaml", "environment.json", "metrics.jsonl", "verdict.json"}
    keys = {row["key"] for row in manifest.files.values()}
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n')
    push.push(run, remote, nothing)
    second = remote.manifest()
    assert second is not None
    changed = {row["key"] for row in second.files.values()} - keys
    assert [key.partition("~")[0] for key in changed] == ["files/metrics.jsonl"]
    there = [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]
    assert len(there) == len(second.files) + 1  # what the first manifest alone named is gone
    assert "planted" not in "".join(path.read_text() for path in there)
    assert CopyReceipt.read(receipt_of(run)).verdict == sha256(run.verdict)


def test_a_pass_that_is_cut_leaves_the_copy_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, remote = a_run(tmp_path), RemoteRun((tmp_path / "bucket").as_uri(), "tiny")
    push.push(run, remote, nothing)
    before = remote.manifest()
    run.metrics.write_text("more\n")

    def cut(*_: object) -> None:
        raise OSError("the connection is gone")

    monkeypatch.setattr(RemoteRun, "publish", cut)
    with pytest.raises(OSError, match="gone"):
        push.push(run, remote, nothing)
    assert remote.manifest() == before
    monkeypatch.undo()
    shutil.rmtree(run.folder)
    assert before is not None
    restore.bring_back(remote, before, run.folder, lambda _: None)
    assert run.metrics.read_text() == '{"step": 1}\n'
    assert not (run.folder / ".ups-fetch").exists()
    push.push(run, remote, nothing) if restore.remember(run, before.sum) is None else None
    assert remote.manifest() != before


def test_what_is_damaged_in_the_store_is_not_brought_back(tmp_path: Path) -> None:
    run, remote = a_run(tmp_path), RemoteRun((tmp_path / "bucket").as_uri(), "tiny")
    push.push(run, remote, nothing)
    manifest = remote.manifest()
    assert manifest is not None
    rotten = Path(remote.path) / str(manifest.files["metrics.jsonl"]["key"])
    rotten.write_text('{"step": 9}\n')
    shutil.rmtree(run.folder)
    with pytest.raises(DataError, match="damaged or another file"):
        restore.bring_back(remote, manifest, run.folder, lambda _: None)
    assert not run.folder.exists()
    path = Path(remote.path) / remote_run.MANIFEST
    path.write_text(path.read_text().replace("metrics.jsonl", "../escaped.txt"))
    with pytest.raises(DataError, match="is no manifest of a run, or is damaged"):
        remote.manifest()
    evil = Manifest.of("abc", {"../escaped": {"bytes": 1, "sha256": "0", "key": "files/x"}})
    path.write_bytes(evil.content())
    with pytest.raises(DataError, match="leads out of its folder"):
        remote.manifest()
    path.write_bytes(Manifest.of("abc", {"a": {"bytes": 1, "sha256": "0", "key": "../../etc/passwd"}}).content())
    with pytest.raises(DataError, match="is no manifest of a run"):
        remote.manifest()


def test_a_folder_that_is_taken_away_takes_nothing_from_its_copy(tmp_path: Path) -> None:
    run, remote = a_run(tmp_path), RemoteRun((tmp_path / "bucket").as_uri(), "tiny")
    step = run.checkpoints("codec") / "step-000000002"
    step.mkdir(parents=True)
    rows = {"files": {}, "format": 0}
    (step / "manifest.json").write_text(json.dumps(rows))
    path = "checkpoints/codec/step-000000002/x"
    held = {path: {"bytes": 1, "sha256": "0", "key": remote_run.key_of(path, "0")}}
    push.push(run, remote, nothing)
    before = remote.manifest()
    assert before is not None
    there = Path(remote.path) / str(held[path]["key"])
    there.parent.mkdir(parents=True)
    there.write_bytes(b"x")
    remote.publish(Manifest.of("abc", {**before.files, **held}), before)
    restore.remember(run, (remote.manifest() or before).sum)
    push.push(run, remote, nothing)  # the folder has no whole checkpoint of this stage: the copy keeps its own
    kept = remote.manifest()
    assert kept is not None
    assert set(held) <= set(kept.files)
    shutil.rmtree(run.folder)
    with pytest.raises(DataError, match="is gone"):
        push.push(run, remote, nothing)
    assert remote.manifest() == kept


def test_two_machines_never_write_one_copy(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    run, remote = a_run(tmp_path / "one"), RemoteRun(url, "tiny")
    push.push(run, remote, nothing)
    other = RunDir(tmp_path / "two" / "tiny")
    seen = restore.prepare(url, other.folder, lambda _: None, resume=True, overwrite=False)
    restore.remember(other, seen)
    other.metrics.write_text("further\n")
    push.push(other, remote, nothing)
    run.metrics.write_text("behind\n")
    with pytest.raises(DataError, match="another machine has written there"):
        push.push(run, remote, nothing)
    with pytest.raises(ConfigError, match="written by another machine"):
        restore.prepare(url, run.folder, lambda _: None, resume=True, overwrite=False)
    stranger = a_run(tmp_path / "three")
    stranger.environment.write_text(json.dumps({"run": "xyz", "fingerprint": "f"}))
    with pytest.raises(ConfigError, match="holds another run of this name"):
        restore.prepare(url, stranger.folder, lambda _: None, resume=True, overwrite=False)
    with pytest.raises(ConfigError, match="--resume it, --overwrite it"):
        restore.prepare(url, tmp_path / "four" / "tiny", lambda _: None, resume=False, overwrite=False)


def test_a_place_that_denies_is_one_sentence_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = settings(tmp_path, (tmp_path / "file").as_uri())
    with pytest.raises(ConfigError, match="sync: ") as error:
        Run.open(config)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
    for url in ("s3://key:planted@bucket/x", "https://host/x", "memory://x", "bucket"):
        with pytest.raises(ConfigError, match="sync") as refused:
            settings(tmp_path, url)
        assert "planted" not in str(refused.value)


def test_failures_of_the_store_are_retried_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, place = a_run(tmp_path), tmp_path / "bucket"
    url = place.as_uri()
    place.write_text("not a folder")
    post = Post(Copier(run.folder, url), bytes)
    until(lambda: post.look(time.monotonic()) or post.failures, "it fails")
    assert CopyReceipt.read(receipt_of(run)).trouble
    post.look(post.due - 0.1)
    assert post.child is None, "not before its time"
    place.unlink()
    post.end()
    until(lambda: post.look(time.monotonic()) or post.finished, "it is copied")
    assert CopyReceipt.read(receipt_of(run)).trouble == ""
    said: list[str] = []
    monkeypatch.setattr(copier, "WAIT", 0.5)
    shutil.rmtree(place)
    place.write_text("not a folder")
    run.verdict.write_text("{}\n")
    with copier.copied(run.folder, url, said.append):
        pass
    assert len(said) == 1
    assert "does not have all of" in said[0]


def test_a_killed_courier_costs_nothing_and_the_end_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, url = a_run(tmp_path), (tmp_path / "bucket").as_uri()
    begun: list[subprocess.Popen[bytes]] = []
    truly = copier._courier

    def courier(*words: object) -> subprocess.Popen[bytes] | None:
        begun.append(truly(*words))  # type: ignore[arg-type]
        return begun[-1]

    monkeypatch.setattr(copier, "_courier", courier)
    said: list[str] = []
    with copier.copied(run.folder, url, said.append):
        os.kill(begun[0].pid, signal.SIGKILL)
        begun[0].wait()
        run.verdict.write_text('{"verdict": "SUCCESS", "at": "last"}\n')
    assert said == []
    manifest = RemoteRun(url, "tiny").manifest()
    assert manifest is not None
    assert manifest.files["verdict.json"]["sha256"] == sha256(run.verdict)


OWNER = """
import sys, time
from pathlib import Path
from ups_fleet.sync.copier import copied
with copied(Path(sys.argv[1]), sys.argv[2], print):
    time.sleep(600)
"""


def test_a_courier_that_a_killed_supervisor_has_left_ends_when_the_run_is_resumed_and_is_no_stranger(
    tmp_path: Path,
) -> None:
    run, url = a_run(tmp_path), (tmp_path / "bucket").as_uri()
    remote = RemoteRun(url, "tiny")
    push.push(run, remote, nothing)
    seen = restore.prepare(url, run.folder, lambda _: None, resume=True, overwrite=False)
    run.verdict.write_text('{"verdict": "HANG"}\n')
    hanging = Path(remote.path) / remote_run.key_of("verdict.json", sha256(run.verdict))
    os.mkfifo(hanging)  # whoever writes to it stands still
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(run.folder), url])
    until(lambda: len(couriers_of(run.folder)) == 2 and is_locked(run.sync("receipt.lock")), "a pass is under way")
    other = threading.Thread(target=lambda: ended.append(one_pass(run, url)))
    ended: list[bool] = []
    other.start()
    other.join(1.0)
    assert not ended, "it waits for the pass that is under way"
    owner.kill()
    owner.wait()
    assert len(couriers_of(run.folder)) == 2, "they do not die with it"
    hanging.unlink()
    receipt = CopyReceipt.read(receipt_of(run))
    receipt.add("published just before it was killed")
    receipt.write(receipt_of(run))
    restore.remember(run, seen)  # as the run that is resumed does, once it holds the folder
    assert couriers_of(run.folder) == []
    other.join(60)
    assert ended == [True]
    assert {"published just before it was killed", seen} < set(CopyReceipt.read(receipt_of(run)).sums)
    assert one_pass(run, url), CopyReceipt.read(receipt_of(run)).trouble
    manifest = remote.manifest()
    assert manifest is not None
    assert manifest.files["verdict.json"]["sha256"] == sha256(run.verdict)


def is_locked(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def until(holds: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_a_quoted_address_of_a_disk_is_written_probed_and_read_at_one_place(tmp_path: Path) -> None:
    run, place = a_run(tmp_path), tmp_path / "my disk%20"
    remote = RemoteRun(place.as_uri(), "tiny")
    remote.probe()
    push.push(run, remote, nothing)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my disk%20", "tiny"]
    assert not list((place / "tiny").glob(".probe*"))
    manifest = remote.manifest()
    assert manifest is not None
    words = run.metrics.read_text()
    shutil.rmtree(run.folder)
    restore.bring_back(remote, manifest, run.folder, lambda _: None)
    assert run.metrics.read_text() == words
    for wrong in ("file://disk/x", "file://~/x", "dir::memory://x"):
        with pytest.raises(ConfigError, match=r"another machine|no store"):
            RemoteRun(wrong, "tiny")


def test_what_the_store_has_lost_is_copied_again(tmp_path: Path) -> None:
    run, remote = a_run(tmp_path), RemoteRun((tmp_path / "bucket").as_uri(), "tiny")
    push.push(run, remote, nothing)
    manifest = remote.manifest()
    assert manifest is not None
    lost, cut = (Path(remote.path) / manifest.files[name]["key"] for name in ("config.yaml", "metrics.jsonl"))
    lost.unlink()
    cut.write_bytes(b"{")
    replaced = Path(remote.path) / manifest.files["verdict.json"]["key"]
    replaced.write_bytes(b"x" * replaced.stat().st_size)
    push.push(run, remote, nothing)
    assert lost.read_bytes() == run.config.read_bytes()
    assert cut.read_bytes() == run.metrics.read_bytes()
    assert replaced.read_bytes() == run.verdict.read_bytes()


@pytest.mark.parametrize(
    ("paths", "size"), [(("zz", "zz/b"), 1), (("a",), 10**400), (("a",), -1), (("/".join(["a"] * 3000),), 1)]
)
def test_a_manifest_that_no_disk_could_hold_is_refused(paths: tuple[str, ...], size: int) -> None:
    rows = {path: {"bytes": size, "sha256": "0" * 64, "key": remote_run.key_of(path, "0" * 64)} for path in paths}
    with pytest.raises(DataError, match="is damaged"):
        Manifest.parse(Manifest.of("abc", rows).content(), "there")


def test_a_hung_store_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path)
    monkeypatch.setattr(Copier, "patience_after", 0.5)
    monkeypatch.setattr(Copier, "tries", 1)
    monkeypatch.setattr(copier, "push", lambda *_: time.sleep(600))
    began = time.monotonic()
    assert not one_pass(run, (tmp_path / "bucket").as_uri())
    assert time.monotonic() - began < 250
    assert "nothing was sent" in CopyReceipt.read(receipt_of(run)).trouble


def test_a_store_that_says_nothing_is_not_waited_for_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_run, "ANSWER", 0.2)
    monkeypatch.setattr(RemoteRun, "_probe", lambda _: time.sleep(3))
    with pytest.raises(UnreachableError, match=r"does not answer \(nothing was heard for 0.2 s\); try again later"):
        RemoteRun((tmp_path / "bucket").as_uri(), "tiny").probe()


@pytest.mark.slow
def test_a_fresh_machine_resumes_to_the_bit(tmp_path: Path) -> None:
    """A run is stopped after some steps; a machine that has only the store goes on, and learns the same weights."""
    url = (tmp_path / "bucket").as_uri()
    whole, _ = finish_alone(settings(tmp_path / "whole", None), Screen.silent())
    there = settings(tmp_path / "one", url)

    def stopped(progress: object) -> None:
        if getattr(progress, "stage", "") == "operator" and getattr(progress, "step", 0) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish_alone(there, Screen(lambda _: None, lambda _: None, stopped))
    run = RunDir(Path(there.out) / "tiny")
    assert any(entry.path.startswith("checkpoints/operator/") for entry in entries(run))
    shutil.rmtree(tmp_path / "one")
    fresh = settings(tmp_path / "two", url)
    folder, finish = finish_alone(fresh, Screen.silent(), start=Start(resume=True))
    assert finish.report is not None
    ours, theirs = (load_file(place.artifact("simulator")) for place in (folder, whole))
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)
    again = settings(tmp_path / "three", url)
    sentences: list[str] = []
    screen = Screen(sentences.append, lambda _: None, lambda _: None)
    folder, _ = finish_alone(again, screen, start=Start(resume=True))
    assert folder.report.is_file()
    assert any("is brought back from" in sentence for sentence in sentences)
