"""A run killed between the two records of each phase: what lists say of it, and what a resume does again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ups.run.journal import PHASES, read_journal
from ups.rundir import RunDir
from ups_fleet.cli.runs import show
from ups_fleet.run_folders.state import RunState, state_of
from ups_fleet.supervise.proc import of_run

CONFIG = """
name: run
out: OUT
device: cpu
data: {a: {task: advection1d, scheme: accurate, samples: 32, resolution: 16, device: cpu, reduce: {time: 20}}}
model: {codec: {dim: 4}, operator: {width: 8, depth: 1, heads: 1}}
codec: {batch: 4, train: {steps: 10, log_every: 5, checkpoint_steps: 5}}
operator: {batch: 4, train: {steps: 110, log_every: 50, checkpoint_steps: 50}}
gates: {advection1d: {nrmse: 100.0}}
"""
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}, "OMP_NUM_THREADS": "1"}
PARTS = {"train": ("codec", "operator")}
MOMENTS = [(phase, part, event) for phase in PHASES for part in PARTS.get(phase, ("",)) for event in ("begin", "end")]


def killed(folder: Path, event: str, phase: str, part: str, *words: str) -> RunState:
    """The state of a run that was killed there, once its processes are gone."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("OUT", str(folder)))
    script = str(Path(__file__).with_name("killed_in_phase.py"))
    command = [sys.executable, script, event, phase, part, "run", str(config), *words]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == -9, f"{event} of {phase} {part} was not reached: {done.stderr[-500:]}"
    end = time.monotonic() + 120
    while of_run(folder / "run") and time.monotonic() < end:
        time.sleep(0.05)
    return state_of(folder / "run")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_run_killed_between_the_records_of_each_phase_says_so_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run, killed twenty-two times: each resume goes through what is done already and on to the next moment."""
    run, words = tmp_path / "run", list[str]()
    for phase, part, event in MOMENTS:
        state = killed(tmp_path, event, phase, part, *words)
        words = ["--resume"]
        where = f"in phase {phase}" if phase != "train" else f"of stage {part}"
        assert state.word == "dead", f"{event} of {phase}: {state.word}: {state.sentence}"
        assert where in state.sentence, f"{event} of {phase}: {state.sentence}"
        assert state.resumable
        row = read_journal(RunDir(run).journal)[-1]
        assert (row["phase"], row["part"], row["event"]) == (phase, part, "begin")
        assert show(run, curves=False) == 0
        assert where in capsys.readouterr().out
    command = [sys.executable, "-m", "ups", "run", str(tmp_path / "config.yaml"), "--resume"]
    last = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=600)
    assert last.returncode == 0, last.stderr
    assert (state_of(run).word, state_of(run).sentence) == ("finished", "finished.")
    ends = [row for row in read_journal(RunDir(run).journal) if row["event"] == "end"]
    done = Counter(row["phase"] for row in ends if row["result"] == "done")
    assert all(done[phase] == 1 for phase in ("data", "dry-run", "calibrate", "report")), "what is done is not repeated"
    assert done["gates"] >= 1
    trained = next(i for i, row in enumerate(ends) if row["phase"] == "calibrate")
    assert {row["result"] for row in ends[:trained] if row["phase"] == "train"} == {"resumed"}
    assert {row["result"] for row in ends[trained:] if row["phase"] == "train"} == {"skipped"}
