"""A run followed while it lives, from any terminal or machine that sees its folder: its state, and its logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ups.eval.learning import LOSS, SCORE, stage_of
from ups.parsing import Row, number_of
from ups.rundir import RunDir
from ups.types import ConfigError, DataError
from ups_fleet.run_folders.evidence import last_rows, place_of
from ups_fleet.run_folders.state import RunState, state_of

PAUSE = 1.0  # seconds between two looks
CHUNK = 1 << 20


def live_line(run: RunDir, state: RunState) -> str:
    """Where a run is, with its newest numbers."""
    rows = list(last_rows(run.metrics))
    loss, score, speed = (_newest(rows, state.stage, name) for name in (LOSS, SCORE, "samples_per_second"))
    words = [state.line]
    if state.word == "running":
        words += [f"loss {loss:.3g}"] if loss is not None else []
        words += [f"validation {score:.3g}"] if score is not None else []
        words += [f"{speed:.0f} samples/s"] if speed is not None else []
        words += [left] if (left := _left(rows, state)) else []
    return "  ".join(words)


def watch(run: RunDir, show: Callable[[RunState, str], None], pause: float = PAUSE) -> RunState:
    """Show the state of a run whenever it changes, until the run has ended; its last state."""
    before = ""
    while True:
        state = state_of(run.folder)
        line = live_line(run, state)
        if line != before:
            show(state, line)
        before = line
        if state.word not in ("running", "unclear") or (state.word == "unclear" and not state.host):
            return state
        time.sleep(pause)


def log_of(run: RunDir, rank: int = 0, attempt: int | None = None) -> Path:
    """The log of a rank in one start of the ranks, the newest by default; a DataError where there is none."""
    attempts = run.attempts()
    if attempt is not None and attempt not in attempts:
        known = ", ".join(map(str, sorted(attempts))) or "none"
        raise ConfigError(f"{run.folder}: has no start number {attempt}; there are {known}.")
    for number in sorted(attempts, reverse=True) if attempt is None else [attempt]:
        path = attempts[number] / f"rank-{rank}.log"
        if path.is_file():
            return path
    ranks = sorted({path.stem.removeprefix("rank-") for logs in attempts.values() for path in logs.glob("rank-*.log")})
    known = f"its ranks are {', '.join(ranks)}" if ranks else "its ranks have never been started"
    raise DataError(f"{run.folder}: has no log of rank {rank}; {known}.")


def log_text(run: RunDir, rank: int, attempt: int | None, lines: int | None, follow: bool) -> Iterator[str]:
    """A log, or its last lines; with `follow` what is written from then on, in later starts too, until the run ends."""
    path, place = log_of(run, rank, attempt), 0
    text, place = _read(path, 0)
    yield text if lines is None else "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    while follow:
        ended = state_of(run.folder).word != "running"
        newest = log_of(run, rank, attempt)
        text, place = _read(path, place)
        if text:
            yield text
        if newest != path:
            path, place = newest, 0
            yield f"{newest}:\n"
        elif ended and not text:
            return
        time.sleep(PAUSE)


def _read(path: Path, place: int) -> tuple[str, int]:
    """What a log holds from a place on, and where it ends."""
    parts = []
    try:
        with path.open("rb") as file:
            file.seek(place)
            while part := file.read(CHUNK):
                parts.append(part)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    content = b"".join(parts)
    return content.decode(errors="replace"), place + len(content)


def _newest(rows: list[Row], stage: str, name: str) -> float | None:
    values = (row.get(f"{stage}/{name}") for row in rows)
    return next((number for number in map(number_of, values) if number is not None), None)


def _left(rows: list[Row], state: RunState) -> str:
    """The time that the steps which are left will take, at the pace of the last rows."""
    mine = [row for row in rows if stage_of(row) == state.stage][:20]
    first, last = place_of(mine[::-1]), place_of(mine)
    if first is None or last is None or state.of is None or last.step <= first.step:
        return ""
    seconds = (last.time - first.time) / (last.step - first.step) * (state.of - last.step)
    return f"about {seconds:.0f} s of this stage left"
