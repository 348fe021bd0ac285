"""The engine `sky`: SkyPilot's own parser accepts the task, and its command is asked as it wants to be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ups.types import ConfigError
from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.shell import RefusedError
from ups_fleet.submit.sky.engine import Sky, cluster_of

FAKE = Path(__file__).with_name("fake_sky.py")
SNAPSHOTS = Path(__file__).with_name("snapshots")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchJob:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sky").symlink_to(FAKE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_SKY", str(tmp_path / "clusters.json"))
    monkeypatch.setenv("UPS_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WANDB_API_KEY", "a-planted-key-123")
    variables = ("WANDB_API_KEY",)
    return LaunchJob("my_Flow-0a", "flow", tmp_path / "c.yaml", tmp_path / "runs/flow", tmp_path, variables=variables)


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "clusters.calls").read_text().splitlines()]


@pytest.mark.parametrize("name", ["sky", "sky-nodes"])
def test_skypilots_own_parser_accepts_the_task(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed: pip install skypilot")
    text = (SNAPSHOTS / f"{name}.txt").read_text().replace("/home/me/my work", str(tmp_path))
    (tmp_path / "task.yaml").write_text(text)
    task = sky.Task.from_yaml(str(tmp_path / "task.yaml"))  # `validate` would ask the network for prices
    values = yaml.safe_load(text)
    assert (task.name, task.num_nodes, task.run) == (values["name"], values["num_nodes"], values["run"])


def test_the_task_says_what_skypilot_needs_and_holds_no_value_of_a_secret(job: LaunchJob) -> None:
    job = replace(job, gpus=4, ranks=4, options={"gpu": "H100", "infra": "aws", "disk": 200, "spot": True})
    values: dict[str, Any] = yaml.safe_load(Sky().render(job))
    ended = {"idle_minutes": 10, "down": True}
    want = {"autostop": ended, "accelerators": "H100:4", "use_spot": True, "infra": "aws", "disk_size": 200}
    assert values["resources"] == want
    assert values["secrets"] == {"WANDB_API_KEY": None}
    assert values["name"] == cluster_of(job.key) == "ups-my-flow-0a"
    assert "a-planted-key" not in Sky().render(job)
    assert values["run"].count("\n") > 5


def test_a_cluster_is_rented_asked_after_and_ended(job: LaunchJob, tmp_path: Path) -> None:
    identity = Sky().submit(job, Sky().render(job))
    assert (Sky().find(job.key), Sky().find("other")) == (identity, None)
    assert Sky().status(identity).state == "running"
    assert "the log of ups-my-flow-0a" in "".join(Sky().logs(identity))
    Sky().stop(identity)
    assert Sky().status(identity).state == "gone"
    Sky().stop(identity)  # what is gone can be stopped
    launch = calls(tmp_path)[0]
    assert launch[launch.index("--secret") + 1] == "WANDB_API_KEY"
    assert "a-planted-key" not in json.dumps(calls(tmp_path))


@pytest.mark.parametrize(
    ("job_state", "state"), [("SUCCEEDED", "done"), ("FAILED", "failed"), ("CANCELLED", "stopped")]
)
def test_how_a_job_ended_is_skypilots_own_word(
    job: LaunchJob, job_state: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SKY_JOB", job_state)
    assert Sky().status(Sky().submit(job, Sky().render(job))).state == state


def test_what_cannot_work_is_said_before_anything_is_rented(job: LaunchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for more, sentence in (
        ({"nodes": 2}, "no folder in common"),
        ({"gpus": 8}, "but of which kind"),
        ({"inputs": (Path("/data/a.hdf5"),)}, "lies outside"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            Sky().check(replace(job, **more))  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(RefusedError, match=r"sky launch refuses: .*WANDB_API_KEY is not set"):
        Sky().submit(job, Sky().render(job))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="there is no such command here"):
        Sky().status("x")
