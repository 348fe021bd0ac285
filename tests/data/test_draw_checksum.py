"""The ledger: what ranks were really given adds up to the order, and any other windows do not."""

from __future__ import annotations

import numpy as np
import pytest

from ups.data.draw_checksum import KEPT, WRAP, DrawChecksum, expected, share
from ups.data.sampler import Mix, Sampler

SAMPLER = Sampler(("burgers", "darcy"), (50, 7), 6, Mix(policy="proportional"), seed=4, batches={"darcy": 5})


def kept(rank: int, world: int, steps: range) -> DrawChecksum:
    ledger = DrawChecksum()
    for step in steps:
        task, windows = SAMPLER.indices(step, rank, world)
        ledger.add(step, task, SAMPLER.place(step, rank, world), windows)
    return ledger


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("first", [0, 13, 5000])
def test_the_ledgers_of_all_ranks_add_up_to_the_order(world: int, first: int) -> None:
    ledgers = [kept(rank, world, range(first, first + 40)) for rank in range(world)]
    for last in (first + 1, first + 25, first + 40):
        told = [ledger.until(last) for ledger in ledgers]
        assert {begun for begun, _ in told} == {first}
        assert sum(number for _, number in told) & WRAP == expected(SAMPLER, first, last)
        assert [number for _, number in told] == [share(SAMPLER, first, last, rank, world) for rank in range(world)]


def test_a_window_twice_two_exchanged_or_the_share_of_another_rank_do_not_add_up() -> None:
    right = expected(SAMPLER, 0, 20)
    other = kept(1, 2, range(20)).until(20)[1]
    for fault in ("twice", "exchanged", "task", "rank"):
        ledger = DrawChecksum()
        for step in range(20):
            task, windows = SAMPLER.indices(step, 0, 2)
            windows = windows.copy()
            if step == 11 and fault == "twice":
                windows[0] = windows[1]
            if step == 11 and fault == "exchanged":
                windows[:2] = windows[1::-1]
            if fault == "rank":
                task, windows = SAMPLER.indices(step, 1, 2)
            place = SAMPLER.place(step, 1 if fault == "rank" else 0, 2)
            ledger.add(step, 1 - task if fault == "task" and step == 11 else task, place, windows)
        assert (ledger.until(20)[1] + other) & WRAP != right, fault


def test_going_back_begins_it_anew_and_a_long_run_keeps_little() -> None:
    ledger = kept(0, 1, range(32))
    ledger.add(3, 0, 0, np.arange(4))
    assert ledger.until(3) == (3, 0)
    assert ledger.until(4)[0] == 3
    assert ledger.until(40) == (40, 0), "nothing was drawn"
    for step in range(4, 2 * KEPT):
        ledger.add(step, 0, 0, np.arange(1))
    assert ledger.until(2 * KEPT)[0] == 3
    assert len(ledger._sums) <= KEPT + 1
