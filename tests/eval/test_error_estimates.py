"""Estimates of error beside true errors: rank correlations of known relations, and how far off they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ups.eval.error_estimates import ErrorScores, rank_correlation


def test_the_rank_correlation_is_scipys() -> None:
    from scipy.stats import spearmanr  # here, for its import alone takes longer than the tests of this file

    a, b = np.random.default_rng(0).integers(0, 9, (2, 60)).astype(float)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert np.isnan(rank_correlation(np.ones(5), b[:5]))


def add(scores: ErrorScores, estimates: torch.Tensor, errors: torch.Tensor) -> None:
    """Rollouts with such errors `(B, T)`, and what was estimated of them."""
    scores.add(estimates, 1 + errors[..., None, None].double(), torch.ones(*errors.shape, 1, 1))


def test_an_estimate_that_knows_the_time_alone_ranks_steps_and_not_samples() -> None:
    torch.manual_seed(0)
    growth = torch.arange(1.0, 21.0)
    truth = growth * torch.exp(0.1 * torch.randn(40, 20))
    by_time, by_sample = ErrorScores(), ErrorScores()
    for rows in truth.split(15):
        add(by_time, 2 * growth.expand_as(rows) * torch.exp(1e-3 * torch.randn(rows.shape)), rows)
        add(by_sample, rows**2, rows)
    known = by_time.numbers()
    assert by_time.samples == 40
    assert known["rank correlation"] > 0.95
    assert abs(known["rank correlation at a step"]) < 0.15
    assert known["usual factor"] == pytest.approx(2, rel=0.02)
    assert by_sample.numbers()["rank correlation at a step"] == pytest.approx(1)
    assert by_time.curves()["estimated error"] == pytest.approx(2 * growth.numpy(), rel=0.01)


def test_a_channel_of_zeros_makes_no_true_error_smaller() -> None:
    scores, truth = ErrorScores(), torch.tensor([1.0, 0.0]).expand(5, 3, 8, 2)
    scores.add(torch.full((5, 3), 0.2), 1.1 * truth, truth)
    assert scores.numbers()["usual factor"] == pytest.approx(2, rel=1e-5)


def test_what_diverged_is_the_largest_error_and_few_samples_rank_nothing() -> None:
    scores = ErrorScores()
    add(scores, torch.tensor([[1.0, 2.0, torch.inf]]), torch.tensor([[0.1, 0.2, torch.nan]]))
    numbers = scores.numbers()
    assert numbers["rank correlation"] == pytest.approx(1)
    assert np.isnan(numbers["rank correlation at a step"])
    assert numbers["usual factor"] == pytest.approx(10)
