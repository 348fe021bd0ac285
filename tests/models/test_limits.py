"""A rollout stays near what training saw, to the bit as it is within; where it leaves that it says who and when."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_simulators import awaken, condition, frames, simulator, window
from test_masked import ISLAND, LAKE, state
from test_masked import simulator as of_lake

from ups.models import Simulator
from ups.models.encoders import Statistics
from ups.models.limits import FARTHEST, ValueRange, departures, distances
from ups.models.request import Answer, Request

STEPS = 6


def answering(monkeypatch: pytest.MonkeyPatch, answer: torch.Tensor, name: str = "reacdiff2d") -> Simulator:
    """A simulator whose fields are -4 to 6 in training, and that gives this answer."""
    sim, count = simulator(name), answer.shape[-1]
    sim.codec.fit_statistics(name, *(x * torch.ones(count) for x in (1.0, 2.0, -4.0, 6.0)))
    monkeypatch.setattr(sim, "simulate", lambda _, steps, *_others: answer[:, :steps])
    return sim


def leaving(batch: int = 3) -> torch.Tensor:
    """Sample 1 is outside in its second channel from its fourth frame on, and further in its fifth."""
    answer = torch.randn(batch, STEPS, 16, 24, 2, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    answer[1, 3, 5, 7, 1], answer[1, 4, 0, 0, 0] = 11.5, -16.0
    return answer


def test_a_rollout_that_leaves_what_training_saw_says_which_sample_when_and_how_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = leaving()
    sim, u0 = answering(monkeypatch, answer), frames("reacdiff2d", batch=3)[:, 0]
    with pytest.warns(UserWarning, match="leaves what training has seen") as said:
        out = sim.rollout(u0, STEPS)
    assert [str(w.message) for w in said] == [
        "reacdiff2d: the rollout of 1 of 3 samples leaves what training has seen, first of sample 1 at step 4: "
        "inhibitor is 11.5, and training had -4 to 6; frames from there on are a guess that is kept in bounds; give "
        "values like those of training, or ask for fewer steps."
    ]
    assert Path(said[0].filename).name == "test_limits.py"
    assert torch.equal(out, answer)
    given = window(u0.unsqueeze(1), condition("reacdiff2d", 3))
    assert sim.answer(Request(given, STEPS)).left_range_at == [None, 4, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(sim.rollout(u0, 3), answer[:, :3]), "nothing is said of steps that were not asked for"


@pytest.mark.parametrize("name", ["burgers1d", "reacdiff2d", "cfd2d", "cfd3d"])
def test_a_step_within_what_training_saw_is_the_same_to_the_bit_with_limits_and_without(name: str) -> None:
    sim = simulator(name)
    awaken(sim)
    given = window(frames(name).abs() + 1, condition(name))
    free = sim.simulate(given, 2)
    assert free.isfinite().all()
    limited(sim, name, -1e3, 1e3)
    assert torch.equal(sim.simulate(given, 2), free)


def exploded(name: str, low: float, high: float, finer: int = 1, points: torch.Tensor | None = None) -> Answer:
    """Fifty steps of a network whose every step is a million millions too long, trained on values of a range."""
    sim = simulator(name)
    awaken(sim)
    limited(sim, name, low, high)
    with torch.no_grad():
        sim.operator.scale.fill_(1e12)
    given = frames(name).abs().clamp(low, high)
    for axis in range(2, given.ndim - 1):
        given = given.repeat_interleave(finer, axis)
    return sim.answer(Request(window(given, condition(name)), 50 if finer == 1 else 8, points))


def test_a_rollout_whose_network_explodes_has_left_what_training_saw_at_once() -> None:
    assert exploded("reacdiff2d", 0.5, 3.0).left_range_at == [1, 1]


@pytest.mark.parametrize("name", ["burgers1d", "reacdiff2d", "cfd2d", "cfd3d"])
def test_no_value_of_a_rollout_whose_network_explodes_is_further_away_than_the_limit(name: str) -> None:
    (low, high), out = (0.5, 3.0), exploded(name, 0.5, 3.0)
    width = FARTHEST * (high - low)
    assert out.frames.isfinite().all()
    # The guard repairs what is limited once more: a total that is kept may move all values by as much again.
    assert low - 2 * width <= float(out.frames.min()) <= float(out.frames.max()) <= high + 2 * width


@pytest.mark.parametrize("points", [None, torch.rand(50, 2, generator=torch.Generator().manual_seed(0))])
def test_values_on_other_cells_or_between_them_are_no_further_away_either(points: torch.Tensor | None) -> None:
    """A curve through values at the ends of a range overshoots them between."""
    out = exploded("reacdiff2d", 0.5, 3.0, 3 if points is None else 1, points)
    assert -2.0 <= float(out.frames.min()) <= float(out.frames.max()) <= 5.5


def test_details_of_a_rollout_hold_what_is_else_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = leaving()
    sim, u0 = answering(monkeypatch, answer), frames("reacdiff2d", batch=3)[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = sim.rollout(u0, STEPS, details=True)
    assert torch.equal(out.frames, answer)
    assert (out.left_range_at, out.error) == ([None, 4, None], None)
    assert [words.partition(", first")[0] for words in out.remarks] == [
        "reacdiff2d: the rollout of 1 of 3 samples leaves what training has seen"
    ]
    named = replace(window(u0.unsqueeze(1), condition("reacdiff2d", 3)), ids=("a", "b", "c"))
    assert "first of sample b at step 4" in sim.answer(Request(named, STEPS)).remarks[0]


def test_the_range_reaches_as_far_as_the_states_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, u0 = answering(monkeypatch, 1e4 * leaving().clamp(-4, 4)), frames("reacdiff2d", batch=3)[:, 0]
    with pytest.warns(UserWarning, match="deviations away from its mean in training; the answer is a guess") as said:
        sim.rollout(4e4 * u0, STEPS)
    assert not any("leaves" in str(w.message) for w in said)


def test_each_member_of_an_ensemble_and_each_long_rollout_leaves_by_itself() -> None:
    span, many = ValueRange(-torch.ones(3, 1), torch.ones(3, 1)), torch.zeros(2, 3, 5000, 7, 1)
    many[1, 2, 4321:, 3] = 2.1
    many[0, 0, 17, 2] = -2.5
    many[0, 1, 7:] = torch.inf
    found = departures(many, span, ["u"])
    assert [(d.member, d.sample, d.step) for d in found] == [(0, 0, 18), (1, 2, 4322)]
    assert [d.value for d in found] == pytest.approx([-2.5, 2.1])


def test_cells_that_do_not_count_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = of_lake(LAKE)
    frames = torch.from_numpy(np.where(ISLAND[..., None], state(), 1e30).astype(np.float32)).expand(1, 2, -1, -1, -1)
    limited(sim, LAKE.name, -5.0, 5.0)
    monkeypatch.setattr(sim, "simulate", lambda *_: frames)
    given = np.stack([np.zeros((16, 16)), ISLAND], -1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = sim.rollout(state(), 2, inputs=given)
    assert (np.isfinite(out) == ISLAND[None, :, :, None]).all()


def test_distances_are_root_mean_squares_in_deviations_of_training() -> None:
    usual, values = Statistics(2), torch.full((1, 4, 2), 1e36)
    usual.fit(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]))
    assert distances(values, usual)[0].tolist() == pytest.approx([5e35, 0.0]), "what never varied is no measure"
    values = torch.tensor([7.0, 1.0, 1.0, 1.0]).reshape(1, 4, 1).expand(-1, -1, 2)
    assert float(distances(values, usual)[0, 0]) == pytest.approx(1.5)


def limited(sim: Simulator, name: str, low: float, high: float) -> None:
    """A simulator that has seen this range in training, in fields and in tokens."""
    statistics = sim.codec.statistics_of(name)
    statistics.least.fill_(low)
    statistics.most.fill_(high)
    sim.operator.fit_range(name, 3 * torch.tensor([[low], [high]]).expand(-1, sim.operator.dim))
