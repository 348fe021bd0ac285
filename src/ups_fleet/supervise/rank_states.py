"""Where every rank is: process state, last heartbeat, stacks, last collective; as a table and for verdict.json."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ups.heartbeat import Beat
from ups_fleet.supervise import flight_recorder
from ups_fleet.supervise.log_tail import size_of
from ups_fleet.supervise.proc import state_of
from ups_fleet.supervise.start_dir import StartDir

STATES = {"T": "stopped", "t": "traced", "D": "waits for disk or driver", "R": "runs", "S": "sleeps", "Z": "gone"}
ANSWERED = 1.5  # seconds in which a rank that can write its stacks has written them


@dataclass(frozen=True)
class RankState:
    """Where a rank is. `state` as in /proc (R, S, D, T, Z; empty: gone); `silent`: seconds without a beat."""

    rank: int
    pid: int
    state: str
    beat: Beat | None
    silent: float
    stack: str = ""
    collective: str = ""  # the last one in its flight recorder, if it has written that

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def gone(self) -> bool:
        return self.state in ("", "Z")


def rank_states(
    ranks: Iterable[int], pids: Mapping[int, int], beats: Mapping[int, Beat], silent: Callable[[int], float]
) -> list[RankState]:
    """Where every rank is, now."""
    states = []
    for rank in sorted(ranks):
        beat = beats.get(rank)
        pid = pids.get(rank, beat.pid if beat else 0)
        states.append(RankState(rank, pid, state_of(pid) if pid else "", beat, silent(rank)))
    return states


def with_stacks(states: Sequence[RankState], start: StartDir) -> list[RankState]:
    """Ask every living rank for the stacks of its threads (SIGUSR2, answered in C even if the interpreter is locked).

    A rank that cannot answer (stopped, not yet set up) keeps an empty stack; that too is evidence.
    """
    sizes_before = {}
    for state in states:
        path = start.stack(state.rank)
        if state.gone or not path.exists():  # no file: it does not listen yet
            continue
        sizes_before[state.rank] = size_of(path)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(state.pid, signal.SIGUSR2)
    moving = {state.rank for state in states if not state.stopped} & sizes_before.keys()
    sizes: dict[int, int] = {}
    end = time.monotonic() + ANSWERED
    while time.monotonic() < end:
        time.sleep(0.05)
        last, sizes = sizes, {rank: size_of(start.stack(rank)) for rank in moving}
        if last == sizes and all(sizes[rank] > sizes_before[rank] for rank in moving):
            break
    return [
        replace(
            state,
            stack=_read_from(start.stack(state.rank), sizes_before[state.rank]) if state.rank in sizes_before else "",
            collective=flight_recorder.last(start.flight(state.rank)),
        )
        for state in states
    ]


def table(states: Sequence[RankState]) -> str:
    """Who was where, for people."""
    head: tuple[str, ...] = ("rank", "pid", "process", "phase", "step", "operation", "silent", "last collective")
    lines: list[tuple[str, ...]] = [
        (
            str(s.rank),
            str(s.pid or "-"),
            STATES.get(s.state, s.state) or "gone",
            s.beat.phase if s.beat else "(no heartbeat)",
            str(s.beat.step) if s.beat else "-",
            (s.beat.op if s.beat else "") or "-",
            f"{s.silent:.1f} s",
            s.collective or "-",
        )
        for s in states
    ]
    if not any(s.collective for s in states):
        head, lines = head[:-1], [line[:-1] for line in lines]
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in (head, *lines)
    )


def rows(states: Sequence[RankState]) -> list[dict[str, object]]:
    """Who was where, for verdict.json."""
    return [
        {
            "rank": s.rank,
            "pid": s.pid,
            "state": s.state,
            "phase": s.beat.phase if s.beat else None,
            "step": s.beat.step if s.beat else None,
            "op": s.beat.op if s.beat else "",
            "collective": s.collective,
            "silent": round(s.silent, 2),
        }
        for s in states
    ]


def keep_evidence(start: StartDir, logs: Path) -> None:
    """Copy what the ranks left behind (records, stacks, collectives) beside their logs."""
    for path in start.evidence():
        if path.is_file() and size_of(path):
            shutil.copy(path, logs / path.name)


def _read_from(path: Path, offset: int) -> str:
    try:
        return path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""
