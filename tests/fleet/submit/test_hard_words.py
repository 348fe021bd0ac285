"""Paths, names and secrets that are hard to write into a script: none is changed, none is leaked, none is lost."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from ups.types import ConfigError, DataError
from ups_fleet.submit import local, records, slurm
from ups_fleet.submit.job import LaunchJob, ended
from ups_fleet.submit.plan import check_secrets
from ups_fleet.submit.records import LaunchRecord, keep_text, new_key, note, record_of, with_identity
from ups_fleet.submit.shell import quoted
from ups_fleet.submit.sky.engine import Sky


def test_blanks_in_a_path_stay_as_many_as_they_are() -> None:
    place = Path("/place")
    job = LaunchJob("k-0a", "my  run", place / "two  blanks.yaml", place / "out  here" / "my  run", place)
    (command,) = [line for line in Sky().render(job).splitlines() if "exec" in line]
    words = shlex.split(command)
    assert "two  blanks.yaml" in words
    assert "--out=out  here" in words


def test_a_secret_is_found_as_a_shell_quotes_it_and_in_addresses_with_a_slash_or_a_token() -> None:
    environ = {"API_TOKEN": "pass'word-1234567"}
    with pytest.raises(ConfigError, match="API_TOKEN"):
        check_secrets(quoted(["--out=/x/pass'word-1234567"]), environ)
    for address in ("s3://AKIAXXXX:abc/defGHI@bucket/x.h5", "https://ghp_0123456789abcdefghij@host/x.h5"):
        with pytest.raises(ConfigError, match="password"):
            check_secrets(quoted([f"--data.a.file={address}"]), {})
    check_secrets("ssh://git@host/x https://host:8080/a/b", {})


def test_a_long_name_has_a_record_that_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPS_STATE", str(tmp_path))
    key, name = new_key("n" * 195), "n" * 195
    note(LaunchRecord.of(LaunchJob(key, name, tmp_path / "c.yaml", tmp_path / name, tmp_path), "local"))
    assert record_of(key).name == record_of(name).name == name


def test_what_runs_is_no_failed_launch_because_a_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPS_STATE", str(tmp_path))
    record = LaunchRecord.of(LaunchJob("k-0a", "k", tmp_path / "c.yaml", tmp_path / "k", tmp_path), "local")
    note(record)
    assert (tmp_path / "jobs" / "k-0a.json").stat().st_mode & 0o077 == 0

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records, "write_atomic", full)
    assert with_identity(record, "7").identity == "7"
    assert record_of("k-0a").identity == ""
    with pytest.raises(DataError, match="No space left"):
        keep_text("k-0a", "text")


def test_a_folder_that_reads_like_slurms_facts_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "JobId=7 JobName=ups-k JobState=RUNNING ExitCode=0:0 WorkDir=/a JobState=COMPLETED ExitCode=x StdOut=/a/b"
    monkeypatch.setattr(slurm, "_answer", lambda *_, **__: line)
    assert slurm.Slurm().status("7").state == "running"


def test_bytes_that_are_no_text_are_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no text"):
        quoted([b"b\xff.yaml".decode(errors="surrogateescape")])


def test_a_job_that_was_asked_to_stop_before_it_listened_has_not_failed() -> None:
    assert (ended(143).state, ended(137).state) == ("stopped", "failed")


def test_slurm_is_given_no_path_with_a_backslash() -> None:
    place = Path("/back\\slash")
    with pytest.raises(ConfigError, match="backslash"):
        slurm.Slurm().check(LaunchJob("k-0a", "k", place / "c.yaml", place / "k", place))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who reads the environment of strangers")
def test_a_stranger_that_names_a_job_is_none_of_its_processes() -> None:
    own = {"UPS_JOB": "k-0a", "UPS_JOB_GRACE": "1e9", "PATH": "/usr/bin:/bin"}
    stranger = subprocess.Popen(["sleep", "300"], env=own, user=65534)
    mine = subprocess.Popen(["sleep", "300"], env={**own, "UPS_JOB_GRACE": "soon"})
    try:
        deadline = time.monotonic() + 120
        while not list(local._mine("k-0a")) and time.monotonic() < deadline:
            time.sleep(0.01)  # for a moment after it has begun, a process shows no environment
        assert list(local._mine("k-0a")) == [mine.pid]
        begun = time.monotonic()
        local.Local().stop("k-0a")
        assert time.monotonic() - begun < 100
        assert stranger.poll() is None
    finally:
        for process in (stranger, mine):
            process.kill()
            process.wait()
