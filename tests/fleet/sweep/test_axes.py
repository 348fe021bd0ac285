"""What a sweep varies: every combination once, names that last, ranges that keep to their ends, mistakes in a word."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memory_runs import begun, finished
from ups.types import ConfigError, DataError
from ups_fleet.run_folders.errors import TaskError, Validation, validation_of
from ups_fleet.run_folders.state import RunState
from ups_fleet.sweep.axes import SweepPoint, axes_of, drawn, grid, points_of, safe, short_names, split
from ups_fleet.sweep.summary import Settings, choice_of, recorded, remember, sentences_of, settings_of, table_of
from ups_fleet.sweep.sweep import slots_of


def test_a_grid_has_every_combination_once_with_names_that_last() -> None:
    axes = axes_of(["operator.train.lr=1e-3,3e-3", "model.operator.size=tiny,small"])
    points = points_of(grid(axes), [0, 1])
    assert len(points) == 8
    assert points[0] == SweepPoint(
        "lr-1e-3_size-tiny_seed-0", (("operator.train.lr", "1e-3"), ("model.operator.size", "tiny")), 0
    )
    assert points[-1].flags == {"operator.train.lr": "3e-3", "model.operator.size": "small", "seed": "1"}
    more = points_of(grid(axes_of(["operator.train.lr=1e-3,3e-3,1e-2", "model.operator.size=tiny,small"])), [0, 1])
    assert {point.name for point in points} < {point.name for point in more}
    assert [point.name for point in points_of(grid([]), [3, 4])] == ["seed-3", "seed-4"]


def test_values_keep_the_commas_of_their_brackets() -> None:
    assert split("[1,2],{a: 1, b: 2},'x,y',3") == ["[1,2]", "{a: 1, b: 2}", "'x,y'", "3"]
    assert short_names(["codec.train.lr", "operator.train.lr", "seed"]) == {
        "codec.train.lr": "codec.train.lr",
        "operator.train.lr": "operator.train.lr",
        "seed": "seed",
    }
    assert safe("a/../b = [1, 2]") == "a-..-b-1-2"
    assert len(safe("x" * 500)) <= 100
    assert safe("x" * 500) != safe("x" * 501)


def test_chance_keeps_to_ranges_and_is_the_same_for_the_same_seed() -> None:
    axes = axes_of(["lr=log:1e-4..1e-2", "width=int:1..8", "drop=0..0.5", "size=a,b"])
    points = drawn(axes, 400, 0)
    assert points == drawn(axes, 400, 0)
    assert points != drawn(axes, 400, 1)
    rates = np.log10([float(point["lr"]) for point in points])
    assert rates.min() >= -4
    assert rates.max() <= -2
    assert abs(rates.mean() + 3) < 0.1, "evenly in the logarithm"
    assert {int(point["width"]) for point in points} == set(range(1, 9))
    assert all(0 <= float(point["drop"]) <= 0.5 for point in points)
    assert len(drawn(axes_of(["size=a,b,c"]), 10, 0)) == 3, "no more than there are"
    points_of(points)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lr"], "is no axis"),
        (["=1"], "is no axis"),
        (["lr="], "is no axis"),
        (["lr=1,1"], "has a value twice"),
        (["lr=1,,2"], "has an empty value"),
        (["lr=1", "lr=2"], "stands there twice"),
        (["name=a,b"], "each run has a name of its own"),
        (["device=cpu,cuda"], "--devices says it"),
        (["lr=log:0..1"], "begins above 0"),
        (["lr=2..1"], "goes upwards"),
        (["lr=a..b"], "from a number to a number"),
        (["lr=int:0.5..2"], "has whole ends"),
    ],
)
def test_what_is_no_axis_is_refused_in_a_sentence(words: Sequence[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        axes_of(words)


def test_a_range_needs_chance() -> None:
    with pytest.raises(ConfigError, match="add --random N"):
        grid(axes_of(["lr=log:1e-4..1e-2"]))


def test_one_run_on_each_device_and_cores_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert [slot.device for slot in slots_of(("cuda:0", "cuda:1"), None, "auto", 2)] == ["cuda:0", "cuda:1"]
    assert [dict(slot.variables) for slot in slots_of((), 4, "cpu", 0)] == [{"OMP_NUM_THREADS": "2"}] * 4
    assert [slot.device for slot in slots_of((), 2, "auto", 4)] == ["cuda:0", "cuda:1"]
    assert [slot.device for slot in slots_of((), None, "auto", 0)] == ["cpu"]
    for devices, jobs, sentence in (
        (("cuda:0", "cuda:0"), None, "names cuda:0 twice"),
        (("cuda:7",), None, "there is no cuda:7 here; this machine has 2"),
        (("tpu",), None, "is no device"),
        (("cuda:0",), 2, "take one run each"),
        ((), 0, "at least 1 run"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            slots_of(devices, jobs, "auto", 2)


def test_seeds_are_taken_together_as_mean_and_interval_the_best_first(tmp_path: Path) -> None:
    rng, base = np.random.default_rng(0), np.linspace(0.1, 0.3, 8)
    points = points_of(grid(axes_of(["operator.train.lr=1e-3,3e-3"])), [0, 1, 2])
    for point in points:
        lr = float(point.flags["operator.train.lr"])
        errors = base * (2 if lr == 1e-3 else 1) * (1 + 0.02 * rng.normal())
        finished(tmp_path / point.name, {"advection1d": errors}, seed=point.seed, operator__train__lr=lr)
    assert recorded(tmp_path) == []
    assert remember(tmp_path, points, ["ups"]) == points
    assert recorded(tmp_path) == points
    found = settings_of(tmp_path, recorded(tmp_path))
    rows = table_of(found)
    assert [row[0] for row in rows] == ["lr", "3e-3", "1e-3"]
    values = [state.error for state in found[0].states]
    mean, half = np.mean(values), 4.302653 * np.std(values, ddof=1) / math.sqrt(3)
    assert rows[0][1:3] == ("validation nRMSE", "test nRMSE advection1d")
    assert rows[1][1] == rows[1][2] == f"{mean:.4g} ({mean - half:.4g} – {mean + half:.4g}, 3 seeds)"
    assert rows[1][-1] == "3 finished"
    best, test, sentence = sentences_of(tmp_path, found)
    assert best == f"Best on validation trajectories: operator.train.lr=3e-3 (nRMSE {rows[1][1]})."
    assert test == "On test trajectories, by which nothing was chosen:"
    assert "operator.train.lr=0.003 (3 seeds) is better than operator.train.lr=0.001 (3 seeds)" in sentence
    (tmp_path / "sweep.json").write_text('{"points": [')
    with pytest.raises(DataError, match=r"sweep\.json: is damaged"):
        recorded(tmp_path)


def _settings(lr: str, *runs: tuple[float, float] | None) -> Settings:
    """Runs with an error on validation trajectories and one on test trajectories; None for one that failed."""
    states = []
    for i, errors in enumerate(runs):
        state = RunState(Path(lr), "failed", "diverged.", f"{lr}-{i}")
        if errors is not None:
            test = TaskError("a", errors[1], errors[1], errors[1], 8, "A")
            state = replace(state, word="finished", errors={"a": test}, validation=Validation("nRMSE", errors[0]))
        states.append(state)
    return Settings((("lr", lr),), tuple(states))


def test_settings_are_chosen_by_validation_errors_of_all_their_seeds_and_never_by_test_errors() -> None:
    lucky, sound, partly = _settings("1", (0.3, 0.1)), _settings("2", (0.2, 0.4)), _settings("3", (0.1, 0.1), None)
    order = sorted((lucky, partly, sound), key=lambda one: one.rank)
    assert order == [sound, lucky, partly]
    assert choice_of(order) == ["Best on validation trajectories: lr=2 (nRMSE 0.2)."]
    assert choice_of([partly]) == ["No settings have a validation error of every run, so none is called best."]
    unknown = Settings((("lr", "4"),), (replace(lucky.states[0], validation=None),))
    assert sorted((unknown, lucky), key=lambda one: one.rank) == [lucky, unknown]
    assert "No validation error is in stages.json of 1-0" in choice_of([lucky, unknown])[-1]


def test_a_validation_error_is_that_of_the_last_stage_judged_in_physical_space(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    assert validation_of(run) is None

    def stage(best: int, *rows: dict[str, float]) -> dict[str, object]:
        return {"best_step": best, "history": [{"step": step, **row} for step, row in enumerate(rows)]}

    stages = {
        "codec": stage(0, {"a reconstruction": 1e-7, "b reconstruction": 1e-7}),
        "operator": stage(1, {"a nRMSE": 0.9, "b nRMSE": 0.9}, {"a nRMSE": 0.2, "b nRMSE": 0.4}),
        "critic": stage(0, {"a guess": 3.0}),
        "steady": stage(0, {"b nRMSE": 0.1}),
    }
    run.stages.write_text(json.dumps(stages))
    assert validation_of(run) == Validation("nRMSE", pytest.approx(math.sqrt(0.2 * 0.1)))
    stages["residual"] = stage(0, {"a CRPS": 0.05, "b CRPS": 0.05})
    run.stages.write_text(json.dumps(stages))
    assert validation_of(run) == Validation("CRPS", pytest.approx(0.05))
    run.stages.write_text('{"operator": {"best_step": 1, "history": 3}, "codec": []}')
    assert validation_of(run) is None
