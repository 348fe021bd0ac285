"""Real runs on two ranks, begun by the start script in a clean folder: the machine is always given back, once."""

from __future__ import annotations

import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from vast_server import KEY, MARK, Rented
from vast_stage import Stage, given_back, until

from ups.run.config import RunConfig
from ups.verdict import Ending, Verdict
from ups_fleet.submit.records import file_of
from ups_fleet.submit.vast.reap import reap
from ups_fleet.supervise.proc import owned

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SOURCE = Path(__file__).parents[3] / "src"
PYTHON = f'#!/bin/sh\nexport PYTHONPATH={SOURCE} OMP_NUM_THREADS=1\nexec {{python}} "$@"\n'
WAVE = """
name: wave
data: {a: {task: advection1d, scheme: accurate, samples: 8, resolution: 16, device: cpu, reduce: {time: 50}}}
model: {codec: {dim: 4}, operator: {width: 8, depth: 1, heads: 1}}
codec: {batch: 4, train: {steps: 10}}
operator: {batch: 4, train: {steps: 20}}
limits: {grace: 20, teardown: 10}
device: cpu
"""
CONFIGS = {
    "success": WAVE,
    "failure": WAVE.replace("{a: {", "{a: {file: nowhere.hdf5, "),
    "long": WAVE.replace("steps: 20", "steps: 100000, checkpoint_steps: 50"),
}
PATIENCE = 240.0


@pytest.fixture
def stage(vast_client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(tmp_path, CONFIGS, PYTHON).open(vast_client, monkeypatch) as stage:
        yield stage


def trains(machine: Rented) -> bool:
    """Whether the operator of its run has a checkpoint."""
    return bool(list((machine.folder / "root/ups/runs/wave/checkpoints").glob("*operator*/*")))


def test_a_run_on_two_ranks_ends_well_and_comes_home_with_its_verdict(stage: Stage) -> None:
    job, machine = stage.rent("success", repo=stage.serve_code())
    given_back(machine, seconds=PATIENCE)
    assert "ended with code 0" in machine.log
    harvest = reap(lambda _: None)
    assert not harvest.stuck
    assert not stage.server.machines
    verdict = Verdict.read(job.folder / "verdict.json")
    assert verdict is not None
    assert verdict.ending == Ending.SUCCESS
    assert (job.folder / "report.html").exists()
    planted = {machine.key.encode(), KEY.encode()}
    for path in (*job.folder.rglob("*"), *file_of(job.key, "").parent.iterdir()):
        assert not path.is_file() or not any(secret in path.read_bytes() for secret in planted), path


def test_a_run_that_fails_has_its_code_and_its_log_home(stage: Stage) -> None:
    job, machine = stage.rent("failure")
    given_back(machine, seconds=PATIENCE)
    assert "nowhere.hdf5" in machine.log
    assert "ended with code 2, " in machine.log
    assert not reap(lambda _: None).stuck
    assert "nowhere.hdf5" in file_of(job.key, ".log").read_text()


def test_a_supervisor_that_is_killed_and_one_that_is_asked_to_stop_give_the_machine_back(stage: Stage) -> None:
    _, killed = stage.rent("long")
    _, asked = stage.rent("long")
    until(lambda: trains(killed) and trains(asked), f"they train: {asked.log[-2000:]}", PATIENCE)
    for pid in owned(MARK, str(killed.folder)):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"run" in words and b"ups" in words:
            os.kill(pid, signal.SIGKILL)
    assert asked.process is not None
    asked.process.terminate()
    given_back(killed, seconds=PATIENCE)
    given_back(asked, seconds=PATIENCE)
    assert "ended with code 137" in killed.log
    assert f"ended with code {Ending.PREEMPTED:d}" in asked.log


def test_a_network_that_goes_during_the_run_delays_the_end_of_the_machine_and_nothing_else(stage: Stage) -> None:
    _, machine = stage.rent("success", repo=stage.serve_code())
    until(lambda: "the run begins" in machine.log, "the run begins", PATIENCE)
    stage.server.up = False
    until(lambda: machine.log.count("ups launch: PUT: ") >= 2, "it asks in vain", PATIENCE)
    assert "ended with code 0" in machine.log
    assert machine.pids()
    stage.server.up = True
    given_back(machine, seconds=PATIENCE)


def test_a_machine_without_any_network_is_ended_from_outside(stage: Stage) -> None:
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network can be taken away here")
    stage.server.wrap = ["unshare", "-n"]
    job, machine = stage.rent("success", repo=stage.serve_code())
    until(lambda: "ups launch: PUT: " in machine.log, "it asks in vain", PATIENCE)
    assert "code: try 5 failed" in machine.log
    stage.server.ahead = 1000.0
    harvest = reap(lambda _: None)
    assert len(harvest.destroyed) == 1
    assert not harvest.stuck
    assert not machine.ends
    assert "try 5 failed" in file_of(job.key, ".log").read_text()
    until(lambda: not machine.pids(), "nothing runs")


def test_a_disk_that_is_full_ends_the_run_and_the_machine(stage: Stage) -> None:
    script = 'mkdir -p "$UPS_WORK"; mount -t tmpfs -o size=20m none "$UPS_WORK" && exec "$@"'
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    stage.server.wrap = ["unshare", "-rm", "sh", "-c", script, "sh"]
    job, machine = stage.rent("long")
    assert machine.process is not None
    work = Path(f"/proc/{machine.process.pid}/root{machine.folder}/root/ups")  # as its processes see it
    until(lambda: list(work.glob("runs/wave/checkpoints/*operator*/*")), "it trains", PATIENCE)
    subprocess.run(["dd", "if=/dev/zero", f"of={work}/filler"], check=False, capture_output=True)
    given_back(machine, seconds=PATIENCE)
    assert f"ended with code {Ending.STORAGE:d}" in machine.log
    reap(lambda _: None, discard=True)
    assert f"ended with code {Ending.STORAGE:d}" in file_of(job.key, ".log").read_text()
    assert not stage.server.machines


def test_packages_are_installed_where_the_image_has_none(
    vast_client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, {"success": "exit 0"}).open(vast_client, monkeypatch) as stage:
        wheel = tmp_path / "universal_physics_stack-0.1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("ups/__main__.py", "import sys\nprint('a run of', sys.executable)\n")
            archive.writestr("ups/__init__.py", "")
            name = "universal_physics_stack-0.1.dist-info"
            archive.writestr(f"{name}/METADATA", "Metadata-Version: 2.1\nName: universal-physics-stack\nVersion: 0.1\n")
            archive.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{name}/RECORD", "")
        del stage.server.environment["UPS_PYTHON"]
        stage.server.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
        _, machine = stage.rent("success", package="universal-physics-stack==0.1")
        given_back(machine, seconds=PATIENCE)
        assert f"a run of {machine.folder}/root/ups/venv/bin/python" in machine.log
        assert "ended with code 0" in machine.log


@pytest.mark.skipif("sync" not in RunConfig.model_fields, reason="runs have no stores in this version")
def test_a_run_whose_machine_has_ended_goes_on_from_its_store_on_another(stage: Stage, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    more = {"store": store, "flags": {"sync": store}}
    _, first = stage.rent("long", **more)
    until(lambda: trains(first), f"it trains: {first.log[-2000:]}", PATIENCE)
    assert first.process is not None
    first.process.terminate()
    given_back(first, "DELETE", seconds=PATIENCE)
    assert f"ended with code {Ending.PREEMPTED:d}" in first.log
    _, second = stage.rent("long", **more)
    until(lambda: trains(second), f"it trains: {second.log[-2000:]}", PATIENCE)
    assert "is brought back from file://" in second.log
    assert second.process is not None
    second.process.terminate()
    given_back(second, "DELETE", seconds=PATIENCE)
    logs = sorted((tmp_path / "store").glob("*.log"))
    assert len(logs) == 2
    assert all("ended with code" in log.read_text() for log in logs)
