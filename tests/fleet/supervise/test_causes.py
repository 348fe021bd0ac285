"""The rank that failed first is named, not the one that noticed."""

from __future__ import annotations

import dataclasses
import signal

from torch.distributed import DistNetworkError

from ups.heartbeat import PHASES, Beat
from ups.verdict import Ending, Failure
from ups_fleet.supervise.causes import culprit, first_cause, leaves
from ups_fleet.supervise.launchers.launcher import Exit
from ups_fleet.supervise.rank_states import RankState


def beat(rank: int, phase: str = "vote", step: int = 5, done: bool = False) -> Beat:
    zero = (0,) * len(PHASES)
    return Beat(rank, 100 + rank, step, phase, "", 1.0, 9, False, done, 8, zero, tuple(map(float, zero)))


def record(rank: int, clock: float, first_hand: bool = True, ending: Ending = Ending.CRASH) -> Failure:
    kind = "ValueError" if first_hand else "LostPeer"
    return Failure(rank, 5, "forward", ending, kind, "why", "trace", first_hand, not first_hand, clock, "now")


def echo(rank: int, clock: float) -> Failure:
    return record(rank, clock, first_hand=False, ending=Ending.RANK_DIED)


BEATS = {rank: beat(rank) for rank in range(4)}


def test_a_first_hand_exception_beats_an_earlier_echo() -> None:
    verdict = first_cause([echo(0, 1.0), record(2, 2.0), record(3, 3.0)], {}, BEATS)
    assert (verdict.rank, verdict.ending, verdict.traceback) == (2, Ending.CRASH, "trace")


def test_a_port_that_was_taken_is_named_and_not_the_rank_that_waited_for_it() -> None:
    error = DistNetworkError("failed to listen: port 1, EADDRINUSE, address already in use")
    taken = Failure.of(error, rank=0, step=0, phase="start")
    waiting = [RankState(1, 101, "S", beat(1, "start", 0), 1.2)]
    verdict = first_cause([taken], {}, BEATS, waiting)
    assert (verdict.ending, verdict.rank, verdict.restarts) == (Ending.RANK_DIED, 0, True)
    assert "address already in use" in verdict.cause


def test_a_killed_rank_beats_the_echoes_and_the_aborts_it_causes() -> None:
    exits = {1: Exit(1, -signal.SIGKILL, 2.0), 2: Exit(2, -signal.SIGABRT, 2.1), 0: Exit(0, 14, 2.2)}
    verdict = first_cause([echo(0, 1.9)], exits, BEATS)
    assert (verdict.rank, verdict.ending, verdict.kind) == (1, Ending.RANK_DIED, "SIGKILL")
    assert verdict.restarts


def test_an_abort_after_an_echo_is_still_an_echo() -> None:
    verdict = first_cause([echo(0, 1.0)], {0: Exit(0, -signal.SIGABRT, 1.1), 1: Exit(1, -signal.SIGKILL, 1.2)}, BEATS)
    assert verdict.rank == 1


def test_a_kill_by_the_kernel_for_lack_of_memory_is_out_of_memory() -> None:
    verdict = first_cause(
        [],
        {1: Exit(1, -signal.SIGKILL, 2.0)},
        BEATS,
        short={1: "was killed by the kernel because the host ran out of memory"},
    )
    assert (verdict.ending, verdict.microbatch) == (Ending.OOM, 8)


def test_a_rank_that_stands_still_beats_those_that_timed_out_waiting_for_it() -> None:
    places = [RankState(0, 100, "S", beat(0), 6.0), RankState(1, 101, "S", beat(1, "data", 5), 6.0)]
    verdict = first_cause([echo(0, 1.0)], {}, BEATS, places)
    assert (verdict.ending, verdict.rank, verdict.phase) == (Ending.HANG, 1, "data")


def test_of_those_over_the_limit_the_one_the_others_wait_for_is_named() -> None:
    waiting, busy = RankState(0, 100, "S", beat(0), 9.0), RankState(1, 101, "R", beat(1, "forward"), 5.0)
    stopped, behind = RankState(2, 102, "T", beat(2), 4.0), RankState(3, 103, "S", beat(3, step=4), 4.0)
    assert culprit([waiting, busy, stopped, behind]) == stopped
    assert culprit([waiting, busy, behind]) == busy
    assert culprit([waiting, behind]) == behind
    assert culprit([dataclasses.replace(busy, state="")]) is None


def test_a_lost_connection_with_nobody_to_blame_is_an_echo_worth_a_restart() -> None:
    places = [RankState(rank, 100 + rank, "S", beat(rank), 0.2) for rank in (0, 1)]
    verdict = first_cause([echo(0, 1.0), echo(1, 1.1)], {}, BEATS, places)
    assert (verdict.ending, verdict.echo, verdict.restarts) == (Ending.RANK_DIED, True, True)


def test_leaving_because_one_was_asked_is_preemption_unless_the_launcher_asked_after_a_failure() -> None:
    asked = {0: Exit(0, 15, 2.0), 1: Exit(1, -signal.SIGTERM, 2.1)}
    assert first_cause([], asked, BEATS).ending == Ending.PREEMPTED
    assert first_cause([echo(2, 3.0)], asked, BEATS).ending == Ending.PREEMPTED
    assert first_cause([echo(2, 1.0)], asked, BEATS).ending == Ending.RANK_DIED
    killed = {**asked, 2: Exit(2, -signal.SIGKILL, 3.0)}
    assert first_cause([], killed, BEATS).rank == 2


def test_code_0_is_a_disappearance_unless_the_rank_said_goodbye() -> None:
    verdict = first_cause([], {1: Exit(1, 0, 2.0)}, BEATS)
    assert (verdict.ending, verdict.rank) == (Ending.RANK_DIED, 1)
    done = {rank: beat(rank, done=True) for rank in (0, 1)}
    assert leaves(Exit(1, -signal.SIGABRT, 2.0), done[1]), "teardown is not work"
    verdict = first_cause([], {0: Exit(0, 0, 1.0), 1: Exit(1, 0, 2.0)}, done)
    assert "none said that the run succeeded" in verdict.cause


def test_an_exit_code_without_a_record_keeps_its_meaning() -> None:
    assert first_cause([], {0: Exit(0, 12, 1.0)}, BEATS).ending == Ending.DIVERGED
    assert first_cause([], {0: Exit(0, 77, 1.0)}, BEATS).ending == Ending.CRASH


def test_of_ranks_in_a_vote_the_one_that_has_not_cast_its_own_is_named() -> None:
    inside = dataclasses.replace(beat(0), waits=True)
    there = [
        RankState(0, 100, "S", inside, 9.0),
        RankState(1, 101, "S", beat(1), 8.9),
        RankState(2, 102, "S", inside, 9.1),
    ]
    found = culprit(there)
    assert found is not None
    assert found.rank == 1
    sharded = dataclasses.replace(beat(0, "backward"), waits=True)  # at a gate, in the middle of its backward pass
    found = culprit([RankState(0, 100, "S", sharded, 9.0), RankState(1, 101, "S", beat(1, "vote"), 5.0)])
    assert found is not None
    assert found.rank == 1
