"""Fields beside whose mean errors look small: which forecasts know no more than that mean, whatever the unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ups.eval.metrics import measure
from ups.eval.offsets import missed_beside_mean
from ups.types import Array

WAVES, NOISE = np.random.default_rng(0).normal(size=(2, 8, 6, 64, 1))
LEVELS = np.linspace(9e4, 1.1e5, 8).reshape(8, 1, 1, 1)  # of samples
HIGHER = 500 * np.linspace(-1, 1, 6).reshape(6, 1, 1)  # in time
AIR = 101325 + 30 * WAVES


def missed(predicted: Array, true: Array, steady: bool = False, mask: Array | None = None) -> bool:
    errors = measure(predicted.astype(np.float32), true.astype(np.float32), mask=mask)
    forecast: Any = SimpleNamespace(errors=errors, task=SimpleNamespace(channels=("p",), steady=steady))
    return bool(missed_beside_mean(forecast))


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
