"""Scores of searches: a reward that ranks as the truth does is worth it, one that knows nothing is not."""

from __future__ import annotations

import pytest
import torch

from ups.eval.searches import SearchScores


def options(steps: int, knows: float) -> SearchScores:
    """Options at random distances from a truth; how wrong they look is their distance, as far as it knows that."""
    scores, generator = SearchScores(), torch.Generator().manual_seed(0)
    for _ in range(steps):
        truth = torch.ones(3, 8, 1)
        distance, noise = torch.rand(2, 16, 3, generator=generator)
        scores.watch(knows * distance + (1 - knows) * noise, truth + distance[..., None, None], truth)
    return scores


def test_a_reward_that_ranks_as_the_truth_does_is_worth_it_and_one_that_knows_nothing_is_not() -> None:
    assert options(20, 1.0).correlation == pytest.approx(1)
    assert options(20, 1.0).worth_it
    assert abs(options(20, 0.0).correlation) < 0.2
    assert not options(20, 0.0).worth_it
    assert not SearchScores().worth_it


def test_errors_stand_by_their_budgets() -> None:
    scores, truth = SearchScores(), torch.ones(4, 2, 8, 1)
    for budget, off in ((9, 0.1), (3, 0.3)):
        scores.add(budget, truth * (1 + off), truth)
    assert list(scores.by_budget()) == [3, 9]
    assert scores.by_budget()[9] == pytest.approx(0.1)
    assert scores.samples == 4
    assert scores.numbers()["nrmse at 3 calls"] == pytest.approx(0.3)
