"""The state of a training: one object, saved and restored; configs that need no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.loop import Trainer
from ups.engine.state import TrainingState
from ups.engine.train import TrainConfig, affordable
from ups.engine.validation import Timetable


def test_a_state_goes_through_json_and_back() -> None:
    state = TrainingState(step=3, history=[{"step": 3.0}], microbatch=4, seconds=2.5)
    other = TrainingState()
    other.load_state_dict(json.loads(json.dumps(state.state_dict())))
    assert other.step == 3
    assert other.state_dict() | {"last_score": None} == state.state_dict() | {"last_score": None}


def test_a_checkpoint_says_all_of_the_state_and_what_else_to_resume(toy: SimpleNamespace, tmp_path: Path) -> None:
    Trainer(TrainConfig(steps=1), toy.Regression(), toy.Lines(), store=CheckpointStore(tmp_path)).fit()
    facts = json.loads((tmp_path / "step-000000001" / "facts.json").read_text())
    assert {*TrainingState().state_dict(), "stage", "bad", "judged"} <= facts.keys()
    state = TrainingState()
    state.load_state_dict(facts)
    assert state.step == 1
    del facts["samples"]
    with pytest.raises(KeyError, match="samples"):
        TrainingState().load_state_dict(facts)


def test_a_state_can_be_looked_at_from_elsewhere(toy: SimpleNamespace) -> None:
    state, seen = TrainingState(), []

    class Told(toy.Lines):  # type: ignore[misc,name-defined]
        def validation(self, step: int) -> object:
            seen.append((step, state.step, len(state.history)))
            return super().validation(step)

    Trainer(TrainConfig(steps=4, validate_every=2), toy.Regression(), Told(), state=state).fit()
    assert seen == [(2, 2, 0), (4, 4, 1)]
    assert [row["step"] for row in state.history] == [2, 4]


@pytest.mark.parametrize(
    ("budget", "cost", "expected"), [(100, 1, 10), (100, 2, 5), (100, 3, 3), (100, 99, 1), (100, 0, 10), (0, 1, 1)]
)
def test_validations_take_a_tenth_of_the_budget_at_most(budget: float, cost: float, expected: int) -> None:
    assert affordable(budget, cost) == expected


def test_by_the_clock_validations_are_spaced_by_what_they_took() -> None:
    """Steps of 0.1 s; a validation is counted as 10 steps, so ten of them, and takes 5 s, so two of them."""
    state = TrainingState()
    config = TrainConfig(seconds=100.0)
    timetable, due = Timetable(config, state, (16, 480)), []
    assert timetable.timed
    while state.seconds < 99.85:
        state.step, state.seconds = state.step + 1, state.seconds + 0.1
        progress = config.progress(state.step, state.seconds)
        if timetable.due(progress):
            due.append(state.seconds)
            timetable.took(5.0 if len(due) == 1 else 1.0, progress)
    assert due == pytest.approx([10, 50, 60, 70, 80, 90])


def test_configs_and_states_are_read_without_torch() -> None:
    names = "train, ups.engine.state, ups.engine.ranks.dist_config, ups.engine.checkpoint.manifest"
    code = f"import sys, ups.engine.{names}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize("facts", [{"step": "4"}, {"seconds": None}, {"history": [[]]}, {"microbatch": 2.5}])
def test_facts_that_make_no_sense_are_not_taken_over(facts: dict[str, Any]) -> None:
    state = TrainingState(step=3)
    with pytest.raises(ValueError, match="valid"):
        state.load_state_dict({**TrainingState(samples=7).state_dict(), **facts})
    assert state == TrainingState(step=3)
