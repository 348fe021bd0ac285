"""Metrics against values worked out by hand, against their definitions, and against PDEBench's own code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ups.eval import comparison
from ups.eval.comparison import Comparison
from ups.eval.intervals import intervals, number, ratio_of_means, resampled_means, with_interval
from ups.eval.metrics import METRICS, Errors, Metric, correlation_time, measure, summary
from ups.eval.nrmse import RolloutErrors, capped, nrmse, rms, validation_nrmse
from ups.eval.pairs import difference, surely_lower
from ups.eval.spectra import spectrum
from ups.physics import TASKS
from ups.types import ConfigError

PDEBENCH = [name for name, metric in METRICS.items() if metric.batch is not None]
N = 32
X = (np.arange(N) + 0.5) / N
RNG = np.random.default_rng(7)


def frames(*fields: np.ndarray) -> np.ndarray:
    """One sample, one channel, a 1D frame each: (1, T, X, 1)."""
    return np.stack(fields)[None, ..., None]


def noise(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def by_name(found: list, name: str, mode: str = "strict"):
    return next(m for m in found if (m.name, m.mode) == (name, mode))


def test_a_constant_offset_has_the_errors_worked_out_by_hand() -> None:
    true = frames(3 + 4 * np.sqrt(2) * np.sin(2 * np.pi * X))  # rms 5
    errors = measure(true + 0.5, true)
    for name in ("rmse", "max", "crmse", "brmse"):
        assert errors.per_sample(name) == pytest.approx(0.5)
    assert errors.per_sample("nrmse") == pytest.approx(0.1)
    assert errors.per_sample("frmse-low") == pytest.approx(0.5 / 4)  # one of the four wavenumbers 0..3
    assert errors.per_sample("frmse-mid") == pytest.approx(0, abs=1e-12)
    assert errors.per_sample("vrmse") == pytest.approx(0.5 / np.sqrt(16 * N / (N - 1) + 1e-7))
    assert errors.per_sample("trajectory-l2") == pytest.approx(0.1)


def test_a_wave_of_error_lies_in_its_band_and_conserves() -> None:
    true = frames(1 + 0 * X)
    for band, k in (("low", 3), ("mid", 4), ("mid", 11), ("high", 12)):
        errors = measure(true + frames(np.cos(2 * np.pi * k * X)), true)
        width = {"low": 4, "mid": 8, "high": N // 2 + 1 - 12}[band]
        assert errors.per_sample(f"frmse-{band}") == pytest.approx(0.5 / width), "a cosine has |FFT|/n = 1/2"
        assert errors.per_sample("crmse") == pytest.approx(0, abs=1e-12)
        assert errors.per_sample("rmse") == pytest.approx(np.sqrt(0.5))


def test_the_spectral_error_in_2d_counts_the_first_quadrant_by_whole_radius() -> None:
    x, y = np.meshgrid(X, X, indexing="ij")
    true = np.zeros((1, 1, N, N, 1))
    pred = np.cos(2 * np.pi * (3 * x + 4 * y))[None, None, ..., None]  # radius 5, both components positive
    mid = measure(pred, true).per_sample("frmse-mid")
    assert mid == pytest.approx(0.5 / 8)
    away = np.cos(2 * np.pi * (3 * x - 4 * y))[None, None, ..., None]  # in the other quadrants
    assert measure(away, true).per_sample("frmse-mid") == pytest.approx(0, abs=1e-12)


def test_the_boundary_error_sees_faces_only_with_corners_on_two() -> None:
    true, pred = np.zeros((1, 1, 4, 6, 1)), np.zeros((1, 1, 4, 6, 1))
    pred[0, 0, 1:-1, 1:-1] = 9.0
    assert measure(pred, true).per_sample("brmse") == 0
    pred[0, 0, 0, 2] = 2.0
    assert measure(pred, true).per_sample("brmse") == pytest.approx(np.sqrt(4 / 20))
    pred[0, 0, 0, 2], pred[0, 0, 0, 0] = 0.0, 2.0
    assert measure(pred, true).per_sample("brmse") == pytest.approx(np.sqrt(8 / 20))


@pytest.mark.parametrize("space", [(16,), (16, 12), (8, 8, 8)])
def test_the_modes_agree_for_batches_of_one_and_the_paper_counts_the_context(space: tuple[int, ...]) -> None:
    true, pred = noise(5, 6, *space, 2), noise(5, 6, *space, 2)
    single = Errors.join([measure(pred[i : i + 1], true[i : i + 1]) for i in range(5)])
    whole = measure(pred, true)
    found = summary(single, "A", context=10)
    for name in PDEBENCH:
        if np.isnan(single.per_sample(name)).any():
            continue
        value = by_name(found, name).value
        assert by_name(found, name, "pdebench-0.1.0").value == pytest.approx(value)
        assert by_name(found, name, "pdebench-paper").value == pytest.approx(value * 6 / 16)
        assert whole.per_sample(name) == pytest.approx(single.per_sample(name)), "strict knows no batches"
    for name in ("crmse", "max", "frmse-low"):
        assert whole.batch_mean(name) > single.batch_mean(name), "a root of a mean of squares exceeds the mean"
    assert whole.batch_mean("nrmse") == pytest.approx(single.batch_mean("nrmse"))


def test_a_band_the_grid_does_not_resolve_is_left_out() -> None:
    found = summary(measure(noise(2, 3, 16, 1), noise(2, 3, 16, 1)), "A", 1)
    assert "frmse-mid" in {m.name for m in found}
    assert "frmse-high" not in {m.name for m in found}


def test_trajectory_error_is_a_ratio_of_norms_not_a_mean_of_ratios() -> None:
    true = frames(np.full(N, 3.0), np.full(N, 4.0))
    errors = measure(true + frames(np.zeros(N), np.full(N, 1.0)), true)
    assert errors.per_sample("trajectory-l2") == pytest.approx(1 / 5)
    assert errors.per_sample("nrmse") == pytest.approx(0.5 * 1 / 4)


def test_correlation_time_is_that_of_the_first_frame_under_the_threshold() -> None:
    wave = np.sin(2 * np.pi * X)
    turned = [np.sin(2 * np.pi * X + angle) for angle in (0.1, 0.5, 0.8, 0.2)]  # correlations are cosines
    both = (frames(*turned), frames(wave, wave, wave, wave))
    compared = Comparison(*both, dt=0.25)
    assert compared.correlation[0, :, 0] == pytest.approx(np.cos([0.1, 0.5, 0.8, 0.2]))
    assert measure(*both, dt=0.25).per_sample("correlation-time") == pytest.approx(0.75)
    assert correlation_time(compared, threshold=0.5) == pytest.approx(1.0), "never: the whole predicted time"


def test_what_is_not_finite_is_an_infinite_error_everywhere() -> None:
    true = noise(3, 4, 16, 2)
    pred = true.copy()
    pred[1, 2, 5, 0] = np.nan
    errors = measure(pred, true)
    for name in ("rmse", "nrmse", "max", "crmse", "brmse", "vrmse", "frmse-low"):
        assert np.isinf(errors.per_sample(name)).tolist() == [False, True, False]
        assert name not in PDEBENCH or np.isinf(errors.batch_mean(name))
    metric = by_name(summary(errors, "A", 1), "nrmse")
    assert np.isinf(metric.value)
    assert metric.low == 0
    assert np.isinf(metric.high)
    assert np.isinf(errors.per_sample("trajectory-l2")).tolist() == [False, True, False]


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(300):
        low, high = intervals(rng.exponential(1.0, (1, 80)), seed=trial, resamples=500)
        hits += low <= 1.0 <= high
    assert 0.90 <= hits / 300 <= 0.98


def test_the_interval_is_repeatable_and_shrinks_with_samples() -> None:
    values = noise(400)
    few, many = intervals(values[None, :50]), intervals(values[None])
    assert many == intervals(values[None])
    assert many[1] - many[0] < few[1] - few[0]
    assert intervals(np.full((1, 9), 2.5)) == (2.5, 2.5)


def test_a_paired_comparison_sees_what_separate_intervals_do_not() -> None:
    hard = np.exp(noise(60))
    ours, theirs = hard * 0.97, hard
    assert intervals(ours[None])[1] > intervals(theirs[None])[0]
    gap = difference(ours, theirs)
    assert gap.high < 0
    assert gap.value == pytest.approx(np.mean(ours - theirs))
    assert surely_lower(ours, theirs)
    assert surely_lower(ours[:3], theirs[:3]), "lower on each of too few"
    assert not surely_lower(np.append(ours[:3], 9e9), theirs[:4])
    ratio = ratio_of_means(ours, theirs, "A", "ratio")
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.97, 0.97, 0.97))
    with pytest.raises(ConfigError, match="same samples"):
        difference(ours, theirs[:-1])


def test_the_spectrum_sums_to_the_mean_square() -> None:
    x, y = np.meshgrid(X, X, indexing="ij")
    field = (1 + np.sin(2 * np.pi * 3 * x) + 2 * np.cos(2 * np.pi * (3 * x - 4 * y)))[None, ..., None]
    power = spectrum(field)[:, 0]
    assert power[[0, 3, 5]] == pytest.approx([1, 0.5, 2])
    assert power.sum() == pytest.approx((field**2).mean())


def test_arrays_that_do_not_match_are_refused() -> None:
    with pytest.raises(ConfigError, match="samples, frames"):
        measure(np.zeros((1, 2, 8, 1)), np.zeros((1, 2, 9, 1)))


@pytest.mark.oracle
@pytest.mark.parametrize("space", [(64,), (33,), (32, 32), (28, 40), (32, 32, 32)])
def test_the_pdebench_modes_are_those_of_pdebench_itself(space: tuple[int, ...]) -> None:
    """Needs pdebench 0.1.0 beside torch (it is not a dependency; parts of it are non-commercial)."""
    theirs = pytest.importorskip("pdebench.models.metrics")
    context, steps, channels = 2, 3, 1 if len(space) == 3 else 2  # its 3D code knows one channel only
    true = noise(4, context + steps, *space, channels)
    pred = np.concatenate([true[:, :context], noise(4, steps, *space, channels)], 1)
    errors = measure(pred[:, context:], true[:, context:])
    for skipped, counted in ((context, 0), (0, context)):
        arrays = [torch.from_numpy(np.moveaxis(a[:, skipped:], 1, -2).copy()).float() for a in (pred, true)]
        rmse, nrmse, conserved, largest, boundary, fourier = theirs.metric_func(*arrays, if_mean=False)
        bands = fourier.mean((0, 2))
        expected = dict(zip(PDEBENCH, (rmse, nrmse, largest, conserved, boundary, *bands), strict=True))
        for name, value in expected.items():
            assert errors.batch_mean(name, counted) == pytest.approx(float(value.mean()), rel=2e-6), name


def test_an_entry_is_all_that_a_new_metric_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, samples = Metric("median", lambda c: np.median(np.abs(c.error), c.space)), lambda c: c.error.max((1, 2, 3))
    monkeypatch.setitem(METRICS, "median", frames)
    monkeypatch.setitem(METRICS, "highest", Metric("largest overshoot", samples))
    true, pred = noise(4, 3, 16, 2), noise(4, 3, 16, 2)
    errors = Errors.join([measure(pred[:3], true[:3]), measure(pred[3:], true[3:])])
    found = summary(errors, "A", 1)
    assert by_name(found, "median").value == pytest.approx(np.median(np.abs(pred - true), 2).mean())
    assert by_name(found, "highest").value == pytest.approx((pred - true).max((1, 2, 3)).mean())
    assert [m.mode for m in found if m.name == "median"] == ["strict"], "not one of PDEBench's"
    monkeypatch.setitem(METRICS, "wrong", Metric("no such shape", lambda c: c.error.mean((2, 3))))
    with pytest.raises(ConfigError, match="'wrong' gave an array"):
        measure(pred, true)


@pytest.mark.parametrize("space", [(32,), (12, 10), (6, 5, 4)])
def test_arrays_and_tensors_have_the_same_nrmse(space: tuple[int, ...]) -> None:
    true, pred = noise(3, 4, *space, 2), noise(3, 4, *space, 2)
    ours = measure(pred, true).frames("nrmse")
    assert np.array_equal(nrmse(pred, true), ours)
    assert nrmse(torch.from_numpy(pred), torch.from_numpy(true)).numpy() == pytest.approx(ours, rel=1e-14)


def test_an_error_over_nothing_is_infinite_in_a_judgement_and_finite_in_a_validation() -> None:
    true, pred = np.zeros((1, 2, 8, 1)), np.zeros((1, 2, 8, 1))
    pred[0, 1] = 0.5
    assert measure(pred, true).frames("nrmse").ravel().tolist() == [0.0, np.inf]
    usual = torch.tensor([2.0])
    assert nrmse(torch.from_numpy(pred), torch.from_numpy(true), usual).ravel().tolist() == [0.0, 0.25]


def test_a_frame_of_nothing_is_compared_with_the_mean_size_of_the_others() -> None:
    """As before a wave enters the box: frames of size 0, 2 and 4, each off by 1; and a channel that is always there."""
    true = np.ones((1, 3, 8, 2)) * np.array([0.0, 2.0, 4.0])[:, None, None]
    true[..., 1] = 5.0
    wanted = [[1 / 3, 1 / 5], [1 / 2, 1 / 5], [1 / 4, 1 / 5]]
    assert measure(true + 1, true).frames("nrmse")[0].tolist() == wanted
    assert nrmse(torch.from_numpy(true + 1), torch.from_numpy(true))[0].tolist() == wanted
    nothing = torch.zeros(1, 2, 8, 2)
    assert nrmse(nothing + 1, nothing, torch.tensor([2.0, 4.0]))[0].tolist() == [[1 / 2, 1 / 4]] * 2


@pytest.mark.parametrize("size", [1e-34, 1e-15, 1e25, 1e36])
def test_the_error_that_selects_weights_knows_no_units(size: float) -> None:
    true, pred = (torch.from_numpy(noise(2, 3, 32, 2)).float() for _ in range(2))
    mask = torch.rand(2, 32, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.allclose(nrmse(size * pred, size * true), nrmse(pred, true), rtol=1e-4)
    assert torch.allclose(nrmse(size * pred, size * true, mask=mask), nrmse(pred, true, mask=mask), rtol=1e-4)
    for lost in (np.inf, np.nan):  # a rollout that is lost is never a good one
        assert not nrmse(torch.full_like(true, lost), size * true).isfinite().any()
    faint = torch.full((1, 1, 4, 1), 1e-30)
    assert 1e20 < float(nrmse(faint + 1e-3, faint)) < np.inf, "finite over next to nothing"
    assert nrmse(pred, true) == pytest.approx(((pred - true) ** 2).mean(2) ** 0.5 / (true**2).mean(2) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("name", list(METRICS))
def test_every_metric_is_zero_for_the_truth_and_knows_no_batches(name: str) -> None:
    true, pred = noise(4, 3, 32, 32, 2), noise(4, 3, 32, 32, 2)
    exact = measure(true, true, dt=0.5).per_sample(name)
    if not METRICS[name].larger_is_better:
        assert exact == pytest.approx(np.zeros(4))
    if name == "correlation-time":
        assert exact == pytest.approx(np.full(4, 1.5)), "all of the predicted time"
    parts = Errors.join([measure(pred[i : i + 2], true[i : i + 2]) for i in (0, 2)])
    assert parts.per_sample(name) == pytest.approx(measure(pred, true).per_sample(name))
    assert METRICS[name].meaning


@pytest.mark.parametrize("space", [(16,), (8, 12)])
def test_no_metric_sees_a_cell_that_does_not_count(space: tuple[int, ...]) -> None:
    pred, true = noise(3, 4, *space, 2), 3 * noise(3, 4, *space, 2)
    mask = np.random.default_rng(0).random((3, *space)) > 0.3
    cells = np.expand_dims(mask, (1, -1))
    errors = measure(pred, true, 0.5, mask=mask)
    other = measure(np.where(cells, pred, np.nan), np.where(cells, true, 1e6), 0.5, mask=mask)
    for name, table in errors.tables.items():
        assert np.array_equal(table, other.tables[name], equal_nan=True), name
    assert not other.diverged.any()
    one = [np.sqrt(((pred[i] - true[i])[:, mask[i]] ** 2).mean(1)) for i in range(3)]
    assert errors.tables["rmse"] == pytest.approx(np.stack(one), rel=1e-12)
    spread = [np.sqrt(true[i][:, mask[i]].var(1, ddof=1) + 1e-7) for i in range(3)]
    assert errors.tables["vrmse"] == pytest.approx(np.stack(one) / np.stack(spread), rel=1e-12)
    totals = [np.abs((pred[i] - true[i])[:, mask[i]].mean(1)) for i in range(3)]
    assert errors.tables["crmse"] == pytest.approx(np.stack(totals), rel=1e-10)


def test_what_is_no_number_where_no_cell_counts_spoils_no_validation() -> None:
    pred, true = (torch.from_numpy(noise(2, 3, 16, 2)) for _ in range(2))
    mask, usual = torch.arange(16).expand(2, 16) > 3, torch.ones(2)
    clean = validation_nrmse(pred, true, usual, TASKS["burgers1d"], mask)
    pred[:, :, 0], pred[:, :, 1], true[:, :, 2] = torch.nan, torch.inf, torch.nan
    assert torch.equal(validation_nrmse(pred, true, usual, TASKS["burgers1d"], mask), clean)
    assert rms(pred, mask).isfinite().all()
    pred[1, 0, 9, 0] = torch.nan
    assert validation_nrmse(pred, true, usual, TASKS["burgers1d"], mask).tolist() == [clean[0], 1e6], (
        "where one counts it is lost"
    )


@pytest.mark.parametrize("nothing", [0.0, 1e-6, np.nan])
@pytest.mark.parametrize("windows", [1, 2])
def test_errors_gathered_window_by_window_are_the_headlines(nothing: float, windows: int) -> None:
    """The first channel is zero in all windows but the last, where there are two: then it counts in all of them."""
    truth, off, errors = noise(4, 3, 16, 2), 0.1 * noise(4, 3, 16, 2), RolloutErrors()
    truth[: 4 if windows == 1 else 2, ..., 0] = 0
    pred = truth + np.where(truth == 0, nothing, off)
    for part in np.split(np.arange(4), windows):
        errors.add(torch.from_numpy(pred[part]), torch.from_numpy(truth[part]))
    headline = measure(pred, truth)
    assert len(errors) == 4
    assert errors.per_sample() == pytest.approx(headline.per_sample("nrmse"), rel=1e-12)
    assert np.concatenate(errors.by_step()) == pytest.approx(headline.over_channels("nrmse"), rel=1e-12)


@pytest.mark.parametrize("unit", [1e-12, 1e-3, 1e9])
@pytest.mark.parametrize("name", ["nrmse", "vrmse", "trajectory-l2"])
def test_no_error_over_the_truth_depends_on_its_unit(name: str, unit: float) -> None:
    pred, true = noise(3, 4, 16, 2), noise(3, 4, 16, 2)
    plain = measure(pred, true).per_sample(name)
    assert measure(unit * pred, unit * true).per_sample(name) == pytest.approx(plain, rel=1e-6)
    assert np.isfinite(measure(unit * pred, 0 * true).tables["vrmse"]).all(), "of nothing but zeros"


@pytest.mark.parametrize("name", METRICS)
def test_a_mask_that_counts_every_cell_changes_no_metric(name: str) -> None:
    pred, true = noise(3, 4, 8, 12, 2), noise(3, 4, 8, 12, 2)
    whole = measure(pred, true, 0.5, mask=np.ones((3, 8, 12), bool)).per_sample(name)
    assert whole == pytest.approx(measure(pred, true, 0.5).per_sample(name), rel=1e-10, nan_ok=True)


def test_the_correlation_time_of_uneven_steps_is_the_time_of_the_frame() -> None:
    true = frames(np.sin(2 * np.pi * X), *[np.sin(2 * np.pi * X)] * 2)
    pred = frames(np.sin(2 * np.pi * X), np.cos(2 * np.pi * X), np.cos(2 * np.pi * X))
    dt = np.array([[0.1, 0.4, 2.0]])
    assert measure(pred, true, dt).per_sample("correlation-time") == pytest.approx(0.5)
    assert measure(true, true, dt).per_sample("correlation-time") == pytest.approx(2.5)


@pytest.mark.parametrize("shape", [(5, 6, 32, 1), (5, 6, 32, 3), (4, 3, 12, 8, 4), (3, 2, 6, 6, 6, 5)])
def test_samples_measured_some_at_a_time_have_the_errors_of_all_at_once(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    true = rng.standard_normal(shape).astype(np.float32)
    predicted = true + 0.1 * rng.standard_normal(shape).astype(np.float32)
    lost, mask = predicted.copy(), rng.random((shape[0], *shape[2:-1])) > 0.3
    lost[1, 1:], lost[-1, 0, ..., 0] = np.nan, 1e30
    dt = rng.random(shape[:2])
    for frames, more in ((predicted, {}), (lost, {}), (predicted, {"dt": dt, "mask": mask}), (lost, {"dt": dt[:, 0]})):
        found = []
        for piece in (1, 2 * int(np.prod(shape[1:])), 2**40):  # one, two, all
            monkeypatch.setattr(comparison, "PIECE", piece)
            found.append(measure(frames, true, **more))
        for other in found[1:]:
            np.testing.assert_array_equal(other.diverged, found[0].diverged)
            for tables, same in ((other.tables, found[0].tables), (other.batch_tables, found[0].batch_tables)):
                assert tables.keys() == same.keys()
                for name in tables:
                    np.testing.assert_array_equal(tables[name], same[name], err_msg=name)


def test_a_number_that_is_not_finite_is_written_as_a_word() -> None:
    values = (0.123456, float("inf"), float("-inf"), float("nan"))
    assert [number(value) for value in values] == ["0.1235", "infinite", "-infinite", "–"]


def test_resamples_drawn_a_part_at_a_time_are_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = noise(2, 7)
    whole = resampled_means(rows, seed=3, resamples=100)
    monkeypatch.setattr("ups.eval.intervals.AT_ONCE", 50)
    assert np.array_equal(resampled_means(rows, seed=3, resamples=100), whole)


def test_a_ratio_of_means_is_over_the_same_samples() -> None:
    with pytest.raises(ConfigError, match="needs the same samples, not 3 and 2"):
        ratio_of_means(np.ones(3), np.ones(2), "A", "nrmse")


def test_a_number_over_one_sample_has_no_interval() -> None:
    assert with_interval(0.5, 0.25, 1.0, 2) == "0.5 (0.25 – 1)"
    assert with_interval(0.5, 0.25, 1.0, 1) == "0.5"


def test_an_infinite_error_is_infinite_beside_any_other() -> None:
    ours = np.array([1.0, np.inf])
    assert ratio_of_means(ours, ours, "A", "nrmse").value == np.inf


def test_an_error_fit_to_be_averaged_is_a_million_at_most() -> None:
    errors = torch.tensor([2.0, 1e9, torch.inf, torch.nan])
    assert capped(errors).tolist() == [2.0, 1e6, 1e6, 1e6]


def test_a_validation_may_be_of_some_frames_alone() -> None:
    true = torch.ones(1, 3, 8, 1)
    pred = true + torch.tensor([0.0, 1.0, 2.0]).reshape(1, 3, 1, 1)
    assert [
        validation_nrmse(pred, true, torch.ones(1), TASKS["burgers1d"], frames=some).item()
        for some in (slice(1), slice(3))
    ] == [0, 1]


def test_a_field_in_usual_units_has_the_error_of_the_formula_to_the_bit() -> None:
    pred, true = noise(3, 4, 16, 2), noise(3, 4, 16, 2)
    assert np.array_equal(nrmse(pred, true), rms(pred - true) / rms(true))


def test_a_sample_of_which_no_cell_counts_has_no_error() -> None:
    mask = np.zeros((2, 16), bool)
    mask[0] = True
    pred, true = noise(2, 3, 16, 1), noise(2, 3, 16, 1)
    assert rms(pred - true, mask)[1].tolist() == [[0.0]] * 3
    assert np.isfinite(rms(pred - true, mask)).all()


def test_where_nothing_is_in_any_channel_all_are_counted_and_none_beside_one_that_has_something() -> None:
    nothing = np.zeros((2, 3, 16, 2))
    errors = measure(nothing, nothing)
    assert errors.per_sample("nrmse").tolist() == errors.per_sample("trajectory-l2").tolist() == [0, 0]
    one = nothing.copy()
    one[..., 0] = 1.0
    for name in ("nrmse", "trajectory-l2"):
        assert measure(1.5 * one, one).per_sample(name) == pytest.approx(0.5)
    assert not measure(nothing + 1e-3, nothing).diverged.any(), "what is zero has no size from which to be far"


def test_the_boundary_error_of_a_mask_is_over_the_cells_of_faces_that_count() -> None:
    true, pred = np.zeros((1, 1, 4, 6, 1)), np.ones((1, 1, 4, 6, 1))
    mask = np.zeros((1, 4, 6), bool)
    mask[0, 0, 2:4] = mask[0, 1:3] = True
    pred[0, 0, 0, 2] = 3.0
    cells = [9, 1, *[1] * 4]  # two of the upper face, and both ends of two rows
    assert measure(pred, true, mask=mask).per_sample("brmse") == pytest.approx(np.sqrt(sum(cells) / 6))


def test_a_constant_field_correlates_where_it_is_met_and_what_is_broken_never() -> None:
    true = frames(*[np.full(N, 2.0)] * 3)
    pred = true.copy()
    pred[0, 1, 0], pred[0, 2, 5] = 3.0, np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        assert Comparison(pred, true).correlation[0, :, 0].tolist() == [1, 0, 0]


def test_an_error_whose_square_is_no_number_is_lost_in_every_metric() -> None:
    true = noise(2, 3, 16, 1)
    pred = true.copy()
    pred[1, 2, 4] = 1e200
    errors = measure(pred, true)
    assert errors.diverged.tolist() == [False, True]
    for name in ("rmse", "nrmse", "max", "crmse", "brmse", "vrmse", "frmse-low"):
        assert np.isinf(errors.frames(name)[1, :, 0]).tolist() == [False, False, True]
