"""Finds out which rank failed first, from the records, exits and heartbeats of all: one verdict."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ups.heartbeat import Beat
from ups.host_memory import KernelKills, address_space, full
from ups.shortage import last_words
from ups.verdict import Ending, Failure, Verdict
from ups_fleet.supervise.launchers.launcher import Exit
from ups_fleet.supervise.log_tail import FATAL, innermost_line
from ups_fleet.supervise.rank_states import RankState

STOP_SIGNALS = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGUSR1)


def first_cause(
    records: Sequence[Failure],
    exits: Mapping[int, Exit],
    beats: Mapping[int, Beat],
    states: Sequence[RankState] = (),
    overdue: bool = False,
    short: Mapping[int, str] = {},
    still: Mapping[int, str] = {},
) -> Verdict:
    """The verdict on a start of the ranks that failed. It names the rank that failed first, not the one that noticed.

    In this order: the earliest of what began on a rank itself (an exception, a signal, leaving without a word); a rank
    that stands still while the others wait for it; those that were asked to stop; the earliest echo of another rank's
    end. `overdue`: a rank is over its time limit. `short`: how want of memory ended a rank, where it did. `still`: the
    ranks that do nothing, with what they do instead; one of them is to blame.
    """
    echoes = {r.rank: r for r in records if not r.first_hand}
    began: list[tuple[float, Verdict]] = [(r.clock, r.verdict()) for r in records if r.first_hand]
    recorded = {r.rank for r in records}
    for rank, end in exits.items():
        if rank not in recorded and not leaves(end, beats.get(rank)):
            began.append((end.clock, _silent_end(end, beats.get(rank), short.get(rank, ""))))
    if began:
        return min(began, key=lambda pair: pair[0])[1]
    stuck = culprit([s for s in states if s.rank not in recorded and (not still or s.rank in still)])
    if stuck and (echoes or overdue) and _stands(stuck, overdue):
        return _hang(stuck, still.get(stuck.rank, ""))
    stopped = [e for e in exits.values() if e.code in (Ending.PREEMPTED, Ending.INTERRUPTED, *STOP_SIGNALS)]
    echo = min(echoes.values(), key=lambda r: r.clock, default=None)
    first = min(stopped, key=lambda e: e.clock, default=None)
    # A launcher asks the others to stop once one has failed: whoever was asked before that was asked by somebody else.
    if first and (echo is None or first.clock < echo.clock):
        return _stopped(first, beats)
    if echo:
        return echo.verdict()
    last = max(exits.values(), key=lambda e: e.clock, default=None)
    beat = beats.get(last.rank) if last else None
    return Verdict(
        Ending.RANK_DIED,
        "every rank left without an error, and none said that the run succeeded.",
        rank=last.rank if last else None,
        phase=beat.phase if beat else None,
        step=beat.step if beat else None,
    )


def culprit(states: Sequence[RankState]) -> RankState | None:
    """The rank that the others wait for, of those that exist: one that is stopped, else busy, else behind."""

    def order(state: RankState) -> tuple[bool, bool, bool, int, float]:
        beat = state.beat
        waits, inside = beat is not None and beat.waiting, beat is not None and beat.waits
        return not state.stopped, waits, inside, beat.step if beat else -1, -state.silent

    return min((state for state in states if not state.gone), key=order, default=None)


def _stands(state: RankState, overdue: bool) -> bool:
    """Whether this rank holds the others up: over its limit, stopped, or still in a phase where nobody waits."""
    busy = state.beat is None or not state.beat.waiting
    return overdue or state.stopped or (busy and state.silent >= 1.0)


def leaves(end: Exit, beat: Beat | None) -> bool:
    """Whether an exit is no failure by itself: its last beat said that it leaves on purpose, or it was asked to."""
    if beat is not None and beat.done:
        return True
    return end.code in (Ending.PREEMPTED, Ending.INTERRUPTED, *STOP_SIGNALS)


def _silent_end(end: Exit, beat: Beat | None, short: str) -> Verdict:
    ending, kind, at = Ending.RANK_DIED, "", ""
    if end.code < 0:
        kind = signal_name(-end.code)
        what, at = f"was killed by {kind}", innermost_line(end.tail) if FATAL in end.tail else ""
    elif end.code == 0:
        what = "left with code 0 without having finished"
    else:
        known = end.code in Ending._value2member_map_
        ending = Ending(end.code) if known else Ending.CRASH
        what = f"left with code {end.code}" + (f" ({ending.name})" if known else "") + " and no record of why"
    if short:
        ending, what = Ending.OOM, short
    return Verdict(
        ending,
        f"rank {end.rank} {what} {_where(beat)}{at}.",
        rank=end.rank,
        kind=kind,
        memory="host" if short else "",
        traceback=end.tail,
        **_at(beat),
    )


def _hang(state: RankState, doing: str) -> Verdict:
    how = {"T": "its process is stopped", "t": "its process is traced", "D": "waiting for a disk or a driver"}
    doing = doing or how.get(state.state, "")
    op = f" ({state.beat.op})" if state.beat and state.beat.op else ""
    return Verdict(
        Ending.HANG,
        f"rank {state.rank} stood still for {state.silent:.1f} s {_where(state.beat)}{op}{doing and f', {doing}'}.",
        rank=state.rank,
        traceback=state.stack,
        **_at(state.beat),
    )


def _stopped(end: Exit, beats: Mapping[int, Beat]) -> Verdict:
    """Somebody other than the supervisor told the ranks to stop."""
    by_keyboard = end.code in (Ending.INTERRUPTED, -signal.SIGINT)
    step = max((beat.step for beat in beats.values()), default=0)
    how = "interrupted" if by_keyboard else "asked to stop"
    return Verdict(
        Ending.INTERRUPTED if by_keyboard else Ending.PREEMPTED,
        f"the ranks were {how} and left at step {step}; --resume goes on.",
        rank=end.rank,
        step=step,
        phase=beats[end.rank].phase if end.rank in beats else None,
    )


def as_stopped(verdict: Verdict, by: signal.Signals, step: int, late: Sequence[int], after: str) -> Verdict:
    """A run that was asked to stop ends as asked, unless something went wrong that a restart would not mend.

    `late`: ranks that had not left `after` so long, and were killed.
    """
    if not verdict.restarts and verdict.ending not in (Ending.PREEMPTED, Ending.INTERRUPTED):
        return verdict
    how = f"stopped by {by.name} at step {step}"
    if late:
        how += f"; ranks {list(late)} had not left after {after} and were killed"
    elif verdict.restarts:
        how += f"; on the way out: {verdict.cause.rstrip('.')}"
    return replace(
        verdict,
        ending=Ending.INTERRUPTED if by == signal.SIGINT else Ending.PREEMPTED,
        cause=how + "; --resume goes on from the last verified checkpoint.",
        transient=False,
    )


def _at(beat: Beat | None) -> dict[str, Any]:
    """Where a rank was, for its verdict."""
    if beat is None:
        return {"phase": "start", "step": 0}
    return {"phase": beat.phase, "step": beat.step, "microbatch": beat.microbatch}


def _where(beat: Beat | None) -> str:
    return f"in {beat.phase} of step {beat.step}" if beat else "before its first heartbeat"


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


SHARED = "/dev/shm"
# What a process dies of whose library does not expect that memory can be refused.
BLIND = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}


class MemoryWatch:
    """Looks at the memory of the ranks while they live, for what is left to be known of it when one has died."""

    def __init__(self) -> None:
        self._kills = KernelKills()
        self._spaces: dict[int, tuple[int, int]] = {}  # by process: address space at its peak, and its limit
        self._unlimited: set[int] = set()

    def look(self, pids: Iterable[int]) -> None:
        pids = [pid for pid in pids if pid]
        self._kills.look(pids)
        for pid in pids:
            if pid not in self._unlimited:
                space = address_space(pid)
                if space is not None:
                    self._spaces[pid] = space
                elif pid not in self._spaces:
                    self._unlimited.add(pid)

    def cause(self, end: Exit, pid: int) -> str:
        """How want of memory ended a rank, in words that follow "rank N"; empty where it was something else."""
        if end.code == -signal.SIGKILL and self._kills.killed(pid, end.clock):
            return "was killed by the kernel because the host ran out of memory"
        how = f"was killed by {signal.Signals(-end.code).name}" if end.code in BLIND else f"left with code {end.code}"
        if end.code not in BLIND and end.code != 1:  # 1 is what an interpreter and a library's exit() give
            return ""
        if words := last_words(end.tail):
            return f"{how} for want of host memory, its last words being '{words}'"
        if pid in self._spaces and full(*self._spaces[pid]):
            peak, limit = self._spaces[pid]
            return f"{how} with {peak / 1e9:.2f} GB of the {limit / 1e9:.2f} GB of address space that ulimit -v allows"
        if end.code == -signal.SIGBUS and _full(SHARED):
            return f"{how} while {SHARED} was full, which takes host memory"
        return ""


def _full(folder: str) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < max(1 << 20, room.f_blocks * room.f_frsize // 1000)
