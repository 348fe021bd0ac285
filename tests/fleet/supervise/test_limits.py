"""Time limits are learnt between a floor and a ceiling; a waiting rank is excused, a lost clock is nobody's fault."""

from __future__ import annotations

from ups.heartbeat import PHASES, Beat
from ups_fleet.supervise.limits import Limits, Silence

LIMITS = Limits(factor=10, floor=5, phase=60, first=300, start=100)


def beat(phase: str, count: int = 1, seen: int = 9, longest: float = 0.1, warm: bool = False, rank: int = 0) -> Beat:
    at = PHASES.index(phase)
    often = tuple(seen if i == at else 0 for i in range(len(PHASES)))
    long = tuple(longest if i == at else 0.0 for i in range(len(PHASES)))
    return Beat(rank, 1, 4, phase, "", 0.0, count, warm, False, 0, often, long)


def test_a_limit_is_a_multiple_of_what_was_needed_between_floor_and_ceiling() -> None:
    assert LIMITS.of(beat("forward", longest=2.0)) == 20
    assert LIMITS.of(beat("forward", longest=0.1)) == 5
    assert LIMITS.of(beat("forward", longest=50.0)) == 60
    assert LIMITS.of(beat("forward", seen=2)) == 60, "seen too rarely to learn from"
    assert LIMITS.of(beat("forward", warm=True)) == 300
    assert LIMITS.of(beat("save", seen=0)) == LIMITS.save
    assert LIMITS.of(None) == 100, "has not said a word yet"


class Hands:
    """A clock one can turn."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(watch: Silence, clock: Hands, beats: dict[int, Beat], seconds: float) -> None:
    """So many seconds without a new beat."""
    for _ in range(int(seconds * 10)):
        clock.now += 0.1
        watch.look(beats, beats)


def test_only_a_busy_rank_over_its_limit_is_overdue_not_those_who_wait_for_it() -> None:
    clock = Hands()
    watch = Silence(LIMITS, clock=clock)
    beats = {0: beat("vote"), 1: beat("data", longest=2.0)}
    watch.look(beats, beats)
    run(watch, clock, beats, 15)
    assert watch.overdue(beats, beats) == [], "rank 0 has waited long, but rank 1 may take 20 s"
    run(watch, clock, beats, 6)
    assert watch.overdue(beats, beats) == [1]
    beats[1] = beat("forward", count=2, longest=2.0)
    watch.look(beats, beats)
    assert watch.overdue(beats, beats) == []


def test_ranks_that_all_wait_for_each_other_are_overdue_unless_others_may_be_out_of_sight() -> None:
    clock = Hands()
    seen, partly = Silence(LIMITS, clock=clock), Silence(LIMITS, whole=False, clock=clock)
    beats = {0: beat("vote"), 1: beat("vote")}
    for watch in (seen, partly):
        watch.look(beats, beats)
    for _ in range(60):
        clock.now += 0.1
        seen.look(beats, beats)
        partly.look(beats, beats)
    assert seen.overdue(beats, beats) == [0, 1]
    assert partly.overdue(beats, beats) == []


def test_a_gap_in_the_watching_is_not_counted() -> None:
    clock = Hands()
    watch = Silence(LIMITS, clock=clock)
    beats = {0: beat("forward")}
    watch.look(beats, beats)
    run(watch, clock, beats, 2)
    clock.now += 3600
    watch.look(beats, beats)
    assert watch.silent(0) < 3
    assert watch.overdue(beats, beats) == []


def test_a_rank_with_a_clock_of_its_own_is_judged_by_ours() -> None:
    clock = Hands()
    watch = Silence(LIMITS, clock=clock)
    for count in range(100):
        clock.now += 0.1
        beats = {0: beat("forward", count=count)}  # its own time stands still at 0
        watch.look(beats, beats)
    assert watch.silent(0) == 0
