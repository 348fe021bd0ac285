"""A sweep of real runs: mistakes are said before any work, and one that was killed goes on to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ups.memory.runs import runs_in
from ups.memory.state import state_of

CONFIG = """
name: tiny
out: OUT
device: cpu
data: {a: {task: advection1d, scheme: accurate, samples: 96, resolution: 16, device: cpu, reduce: {time: 20}}}
model: {codec: {dim: 4}, operator: {width: 8, depth: 1, heads: 1}}
codec: {batch: 4, train: {steps: 20, log_every: 5, checkpoint_steps: 10}}
operator: {batch: 4, train: {steps: 400, log_every: 5, checkpoint_steps: 10}}
"""
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}, "OMP_NUM_THREADS": "1"}


def command(folder: Path, *words: str) -> list[str]:
    (folder / "tiny.yaml").write_text(CONFIG.replace("OUT", str(folder)))
    return [sys.executable, "-m", "ups", "sweep", str(folder / "tiny.yaml"), *words]


@pytest.mark.slow
def test_mistakes_are_said_before_work_is_spent(tmp_path: Path) -> None:
    for words, sentence in (
        (("--over", "operator.train.lrr=1,2"), "--operator.train.lrr is not a known key; did you mean 'lr'?"),
        (("--over", "operator.train.lr=1e-3,fast"), "--operator.train.lr"),
        (("--seeds", "2", "--dist.ranks", "2"), "a sweep is of runs on one device each"),
        (("--over", "operator.train.lr=1e-3", "--operator.train.lr", "1e-3"), "both set it"),
        (("--seeds", "2", "--devices", "cuda:99"), "there is no cuda:99 here"),
    ):
        done = subprocess.run(command(tmp_path, *words), env=ENV, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "tiny-sweep").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_ended_in_the_middle_goes_on_and_finishes(tmp_path: Path, number: int) -> None:
    words = command(tmp_path, "--over", "operator.train.lr=1e-3,1e-5", "--jobs", "2")
    folder = tmp_path / "tiny-sweep"
    process = subprocess.Popen(words, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = ("lr-1e-3", "lr-1e-5")
    end = time.monotonic() + 300
    while any((state_of(folder / name).step or 0) < 20 for name in names) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(number)
    assert time.monotonic() < end
    assert process.wait(60) == (-9 if number == signal.SIGKILL else 130)
    end = time.monotonic() + 60
    while any(state_of(folder / name).word == "running" for name in names):
        assert time.monotonic() < end
        time.sleep(0.1)
    for name in names:
        state = state_of(folder / name)
        assert state.word == "stopped", f"{state.word}: {state.sentence}"
        assert "--resume goes on" in state.sentence
    done = subprocess.run(words, env=ENV, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "lr-1e-3: resumed" in done.stderr
    assert {state.name: state.word for state in runs_in(folder)} == dict.fromkeys(names, "finished")
    assert "nRMSE advection1d" in done.stdout
    assert (folder / "sweep.html").stat().st_size > 10_000
    again = subprocess.run(words, env=ENV, capture_output=True, text=True, check=False, timeout=200)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "resumed" not in again.stderr
