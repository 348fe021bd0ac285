"""The best runs of each task, with intervals; those that were judged on other test data are set apart."""

from __future__ import annotations

from collections.abc import Sequence

from ups.eval.intervals import number
from ups.types import Table, check_known
from ups_fleet.run_folders.errors import TaskError
from ups_fleet.run_folders.state import COMPLETE, RunState

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
        ("task", "", "run", "nRMSE (95 % interval)", "/ persistence", "trajectories", "data", "")
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
