"""Evidence of a failure: who was where, the stacks of ranks that stand still, and processes nobody owns any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ups.heartbeat import Beat
from ups.launch import flight
from ups.launch.causes import Place

STATES = {"T": "stopped", "t": "traced", "D": "waits for disk or driver", "R": "runs", "S": "sleeps", "Z": "gone"}


def state_of(pid: int) -> str:
    """The process state in /proc: R, S, D, T, t, Z; empty where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text[text.rindex(")") + 2]


def places(
    ranks: Iterable[int], pids: Mapping[int, int], beats: Mapping[int, Beat], silent: Callable[[int], float]
) -> list[Place]:
    """Where every rank is, now."""
    found = []
    for rank in sorted(ranks):
        beat = beats.get(rank)
        pid = pids.get(rank, beat.pid if beat else 0)
        found.append(Place(rank, pid, state_of(pid) if pid else "", beat, silent(rank)))
    return found


def stacks(there: Sequence[Place], folder: Path, wait: float = 1.5) -> list[Place]:
    """Ask every living rank for the stacks of its threads (SIGUSR2, answered in C even if the interpreter is locked).

    A rank that cannot answer (stopped, not yet set up) keeps an empty stack; that too is evidence.
    """
    asked = {}
    for place in there:
        path = folder / f"stack-{place.rank}"
        if place.state in ("", "Z") or not path.exists():  # no file: it has not said that it would answer
            continue
        asked[place.rank] = (path, _size(path))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(place.pid, signal.SIGUSR2)
    moving = {place.rank for place in there if place.state not in ("T", "t")} & asked.keys()
    sizes: dict[int, int] = {}
    end = time.monotonic() + wait
    while time.monotonic() < end:
        time.sleep(0.05)
        known, sizes = sizes, {rank: _size(asked[rank][0]) for rank in moving}
        if known == sizes and all(sizes[rank] > asked[rank][1] for rank in moving):
            break
    there = [replace(p, stack=_since(*asked[p.rank])) if p.rank in asked else p for p in there]
    return [replace(p, collective=flight.last(folder / f"flight-{p.rank}.json")) for p in there]


def table(there: Sequence[Place]) -> str:
    """Who was where, for people."""
    head: tuple[str, ...] = ("rank", "pid", "process", "phase", "step", "operation", "silent", "last collective")
    rows: list[tuple[str, ...]] = [
        (
            str(p.rank),
            str(p.pid or "-"),
            STATES.get(p.state, p.state) or "gone",
            p.beat.phase if p.beat else "(no heartbeat)",
            str(p.beat.step) if p.beat else "-",
            (p.beat.op if p.beat else "") or "-",
            f"{p.silent:.1f} s",
            p.collective or "-",
        )
        for p in there
    ]
    if not any(p.collective for p in there):
        head, rows = head[:-1], [row[:-1] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def rows(there: Sequence[Place]) -> list[dict[str, object]]:
    """Who was where, for verdict.json."""
    return [
        {
            "rank": p.rank,
            "pid": p.pid,
            "state": p.state,
            "phase": p.beat.phase if p.beat else None,
            "step": p.beat.step if p.beat else None,
            "op": p.beat.op if p.beat else "",
            "collective": p.collective,
            "silent": round(p.silent, 2),
        }
        for p in there
    ]


def keep(folder: Path, logs: Path) -> list[str]:
    """Copy what the ranks left behind (records, stacks, flight recorder dumps) beside their logs; the names kept."""
    kept = []
    for path in sorted(folder.iterdir()):
        wanted = path.name.startswith(("failure-", "stack-", "flight-", "where"))
        if wanted and path.is_file() and _size(path):
            shutil.copy(path, logs / path.name)
            kept.append(path.name)
    return kept


def owned(name: str, value: str) -> dict[int, dict[str, str]]:
    """Processes of this machine that were started with `name=value` in their environment, and their UPS_ variables."""
    wanted = f"{name}={value}".encode()
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            content = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        words = content.split(b"\0")
        if wanted in words and state_of(int(entry.name)) not in ("", "Z"):
            ours = [word.decode(errors="replace").partition("=") for word in words if word.startswith(b"UPS_")]
            found[int(entry.name)] = {key: text for key, _, text in ours}
    return found


def sweep(token: str, wait: float = 5.0) -> list[int]:
    """SIGKILL to every process that carries the token, until none is left; those that would not go (state D)."""
    end = time.monotonic() + wait
    while (left := owned("UPS_TOKEN", token)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(left)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _since(path: Path, offset: int) -> str:
    try:
        return path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""
