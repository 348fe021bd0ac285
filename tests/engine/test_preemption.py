"""A request to stop is remembered, or ends lone work at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from ups.engine.preemption import SIGNALS, Preempted, StopFlag
from ups.verdict import Ending


@pytest.fixture
def flag() -> Iterator[StopFlag]:
    old = {number: signal.getsignal(number) for number in SIGNALS}
    yield StopFlag().listen()
    for number, handler in old.items():
        signal.signal(number, handler)


def test_a_request_is_remembered_until_the_ranks_vote(flag: StopFlag) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert flag.raised
    assert flag.signal == "SIGUSR1"


def test_a_request_ends_lone_work_at_once(flag: StopFlag) -> None:
    with pytest.raises(Preempted, match=r"SIGTERM while data were made; --resume"), flag.at_once("data were made"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert Preempted.ending == Ending.PREEMPTED


def test_a_request_that_came_earlier_ends_lone_work_before_it_begins(flag: StopFlag) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Preempted), flag.at_once("the simulator was judged"):
        pytest.fail("it began")
