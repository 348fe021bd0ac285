"""Optuna's own study: it learns, it goes on after a kill with the same trials, and nothing is told twice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna", reason="needs the extra `sweep`")

from ups.types import ConfigError, DataError  # noqa: E402
from ups_fleet.run_folders.errors import TaskError, Validation  # noqa: E402
from ups_fleet.run_folders.state import RunState  # noqa: E402
from ups_fleet.sweep.axes import SweepPoint, axes_of  # noqa: E402
from ups_fleet.sweep.study import Study, require  # noqa: E402

AXES = axes_of(["lr=log:1e-4..1e-1", "size=tiny,small"])


def outcome(point: SweepPoint, folder: Path) -> RunState:
    """A run whose validation error is least at lr = 1e-2, and whose test error says the contrary."""
    error = abs(math.log10(float(point.flags["lr"])) + 2) + (0.5 if point.flags["size"] == "tiny" else 0.0)
    errors = {"a": TaskError("a", -error, -error, -error, 8, "A")}
    validation = Validation("nRMSE", error)
    return RunState(folder / point.name, "finished", "finished.", errors=errors, validation=validation)


@pytest.mark.slow
def test_a_study_finds_what_is_best_and_is_optunas_own(tmp_path: Path) -> None:
    study = Study(tmp_path, AXES, 25, (), 0)
    while (point := study.next()) is not None:
        study.done(point, outcome(point, tmp_path))
    stored = optuna.load_study(study_name="ups", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    assert len(stored.trials) == 25
    assert stored.best_value < 0.5
    assert stored.best_params["size"] == "small"


def test_trials_that_a_kill_has_left_are_taken_up_with_their_own_values(tmp_path: Path) -> None:
    study = Study(tmp_path, AXES, 4, (5, 6), 0)
    begun = [study.next() for _ in range(3)]
    assert [point.name for point in begun if point] == ["trial-0000_seed-5", "trial-0000_seed-6", "trial-0001_seed-5"]
    for point in begun[:2]:
        assert point is not None
        study.done(point, outcome(point, tmp_path))
    study.study.ask()  # killed before it had its values
    again = Study(tmp_path, AXES, 4, (5, 6), 0)
    points = []
    while (point := again.next()) is not None:
        points.append(point)
        failed = replace(outcome(point, tmp_path), word="failed", errors={}, validation=None)
        again.done(point, failed if point.name == "trial-0003_seed-6" else outcome(point, tmp_path))
    assert points[:4] == [*begun[:2], begun[2], replace(points[3], name="trial-0001_seed-6", seed=6)]
    assert points[2].overrides == points[3].overrides
    states = [trial.state.name for trial in again.study.trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    assert len(points) == 6


def test_a_study_is_told_validation_errors(tmp_path: Path) -> None:
    study = Study(tmp_path, AXES, 1, (), 0)
    point = study.next()
    assert point is not None
    state = outcome(point, tmp_path)
    study.done(point, state)
    assert state.validation is not None
    assert study.study.trials[0].value == state.validation.value


def test_where_optuna_is_not_installed_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"universal-physics-stack\[sweep\]"):
        require()


def test_a_study_of_other_values_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, AXES, 2, (), 0)
    first = study.next()
    assert first is not None
    study.done(first, outcome(first, tmp_path))
    other = Study(tmp_path, axes_of(["lr=log:1e-4..1e-1", "size=tiny,small,base"]), 2, (), 0)
    assert other.next() == first
    with pytest.raises(ConfigError, match="begun over other values"):
        other.next()
    (tmp_path / "optuna.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(DataError, match="is no study that can be gone on with"):
        Study(tmp_path, AXES, 2, (), 0)
