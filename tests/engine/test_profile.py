"""A profile: a trace of a few steps where one is asked for, and nothing at all where none is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from small_training import Fitting, Waves
from ups.engine.loop import Trainer
from ups.engine.profile import UNTRACED, WARM, NoProfile, Traced
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig

STEPS = 4


def train(traced: Traced = UNTRACED) -> dict[str, torch.Tensor]:
    with Dist.alone("cpu") as one:
        stage, settings = Fitting(), TrainConfig(steps=STEPS, validate_every=0, prefetch=0, graph=False)
        Trainer(settings, stage, Waves(one), one, traced=traced).fit()
    return stage.module.state_dict()


def test_a_training_leaves_a_trace_of_its_steps(tmp_path: Path) -> None:
    traced = train(Traced(2, tmp_path))
    trace = json.loads((tmp_path / "fitting" / "rank-0.json").read_text())
    names = {str(event.get("name", "")) for event in trace["traceEvents"]}
    assert any("Backward" in name for name in names), "the trace holds what the steps did"
    assert all(value.equal(traced[name]) for name, value in train().items()), "looking changes nothing"


def test_as_many_steps_are_traced_as_were_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    step = Traced(3, tmp_path).of("some", 1, torch.device("cpu"), None, said.append)
    for number in range(1, 20):
        torch.ones(4).cos()
        step(number)
    trace = json.loads((tmp_path / "some" / "rank-1.json").read_text())
    assert sum(event.get("name") == "aten::cos" for event in trace["traceEvents"]) == 3
    assert said == [f"profile of steps 9 to 11 is in {tmp_path / 'some' / 'rank-1.json'}."]


def test_short_trainings_are_traced_too(tmp_path: Path) -> None:
    step = Traced(3, tmp_path).of("short", 0, torch.device("cpu"), STEPS, lambda _: None)
    for number in range(1, STEPS + 1):
        step(number)
    assert (tmp_path / "short" / "rank-0.json").exists()


@pytest.mark.parametrize("taken", [0, WARM - 1, WARM])
def test_a_stage_that_ends_while_warming_up_says_that_it_leaves_no_trace(tmp_path: Path, taken: int) -> None:
    said: list[str] = []
    step = Traced(3, tmp_path).of("hasty", 0, torch.device("cpu"), None, said.append)
    for number in range(1, taken + 1):
        step(number)
    step.end(taken)
    path = tmp_path / "hasty" / "rank-0.json"
    assert said == [
        f"there is no profile in {path}: the stage ended after {taken} steps, which warming up takes ({WARM}); "
        "give it more steps or time."
    ]
    assert not path.exists()


def test_a_trace_that_is_cut_short_is_written_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    step = Traced(30, tmp_path).of("cut", 0, torch.device("cpu"), None, said.append)
    for number in range(1, WARM + 3):
        torch.ones(4).cos()
        step(number)
    step.end(WARM + 2)
    trace = json.loads((tmp_path / "cut" / "rank-0.json").read_text())
    assert sum(event.get("name") == "aten::cos" for event in trace["traceEvents"]) == 2
    assert said == [f"profile of steps 9 to 10 is in {tmp_path / 'cut' / 'rank-0.json'}."]


def test_nothing_is_done_where_nothing_was_asked_for() -> None:
    assert isinstance(UNTRACED.of("some", 0, torch.device("cpu"), 5, print), NoProfile)
