"""Real runs, killed at any moment: no list ever says that a dead one runs, or that a live one is dead."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ups.presence import EVERY
from ups_fleet.run_folders.state import RunState, state_of
from ups_fleet.supervise.proc import descendants, of_run

CONFIG = """
name: run
out: OUT
device: cpu
data: {a: {task: advection1d, scheme: accurate, samples: 32, resolution: 16, device: cpu, reduce: {time: 20}}}
model: {codec: {dim: 4}, operator: {width: 8, depth: 1, heads: 1}}
codec: {batch: 4, train: {steps: 60, log_every: 5, checkpoint_steps: 10}}
operator: {batch: 4, train: {steps: STEPS, log_every: 5, checkpoint_steps: 10}}
"""
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}, "OMP_NUM_THREADS": "1"}


def start(folder: Path, *words: str, steps: int = 150) -> subprocess.Popen[bytes]:
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("OUT", str(folder)).replace("STEPS", str(steps)))
    command = [sys.executable, "-m", "ups", "run", str(config), *words]
    return subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the supervisor and everything below it, at once."""
    for pid in (process.pid, *descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def settled(folder: Path) -> RunState:
    """Its state once no process of it is left."""
    end = time.monotonic() + 120
    while of_run(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return state_of(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("everything", [True, False], ids=["all of it", "the supervisor alone"])
def test_a_run_killed_in_any_phase_is_dead_where_it_was_and_resumes_to_its_end(
    tmp_path: Path, everything: bool
) -> None:
    """Each start is watched, killed at a random moment, and resumed; the last one may finish."""
    rng, run = random.Random(int(everything)), tmp_path / "run"
    sentences: list[str] = []
    for number in range(7):
        process = start(tmp_path, *(["--resume"] if (run / "environment.json").exists() else []))
        began = time.monotonic()
        while number and state_of(run).word != "running" and process.poll() is None and time.monotonic() < began + 120:
            time.sleep(0.05)
        trains = number > 3  # by then a slow machine too has been killed before its first step
        while trains and state_of(run).step is None and process.poll() is None and time.monotonic() < began + 120:
            time.sleep(0.05)
        moment = time.monotonic() + rng.uniform(0.0, 1.0 if trains else 6.0)
        seen = ""
        while time.monotonic() < moment and process.poll() is None:
            state = state_of(run)
            if process.poll() is None and seen == "running":
                assert state.word in ("running", "finished"), f"a live run is {state.word}: {state.sentence}"
            seen = state.word
            time.sleep(0.1)
        if state_of(run).word == "finished":  # its process has only to leave
            process.wait(600)
        if process.poll() is not None:
            break
        if everything:
            kill_all(process)
        else:
            process.kill()
            process.wait()
        state = settled(run) if run.exists() else None
        if state is None:
            continue
        assert state.word in ("dead", "empty", "finished"), f"{state.word}: {state.sentence}"
        sentences.append(state.sentence)
        if state.word == "dead":
            assert state.resumable or "before it had begun" in state.sentence
    if process.poll() is None or process.returncode != 0:
        process = start(tmp_path, "--resume")
        assert process.wait(600) == 0
    state = state_of(run)
    assert (state.word, state.sentence) == ("finished", "finished."), sentences
    assert any("dead at step" in sentence or "dead after" in sentence for sentence in sentences), sentences


@pytest.mark.slow
def test_a_run_whose_lock_file_was_deleted_is_still_seen_and_a_stopped_one_says_so(tmp_path: Path) -> None:
    process, run = start(tmp_path, steps=100000), tmp_path / "run"
    end = time.monotonic() + 120
    while state_of(run).step is None and time.monotonic() < end:
        time.sleep(0.1)
    assert state_of(run).word == "running"
    (run / ".lock").unlink()
    end = time.monotonic() + 120 * EVERY
    while state_of(run).word != "running" and time.monotonic() < end:
        time.sleep(0.1)
    assert state_of(run).word == "running", "its supervisor has taken the lock anew"
    process.terminate()
    process.wait(600)
    state = settled(run)
    assert (state.word, state.resumable) == ("stopped", True)
    assert "stopped on request at step" in state.sentence
