"""Describes one run in lines for a terminal: what, where, how it ended, its errors and its curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ups.eval.intervals import number
from ups.eval.learning import LearningCurve, curves_of
from ups.eval.scores import HEADLINE, SCORES
from ups.parsing import read_json
from ups.rundir import RunDir
from ups.types import DataError, Table
from ups_fleet.run_folders.candidate import settings_of
from ups_fleet.run_folders.errors import TaskError, errors_of
from ups_fleet.run_folders.evidence import one_line, phases_of
from ups_fleet.run_folders.state import RunState, ago, state_of

HEIGHT, WIDTH = 6, 60  # of a chart, in letters
LEVELS = " ▁▂▃▄▅▆▇█"


def drawn(curve: LearningCurve, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """A chart as lines of text: columns of the values over the steps, on a logarithmic axis where all are positive."""
    finite = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if math.isfinite(v)]
    if not finite:
        return [f"{curve.title}: no finite number"]
    title = f"{curve.title}, {finite[-1][1]:.4g} at step {finite[-1][0]} (least {min(v for _, v in finite):.4g})"
    if finite[0][0] == finite[-1][0]:  # a single step is no curve
        return [title]
    columns = _columns(finite, width)
    shown = [value for value in columns if value is not None]
    scale = math.log if min(shown) > 0 else float
    low, high = scale(min(shown)), scale(max(shown))
    labels = {height - 1: f"{max(shown):.3g}", 0: f"{min(shown):.3g}"}
    lines = [title]
    for row in reversed(range(height)):
        cells = "".join(
            _cell(None if v is None else (scale(v) - low) / ((high - low) or 1), row, height) for v in columns
        )
        lines.append(f"{labels.get(row, ''):>9} ┤{cells}".rstrip())
    first, last = str(finite[0][0]), str(finite[-1][0])
    lines.append(f"{'':>9} └{'─' * len(columns)}")
    lines.append(f"{'':>11}{first}{last.rjust(max(1, len(columns) - len(first)))}")
    return lines


def _columns(points: Sequence[tuple[int, float]], width: int) -> list[float | None]:
    """The mean of the values in each of `width` equal parts of the steps; a part without one goes on as before."""
    first, last = points[0][0], points[-1][0]
    parts: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        parts[min(width - 1, int((step - first) / (last - first) * width))].append(value)
    columns: list[float | None] = []
    for part in parts:
        columns.append(sum(part) / len(part) if part else (columns[-1] if columns else None))
    return columns


def _cell(share: float | None, row: int, height: int) -> str:
    """The letter of a column in one row of a chart; the least value is still a line."""
    if share is None:
        return " "
    level = max(1, round(share * height * 8)) - row * 8
    return LEVELS[min(8, max(0, level))]


PHASES = 8  # that are named, the longest


def facts_of(run: RunDir) -> tuple[RunState, Table]:
    """The state of a run, and rows of what it is, where, and how it went."""
    state, environment = state_of(run.folder), read_json(run.environment)
    try:
        settings: Mapping[str, Any] = settings_of(run)
        problem = ""
    except DataError as error:
        settings, problem = {}, str(error)
    rows = [("state", state.line), ("folder", str(run.folder.resolve()))]
    rows += (
        [("config", problem)] if problem else [("trains", _what(settings)), ("seed", str(settings.get("seed", "–")))]
    )
    rows += [("begun", _begun(environment)), ("on", _where(environment, state)), ("took", _took(run, state))]
    rows += [("phases", _phases(run)), *_ended(run)]
    return state, tuple((name, value) for name, value in rows if value)


def errors_table(run: RunDir) -> tuple[Table, str]:
    """The error on each task, and why there is none where there is none."""
    try:
        errors = errors_of(run.folder)
    except DataError as error:
        return (), str(error)
    head = ("task", *(SCORES[kind].title for kind in HEADLINE), "persistence", "trajectories", "protocol", "verdict")
    return (head, *(_error_row(e) for e in errors.values())), ""


def curve_lines(run: RunDir, width: int, first: str = "") -> list[str]:
    """The learning curves, one below the other; those of the stage `first` before the others."""
    curves = sorted(curves_of(run.metrics), key=lambda curve: curve.stage != first)
    charts = [drawn(curve, width=max(20, min(100, width - 14))) for curve in curves]
    return [line for chart in charts for line in (*chart, "")]


def report_path(run: RunDir) -> str:
    return str(run.report) if run.report.is_file() else ""


def _error_row(e: TaskError) -> tuple[str, ...]:
    still = "–" if e.persistence is None else number(e.persistence)
    return (e.task, e.words, number(e.median), number(e.vrmse), still, str(e.n), e.protocol, e.verdict)


def _what(settings: Mapping[str, Any]) -> str:
    """The plan, and the data by task."""
    plan = " → ".join(map(str, settings.get("plan") or ()))
    tasks = [
        str(value) for key, value in settings.items() if key.startswith("data.") and key.endswith(".task") and value
    ]
    return f"{plan} on {', '.join(dict.fromkeys(tasks)) or 'its data'}"


def _begun(environment: Mapping[str, Any]) -> str:
    words = [str(environment[name]) for name in ("started", "command") if environment.get(name)]
    return ": ".join(words)


def _where(environment: Mapping[str, Any], state: RunState) -> str:
    versions = environment.get("versions")
    version = versions.get("ups") if isinstance(versions, dict) else None
    git = environment.get("git")
    commit = git.get("commit") if isinstance(git, dict) else git
    words = [state.host, str(environment.get("device") or ""), f"ups {version}" if version else ""]
    return ", ".join(word for word in (*words, f"commit {str(commit)[:12]}" if commit else "") if word)


def _took(run: RunDir, state: RunState) -> str:
    """Seconds of training, and where those of the last start went."""
    trained = "" if state.seconds is None else f"{ago(state.seconds)} of training"
    phases = {k: float(v) for k, v in read_json(run.phases).items() if isinstance(v, int | float)}
    longest = sorted(phases.items(), key=lambda pair: -pair[1])[:PHASES]
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest if seconds >= 0.05)
    whole = f"the last start {ago(sum(phases.values()))} in all: {parts}" if phases else ""
    return "; ".join(word for word in (trained, whole) if word)


def _phases(run: RunDir) -> str:
    """The phases of the run in their order, each as it ended last."""
    ends: dict[str, str] = {}
    for row in phases_of(run):
        name, result = one_line(f"{row.get('phase')} {row.get('part') or ''}", 40), row.get("result")
        seconds = row.get("seconds")
        took = f"{seconds:.1f} s" if isinstance(seconds, int | float) else "under way"
        ends.setdefault(name, took if result in (None, "done") else f"{took}, {one_line(str(result), 20)}")
    return ", ".join(f"{name} ({words})" for name, words in reversed(ends.items()))


def _ended(run: RunDir) -> Iterator[tuple[str, str]]:
    """When it ended, and each start of its ranks where there was more than one."""
    verdict = read_json(run.verdict)
    if verdict.get("verdict"):
        yield "ended", f"{verdict.get('time', '')}: {verdict['verdict']}: {' '.join(str(verdict.get('cause')).split())}"
    attempts = verdict.get("attempts")
    rows = [row for row in attempts if isinstance(row, dict)] if isinstance(attempts, list) else []
    for row in rows if len(rows) > 1 else []:
        took = row.get("seconds")
        words = f"{row.get('verdict')}, steps {row.get('from_step')} to {row.get('to_step')}"
        yield f"start {row.get('attempt')}", words + (f", {took:.0f} s" if isinstance(took, int | float) else "")
