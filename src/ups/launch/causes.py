"""Who failed first: from the records, exits and heartbeats of all ranks to one verdict."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ups.heartbeat import Beat
from ups.launch.words import FATAL, innermost
from ups.verdict import Ending, Failure, Verdict

STOP_SIGNALS = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGUSR1)


@dataclass(frozen=True)
class Exit:
    """A rank that is gone: its exit code (negative: the signal that killed it), when, and the end of what it said."""

    rank: int
    code: int
    clock: float
    pid: int = 0
    tail: str = ""


@dataclass(frozen=True)
class Place:
    """Where a rank is: process state as in /proc (R, S, D, T, Z; empty: gone), last beat, seconds without a beat."""

    rank: int
    pid: int
    state: str
    beat: Beat | None
    silent: float
    stack: str = ""
    collective: str = ""  # the last one in its flight recorder, where it has left that


def first_cause(
    records: Sequence[Failure],
    exits: Mapping[int, Exit],
    beats: Mapping[int, Beat],
    places: Sequence[Place] = (),
    overdue: bool = False,
    out_of_memory: bool = False,
) -> Verdict:
    """The verdict of a failed attempt. It names the rank that failed first, not the one that noticed.

    In this order: the earliest of what began on a rank itself (an exception, a signal, leaving without a word); a rank
    that stands still while the others wait for it; those that were asked to stop; the earliest echo of somebody
    else's death. `out_of_memory`: the kernel has killed for lack of memory since the attempt began.
    """
    echoes = {r.rank: r for r in records if not r.first_hand}
    began: list[tuple[float, Verdict]] = [(r.clock, _told(r)) for r in records if r.first_hand]
    spoke = {r.rank for r in records}
    for rank, end in exits.items():
        if rank not in spoke and not leaves(end, beats.get(rank)):
            began.append((end.clock, _silent_end(end, beats.get(rank), out_of_memory)))
    if began:
        return min(began, key=lambda found: found[0])[1]
    stuck = culprit([place for place in places if place.rank not in spoke])
    if stuck and (echoes or overdue) and _stands(stuck, overdue):
        return _hang(stuck)
    stopped = [e for e in exits.values() if e.code in (Ending.PREEMPTED, Ending.INTERRUPTED, *STOP_SIGNALS)]
    echo = min(echoes.values(), key=lambda r: r.clock, default=None)
    asked = min(stopped, key=lambda e: e.clock, default=None)
    # A launcher asks the others to stop once one has failed: whoever was asked before that was asked by somebody else.
    if asked and (echo is None or asked.clock < echo.clock):
        return _asked(asked, beats)
    if echo:
        return _told(echo)
    last = max(exits.values(), key=lambda e: e.clock, default=None)
    where = beats.get(last.rank) if last else None
    return Verdict(
        Ending.RANK_DIED,
        "every rank left without an error, and none said that the run succeeded.",
        rank=last.rank if last else None,
        phase=where.phase if where else None,
        step=where.step if where else None,
    )


def culprit(places: Sequence[Place]) -> Place | None:
    """Of ranks that still exist, the one the others wait for: stopped, else busy rather than waiting, else behind."""

    def order(place: Place) -> tuple[bool, bool, bool, int, float]:
        beat = place.beat
        waits, inside = beat is not None and beat.waiting, beat is not None and beat.waits
        return place.state not in ("T", "t"), waits, inside, beat.step if beat else -1, -place.silent

    return min((p for p in places if p.state not in ("", "Z")), key=order, default=None)


def _stands(place: Place, overdue: bool) -> bool:
    """Whether this rank holds the others up: over its limit, stopped, or still in a phase where nobody waits."""
    busy = place.beat is None or not place.beat.waiting
    return overdue or place.state in ("T", "t") or (busy and place.silent >= 1.0)


def leaves(end: Exit, beat: Beat | None) -> bool:
    """An exit that is no failure by itself: after having said goodbye, however teardown went, or on request."""
    if beat is not None and beat.done:
        return True
    return end.code in (Ending.PREEMPTED, Ending.INTERRUPTED, *STOP_SIGNALS)


def _told(record: Failure) -> Verdict:
    """A user's mistake needs no more words than its own; it would be one on any rank."""
    where = f"rank {record.rank}, {record.phase} of step {record.step}: {record.kind}: "
    return Verdict(
        record.ending,
        record.sentence if record.ending == Ending.USER else where + record.sentence,
        rank=record.rank,
        phase=record.phase,
        step=record.step,
        kind=record.kind,
        traceback=record.traceback,
        transient=record.transient,
        echo=not record.first_hand,
        microbatch=record.microbatch,
    )


def _silent_end(end: Exit, beat: Beat | None, out_of_memory: bool) -> Verdict:
    ending, kind, at = Ending.RANK_DIED, "", ""
    if end.code < 0:
        kind = signal_name(-end.code)
        what, at = f"was killed by {kind}", innermost(end.tail) if FATAL in end.tail else ""
        if out_of_memory and -end.code == signal.SIGKILL:
            ending, what = Ending.OOM, "was killed by the kernel because the machine ran out of memory"
    elif end.code == 0:
        what = "left with code 0 without having finished"
    else:
        known = end.code in Ending._value2member_map_
        ending = Ending(end.code) if known else Ending.CRASH
        what = f"left with code {end.code}" + (f" ({ending.name})" if known else "") + " and no record of why"
    return Verdict(
        ending,
        f"rank {end.rank} {what} {_where(beat)}{at}.",
        rank=end.rank,
        phase=beat.phase if beat else "start",
        step=beat.step if beat else 0,
        kind=kind,
        traceback=end.tail,
        microbatch=beat.microbatch if beat else 0,
    )


def _hang(place: Place) -> Verdict:
    state = {"T": ", its process is stopped", "t": ", its process is traced", "D": ", waiting for a disk or a driver"}
    op = f" ({place.beat.op})" if place.beat and place.beat.op else ""
    return Verdict(
        Ending.HANG,
        f"rank {place.rank} stood still for {place.silent:.1f} s {_where(place.beat)}{op}{state.get(place.state, '')}.",
        rank=place.rank,
        phase=place.beat.phase if place.beat else "start",
        step=place.beat.step if place.beat else 0,
        traceback=place.stack,
        microbatch=place.beat.microbatch if place.beat else 0,
    )


def _asked(end: Exit, beats: Mapping[int, Beat]) -> Verdict:
    """Somebody else than the supervisor told the ranks to stop."""
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


def _where(beat: Beat | None) -> str:
    return f"in {beat.phase} of step {beat.step}" if beat else "before its first heartbeat"


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
