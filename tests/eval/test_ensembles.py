"""Scores of ensembles against what they are in closed form, and against sums over all pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ups.eval.ensembles import AS_DRAWN, EnsembleScores, Fan, coverage, crps, interval, ranks, spread, stretched_crps
from ups.eval.metrics import measure
from ups.eval.searches import SearchScores


def test_crps_is_the_sum_over_all_pairs() -> None:
    members, truth = torch.randn(7, 3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    pairs = (members[:, None] - members[None]).abs().mean((0, 1)) / 2
    assert torch.allclose(crps(members, truth), (members - truth).abs().mean(0) - pairs)


def test_fair_crps_of_few_members_is_on_average_that_of_many() -> None:
    torch.manual_seed(0)
    members, truth = torch.randn(64, 20000), torch.randn(20000)
    many = crps(members, truth).mean().item()
    assert crps(members[:4], truth, fair=True).mean().item() == pytest.approx(many, abs=0.01)
    assert crps(members[:4], truth).mean().item() > many + 0.1


def test_crps_of_one_member_is_its_absolute_error() -> None:
    member, truth = torch.randn(1, 9), torch.randn(9)
    assert torch.equal(crps(member, truth), (member[0] - truth).abs())


def test_crps_of_many_normal_draws_is_that_of_the_normal_distribution() -> None:
    """Closed form for N(0, 1) at y: y (2 Φ(y) − 1) + 2 φ(y) − 1 / √π."""
    torch.manual_seed(0)
    members, truth = torch.randn(20_000, 3, dtype=torch.float64), torch.tensor([0.0, 0.7, -2.0], dtype=torch.float64)
    cdf = 0.5 * (1 + torch.erf(truth / math.sqrt(2)))
    density = torch.exp(-truth.square() / 2) / math.sqrt(2 * math.pi)
    exact = truth * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi)
    assert torch.allclose(crps(members, truth), exact, atol=0.02)


def test_a_sharp_right_ensemble_has_the_least_crps() -> None:
    torch.manual_seed(0)
    truth, noise = torch.randn(2000), torch.randn(16, 2000)
    scores = {size: crps(size * noise, truth).mean().item() for size in (0.1, 0.5, 1.0, 2.0, 4.0)}
    assert min(scores, key=lambda size: scores[size]) == 1.0, "the spread of the truth itself"


@pytest.mark.parametrize("count", [4, 16, 50])
def test_spread_is_the_error_of_the_mean_where_members_and_truth_are_of_one_kind(count: int) -> None:
    torch.manual_seed(1)
    members, truth = torch.randn(count, 40_000), torch.randn(40_000)
    error = (members.mean(0) - truth).square().mean().sqrt()
    assert spread(members).square().mean().sqrt().item() == pytest.approx(error.item(), rel=0.02)


def test_nine_in_ten_truths_lie_in_nine_tenths_of_the_members() -> None:
    torch.manual_seed(2)
    members, truth = torch.randn(400, 5000), torch.randn(5000)
    assert coverage(members, truth).mean().item() == pytest.approx(0.9, abs=0.015)
    assert coverage(0.3 * members, truth).mean().item() < 0.5, "too narrow"


@pytest.mark.parametrize(("count", "slack"), [(16, 0.015), (19, 0.005), (32, 0.012), (100, 0.005)])
def test_one_more_of_the_same_kind_lies_in_the_interval_nine_times_in_ten_however_few_they_are(
    count: int, slack: float
) -> None:
    torch.manual_seed(6)
    for draw in (torch.randn, torch.rand):
        members, truth = draw(count, 60_000), draw(60_000)
        assert coverage(members, truth).mean().item() == pytest.approx(0.9, abs=slack)


def test_the_interval_is_numpys_weibull_quantile_where_it_lies_among_the_members() -> None:
    members = torch.randn(25, 7, dtype=torch.float64)
    wanted = np.quantile(members.numpy(), [0.05, 0.95], axis=0, method="weibull")
    assert np.allclose(torch.stack(interval(members)).numpy(), wanted)


def test_the_crps_of_stretched_members_is_that_of_the_members_so_stretched() -> None:
    members, truth, factors = torch.randn(7, 3, 5).double(), torch.randn(3, 5).double(), (0.25, 1.0, 4.0)
    mean = members.mean(0)
    for factor, score in zip(factors, stretched_crps(members, truth, factors), strict=True):
        assert torch.allclose(score, crps(mean + factor * (members - mean), truth))


def test_the_crps_of_stretched_normal_draws_is_that_of_the_normal_distribution_and_least_where_it_is_the_truth() -> (
    None
):
    """Closed form for N(0, s) averaged over y of N(0, 1): √(2 (1 + s²) / π) − s / √π."""
    torch.manual_seed(3)
    members, truth, factors = torch.randn(1000, 4000) / 2, torch.randn(4000), (0.5, 1.0, 2.0, 4.0)
    found = [score.mean().item() for score in stretched_crps(members, truth, factors)]
    exact = [math.sqrt(2 * (1 + (f / 2) ** 2) / math.pi) - f / 2 / math.sqrt(math.pi) for f in factors]
    assert found == pytest.approx(exact, rel=0.02)
    assert min(zip(found, factors, strict=True))[1] == 2.0


@pytest.mark.parametrize("count", [4, 16])
def test_of_an_ensemble_of_any_size_that_is_right_no_stretch_lowers_the_crps(count: int) -> None:
    torch.manual_seed(4)
    members, truth, factors = torch.randn(count, 100_000), torch.randn(100_000), (0.85, 1.0, 1.2)
    found = [score.mean().item() for score in stretched_crps(members, truth, factors)]
    assert min(found) == found[1]


def test_scores_at_each_step_tell_before_from_after_calibration() -> None:
    torch.manual_seed(8)
    truth, noise = torch.randn(8, 3, 64, 1), torch.randn(16, 8, 3, 64, 1)
    scores = EnsembleScores(16)
    scores.add(noise, torch.zeros_like(truth), truth, torch.ones(1), before=0.3 * noise)
    curves, numbers = scores.curves(), scores.numbers()
    assert curves["coverage"].shape == (3,)
    assert curves["coverage"].min() > 0.85
    assert curves[f"coverage{AS_DRAWN}"].max() < 0.6
    assert curves[f"spread{AS_DRAWN}"] == pytest.approx(0.3 * curves["spread"], rel=1e-5)
    assert numbers[f"coverage{AS_DRAWN}"] == pytest.approx(curves[f"coverage{AS_DRAWN}"].mean())
    assert numbers["crps"] < numbers[f"crps{AS_DRAWN}"]
    assert scores.shares()[AS_DRAWN][0] > 3, "too narrow: the truth is often below all"


def test_a_fan_holds_its_bands_in_order_around_its_mean() -> None:
    members = torch.randn(40, 3, 8, 2)
    fan = Fan.of(members)
    assert fan.bands.shape == (4, 3, 8, 2)
    assert (np.diff(fan.bands, axis=0) > 0).all()
    assert np.array_equal(fan.spread, spread(members).double()), "as wide as it is scored"
    assert np.allclose(fan.mean, 0, atol=0.8)


def test_the_rank_histogram_is_flat_unless_members_are_too_narrow() -> None:
    torch.manual_seed(3)
    members, truth = torch.randn(9, 50_000), torch.randn(50_000)
    flat = ranks(members, truth)
    assert flat.sum().item() == pytest.approx(1)
    assert (flat - 0.1).abs().max().item() < 0.01
    narrow = ranks(0.3 * members, truth)
    assert min(narrow[0], narrow[-1]) > 0.2


def test_draws_of_the_same_kind_as_the_truth_know_more_than_their_mean_alone() -> None:
    """For N(0, 1): E|y| = √(2/π), CRPS = 1/√π; the mean alone has no fine structure, the draws have the truth's."""
    torch.manual_seed(4)
    scores, std = EnsembleScores(40), torch.tensor([2.0])
    for _ in range(2):
        truth, drawn = 2 * torch.randn(8, 5, 64, 1), 2 * torch.randn(40, 8, 5, 64, 1)
        scores.add(drawn, torch.zeros_like(truth), truth, std, plain=truth + 1)
    numbers = scores.numbers()
    assert scores.samples == 16
    assert numbers["absolute error without draws"] == pytest.approx(0.5), "in deviations"
    assert numbers["absolute error alone"] == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    assert numbers["crps"] == pytest.approx(1 / math.sqrt(math.pi), rel=0.04)
    assert numbers["spread over error"] == pytest.approx(1, rel=0.03)
    assert numbers["coverage"] == pytest.approx(0.9, abs=0.02)
    assert numbers["fine members"] == pytest.approx(1, rel=0.15)
    assert numbers["fine alone"] == 0
    assert numbers["nrmse alone"] == pytest.approx(1)
    assert scores.shares()[""].mean() == pytest.approx(1)
    assert scores.shares()[""].max() < 3, "flat"


def test_scores_do_not_depend_on_how_many_trajectories_are_judged_at_once() -> None:
    """One of them resolves more wavenumbers than the others: what is fine is said by all of them together."""
    torch.manual_seed(6)
    x = torch.arange(64) * (2 * math.pi / 64)
    waves = torch.cos(x * torch.tensor([[3.0]] * 7 + [[20.0]])) + 0.3 * torch.cos(8 * x)
    truth = waves.reshape(8, 1, 64, 1).expand(8, 2, 64, 1)
    drawn, alone = truth + 0.2 * torch.randn(6, 8, 2, 64, 1), torch.zeros_like(truth)
    found = []
    for rows in (8, 3):
        scores = EnsembleScores(6)
        for part in (slice(first, first + rows) for first in range(0, 8, rows)):
            scores.add(0.5 * drawn[:, part], alone[part], truth[part], torch.ones(1), before=drawn[:, part])
        found.append(scores.numbers())
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    for kind, members in ((AS_DRAWN, drawn), ("", 0.5 * drawn)):
        own = (members.var(0).mean() * 7 / 6 / (members.mean(0) - truth).square().mean()).sqrt()
        assert found[0][f"spread over error{kind}"] == pytest.approx(own.item(), rel=1e-5)


def test_a_place_without_a_number_is_not_left_out_of_a_score() -> None:
    truth, drawn = torch.zeros(1, 2, 8, 1), torch.randn(4, 1, 2, 8, 1)
    drawn[0, 0, 1, 3] = torch.nan
    for mask in (None, torch.ones(1, 8, dtype=torch.bool)):
        scores = EnsembleScores(4)
        scores.add(drawn, truth, truth, torch.ones(1), mask)
        assert not np.isfinite(scores.numbers()["crps"])


def test_cells_that_do_not_count_have_no_part_in_the_scores() -> None:
    torch.manual_seed(5)
    truth, drawn = torch.randn(2, 3, 16, 1), torch.randn(6, 2, 3, 16, 1)
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[:, 8:] = False
    wild, told = truth.clone(), []
    wild[:, :, 8:] = 1e6
    for values in (truth, wild):
        scores = EnsembleScores(6)
        scores.add(drawn, torch.zeros_like(truth), values, torch.ones(1), mask)
        told.append(scores.numbers())
    assert told[0] == pytest.approx(told[1])


@pytest.mark.parametrize("nothing", [0.0, 1e-6])
def test_a_channel_of_zeros_counts_in_scores_as_it_does_in_the_headline(nothing: float) -> None:
    truth = torch.randn(3, 4, 16, 2) * torch.tensor([1.0, 0.0])
    alone = truth + torch.tensor([0.1, nothing])
    scores, searches = EnsembleScores(4), SearchScores()
    scores.add(alone.expand(4, *alone.shape), alone, truth, torch.ones(2))
    searches.add(1, alone, truth)
    headline = measure(alone.numpy(), truth.numpy()).per_sample("nrmse").mean()
    numbers = (scores.numbers()["nrmse alone"], scores.numbers()["nrmse of the mean"], searches.by_budget()[1])
    assert numbers == pytest.approx([headline] * 3, rel=1e-6)
    assert np.isfinite(headline) == (nothing == 0)


def test_the_interval_of_a_score_shrinks_with_the_samples_and_holds_the_truth_that_they_are_drawn_from() -> None:
    """CRPS of N(0, 1) is 1/√π; trajectories of one cell differ from each other, so that few of them say little."""
    torch.manual_seed(9)
    widths = []
    for count in (8, 128):
        scores = EnsembleScores(40)
        truth, drawn = torch.randn(count, 2, 8, 1), torch.randn(40, count, 2, 8, 1)
        scores.add(drawn, torch.zeros_like(truth), truth, torch.ones(1))
        numbers, ends, curves = scores.numbers(), scores.ends(), scores.curve_ends()
        assert ends.keys() == numbers.keys()
        assert all(low <= numbers[name] <= high for name, (low, high) in ends.items() if numbers[name])
        assert curves.keys() == scores.curves().keys()
        low, high = ends["crps"]
        assert low < 1 / math.sqrt(math.pi) < high
        widths.append(high - low)
        assert (curves["spread"][0] < scores.curves()["spread"]).all()
        assert ends["spread over error"][0] < numbers["spread over error"] < ends["spread over error"][1]
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.5)
