"""A rank that is slower than the others is named with its phase and its cost; ranks that are alike are left alone."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Any

import pytest

from ranks import run_ranks, values
from small_training import Fitting, Rows, Waves
from still_clock import StillClock, of_training
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.stragglers import LEAST, READINGS, Stragglers
from ups.engine.train import TrainConfig
from ups.heartbeat import Pulse
from ups.tensors import Losses, Window

PACE, EXTRA = 0.01, 0.12  # seconds that every rank takes in forward, and one more, by its own clock


class Slow(Fitting):
    def __init__(self, clock: StillClock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def loss(self, w: Window) -> Losses:
        self.clock.sleep(self.seconds)
        return super().loss(w)


class Late(Waves):
    def __init__(self, dist: Dist, clock: StillClock, seconds: float) -> None:
        super().__init__(dist)
        self.clock, self.seconds = clock, seconds

    def batch(self, step: int) -> Window:
        self.clock.sleep(self.seconds)
        return super().batch(step)


class Numbers(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.shares: list[tuple[float, float]] = []

    def log(self, step: int, values: Any) -> None:  # noqa: ARG002
        if "fitting/slowest_rank" in values:
            self.shares.append((values["fitting/slowest_rank"], values["fitting/waiting_for_it"]))


def trained(strategy: str, slow: int, phase: str, extra: float) -> dict[str, Any]:
    """A training of ranks that take as long as each other, but for one of them in one phase."""
    notes: list[str] = []
    config = DistConfig(ranks=int(os.environ["WORLD_SIZE"]), strategy=strategy)  # type: ignore[arg-type]
    with Dist.start("cpu", config) as dist:
        mine = extra if dist.rank == slow else 0.0
        clock, rows = of_training(), Numbers()
        stage = Slow(clock, PACE + (mine if phase == "forward" else 0))
        batches = Late(dist, clock, mine if phase == "data" else 0)
        settings = TrainConfig(
            steps=40, log_every=5, straggler=0.25 if extra else 0.5, validate_every=0, prefetch=0, drift_every=0
        )
        say = lambda progress: notes.append(progress.note) if progress.note else None  # noqa: E731
        pulse = Pulse(None, dist.rank, clock=clock.monotonic)
        outcome = Trainer(settings, stage, batches, dist, trackers=[rows], report=say, pulse=pulse).fit()
        return {"notes": notes, "stragglers": outcome.stragglers, "shares": dist.gather(rows.shares)[0]}


@pytest.mark.parametrize(
    ("strategy", "world", "phase"),
    [
        ("ddp", 3, "forward"),
        pytest.param("ddp", 3, "data", marks=pytest.mark.slow),
        pytest.param("fsdp", 2, "data", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_slow_is_named_once_with_its_phase_and_its_cost(strategy: str, world: int, phase: str) -> None:
    words = f"takes [0-9.]+ times as long in {phase} as the others .*: [0-9]+ % of every step is spent waiting for it"
    for end in values(run_ranks(trained, world, strategy, world - 1, phase, EXTRA)):
        assert re.match(f"rank {world - 1} on {re.escape(socket.gethostname())} {words}", end["notes"][0])
        row, *_ = end["stragglers"]
        assert (row["rank"], row["phase"]) == (world - 1, phase)
        assert row["seconds"] - row["usual"] == pytest.approx(EXTRA)
        rank, lost = end["shares"][-1]
        assert rank == world - 1
        assert 0.05 < lost <= 1


def test_ranks_that_are_alike_are_left_alone() -> None:
    for end in values(run_ranks(trained, 2, "ddp", 0, "forward", 0.0)):
        assert (end["notes"], end["stragglers"]) == ([], [])
        assert end["shares"], "the numbers are there all the same"


@pytest.mark.slow
def test_a_rank_of_low_priority_beside_a_busy_loop_is_named() -> None:
    for end in values(run_ranks(beside_a_loop, 2)):
        assert any("rank 1 on" in note and "waiting for it" in note for note in end)


def beside_a_loop() -> list[str]:
    """Rank 1 has the lowest priority on a core that a loop keeps busy."""
    notes: list[str] = []
    cores = sorted(os.sched_getaffinity(0))
    with Dist.start("cpu", DistConfig(ranks=2)) as dist:
        os.sched_setaffinity(0, {cores[dist.rank % len(cores)]})
        loop = None
        if dist.rank == 1:
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            os.nice(10)
        settings = TrainConfig(steps=60, log_every=5, validate_every=0, prefetch=0, drift_every=0)
        say = lambda progress: notes.append(progress.note) if progress.note else None  # noqa: E731
        try:
            Trainer(settings, Fitting(), Waves(dist, size=4096), dist, report=say).fit()
        finally:
            if loop is not None:
                loop.kill()
                loop.wait()
    return notes


def compared(*readings: tuple[float, ...], share: float = 0.25) -> list[str]:
    """What is said of ranks that work so many seconds in forward, five steps a reading; a step takes the longest."""
    notes: list[str] = []
    stragglers = Stragglers(Dist(world=len(readings[0])), Pulse(None, 0), share, notes.append)
    stragglers.hosts = [f"node-{rank}" for rank in range(len(readings[0]))]
    for number, seconds in enumerate(readings):
        rows = {f"{rank}/forward": (5 * each, 5.0) for rank, each in enumerate(seconds)}
        stragglers.judge({**rows, **{f"{rank}/": (5 * max(seconds), 5.0) for rank in range(len(seconds))}}, 5 * number)
    return notes


def test_the_sentence_says_who_where_by_how_much_and_what_it_costs() -> None:
    (sentence,) = compared(*[(0.10, 0.14, 0.10)] * 10)
    assert sentence == (
        "rank 1 on node-1 takes 1.4 times as long in forward as the others (140 instead of 100 ms a step): "
        "29 % of every step is spent waiting for it."
    )
    assert compared(*[(0.10, 0.12, 0.10)] * 20) == [], "less than a quarter"
    assert compared(*[(0.10, 0.14, 0.10)] * 20, share=0) == [], "never"
    assert compared(*[(0.1, 0.2)] * (max(READINGS, LEAST // 5) - 1)) == [], "not for long enough"
    assert compared((0.1, 0.2), (0.2, 0.1), (0.1, 0.2), (0.2, 0.1), (0.1, 0.2), (0.2, 0.1)) == [], "in turn"


def test_it_is_said_again_when_it_changes_and_when_it_is_over() -> None:
    notes = compared(*[(1.0, 1.5)] * 10, *[(1.0, 4.0)] * 10, *[(1.0, 1.0)] * 10, *[(2.0, 1.0)] * 10)
    first, second, over, other = notes
    assert "33 % of every step" in first
    assert "75 % of every step" in second
    assert over == "rank 1 on node-1 is no longer slower than the others."
    assert "rank 0 on node-0 takes 2.0 times as long" in other
