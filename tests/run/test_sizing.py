"""The rule for size and batch: with more minutes neither size nor steps fall; memory and bf16 where they pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from ups.engine.train import Precision
from ups.models.config import SIZES
from ups.run.sizing import BATCHES, RULES, Price, SizeChoice, choose

GIB = 2**30
MINUTES = [0.05 * 1.25**i for i in range(50)]  # three seconds to two days
# Multiplications of a sample, in units of a tiny network's; seconds of that; seconds that any step takes at least.
WORK = {"tiny": 1.0, "small": 5.0, "base": 130.0, "large": 700.0}
DEVICES = {"two cores": ("cpu", 3e-3, 5e-3), "a GPU": ("cuda", 3e-5, 3e-3), "an old GPU": ("cuda", 3e-4, 1e-2)}
DATA = {"1D": 0.05, "2D": 1.0, "3D": 20.0}


def priced(device: str, data: str, faster: float = 4.0) -> Callable[[str, int, Precision], Price]:
    _, sample, least = DEVICES[device]

    def price(size: str, batch: int, precision: Precision) -> Price:
        seconds = WORK[size] * batch * DATA[data] * sample / (faster if precision == "bf16" else 1)
        return Price(max(least * math.log2(2 + WORK[size]), seconds), WORK[size] * batch * DATA[data] * 2**24)

    return price


def chosen(device: str, data: str, minutes: float, room: float = 64 * GIB, faster: float = 4.0) -> SizeChoice:
    return choose(priced(device, data, faster), DEVICES[device][0], 60 * minutes, room)


def test_every_size_there_is_has_its_rule_and_needs_more_steps_at_a_lower_rate_than_those_before() -> None:
    assert list(RULES) == list(SIZES)
    rules = list(RULES.values())
    assert [r.steps for r in rules] == sorted({r.steps for r in rules})
    assert [-r.rate for r in rules] == sorted({-r.rate for r in rules})


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("device", DEVICES)
def test_with_more_minutes_neither_the_size_nor_the_steps_fall(device: str, data: str) -> None:
    """Of a size the steps grow with the minutes. Where the next size takes its place, they are still as many as those
    that the smaller one had to have room for: what it took beyond them is spent on the size."""
    sizes, choices = list(RULES), [(60 * m, chosen(device, data, m)) for m in MINUTES]
    needed = [*(rule.steps for rule in RULES.values()), math.inf]
    for (less, a), (more, b) in itertools.pairwise(choices):
        before, after = sizes.index(a.size), sizes.index(b.size)
        assert after >= before
        assert b.steps(more) >= min(a.steps(less), needed[before + 1])
        assert b.steps(more) >= RULES[b.size].steps
        if after == before:
            assert (a.batch, a.precision) == (b.batch, b.precision)
    assert len({choice.size for _, choice in choices}) > 1, "the minutes decide something"


def test_a_larger_size_that_has_few_steps_is_not_taken_though_its_minutes_are_more() -> None:
    """As happened: 38 million numbers took 700 steps in 400 s, and were worse than a small network in 120 s."""
    sooner, later = chosen("a GPU", "2D", 2), chosen("a GPU", "2D", 400 / 60)
    assert sooner.size == later.size == "small"
    assert later.steps(400) > sooner.steps(120)


def test_a_batch_grows_while_a_step_is_hardly_longer_for_it_and_shrinks_to_fit() -> None:
    assert chosen("a GPU", "1D", 2).batch == BATCHES["cuda"][1], "kernels of 1D data are too small to fill a GPU"
    assert chosen("a GPU", "3D", 2).batch == BATCHES["cuda"][0]
    assert chosen("a GPU", "2D", 2, room=16 * 2**24).batch == 16
    assert chosen("a GPU", "2D", 2, room=15 * 2**24).batch == 8
    assert chosen("a GPU", "2D", 1e6, room=15 * 2**24).size == "tiny", "what has no room is not taken in any time"
    assert chosen("a GPU", "3D", 2, room=1).batch == 1


def test_large_networks_are_trained_in_bf16_where_a_gpu_is_faster_with_it_and_nothing_on_a_processor_is() -> None:
    day = 24 * 60.0
    assert chosen("a GPU", "2D", day).size in ("base", "large")
    assert chosen("a GPU", "2D", day).precision == "bf16"
    assert chosen("a GPU", "2D", 2).precision == "fp32"
    assert {chosen("an old GPU", "2D", m, faster=1.1).precision for m in MINUTES} == {"fp32"}
    assert {chosen("two cores", "1D", m).precision for m in MINUTES} == {"fp32"}
