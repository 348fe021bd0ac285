"""The engine `local`: a job in the background ends, fails, is stopped or killed, and what is said of it is true."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.local import Local, check_here
from ups_fleet.submit.records import (
    LaunchRecord,
    all_records,
    file_of,
    note,
    only,
    record_of,
    status_of,
    stopped,
    with_identity,
)
from ups_fleet.supervise.proc import owned

FAKE = Path(__file__).with_name("fake_ups.py")


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPS_STATE", str(tmp_path / "state"))


def job_of(folder: Path, words: str, key: str = "tiny-1", **more: Any) -> LaunchJob:
    config = folder / f"{key}.yaml"
    config.write_text(words.format(folder=folder / "run"))
    job = LaunchJob(key, "tiny", config, folder / "run", folder, python=str(FAKE), inputs=(config,), grace=20.0)
    return replace(job, **more)


def launched(job: LaunchJob) -> LaunchRecord:
    record = LaunchRecord.of(job, "local")
    note(record)
    return with_identity(record, Local().submit(job, Local().render(job)))


def until(holds: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (13, "failed"), (19, "failed")])
def test_a_job_that_has_ended_says_how(tmp_path: Path, code: int, state: str) -> None:
    record = launched(job_of(tmp_path, f"end {{folder}} {code}"))
    until(lambda: status_of(record)[1].over)
    assert (status_of(record)[1].state, status_of(record)[1].code) == (state, code)
    assert "fake run on" in "".join(Local().logs(record.identity))


def test_a_job_goes_on_without_the_command_that_launched_it_and_saves_when_it_is_stopped(tmp_path: Path) -> None:
    record = launched(job_of(tmp_path, "wait {folder}"))
    until((tmp_path / "run" / "waits-0").exists)
    assert status_of(record)[1].state == "running"
    (leader,) = Local()._leaders("tiny-1")
    assert os.getsid(leader) == leader, "it has a session of its own"
    assert only(None) == record
    assert stopped(record).state == "stopped"
    assert (tmp_path / "run" / "signals-0").read_text() == "SIGTERM\n"
    assert not owned("UPS_JOB", "tiny-1")
    again = launched(job_of(tmp_path, "wait {folder}", key="tiny-2"))
    until(lambda: status_of(again)[1].over)
    assert status_of(again)[1].state == "done", "launched again, it is resumed"


def test_a_job_that_ignores_the_request_is_ended_all_the_same(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn"
    stubborn.write_text("#!/bin/sh\ntrap '' TERM\ntouch waits\nsleep 60 &\nwait\nsleep 60\n")
    stubborn.chmod(0o755)
    record = launched(job_of(tmp_path, "wait {folder}", python=str(stubborn), grace=0.5))
    until((tmp_path / "waits").exists)
    assert stopped(record).state in ("gone", "failed")  # as its shell was killed first, or still told of the kill
    assert not owned("UPS_JOB", "tiny-1")


def test_a_job_whose_processes_were_killed_is_gone_and_not_running(tmp_path: Path) -> None:
    record = launched(job_of(tmp_path, "wait {folder}"))
    until((tmp_path / "run" / "waits-0").exists)
    for pid in owned("UPS_JOB", "tiny-1"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not owned("UPS_JOB", "tiny-1"))
    assert status_of(record)[1].state == "gone"


def test_its_time_is_over_and_it_has_saved(tmp_path: Path) -> None:
    record = launched(job_of(tmp_path, "wait {folder}", seconds=1.0))
    until(lambda: status_of(record)[1].over)
    assert (status_of(record)[1].state, status_of(record)[1].code) == ("stopped", 15)


def test_data_that_are_not_there_end_it_at_once_with_a_sentence(tmp_path: Path) -> None:
    record = launched(job_of(tmp_path, "end {folder} 0", inputs=(tmp_path / "none.hdf5",)))
    until(lambda: status_of(record)[1].over)
    assert status_of(record)[1].code == 2
    assert "none.hdf5: is not there on" in "".join(Local().logs(record.identity))
    assert not (tmp_path / "run").exists()


def test_a_command_killed_while_it_submits_leaves_a_trace_that_is_followed(tmp_path: Path) -> None:
    job = job_of(tmp_path, "wait {folder}")
    note(LaunchRecord.of(job, "local"))
    (record,) = all_records()
    assert status_of(record)[1].state == "gone"
    assert "perhaps submitted" in status_of(record)[1].sentence
    Local().submit(job, Local().render(job))  # and here it was killed
    until((tmp_path / "run" / "waits-0").exists)
    (record,) = all_records()
    assert record.identity == ""
    assert status_of(record)[1].state == "running"
    assert stopped(record).over
    assert record_of("tiny").identity == "tiny-1"


def test_records_that_are_damaged_are_passed_over_and_names_that_are_not_known_are_refused(tmp_path: Path) -> None:
    launched(job_of(tmp_path, "end {folder} 0"))
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"key": "c"}')):
        file_of("x").with_name(name).write_text(text)
    assert [record.key for record in all_records()] == ["tiny-1"]
    with pytest.raises(ConfigError, match="no such job was submitted"):
        record_of("nothing")
    note(LaunchRecord.of(job_of(tmp_path, "end {folder} 0", key="tiny-2"), "local"))
    with pytest.raises(ConfigError, match="may be any of tiny-1, tiny-2"):
        record_of("tiny")
    assert oct(file_of("x").parent.stat().st_mode)[-3:] == "700"


def test_more_gpus_than_there_are_an_interface_and_a_place_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, "end {folder} 0")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match="8 GPUs are wanted, and torch sees 1 GPU here"):
        check_here(replace(job, gpus=8, ranks=8))
    check_here(replace(job, gpus=1))
    nodes = replace(job, nodes=2, options={"node_rank": 0, "rendezvous": "127.0.0.1:0"})
    check_here(nodes)
    for more, sentence in (
        ({"interface": "eth99"}, "dist.interface is 'eth99', which this machine has not; it has .*lo"),
        ({"options": {"node_rank": 2, "rendezvous": "127.0.0.1:0"}}, "--node-rank is 2"),
        ({"options": {"node_rank": 0, "rendezvous": ""}}, "give --rendezvous HOST:PORT"),
        ({"options": {"node_rank": 0, "rendezvous": "192.0.2.1:4000"}}, "node 0 cannot listen there"),
        ({"options": {"node_rank": 1, "rendezvous": "no.such.host.invalid:4000"}}, "knows no way to"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check_here(replace(nodes, **more))  # type: ignore[arg-type]


def test_in_front_the_exit_code_is_the_runs(tmp_path: Path) -> None:
    text = Local().render(job_of(tmp_path, "end {folder} 13", options={"front": True}))
    assert subprocess.run(["sh", "-c", text], check=False).returncode == 13
