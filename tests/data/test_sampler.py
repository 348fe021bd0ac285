"""The sampler: every window once per epoch at any number of ranks, any step at once, tasks as often as asked."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from ups.data.sampler import CYCLE, LEAD, Mix, Sampler, permuted
from ups.types import ConfigError, DataError

NAMES, COUNTS = ("burgers", "darcy", "advection"), (1000, 40, 333)
FROZEN, HUGE = [1, 0, 3, 5, 2, 4, 6, 8, 9, 7], [763514136136, 291517675828, 814297962233]


def drawn(sampler: Sampler, steps: range, world: int) -> dict[int, list[list[tuple[int, list[int]]]]]:
    """Per rank the (task, windows) of every step, as a process of that rank would record them."""
    found: dict[int, list[list[tuple[int, list[int]]]]] = {}
    for rank in range(world):
        rows = [sampler.indices(step, rank, world) for step in steps]
        found[rank] = [[(task, windows.tolist())] for task, windows in rows]
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 17, 100, 1013, 65536])
def test_an_epoch_is_a_permutation_at_any_size(count: int) -> None:
    sampler = Sampler(["a"], [count], batch=8)
    epochs = [sampler.sequence(0, e * count, (e + 1) * count) for e in range(3)]
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(count))
    if count > 10:
        assert all(not np.array_equal(a, b) for a, b in pairwise(epochs))


def test_all_orders_of_few_windows_come_equally_often() -> None:
    sampler = Sampler(["a"], [4], batch=1, seed=5)
    seen = Counter(tuple(sampler.sequence(0, 4 * e, 4 * e + 4)) for e in range(2400))
    expected = 2400 / 24
    chi = sum((seen[p] - expected) ** 2 / expected for p in seen)
    assert len(seen) == 24
    assert chi < 23 + 5 * math.sqrt(2 * 23)


def test_neighbours_in_an_epoch_are_not_neighbours_in_the_data() -> None:
    order = Sampler(["a"], [100_003], batch=1).sequence(0, 0, 20_000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / math.sqrt(20_000)
    assert abs(order.mean() / 100_003 - 0.5) < 5 * 0.29 / math.sqrt(20_000)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("policy", ["uniform", "proportional", "temperature", "weights"])
def test_recorded_sequences_hold_every_window_exactly_once_in_each_of_two_epochs(world: int, policy: str) -> None:
    """An independent reading of what ranks recorded: it knows counts and batch, and nothing of how they are drawn."""
    weights = {"burgers": 3.0, "darcy": 1.0, "advection": 1.5} if policy == "weights" else {}
    mix, batches, counts = Mix(policy=policy, weights=weights), (7, 4, 7), (300, 12, 100)  # type: ignore[arg-type]
    sampler = Sampler(NAMES, counts, 7, mix, seed=3, batches={"darcy": 4})
    recorded = drawn(sampler, range(450), world)
    streams: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in range(450):
        shares = [recorded[rank][step][0] for rank in range(world)]
        assert len({task for task, _ in shares}) == 1, "all ranks draw the same task"
        sizes = [len(windows) for _, windows in shares]
        assert sum(sizes) == batches[shares[0][0]]
        assert max(sizes) - min(sizes) <= 1
        streams[shares[0][0]] += [w for _, windows in shares for w in windows]
    for task, count in enumerate(counts):
        assert len(streams[task]) >= 2 * count, "the record is too short to prove anything"
        for epoch in range(2):
            part = streams[task][epoch * count : (epoch + 1) * count]
            assert sorted(part) == list(range(count))
            told = hashlib.sha256(np.array(part, "<i8").tobytes()).hexdigest()
            assert sampler.digest(task, epoch) == told


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_global_sequence_is_the_same_at_any_number_of_ranks_and_from_any_step(world: int) -> None:
    mix = Mix(policy="proportional")
    alone = Sampler(NAMES, COUNTS, 9, mix, seed=1)
    for first in (0, 1, 777, CYCLE - 2, 10**9 + 7):
        fresh = Sampler(NAMES, COUNTS, 9, mix, seed=1)  # as a resumed process makes it
        for step in range(first, first + 5):
            shares = [fresh.indices(step, rank, world) for rank in range(world)]
            task, windows = alone.indices(step)
            assert {t for t, _ in shares} == {task}
            assert np.array_equal(np.concatenate([w for _, w in shares]), windows)


@pytest.mark.parametrize("policy", ["proportional", "temperature", "weights", "uniform"])
def test_tasks_are_drawn_as_often_as_their_policy_says_over_a_cycle_and_within_it(policy: str) -> None:
    weights = {"burgers": 0.7, "darcy": 0.05, "advection": 0.25} if policy == "weights" else {}
    mix = Mix(policy=policy, temperature=3.0, weights=weights)  # type: ignore[arg-type]
    asked = {
        "uniform": np.ones(3),
        "proportional": np.array(COUNTS, float),
        "temperature": np.array(COUNTS, float) ** (1 / 3),
        "weights": np.array([0.7, 0.05, 0.25]),
    }[policy]
    share = asked / asked.sum()
    sampler = Sampler(NAMES, COUNTS, 4, mix)
    tasks = np.array([sampler.draw(step).task for step in range(CYCLE)])
    for steps in (100, 1000, CYCLE):
        found = np.bincount(tasks[:steps], minlength=3)
        assert np.abs(found - share * steps).max() <= 3, "closer than chance would be"
        assert tuple(found) == sampler.turns(steps)
    later = sampler.draw(5 * CYCLE + 17)
    assert later.turn == sampler.turns(5 * CYCLE + 17)[later.task]


def test_by_default_tasks_take_turns() -> None:
    sampler = Sampler(NAMES, COUNTS, 4)
    assert [sampler.draw(n) for n in range(7)] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]


def test_weighted_tasks_are_shuffled_anew_in_each_cycle_and_by_each_seed() -> None:
    def order(seed: int, cycle: int) -> list[int]:
        sampler = Sampler(NAMES, COUNTS, 4, Mix(policy="proportional"), seed)
        return [sampler.draw(cycle * CYCLE + n).task for n in range(500)]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_a_faint_weight_is_drawn_at_least_once_in_a_cycle_and_none_at_zero() -> None:
    mix = Mix(policy="weights", weights={"burgers": 1e9, "darcy": 1e-9, "advection": 0.0})
    assert Sampler(NAMES, COUNTS, 4, mix).turns(CYCLE) == (CYCLE - 1, 1, 0)


def test_by_error_a_validation_counts_from_a_fixed_number_of_steps_later_and_the_past_stays() -> None:
    heard: list[tuple[int, dict[str, float]]] = []
    sampler = Sampler(NAMES, COUNTS, 4, Mix(policy="error"), validations=lambda: heard)
    before = [sampler.indices(n)[1].tolist() for n in range(300)]
    heard.append((100, {"burgers": 0.4, "darcy": 0.1, "advection": 0.1}))
    after = [sampler.indices(n)[1].tolist() for n in range(300)]
    assert before[: 100 + LEAD] == after[: 100 + LEAD]
    assert before != after
    start, steps = 100 + LEAD, CYCLE
    gained = np.subtract(sampler.turns(start + steps), sampler.turns(start))
    assert np.abs(gained / steps - np.array([4, 1, 1]) / 6).max() < 1e-3
    heard.append((2000, {"burgers": 0.1, "darcy": math.nan, "advection": 0.1}))
    resumed = Sampler(NAMES, COUNTS, 4, Mix(policy="error"), validations=lambda: heard)
    for step in (0, 99, 170, 1999, 2000 + LEAD, 9000):
        assert np.array_equal(resumed.indices(step)[1], sampler.indices(step)[1])
    late = np.subtract(resumed.turns(2000 + LEAD + CYCLE), resumed.turns(2000 + LEAD))
    assert late.argmax() == 1, "a task that is lost counts most"


def test_by_error_every_window_still_comes_once_per_epoch_across_changes() -> None:
    heard = [(n, {"burgers": 1.0 + n % 3, "darcy": 1.0, "advection": 2.0 - n % 2}) for n in range(50, 1500, 90)]
    sampler = Sampler(NAMES, COUNTS, 7, Mix(policy="error"), seed=2, validations=lambda: heard)
    streams: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in range(1500):
        task, windows = sampler.indices(step)
        streams[task] += windows.tolist()
    for task, count in enumerate(COUNTS):
        for epoch in range(len(streams[task]) // count):
            assert sorted(streams[task][epoch * count : (epoch + 1) * count]) == list(range(count))
    assert sampler.epochs(1500) == tuple(len(streams[t]) // n for t, n in enumerate(COUNTS))


def test_the_order_is_the_same_on_every_machine() -> None:
    """Numbers written down once: integer arithmetic has no platform."""
    assert Sampler(["a"], [10], 1, seed=0).sequence(0, 0, 10).tolist() == FROZEN
    assert permuted(np.arange(3), 10**12, (1, 2, 3, 4, 5, 6, 7, 8)).tolist() == HUGE


def test_all_that_ranks_must_agree_on_differs_where_anything_does() -> None:
    base = Sampler(NAMES, COUNTS, 4).facts()
    assert base == Sampler(NAMES, COUNTS, 4).facts()
    others = [Sampler(NAMES, COUNTS, 4, seed=1), Sampler(NAMES, (1000, 41, 333), 4), Sampler(NAMES, COUNTS, 5)]
    others += [Sampler(NAMES, COUNTS, 4, batches={"darcy": 5})]
    assert all(base["order"] != other.facts()["order"] for other in others)


def test_what_cannot_be_drawn_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="sum to zero"):
        Mix(policy="weights", weights={"a": 0.0, "b": 0.0})
    with pytest.raises(ConfigError, match=r"mix\.weights\.a is -1"):
        Mix(policy="weights", weights={"a": -1.0})
    with pytest.raises(ConfigError, match=r"mix\.weights are missing"):
        Mix(policy="weights")
    with pytest.raises(ConfigError, match=r"mix\.temperature is 0"):
        Mix(policy="temperature", temperature=0)
    with pytest.raises(ConfigError, match="no number for darcy"):
        Sampler(NAMES, COUNTS, 4, Mix(policy="weights", weights={"burgers": 1.0}))
    with pytest.raises(ConfigError, match="names wave"):
        Sampler(["burgers"], [4], 4, Mix(policy="weights", weights={"burgers": 1.0, "wave": 1.0}))
    with pytest.raises(DataError, match="darcy has no windows"):
        Sampler(NAMES, (10, 0, 10), 4)
