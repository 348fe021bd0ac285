"""The start script of a rented machine, executed: however its run ends, the machine is given back, its log home."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from vast_server import KEY, Rented
from vast_stage import Stage, given_back, groups, until

from ups.types import ConfigError
from ups_fleet.submit.records import file_of
from ups_fleet.submit.vast.client import Client
from ups_fleet.submit.vast.engine import Vast, end_of, keep_log
from ups_fleet.submit.vast.reap import reap
from ups_fleet.submit.vast.source import LONGEST, render


@pytest.fixture
def stage(vast_client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(tmp_path).open(vast_client, monkeypatch) as stage:
        yield stage


def test_a_run_that_ends_well_or_fails_stops_its_machine_once_and_a_reap_brings_it_home(stage: Stage) -> None:
    jobs = {name: stage.rent(name) for name in ("success", "failure")}
    for name, code in (("success", 0), ("failure", 14)):
        job, machine = jobs[name]
        given_back(machine)
        status = end_of(keep_log(Client(), machine.row["id"], job.key))
        assert status is not None
        assert status.code == code
        assert "the run says -m ups run" in machine.log
        assert "--ranks=2" in machine.log
    harvest = reap(lambda _: None)
    assert len(harvest.destroyed) == 2
    assert not harvest.stuck
    assert not harvest.in_use
    assert not stage.server.machines
    for job, machine in jobs.values():
        assert (job.folder / "config.yaml").read_text() == job.config.read_text()
        assert "ended with code" in file_of(job.key, ".log").read_text()
        seen = (job.folder / "environment").read_text()
        assert machine.key not in seen + machine.log + machine.script
        assert KEY not in seen + machine.log + machine.script


def test_where_log_and_run_are_in_a_store_the_machine_destroys_itself(stage: Stage, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    job, machine = stage.rent("success", store=f"file://{tmp_path}/store")
    given_back(machine, "DELETE")
    assert not stage.server.machines
    log = (tmp_path / "store" / f"{job.key}.log").read_text()
    assert "ended with code 0" in log
    _, lacking = stage.rent("lacking", store=f"file://{tmp_path}/store")
    given_back(lacking)  # the copy of its run lacks something
    assert stage.server.kinds().count("destroy itself") == 1
    stage.server.may_destroy = False
    given_back(stage.rent("success", store=f"file://{tmp_path}/store")[1])


def test_a_stop_lets_the_run_save_brings_it_home_and_destroys_the_machine(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.engine.LOOK", 0.2)
    job, machine = stage.rent("hang")
    until(lambda: "the run says" in machine.log, "the run is there")
    engine, id = Vast(), str(machine.row["id"])
    assert engine.status(id).state == "running"
    engine.stop(id)
    assert not stage.server.machines
    assert (job.folder / "config.yaml").exists()
    status = engine.status(id)
    assert (status.state, status.code) == ("stopped", 15)
    assert "saved" in "".join(engine.logs(id))


def kill(machine: Rented, whom: str) -> None:
    """Kill one process of a script, or all of its work; or ask it to stop."""
    assert machine.process is not None
    work, guard = groups(machine)
    if whom == "script":
        machine.process.kill()
        os.killpg(work, signal.SIGTERM)
    elif whom == "guard":
        os.kill(guard, signal.SIGKILL)
        until(lambda: (now := groups(machine)) and len(now) == 2 and now[1] != guard, "another guard is there")
        os.killpg(work, signal.SIGKILL)
    elif whom == "work":
        os.kill(work, signal.SIGKILL)
    else:
        machine.process.terminate()


def test_a_kill_of_any_of_its_processes_does_not_keep_the_machine(stage: Stage) -> None:
    machines = {whom: stage.rent("hang")[1] for whom in ("script", "guard", "work", "asked")}
    for whom, machine in machines.items():
        until(lambda: "the run says" in machine.log and len(groups(machine)) == 2, "the run is there")  # noqa: B023
        kill(machine, whom)
    for whom, machine in machines.items():
        given_back(machine)
        code = {"script": 15, "asked": 15}.get(whom, 137)
        assert f"ended with code {code}" in machine.log, whom
        assert ("saved" in machine.log) == (whom != "guard"), "a run that is asked to stop saves first"


def test_the_lease_ends_a_run_that_hangs(stage: Stage) -> None:
    _, machine = stage.rent("hang", seconds=2.0)
    given_back(machine)
    assert "the lease is over" in machine.log
    assert "saved" in machine.log
    assert "ended with code 15" in machine.log


def test_a_machine_that_cannot_be_given_back_long_after_its_lease_powers_off_and_goes_on_asking(
    stage: Stage, tmp_path: Path
) -> None:
    server, off = stage.server, tmp_path / "sbin" / "poweroff"
    off.parent.mkdir()
    off.write_text(f"#!/bin/sh\ndate >>{tmp_path}/off; exit 1\n")  # as in a container, which may not
    off.chmod(0o755)
    server.environment |= {"UPS_LAST": "3", "PATH": f"{off.parent}:{os.environ['PATH']}"}
    _, machine = stage.rent("success", seconds=1.0)
    server.up = False
    until((tmp_path / "off").exists, f"it powers off: {machine.log}")
    assert machine.log.index("ups launch: PUT: ") < machine.log.index("ups launch: powers off"), "it has asked before"
    server.up = True
    given_back(machine)


@pytest.mark.slow
def test_a_network_that_is_gone_is_waited_for(stage: Stage) -> None:
    server = stage.server
    server.faults["stop itself"] = [500, 429]
    server.environment["UPS_PAUSE"] = "1"
    _, machine = stage.rent("success", repo=f"{stage.folder}/nowhere")
    until(lambda: "try 1 failed" in machine.log, "the code is asked for again")
    (stage.folder / "nowhere").symlink_to(stage.repo)
    given_back(machine)
    assert server.kinds().count("stop itself") == 3
    assert "ended with code 0" in machine.log


@pytest.mark.slow
def test_a_full_disk_keeps_neither_the_machine_nor_its_log(stage: Stage) -> None:
    mount = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mkdir -p "$UPS_WORK"; mount -t tmpfs -o size=400k none "$UPS_WORK" && exec "$@"',
    ]
    if subprocess.run([*mount[:-1], "true"], check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    stage.server.wrap = [*mount, "sh"]
    job, machine = stage.rent("full")
    given_back(machine)
    assert "No space left" in machine.log
    assert "ups launch: ended with code" in machine.log
    harvest = reap(lambda _: None)
    assert len(harvest.stuck) == 1
    assert "its disk ($0.10 a day) is kept" in harvest.stuck[0]
    assert "No space left" in file_of(job.key, ".log").read_text()
    harvest = reap(lambda _: None, discard=True)
    assert not harvest.stuck
    assert not stage.server.machines


def test_a_script_that_is_longer_than_vast_takes_is_refused(stage: Stage) -> None:
    job = stage.job("success")
    assert len(render(job)) <= LONGEST - 300
    with pytest.raises(ConfigError, match="and Vast takes 4048; put flags into the config"):
        render(replace(job, flags=(("name", "x" * 900),)))
