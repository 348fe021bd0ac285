"""A rollout that leaves all that training has seen stops there, and says which sample, when, and how far it went."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from small_simulators import frames, simulator
from test_masked import ISLAND, LAKE, state
from test_masked import simulator as of_lake

from ups.models import Simulator
from ups.models.departures import distances
from ups.models.encoders import Statistics

STEPS = 6


def answering(monkeypatch: pytest.MonkeyPatch, answer: torch.Tensor, name: str = "reacdiff2d") -> Simulator:
    """A simulator whose fields are 1 ± 2 in training, and that gives this answer."""
    sim = simulator(name)
    sim.codec.fit_statistics(name, torch.ones(answer.shape[-1]), 2 * torch.ones(answer.shape[-1]))
    monkeypatch.setattr(sim, "simulate", lambda _, steps, *_others: answer[:, :steps])
    return sim


def blown_up(batch: int = 3) -> torch.Tensor:
    """Sample 1 grows by 1e6 a step from its fourth frame on, in its second channel."""
    answer = torch.randn(batch, STEPS, 16, 24, 2, generator=torch.Generator().manual_seed(0))
    answer[1, 3:, ..., 1] = 1 + torch.tensor([1e6, 1e12, 1e36])[:, None, None]
    return answer


def test_a_rollout_is_nan_from_where_it_leaves_what_training_saw_and_says_who_when_and_how_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = blown_up()
    sim, u0 = answering(monkeypatch, answer), frames("reacdiff2d", batch=3)[:, 0]
    with pytest.warns(UserWarning, match="leaves what training has seen") as said:
        out = sim.rollout(u0, STEPS)
    assert [str(w.message) for w in said] == [
        "reacdiff2d: the rollout of 1 of 3 samples leaves what training has seen, first of sample 1 at step 4: "
        "inhibitor is 5e+05 standard deviations away from its mean in training; frames from there on are NaN; "
        "give values like those of training, or ask for fewer steps."
    ]
    assert Path(said[0].filename).name == "test_departures.py"
    assert out[1, 3:].isnan().all()
    assert torch.equal(out[1, :3], answer[1, :3])
    assert torch.equal(out[[0, 2]], answer[[0, 2]]), "the others go on"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(sim.rollout(u0, 3), answer[:, :3]), "nothing is said of steps that were not asked for"


def test_what_is_judged_is_what_was_predicted_however_far_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = blown_up()
    sim = answering(monkeypatch, answer)
    assert sim.simulate(None, STEPS) is not None
    assert torch.equal(sim.simulate(None, STEPS), answer)


def test_each_member_of_an_ensemble_and_each_long_rollout_stops_by_itself() -> None:
    usual, many = Statistics(1), torch.zeros(2, 3, 5000, 7, 1)
    usual.fit(torch.zeros(1), torch.ones(1))
    many[1, 2, 4321:] = 101.0
    many[0, 0, 17] = -100.5
    many[0, 1, 7:] = torch.inf
    from ups.models import departures as module

    found = module.departures(many, usual, torch.full((3,), 100.0), ["u"])
    assert [(d.member, d.sample, d.step) for d in found] == [(0, 0, 18), (1, 2, 4322)]
    gone = module.gone(many, found)
    assert int(gone.sum()) == 5000 - 17 + 5000 - 4321


def test_a_state_that_is_given_from_far_away_may_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, u0 = answering(monkeypatch, 1e4 * blown_up().clamp(-4, 4)), frames("reacdiff2d", batch=3)[:, 0]
    with pytest.warns(UserWarning, match="deviations away from its mean in training; the answer is a guess") as said:
        out = sim.rollout(1e4 * u0, STEPS)
    assert not out.isnan().any()
    assert not any("leaves" in str(w.message) for w in said)


def test_cells_that_do_not_count_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = of_lake(LAKE)
    frames = torch.from_numpy(np.where(ISLAND[..., None], state(), 1e30).astype(np.float32)).expand(1, 2, -1, -1, -1)
    monkeypatch.setattr(sim, "simulate", lambda *_: frames)
    given = np.stack([np.zeros((16, 16)), ISLAND], -1)
    out = sim.rollout(state(), 2, inputs=given)
    assert (np.isfinite(out) == ISLAND[None, :, :, None]).all()


def test_distances_are_root_mean_squares_in_deviations_of_training() -> None:
    usual, frames = Statistics(2), torch.full((1, 1, 4, 2), 1e36)
    usual.fit(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]))
    assert distances(frames, usual)[0, 0].tolist() == pytest.approx([5e35, 0.0]), "what never varied is no measure"
    frames = torch.tensor([7.0, 1.0, 1.0, 1.0]).reshape(1, 1, 4, 1).expand(-1, -1, -1, 2)
    assert float(distances(frames, usual)[0, 0, 0]) == pytest.approx(1.5)
