"""How long the stages of a run train that has so many minutes for everything."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ups.engine.train import TrainConfig
from ups.run.allowance import LEAST, Allowance, Waiting, shared
from ups.run.config import RunConfig


def test_training_validation_rivals_and_judging_fill_what_is_left_together() -> None:
    for waiting in (Waiting(validation=0.5, judging=20, step=0.1), Waiting(validation=30, judging=20, step=0.1)):
        shares = shared(200, waiting, 0.5, {"codec": 30, "operator": 170})
        training = sum(shares.values())
        validations = max(waiting.validation, 0.1 * training)
        assert training + validations + 0.5 * training + waiting.judging == pytest.approx(200)
        assert shares["codec"] / shares["operator"] == pytest.approx(30 / 170)


def test_no_stage_has_more_than_its_config_gives_nor_less_than_a_part_of_it() -> None:
    nothing = Waiting(0, 0, 0)
    assert shared(1e6, nothing, 0, {"operator": 60}) == {"operator": 60}
    assert shared(-5, nothing, 0, {"operator": 60}) == {"operator": LEAST * 60}


def allowed(minutes: float, waiting: Waiting, spent: float) -> tuple[list[float | None], list[str]]:
    trains = {"codec": TrainConfig(steps=200), "operator": TrainConfig(seconds=60 * minutes)}
    config = SimpleNamespace(
        plan=("codec", "operator"),
        stage=lambda name: SimpleNamespace(train=trains[name]),
        evaluation=SimpleNamespace(baselines=("linear",)),
    )
    said: list[str] = []
    allowance = Allowance(cast("RunConfig", cast("Any", config)), waiting, time.time() - spent, minutes)
    return [allowance.seconds(name, said.append) for name in config.plan], said


def test_what_went_before_training_is_taken_off_and_a_stage_of_steps_keeps_them() -> None:
    (codec, operator), said = allowed(10, Waiting(1, 30, 0.01), spent=100)
    assert codec is None
    assert operator == pytest.approx((600 - 100 - 30) / 1.15, abs=0.5)
    assert not said


def test_minutes_that_are_too_few_are_said_to_be_with_what_would_be_enough() -> None:
    (_, operator), (words,) = allowed(1, Waiting(8, 40, 2.0), spent=20)
    assert operator == pytest.approx(LEAST * 60)
    assert "1 minutes are short: 20 s went before training, judging will take about 40 s" in words
    minutes = float(words.split("minutes=")[1].split(" ")[0])
    (_, better), said = allowed(minutes, Waiting(8, 40, 2.0), spent=20)
    assert better is not None
    assert better / 2.0 >= 400 - 10
    assert not said
