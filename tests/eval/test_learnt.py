"""What is called learnt: each field, and more than a mean beside which errors look small, whatever the unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ups.eval.learnt import no_better_than_mean, shortfall
from ups.eval.metrics import measure
from ups.types import Array, Field

WAVES, NOISE = np.random.default_rng(0).normal(size=(2, 8, 6, 64, 1))
LEVELS = np.linspace(9e4, 1.1e5, 8).reshape(8, 1, 1, 1)  # of samples
HIGHER = 500 * np.linspace(-1, 1, 6).reshape(6, 1, 1)  # in time
AIR = 101325 + 30 * WAVES


def missed(predicted: Array, true: Array, steady: bool = False, mask: Array | None = None) -> bool:
    errors = measure(predicted.astype(np.float32), true.astype(np.float32), mask=mask)
    forecast: Any = SimpleNamespace(errors=errors, task=SimpleNamespace(channels=("p",), steady=steady))
    return bool(no_better_than_mean(forecast, [0]))


@pytest.mark.parametrize("unit", [1e6, 1.0, 1e-3, 1e-6, 1e-9])
def test_the_unit_of_a_field_does_not_matter(unit: float) -> None:
    assert missed(unit * np.full_like(AIR, 101325), unit * AIR)
    assert not missed(unit * (AIR + 6 * NOISE), unit * AIR)


@pytest.mark.parametrize("value", [101325.3, 0.1, 3.0])
def test_of_a_constant_field_there_is_nothing_to_miss(value: float) -> None:
    """Not even where its forecast is rounded otherwise."""
    constant = np.full_like(AIR, value, dtype=np.float32)
    assert not missed(constant, constant)
    assert not missed(np.nextafter(constant, np.float32(1e9)), constant)


def test_frames_that_are_exactly_right_count() -> None:
    nearly = AIR.copy()
    nearly[0, -1] += 60 * NOISE[0, -1]
    assert not missed(nearly, AIR)
    assert not missed(AIR, AIR)


@pytest.mark.parametrize("unit", [1e-12, 1e6])
def test_units_are_anyones(unit: float) -> None:
    assert missed(unit * (101325 + 0 * WAVES), unit * AIR)
    assert not missed(unit * (AIR + 9 * NOISE), unit * AIR)


def test_a_given_state_tells_the_level_of_its_sample_and_inputs_do_not() -> None:
    true, flat = LEVELS + 30 * WAVES, LEVELS + 0 * WAVES
    assert missed(flat, true)
    assert not missed(true + 9 * NOISE, true)
    assert not missed(flat[:, :1], true[:, :1], steady=True), "which level belongs to which inputs is learnt"


def test_a_level_that_changes_in_time_is_more_than_a_mean() -> None:
    assert not missed(101325 + HIGHER + 0 * WAVES, AIR + HIGHER)
    assert missed(101325 + 0 * WAVES, AIR + HIGHER)


def test_cells_that_do_not_count_and_frames_that_are_lost_change_nothing() -> None:
    mask = np.arange(64) >= 40 + 0 * np.arange(8)[:, None]
    lost = np.where(np.arange(6).reshape(6, 1, 1) > 3, np.nan, 0.0)
    for predicted, wanted in ((np.full_like(AIR, 101325), True), (AIR + 6 * NOISE, False)):
        assert missed(predicted, np.where(mask[:, None, :, None], AIR, 0.0), mask=mask) == wanted
        assert missed(predicted + lost, AIR) == wanted


def verdict(
    true: dict[str, Array], wrong: dict[str, float], still: dict[str, float], linear: dict[str, float] | None = None
) -> str:
    """On fields `(8, 6, 64, 1)`, with errors of so much of their noise for ours, persistence and a linear model."""
    task = SimpleNamespace(fields=tuple(map(Field.scalar, true)), channels=tuple(true), steady=False)
    truth = np.concatenate([*true.values()], -1)

    def forecast(sizes: dict[str, float]) -> Any:
        noise = np.concatenate([size * np.abs(true[name]).max() * NOISE for name, size in sizes.items()], -1)
        errors = measure(truth + noise, truth)
        return SimpleNamespace(errors=errors, task=task, per_sample=lambda: errors.per_sample("nrmse"))

    return shortfall(forecast(wrong), forecast(still), linear=linear and forecast(linear)).words


def test_a_field_that_is_worse_than_no_forecast_is_named_whatever_the_mean_over_fields_says() -> None:
    three = {"u": WAVES, "v": WAVES, "w": WAVES}
    still = {"u": 1.0, "v": 0.3, "w": 1.0}
    assert verdict(three, {"u": 0.01, "v": 0.01, "w": 0.01}, still) == "learnt"
    words = verdict(three, {"u": 0.01, "v": 0.4, "w": 0.01}, {**still, "v": 0.3})
    assert words == "learnt, but not v: no better than persistence"
    words = verdict(three, {"u": 0.28, "v": 0.01, "w": 0.2}, {"u": 2.0, "v": 0.3, "w": 0.15})
    assert words == "learnt, but not u and w: u is no better than predicting zero, w is no better than persistence"
    two = {"u": WAVES, "w": 5 + 0.001 * WAVES}
    words = verdict(two, {"u": 0.28, "w": 0.002}, {"u": 0.4, "w": 0.001})
    assert words == "NOT LEARNT: u is no better than predicting zero, w is no better than persistence"


def test_a_field_that_a_linear_model_foretells_better_is_named_whatever_the_mean_over_fields_says() -> None:
    two, still, ours = {"u": WAVES, "v": WAVES}, {"u": 1.0, "v": 1.0}, {"u": 0.01, "v": 0.05}
    assert verdict(two, ours, still, {"u": 0.5, "v": 0.06}) == "learnt"
    words = verdict(two, ours, still, {"u": 0.5, "v": 0.04})
    assert words.startswith("learnt, but not v: worse than a linear model (0.")
    assert verdict(two, ours, still, {"u": 0.5, "v": np.nan}) == "learnt", "one that is lost is worse than any"
    assert verdict(two, {"u": 1e-9, "v": 0.0}, still, {"u": 0.0, "v": 0.0}) == "learnt", "no more than rounding"


def test_one_field_of_several_channels_is_judged_by_their_mean_alone() -> None:
    task = SimpleNamespace(fields=(Field.vector("v", "v_x", "v_y"),), channels=("v_x", "v_y"), steady=False)
    truth = np.concatenate([WAVES, WAVES], -1)
    ours, still = (measure(truth + np.concatenate([a * NOISE, b * NOISE], -1), truth) for a, b in ((0.9, 0), (0.7, 2)))
    forecasts: list[Any] = [
        SimpleNamespace(errors=e, task=task, per_sample=lambda e=e: e.per_sample("nrmse")) for e in (ours, still)
    ]
    assert shortfall(forecasts[0], forecasts[1]).words == "learnt"


def test_a_constant_field_fails_nothing_while_it_stays_about_what_it_is() -> None:
    """Persistence is exact there but for rounding, and no forecast is better."""
    fields = {"u": WAVES, "c": np.full_like(WAVES, 3.0)}
    still = {"u": 0.5, "c": 0.0}
    assert verdict(fields, {"u": 0.01, "c": 1e-8}, still) == "learnt"
    assert verdict(fields, {"u": 0.01, "c": 1e-3}, {**still, "c": 1e-9}) == "learnt"
    assert verdict(fields, {"u": 0.01, "c": 0.2}, still) == "learnt, but not c: no better than persistence"


def test_where_nothing_changes_nothing_is_learnt() -> None:
    assert (
        verdict({"c": np.zeros_like(WAVES)}, {"c": 0.0}, {"c": 0.0}) == "NOT LEARNT: nothing changes in what is judged"
    )
    assert verdict({"u": WAVES}, {"u": 0.01}, {"u": 0.5}) == "learnt"
