"""Lists the runs below a folder with their true states, whatever else lies there; the best of each task."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ups.eval.intervals import number
from ups.eval.scores import SCORES
from ups.run_files import is_run
from ups.rundir import RunDir
from ups.types import DataError, Table, check_known
from ups_fleet.run_folders.errors import TaskError
from ups_fleet.run_folders.evidence import LivingProcesses, one_line
from ups_fleet.run_folders.state import COMPLETE, RunState, ago, state_of

DEPTH = 3  # folders below each other in which runs are looked for: those of sweeps lie one deeper
Order = Literal["changed", "error", "name", "time"]
WIDEST = 100  # letters of a sentence in a table


def runs_in(folder: Path, order: Order = "changed") -> list[RunState]:
    """Every run below `folder`, or the one in it; a DataError where there is no such folder."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {what}; name one that holds runs.")
    processes = LivingProcesses()
    states = [state_of(path, processes, name) for path, name in _folders(folder)]
    keys = {
        "changed": lambda s: (-s.changed, s.name),
        "error": lambda s: (s.error, s.name),
        "name": lambda s: s.name,
        "time": lambda s: (-(s.seconds or 0.0), s.name),
    }
    return sorted(states, key=keys[order])


def run_at(folder: Path) -> RunDir:
    """The folder of a run, finished or not; a DataError where there is none."""
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); check the path.") from None
    if not is_run(names):
        below = [name for name in sorted(names) if is_run(_names(folder / name))][:3]
        hint = f"; did you mean {folder / below[0]}?" if below else "; check the path, or see `ups runs`."
        raise DataError(f"{folder}: is not a run folder{hint}")
    return RunDir(folder)


def table_of(states: Sequence[RunState]) -> Table:
    """A row for each run, the header first."""
    head = ("run", "state", "error", "trained", "device", "last sign", "")
    return (head, *(_row(state) for state in states))


def summary_of(states: Sequence[RunState]) -> str:
    """How many there are of each kind, in one line."""
    counts: dict[str, int] = {}
    for state in states:
        counts[state.word] = counts.get(state.word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _row(state: RunState) -> tuple[str, ...]:
    errors = ", ".join(f"{task} {e.briefly}" for task, e in list(state.errors.items())[:3])
    errors += f" … ({len(state.errors)} tasks)" if len(state.errors) > 3 else ""
    took = "–" if state.seconds is None else ago(state.seconds)
    sign = f"{ago(max(0.0, time.time() - state.changed))} ago" if state.changed else "–"
    words = "" if state.sentence == f"{state.word}." else state.sentence
    words = one_line(words, WIDEST)
    return (one_line(state.name), state.word, errors or "–", took, state.device or "–", sign, words)


def _folders(top: Path) -> Iterator[tuple[Path, str]]:
    """The folders to look at, with their names; those that hold no run of their own are looked into."""
    names = _names(top)
    if is_run(names):
        yield top, top.name
        return
    yield from _below(top, "", DEPTH)


def _below(folder: Path, prefix: str, depth: int) -> Iterator[tuple[Path, str]]:
    try:
        entries = sorted((entry for entry in os.scandir(folder) if _is_folder(entry)), key=lambda entry: entry.name)
    except OSError:
        entries = []
    for entry in (entry for entry in entries if not entry.name.startswith(".")):
        path, name = Path(entry.path), f"{prefix}{entry.name}"
        if depth > 1 and not is_run(_names(path)):
            inner = list(_below(path, f"{name}/", depth - 1))
            if any(is_run(_names(below)) for below, _ in inner):
                yield from inner
                continue
        yield path, name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


TOP = 10
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def leaderboard(states: Sequence[RunState], task: str | None = None, top: int = TOP) -> tuple[Table, list[str]]:
    """A table of the best, task by task, and what to know before believing its order.

    Runs with one letter answered the same question: the same trajectories under the same protocol.
    """
    tasks = sorted({name for state in states for name in state.errors})
    if task is not None:
        check_known("judged task", (task,), tasks)
    rows: list[tuple[str, ...]] = [
        ("task", "", "run", SCORES["nrmse"].title, "/ persistence", "trajectories", "data", "")
    ]
    notes = [f"{one.name}: {one.sentence}" for one in states if one.word in COMPLETE and not one.errors]
    for name in tasks if task is None else [task]:
        groups = exams_of(states, name)
        letters = dict(zip(groups, LETTERS, strict=False))
        for exam, members in groups.items():
            for place, (state, e) in enumerate(members[:top], start=1):
                ratio = number(e.value / e.persistence) if e.persistence else "–"
                remark = "" if state.word == "finished" else state.word
                rows.append((name, str(place), state.name, e.words, ratio, str(e.n), letters.get(exam, "…"), remark))
        if len(groups) > 1:
            notes.append(
                f"{name}: runs with different letters were judged on other test data or under another protocol: their "
                "errors are NOT comparable."
            )
    return tuple(rows), notes


def exams_of(states: Sequence[RunState], task: str) -> dict[str, list[tuple[RunState, TaskError]]]:
    """The runs that were judged on a task, best first, by their exam; that which most have passed comes first."""
    groups: dict[str, list[tuple[RunState, TaskError]]] = {}
    for state in states:
        if task in state.errors:
            groups.setdefault(state.errors[task].exam, []).append((state, state.errors[task]))
    order = sorted(groups, key=lambda exam: (-len(groups[exam]), min(e.value for _, e in groups[exam])))
    return {exam: sorted(groups[exam], key=lambda pair: (pair[1].value, pair[0].name)) for exam in order}
