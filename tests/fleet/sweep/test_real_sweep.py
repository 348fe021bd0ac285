"""A sweep of real runs: mistakes are said before any work, and one that was killed goes on to its end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from ups.presence import look
from ups.run.journal import read_journal
from ups.rundir import RunDir
from ups_fleet.run_folders.runs import runs_in
from ups_fleet.run_folders.state import RunState, state_of
from ups_fleet.supervise.proc import descendants, of_run

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
@pytest.mark.timeout(900)
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
        assert done.stderr.count("ups: ") == 1
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
    assert process.wait(600) == (-9 if number == signal.SIGKILL else 130)
    end = time.monotonic() + 120
    while any(state_of(folder / name).word == "running" for name in names):
        assert time.monotonic() < end
        time.sleep(0.1)
    for name in names:
        state = state_of(folder / name)
        assert state.word == "stopped", f"{state.word}: {state.sentence}"
        assert "--resume goes on" in state.sentence
    done = subprocess.run(words, env=ENV, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "lr-1e-3: resumed" in done.stderr
    assert {state.name: state.word for state in runs_in(folder)} == dict.fromkeys(names, "finished")
    assert "nRMSE advection1d" in done.stdout
    assert (folder / "sweep.html").stat().st_size > 10_000
    again = subprocess.run(words, env=ENV, capture_output=True, text=True, check=False, timeout=600)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "resumed" not in again.stderr


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Sweep:
    """A sweep of two learning rates, one of which diverges, with two seeds each, two runs at a time."""

    def __init__(self, folder: Path) -> None:
        more = ("--over", "operator.train.lr=1e-3,1e30", "--seeds", "2", "--jobs", "2", "--operator.train.max_bad", "2")
        self.words, self.folder = command(folder, *more), folder / "tiny-sweep"
        self.names = [f"lr-{lr}_seed-{seed}" for lr in ("1e-3", "1e30") for seed in (0, 1)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(self.words, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self.process

    def states(self) -> dict[str, RunState]:
        return {name: state_of(self.folder / name) for name in self.names}

    def until(self, name: str, step: int) -> None:
        """Wait until a run trains and has come so far; it is never said to be dead meanwhile."""
        end = time.monotonic() + 300
        while True:
            state = state_of(self.folder / name)
            if state.word == "running" and state.stage == "operator" and (state.step or 0) >= step:
                return
            assert time.monotonic() < end, f"{state.word}: {state.sentence}"
            time.sleep(0.05)

    def gone(self) -> None:
        """Nothing of it is left running, and nobody holds a lock: a killed process has no name before it lets go."""
        end = time.monotonic() + 120
        while self._children() or any(of_run(folder) or look(folder / ".lock").held for folder in self._folders()):
            assert time.monotonic() < end
            time.sleep(0.1)

    def _folders(self) -> list[Path]:
        return [self.folder, *(self.folder / name for name in self.names)]

    def _children(self) -> list[bytes]:
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines.append(path.read_bytes())
        return [line for line in lines if str(self.folder).encode() in line]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_sweep_whose_runs_and_itself_are_killed_in_every_way_ends_with_the_right_table(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    first, second, *bad = sweep.names
    process = sweep.start()
    sweep.until(first, 20)
    child = next(pid for pid in descendants(process.pid) if pid in of_supervisors(sweep.folder / first))
    kill((child, *descendants(child)))
    sweep.until(first, 40)  # it was resumed by the sweep
    process.kill()
    process.wait()
    sweep.gone()
    for name in (first, second):
        state = state_of(sweep.folder / name)
        assert state.word == "stopped", f"{name} is {state.word}: {state.sentence}"
    process = sweep.start()
    sweep.until(first, 80)
    kill((process.pid, *descendants(process.pid)))
    process.wait()
    sweep.gone()
    state = state_of(sweep.folder / first)
    assert (state.word, state.resumable) == ("dead", True), state.sentence
    assert "resumable from step" in state.sentence
    process = sweep.start()
    sweep.until(first, 120)
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 130
    sweep.gone()
    assert state_of(sweep.folder / first).word == "stopped"
    done = subprocess.run(sweep.words, env=ENV, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 1, done.stderr
    assert "2 of 4 runs did not finish: lr-1e30_seed-0, lr-1e30_seed-1." in done.stderr
    sweep.gone()
    states = sweep.states()
    assert [states[name].word for name in (first, second)] == ["finished", "finished"]
    assert all(states[name].word == "failed" and "NOT_FINITE" in states[name].sentence for name in bad), states
    for name in (first, second):
        rows = read_journal(RunDir(sweep.folder / name).journal)
        done_once = [row["phase"] + row["part"] for row in rows if row.get("result") == "done"]
        assert all(done_once.count(phase) == 1 for phase in ("data", "dry-run", "traincodec")), "begun once"
        steps = steps_logged(sweep.folder / name)
        assert steps.count(5) == 1, "resumed, and not begun again"
        assert max(after - before for before, after in pairwise(sorted(steps))) <= 5, "no step is left out"
        assert steps[-1] == 400
    expected = mean_and_interval([nrmse_in(sweep.folder / name) for name in (first, second)])
    assert expected in done.stdout, f"{expected} is not in {done.stdout}"
    page = (sweep.folder / "sweep.html").read_text()
    assert expected in page
    assert "lr-1e30_seed-1: failed" in page
    before = [(sweep.folder / name / "verdict.json").stat().st_mtime for name in (first, second)]
    again = subprocess.run(sweep.words, env=ENV, capture_output=True, text=True, check=False, timeout=900)
    assert again.returncode == 1
    assert expected in again.stdout
    assert [(sweep.folder / name / "verdict.json").stat().st_mtime for name in (first, second)] == before


def steps_logged(folder: Path) -> list[int]:
    """The steps of stage operator, as the log has them."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["step"] for row in rows if "operator/loss" in row]


def of_supervisors(folder: Path) -> list[int]:
    """The process that carries a run out."""
    writer = look(folder / ".lock").writer
    return [] if writer is None else [writer.pid]


def nrmse_in(folder: Path) -> float:
    """The error of a run on its test data, by its results alone."""
    rows = json.loads((folder / "results.json").read_text())
    wanted = {"metric": "nrmse", "mode": "strict", "predictor": "ups", "split": "test", "axis": ""}
    return float(next(row["value"] for row in rows if all(row[key] == value for key, value in wanted.items())))


def mean_and_interval(values: list[float]) -> str:
    """Of two seeds: Student's t with one degree of freedom has its 97.5 % at tan(0.475 π) = 12.706."""
    mean, half = sum(values) / 2, math.tan(0.475 * math.pi) * abs(values[0] - values[1]) / 2
    return f"{mean:.4g} ({mean - half:.4g} – {mean + half:.4g}, 2 seeds)"
