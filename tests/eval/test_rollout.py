"""Rollouts: persistence, protocols, divergence, resolutions, and that no predictor sees the answer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from grids import grid_of
from ups.eval.results import times_of
from ups.eval.rollout import (
    AT_ONCE,
    PROTOCOLS,
    EvalProtocol,
    ModulePredictor,
    evaluate,
    persistence,
    protocol,
    reconstruct,
)
from ups.eval.trajectories import mark_of
from ups.physics import TASKS
from ups.tensors import Window
from ups.types import ConfigError, DataError, Field

TASK = TASKS["burgers1d"]
P = EvalProtocol("A", 2)


def waves(
    samples: int = 3, cells: int = 32, context: int = 2, ahead: int = 6, speed: float = 0.1, first: int = 0
) -> Window:
    """Travelling sines, each with its own phase, exactly sampled at any resolution."""
    x = (torch.arange(cells) + 0.5) / cells
    t = torch.arange(context + ahead)
    phase = torch.arange(first, first + samples) * 0.7
    values = torch.sin(2 * torch.pi * (x - speed * t[:, None]) + phase[:, None, None])[..., None]
    inputs, nu, dt = torch.zeros(samples, cells, 0), torch.full((samples, 1), 0.01), torch.full((samples,), 0.05)
    grid, ids = grid_of(inputs, (True,), (1.0,)), tuple(str(i) for i in range(first, first + samples))
    return Window(TASK, values[:, :context], values[:, context:], inputs, nu, dt, grid, ids)


@dataclass
class Shift:
    """Moves a sine by its speed, in Fourier space: exact at every resolution."""

    speed: float = 0.1
    name: str = "shift"

    def predict(self, window: Window, steps: int) -> Tensor:
        assert window.targets.shape[1] == 0, "a predictor is not shown the answer"
        modes = torch.fft.rfft(window.state, dim=1)
        k = torch.arange(modes.shape[1])[:, None]
        turned = [modes * torch.exp(-2j * torch.pi * k * self.speed * (s + 1)) for s in range(steps)]
        return torch.stack([torch.fft.irfft(m, n=window.state.shape[1], dim=1) for m in turned], 1)


@dataclass
class Broken:
    """Persistence, but the second sample of each window leaves."""

    value: float
    name: str = "broken"

    def predict(self, window: Window, steps: int) -> Tensor:
        made = persistence.predict(window, steps).clone()
        made[1, steps // 2 :] = self.value
        return made


def test_persistence_is_exact_on_what_does_not_change() -> None:
    found = evaluate(persistence, [waves(speed=0.0)], P)
    assert found.score == 0
    assert all(m.value == 0 for m in found.metrics() if m.name != "correlation-time")


def test_persistence_errs_on_a_wave_as_the_chord_of_its_angle() -> None:
    found = evaluate(persistence, [waves()], P)
    chord = 2 * np.abs(np.sin(np.pi * 0.1 * np.arange(1, 7)))
    assert found.against_time[0] == pytest.approx(chord, rel=1e-5)
    assert found.one_step.value == pytest.approx(chord[0], rel=1e-5)
    assert found.score == pytest.approx(chord.mean(), rel=1e-5)


def test_an_exact_predictor_is_exact_at_every_resolution() -> None:
    for cells in (16, 32, 100):
        found = evaluate(Shift(), [waves(cells=cells)], P)
        assert found.score < 1e-6
        assert found.spectra[0] == pytest.approx(found.spectra[1], abs=1e-6)
        assert found.spectra[0, 1, 0] == pytest.approx(0.5, rel=1e-4)


def test_batches_stream_and_give_the_same_as_one() -> None:
    whole = evaluate(Shift(0.09), [waves(6)], P, examples=2)
    parts = evaluate(Shift(0.09), iter([waves(4), waves(2, first=4)]), P, examples=2)
    assert parts.per_sample() == pytest.approx(whole.per_sample())
    assert parts.ids == whole.ids
    assert parts.spectra == pytest.approx(whole.spectra)
    assert [e.id for e in parts.examples] == ["0", "1"]
    assert parts.examples[0].times == pytest.approx(0.05 * np.arange(1, 7))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e4])
def test_a_rollout_that_diverges_is_counted_not_dropped(value: float) -> None:
    found = evaluate(Broken(value), [waves(3), waves(3, first=3)], P)
    assert found.diverged.tolist() == [False, True, False] * 2
    assert len(found) == 6
    assert found.score > 1e3
    metrics = {m.name: m for m in found.metrics() if m.mode == "strict"}
    assert metrics["diverged"].value == pytest.approx(1 / 3)
    assert metrics["nrmse-median"].value < 3
    assert np.isfinite(found.spectra).all()


def test_the_protocol_says_what_is_given_and_how_far() -> None:
    window = waves(context=12, ahead=30)
    found = evaluate(persistence, [window], PROTOCOLS["A"])
    assert (found.steps, found.protocol.label) == (30, "A")
    assert evaluate(persistence, [window], PROTOCOLS["B"]).steps == 1
    capped = evaluate(persistence, [window], PROTOCOLS["G"])
    assert capped.protocol.label == "G (1 given, 30 predicted)", "a shorter rollout is not called by the published name"
    assert protocol("A", context=2).label == "A (2 given, to the end)"
    with pytest.raises(ConfigError, match="no protocol 'Z'"):
        protocol("Z")
    with pytest.raises(DataError, match="10 given frames"):
        evaluate(persistence, [waves()], PROTOCOLS["A"])
    with pytest.raises(DataError, match="no window"):
        evaluate(persistence, [], P)
    with pytest.raises(ConfigError, match="one task and grid"):
        evaluate(persistence, [waves(), waves(cells=16)], P)


def test_the_last_frames_before_the_predicted_ones_are_given_and_no_earlier_ones() -> None:
    assert evaluate(Shift(), [waves(context=5)], P).score < 1e-5
    assert protocol("A", steps=3) == EvalProtocol("A", 10, 3)
    assert protocol("A", steps=3).label == "A (10 given, 3 predicted)"


def test_what_is_known_of_a_sample_stays_in_its_place_among_several_windows() -> None:
    windows = [dataclasses.replace(waves(first=at), params=torch.full((3, 1), 0.1 * at)) for at in (3, 0)]
    found = evaluate(persistence, windows, P)
    assert found.ids == ("3", "4", "5", "0", "1", "2")
    assert found.params[:, 0] == pytest.approx([0.3] * 3 + [0.0] * 3)
    assert found.marks == tuple(mark_of(window, i) for window in windows for i in range(3))


class TooFew(Shift):
    """Leaves the last frame out."""

    def predict(self, window: Window, steps: int) -> Tensor:
        return super().predict(window, steps - 1)


def test_what_predicts_other_frames_than_it_was_asked_for_and_windows_with_none_to_predict_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"shift predicted frames of shape \(3, 5, 32, 1\) where \(3, 6, 32, 1\)"):
        evaluate(TooFew(), [waves()], P)
    with pytest.raises(DataError, match="have 2 and 0; use longer trajectories"):
        evaluate(persistence, [waves(ahead=0)], P)


def test_a_network_predicts_many_samples_at_once_where_a_gpu_would_be_idle() -> None:
    sizes = [ModulePredictor("net", device, persistence.predict).at_once for device in ("cpu", "cuda:1")]
    assert sizes == [0, AT_ONCE]


def test_reconstruction_measures_the_codec_alone() -> None:
    found = reconstruct(lambda window, _: window.targets + 0.01, "cpu", [waves()], P)
    assert found.predictor == "reconstruction"
    assert found.per_sample("rmse") == pytest.approx(0.01, rel=1e-4)
    assert reconstruct(lambda window, _: window.targets, "cpu", [waves()], P, "valid").split == "valid"


def test_masked_cells_and_uneven_steps_are_judged_as_such() -> None:
    masked = dataclasses.replace(TASK, inputs=(Field.scalar("water"),), mask="water")
    window = waves(samples=2)
    mask = torch.ones(2, 32, 1)
    mask[:, 10:20] = 0
    targets = torch.where(mask.unsqueeze(1) > 0, window.targets, 1e3)
    uneven = torch.tensor([[0.1, 0.2, 0.3, 0.1, 0.2, 0.3]]).expand(2, 6)
    window = dataclasses.replace(window, task=masked, inputs=mask, targets=targets, dt=uneven)
    judged = evaluate(Shift(), [window], P)
    assert judged.score < 1e-5
    assert times_of(judged) == pytest.approx([0.1, 0.3, 0.6, 0.7, 0.9, 1.2])
    assert judged.examples[0].times == pytest.approx([0.1, 0.3, 0.6, 0.7, 0.9, 1.2])
    assert judged.examples[0].mask is not None
    assert judged.examples[0].mask.sum() == 22
    assert evaluate(Shift(), [window], EvalProtocol("A", 2, 3)).dt.shape == (2, 3)
    still = evaluate(persistence, [window], P)
    assert 0.1 < still.score < 2


@dataclass
class Together(Shift):
    """Predicts as many windows together as there are, as a GPU does."""

    at_once: int = 10**6


@pytest.mark.parametrize("predictor", [Shift(), Together()])
def test_even_and_uneven_times_of_one_task_are_judged_together(predictor: Shift) -> None:
    even = waves()
    uneven = dataclasses.replace(waves(first=3), dt=torch.tensor([[0.05, 0.1, 0.15, 0.05, 0.1, 0.15]] * 3))
    found = evaluate(predictor, [even, uneven, even], P)
    alone = [evaluate(predictor, [w], P) for w in (even, uneven)]
    np.testing.assert_array_equal(found.per_sample()[:6], np.concatenate([e.per_sample() for e in alone]))
    np.testing.assert_allclose(found.dt[[0, 3, 8]], [[0.05] * 6, uneven.dt[0], [0.05] * 6], rtol=1e-6)
    np.testing.assert_allclose(times_of(found)[-1], (6 * 0.3 + 3 * 0.6) / 9, rtol=1e-6)
