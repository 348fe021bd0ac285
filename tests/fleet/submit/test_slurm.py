"""The engine `slurm` on a real SLURM of two nodes: ends well, fails, is preempted, loses a node, is cancelled."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, cluster, lacking

from ups_fleet.submit.job import LaunchJob, Status
from ups_fleet.submit.records import LaunchRecord, note
from ups_fleet.submit.shell import RefusedError
from ups_fleet.submit.slurm import Slurm, clock

FAKE = Path(__file__).with_name("fake_ups.py")
pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking() or "SLURM is there")


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster") as it:
        yield it
    assert it.processes() == []


@pytest.fixture
def here(two_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, two_nodes.environ[name])
    monkeypatch.setenv("UPS_STATE", str(tmp_path / "state"))
    two_nodes.wait_for_nodes()
    yield two_nodes
    two_nodes.cancel_all()


def job_of(folder: Path, words: str, **more: Any) -> LaunchJob:
    """A job of the stand-in for `ups run`, in a folder whose name has a blank, a quote and a per cent sign."""
    place = folder / "it's 100% here"
    place.mkdir(parents=True)
    config = place / "config.yaml"
    config.write_text(words.format(folder=folder / "run"))
    job = LaunchJob("tiny-0a1b", "tiny", config, folder / "run", place, python=str(FAKE), inputs=(config,), grace=1)
    return replace(job, **more)


def submitted(job: LaunchJob) -> str:
    """The number of a job that was submitted and written down, as a launch does it."""
    identity = Slurm().submit(job, Slurm().render(job))
    note(replace(LaunchRecord.of(job, "slurm"), identity=identity))
    return identity


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def ended(identity: str, seconds: float = 120) -> Status:
    until(lambda: Slurm().status(identity).over, seconds)
    return Slurm().status(identity)


def lives(folder: Path, node: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / f"lives-{node}.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("here")
def test_a_job_on_two_nodes_ends_well_and_its_log_is_there(tmp_path: Path) -> None:
    out = tmp_path / "100%  %j %x%5u%% of it"  # which SLURM would put its own words into
    job = replace(job_of(tmp_path, "end {folder} 0", nodes=2), folder=out / "tiny")
    identity = submitted(job)
    assert ended(identity) == Status("done", "it has ended well.", 0)
    assert "fake run on n1" in "".join(Slurm().logs(identity))
    assert os.listdir(out) == [f"tiny.slurm-{identity}.log"]
    assert Slurm().find(job.key) == identity
    first, second = lives(tmp_path, 0)[0], lives(tmp_path, 1)[0]
    assert [first["node"], second["node"]] == ["n1", "n2"]
    assert "--node-rank=0" in first["words"]
    assert "--node-rank=1" in second["words"]
    places = {word for life in (first, second) for word in life["words"] if "rendezvous" in word}
    assert len(places) == 1
    assert places.pop().startswith("--rendezvous=127.0.0.1:2")


@pytest.mark.usefixtures("here")
def test_a_failed_run_is_a_failed_job_with_its_exit_code(tmp_path: Path) -> None:
    job = job_of(tmp_path, "end {folder} 13")
    identity = Slurm().submit(job, Slurm().render(job))
    assert ended(identity) == Status("failed", "HANG: it has ended with code 13.", 13)


@pytest.mark.usefixtures("here")
def test_data_that_a_node_lacks_end_the_job_at_once_with_a_sentence(tmp_path: Path) -> None:
    job = job_of(tmp_path, "end {folder} 0", nodes=2)
    job = replace(job, inputs=(*job.inputs, tmp_path / "no such $HOME.hdf5"))
    identity = submitted(job)
    assert ended(identity).code == 2
    assert "no such $HOME.hdf5: is not there on" in "".join(Slurm().logs(identity))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("here")
def test_a_preempted_job_saves_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    job = job_of(tmp_path, "wait {folder}", nodes=2)
    identity = Slurm().submit(job, Slurm().render(job))
    until((tmp_path / "run" / "waits-1").exists)
    urgent = job_of(tmp_path / "urgent", "end {folder} 0", nodes=2, key="urgent-1", options={"partition": "high"})
    other = Slurm().submit(urgent, Slurm().render(urgent))
    assert ended(other).state == "done"
    assert ended(identity).state == "done"
    assert [("--resume" in life["words"]) for life in lives(tmp_path)] == [False, True]
    assert (tmp_path / "run" / "signals-0").read_text() == "SIGTERM\n"


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_job_that_is_preempted_before_its_run_can_listen_is_queued_again_too(tmp_path: Path) -> None:
    job = job_of(tmp_path, "deaf {folder}")
    identity = Slurm().submit(job, Slurm().render(job))
    until((tmp_path / "run" / "waits-0").exists)
    urgent = job_of(tmp_path / "urgent", "end {folder} 0", nodes=2, key="urgent-2", options={"partition": "high"})
    assert ended(Slurm().submit(urgent, Slurm().render(urgent))).state == "done"
    assert ended(identity).state == "done"
    assert not (tmp_path / "run" / "signals-0").exists()


@pytest.mark.slow
def test_a_job_that_loses_a_node_is_queued_again_and_goes_on_when_it_is_back(here: Cluster, tmp_path: Path) -> None:
    job = job_of(tmp_path, "wait {folder}", nodes=2)
    identity = Slurm().submit(job, Slurm().render(job))
    until((tmp_path / "run" / "waits-1").exists)
    here.take_away("n2")
    here.ask("scontrol", "update", "nodename=n2", "state=down", "reason=gone")
    until(lambda: Slurm().status(identity).state == "queued")
    here.bring_back("n2")
    assert ended(identity).state == "done"
    assert [("--resume" in life["words"]) for life in lives(tmp_path, 1)] == [False, True]


def test_a_job_that_is_stopped_saves_and_is_not_queued_again(here: Cluster, tmp_path: Path) -> None:
    job = job_of(tmp_path, "wait {folder}")
    identity = Slurm().submit(job, Slurm().render(job))
    until((tmp_path / "run" / "waits-0").exists)
    Slurm().stop(identity)
    assert ended(identity).state == "stopped"
    until(lambda: here.processes() == [])
    assert len(lives(tmp_path)) == 1
    assert (tmp_path / "run" / "signals-0").read_text() == "SIGTERM\n"


@pytest.mark.usefixtures("here")
def test_a_sweep_is_an_array_of_runs_each_with_its_own_settings(tmp_path: Path) -> None:
    points = tuple((("name", f"p{i}"), ("a.b", f"{i} $x")) for i in range(3))
    job = job_of(tmp_path, "end {folder} 0", points=points)
    identity = submitted(job)
    assert ended(identity).state == "done"
    assert ["fake run on n" in log for log in Slurm().logs(identity)] == [True] * 3
    for number in range(3):
        (line,) = (tmp_path / "run" / f"p{number}" / "lives-0.jsonl").read_text().splitlines()
        assert f"--a.b={number} $x" in json.loads(line)["words"]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_time_limit_comes_and_the_run_has_saved_before_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, "wait {folder}", nodes=2, seconds=60.0)
    identity = Slurm().submit(job, Slurm().render(job))
    assert ended(identity, 240).state == "done"
    assert [("--resume" in life["words"]) for life in lives(tmp_path)] == [False, True]
    assert (tmp_path / "run" / "signals-0").read_text() == "SIGUSR1\n"


@pytest.mark.usefixtures("here")
def test_what_slurm_refuses_is_one_sentence(tmp_path: Path) -> None:
    job = job_of(tmp_path, "end {folder} 0")
    more: tuple[tuple[dict[str, Any], str], ...] = (
        ({"options": {"partition": "nowhere"}}, "invalid partition"),
        ({"gpus": 8}, "Invalid generic resource"),
        ({"nodes": 3}, "not available"),
    )
    for change, reason in more:
        with pytest.raises(RefusedError, match=f"sbatch refuses: .*{reason}"):
            Slurm().submit(job, Slurm().render(replace(job, **change)))
    assert Slurm().status("999999").state == "gone"
    assert clock(90061.2) == "1-01:01:02"
