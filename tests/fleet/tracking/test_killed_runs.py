"""A real run, killed with all its processes in every phase: what the trackers' own readers say of it then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tracker_readers import mlflow_shown, tensorboard_shown, wandb_shown
from wandb_server import serving

from ups.rundir import RunDir
from ups_fleet.tracking import deliver

CONFIG = """
name: tiny
device: cpu
tracking: [csv, tensorboard, wandb, mlflow]
data: {a: {task: advection1d, samples: 20, resolution: 32, reduce: {time: 20}}}
model: {codec: {dim: 8}, operator: {width: 16, depth: 1, heads: 2}}
codec: {batch: 4, train: {steps: 60, log_every: 2, checkpoint_steps: 10}}
operator: {batch: 4, train: {steps: 60, log_every: 2, checkpoint_steps: 10}}
"""
PHASES: dict[str, Callable[[RunDir], bool]] = {
    "start": lambda run: run.tracking("settings.json").exists(),
    "data": lambda run: run.cache("data").exists(),
    "codec": lambda run: "codec/loss" in text(run.metrics),
    "operator": lambda run: "operator/loss" in text(run.metrics),
    "judgement": lambda run: run.stages.exists(),
    "end": lambda run: run.verdict.exists(),
}


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def killed(run: RunDir, words: list[str], there: Callable[[RunDir], bool]) -> None:
    """Run until something is there, and kill every process that it has started."""
    mark = uuid.uuid4().hex
    log = (run.folder.parent / "output").open("ab")
    process = subprocess.Popen(words, env={**os.environ, "MARK": mark}, stdout=log, stderr=log)
    stop = time.monotonic() + 200
    while not there(run) and process.poll() is None and time.monotonic() < stop:
        time.sleep(0.01)
    for _ in range(50):
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"MARK={mark}".encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.01)
    process.wait()


def rows_of(run: RunDir, name: str) -> dict[int, float]:
    """What the log says of a value: of a step that is there twice, the later."""
    rows = [json.loads(line) for line in text(run.metrics).splitlines() if line.endswith("}")]
    return {row["step"]: row[name] for row in rows if name in row}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_killed_in_any_phase_each_tracker_tells_the_truth_and_a_resume_is_no_second_run(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("wandb", "mlflow", "tensorboard"):
        pytest.importorskip(package, reason=f"needs the `{package}` extra")
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    run = RunDir(tmp_path / "tiny")
    words = [sys.executable, "-m", "ups", "run", str(tmp_path / "tiny.yaml"), f"--out={tmp_path}"]
    killed(run, words, PHASES[phase])
    ending = "SUCCESS" if run.verdict.exists() else "KILLED"
    check(run, ending)
    killed(run, [*words, "--resume"], lambda run: run.verdict.exists() and "operator/loss" in text(run.metrics))
    check(run, "SUCCESS")
    with serving() as server:  # by the program of W&B that reads its files
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        words = [
            str(Path(sys.executable).with_name("wandb")),
            "sync",
            "--yes",
            *map(str, run.folder.glob("wandb/off*")),
        ]
        subprocess.run(words, check=True, timeout=600, cwd=tmp_path, stdout=subprocess.DEVNULL)
        losses = {row["operator/step"]: row["operator/loss"] for row in server.rows.values() if "operator/loss" in row}
        assert losses == rows_of(run, "operator/loss")
        assert (server.exits, server.summary["ending"], len(server.names)) == ([0], "SUCCESS", 1)


def check(run: RunDir, ending: str) -> None:
    """Every tracker shows each row once, and how it ended."""
    states = deliver(run.folder, 120.0)
    assert all(state.whole for state in states), states
    id = json.loads(run.environment.read_text())["run"]
    shown = {
        "tensorboard": tensorboard_shown(run.folder),
        "wandb": wandb_shown(run.folder),
        "mlflow": mlflow_shown((run.folder / "mlflow").as_uri(), id),
    }
    for tracker, view in shown.items():
        assert view.ending == ending, tracker
        for name in ("codec/loss", "operator/loss"):
            points = view.curves.get(name, [])
            assert dict(points) == pytest.approx(rows_of(run, name), rel=1e-6), (tracker, name)
            assert len(points) == len(dict(points)), (tracker, name)
    assert shown["wandb"].code == (0 if ending == "SUCCESS" else 137)
    assert shown["mlflow"].labels["status"] == ("FINISHED" if ending == "SUCCESS" else "KILLED")
    if ending == "SUCCESS":
        assert "simulator.safetensors" in shown["wandb"].files
