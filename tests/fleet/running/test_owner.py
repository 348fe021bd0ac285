"""A run owns what it opens: statistics are measured once, trackers hear the true ending, and no second goes untold."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ups.config import load
from ups.data.trajectories import Trajectories
from ups.progress import Screen, TrainingProgress
from ups.run.config import RunConfig, run_config
from ups.run.journal import Span
from ups.run.phases import Phases, process_started
from ups.run.preflight import Preflight
from ups.run.run import Alone, Run, run_alone
from ups.run.start import Start
from ups.types import ConfigError

TINY = """
name: tiny
data: {a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 40}}}
model: {codec: {dim: 8}, operator: {width: 16, depth: 1, heads: 2}}
codec: {batch: 4, train: {steps: 2, validate_every: 0}}
operator: {batch: 4, train: {steps: 4, validate_every: 0, log_every: 1}}
device: cpu
"""


def settings(folder: Path, **changes: object) -> RunConfig:
    (folder / "tiny.yaml").write_text(TINY)
    return load(run_config(), folder / "tiny.yaml", {"out": str(folder), **changes})


def table(folder: Path, stage: str) -> list[dict[str, str | None]]:
    with (folder / "tiny" / "csv" / f"{stage}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_tracker_is_told_every_step_and_how_it_ended(tmp_path: Path) -> None:
    run_alone(settings(tmp_path, tracking=["csv"]), Screen.silent())
    assert {"1", "2", "3", "4"} <= {row["step"] for row in table(tmp_path, "operator")}
    assert [row["ending"] for row in table(tmp_path, "run")] == ["SUCCESS"]


def test_a_tracker_of_a_run_that_was_stopped_is_told_so(tmp_path: Path) -> None:
    def stop(progress: TrainingProgress) -> None:
        if progress.stage == "operator" and progress.step == 2:
            raise KeyboardInterrupt

    silent = Screen.silent()
    with pytest.raises(KeyboardInterrupt):
        run_alone(settings(tmp_path, tracking=["csv"]), Screen(silent.say, silent.following, stop))
    assert [row["ending"] for row in table(tmp_path, "run")] == ["INTERRUPTED"]


def test_a_tracker_that_is_not_there_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no tracker 'wanda'; did you mean 'wandb'\?"):
        settings(tmp_path, tracking=["wanda"])


def test_statistics_are_measured_once_and_other_data_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run.open(settings(tmp_path)) as run:
        run.prepare()
        first = run.folder.statistics.read_text()
        run.folder.close()
    measured: list[Trajectories] = []
    statistics = Trajectories.statistics
    monkeypatch.setattr(Trajectories, "statistics", lambda self: measured.append(self) or statistics(self))
    with Run.open(settings(tmp_path), start=Start(resume=True)) as run:
        run.prepare()
        run.folder.close()
    assert not measured
    assert run.folder.statistics.read_text() == first
    with Run.open(settings(tmp_path, **{"data.a.reduce.time": 20}), start=Start(overwrite=True)) as run:
        run.folder.write(run.folder.statistics, json.loads(first))
        run.prepare()
        run.folder.close()
    assert len(measured) == 1, "what is kept is of another reduction"


@pytest.mark.parametrize("damage", ["[1", '{"advection1d": 3}', "changed"])
def test_statistics_that_are_damaged_are_measured_again(tmp_path: Path, damage: str) -> None:
    with Run.open(settings(tmp_path)) as run:
        run.prepare()
        whole = run.folder.statistics.read_text()
        changed = whole.replace('"mean": [', '"mean": [1', 1)
        run.folder.statistics.write_text(changed if damage == "changed" else damage)
        run.prepare()
        run.folder.close()
    assert run.folder.statistics.read_text() == whole


def test_every_phase_is_timed_shown_and_written(tmp_path: Path) -> None:
    run = Run.open(settings(tmp_path))
    with run.folder, run:
        finish = run.carry_out(Alone())
        run.folder.succeed()
    report = finish.report if finish is not None else None
    assert report is not None
    phases = dict(report.phases)
    wanted = (
        "start",
        "imports",
        "data",
        "statistics",
        "build",
        "codec: steps",
        "operator: steps",
        "operator: validation",
    )
    assert set(wanted) <= set(phases), phases
    assert {"operator: checkpoints", "artifact", "evaluation", "report"} <= set(phases)
    rows = json.loads(run.folder.results.read_text())
    assert {r["metric"]: r["value"] for r in rows if r["mode"] == "phase"} == phases
    assert json.loads(run.folder.phases.read_text()) == phases
    assert report.remarks()[-1].startswith("Where the time went: ")
    assert "Where the time went" in run.folder.report.read_text()
    assert [(s.name, s.steps) for s in report.stages] == [("codec", 2), ("operator", 4)]


def test_what_was_done_before_a_run_is_not_told_as_imports() -> None:
    phases = Phases({"start": 1.0, "imports": 60.0})
    phases.before("data", 55.0)
    assert phases.rows() == (("start", 1.0), ("imports", 5.0), ("data", 55.0))


def test_a_run_counts_its_time_from_the_call_and_not_from_the_start_of_an_older_process() -> None:
    phases = dict(Phases.since(time.time() - 2.0).rows())
    assert (phases["start"], phases["imports"]) == (0.0, pytest.approx(2.0, abs=0.5))
    assert dict(Phases.since(process_started() - 3.0).rows())["start"] == pytest.approx(3.0, abs=0.5)


def test_a_rank_is_told_how_the_run_was_asked_to_begin() -> None:
    start = Start(resume=True, span=Span.of("train", "gates"), traced=3, began=12.5)
    assert Start.of_rank(Preflight(), start.environment()) == replace(start, resume=False)
    assert Start.of_rank(Preflight(), {}) == Start()


def test_the_parts_of_a_phase_and_the_rest_of_it_add_up() -> None:
    phases = Phases({"stage x": 10.0})
    phases.divide("stage x", {"steps": 6.0, "validation": 1.0})
    assert phases.rows() == (("x: steps", 6.0), ("x: validation", 1.0), ("x: the rest", 3.0))


@pytest.mark.parametrize("words", ["config show", "config schema", "data tasks", "--version"])
def test_a_command_without_tensors_does_not_import_torch(words: str) -> None:
    code = (
        f"import sys; from ups.cli.app import app; app({words.split()}, result_action='return_value'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)
