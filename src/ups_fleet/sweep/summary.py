"""What a sweep has found: its points in a table and a page, seeds taken together as mean and interval."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ups.eval.intervals import number
from ups.files import write_atomic
from ups.pages import Page, Section
from ups.parsing import read_record
from ups.run.config import without_effect, written_once
from ups.run_files import TRAJECTORIES
from ups.types import DataError, Table
from ups_fleet.run_folders.candidate import candidates
from ups_fleet.run_folders.compare import compare, curve_sections
from ups_fleet.run_folders.evidence import LivingProcesses
from ups_fleet.run_folders.state import COMPLETE, RunState, ago, state_of
from ups_fleet.sweep.axes import SweepPoint, short_names

RECORD, PAGE = "sweep.json", "sweep.html"
BEST = 6  # settings that are compared with each other
DRAWN = 12  # runs whose curves are drawn


@dataclass(frozen=True)
class Settings:
    """All runs of one combination of values. They are chosen by validation errors; test errors are only shown."""

    overrides: tuple[tuple[str, str], ...]
    states: tuple[RunState, ...]

    def values(self, task: str) -> list[float]:
        return [state.errors[task].value for state in self.states if task in state.errors]

    @property
    def scores(self) -> list[float]:
        """The validation errors of the runs that have one."""
        return [state.validation.value for state in self.states if state.validation is not None]

    @property
    def measures(self) -> list[str]:
        """What was validated, each once."""
        return list(dict.fromkeys(state.validation.measure for state in self.states if state.validation is not None))

    @property
    def missing(self) -> int:
        """Runs that have not ended well, or were not validated."""
        return sum(state.word not in COMPLETE or state.validation is None for state in self.states)

    @property
    def rank(self) -> tuple[int, float]:
        """What they are sorted by: settings of which a seed failed come behind those that have all."""
        return self.missing, sum(self.scores) / len(self.scores) if self.scores else math.inf

    @property
    def words(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.overrides) or "the config as it is"


def remember(folder: Path, points: Iterable[SweepPoint], command: Sequence[str]) -> list[SweepPoint]:
    """Add points to those that the record of a sweep holds already; all of them."""
    known = {point.name: point for point in recorded(folder)}
    known |= {point.name: point for point in points}
    rows = {p.name: {"overrides": dict(p.overrides), "seed": p.seed} for p in known.values()}
    text = json.dumps({"command": list(command), "points": rows}, indent=2, ensure_ascii=False)
    write_atomic(folder / RECORD, text + "\n")
    return list(known.values())


def recorded(folder: Path) -> list[SweepPoint]:
    """The points in the record of a sweep; none where there is no record yet. A DataError where it is damaged."""
    try:
        rows = read_record(folder / RECORD)["points"]
        points = []
        for name, row in rows.items():
            overrides = tuple((str(key), str(value)) for key, value in row["overrides"].items())
            points.append(SweepPoint(str(name), overrides, None if row["seed"] is None else int(row["seed"])))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder / RECORD}: is damaged ({error}); move it away, and the runs are seen again."
        ) from None
    return points


def settings_of(folder: Path, points: Sequence[SweepPoint]) -> list[Settings]:
    """The combinations of values with the states of their runs, the best first."""
    processes = LivingProcesses()
    groups: dict[tuple[tuple[str, str], ...], list[RunState]] = {}
    for point in points:
        groups.setdefault(point.overrides, []).append(state_of(folder / point.name, processes, point.name))
    rows = [Settings(overrides, tuple(states)) for overrides, states in groups.items()]
    return sorted(rows, key=lambda one: one.rank)


def table_of(settings: Sequence[Settings]) -> Table:
    """A row for each combination, the header first: its values, its validation error, the test error of each task, and
    how its runs stand."""
    keys = list(dict.fromkeys(key for one in settings for key, _ in one.overrides))
    names = short_names(keys)
    tasks = list(dict.fromkeys(task for one in settings for state in one.states for task in state.errors))
    seeds = any(len(one.states) > 1 for one in settings)
    head = (*(names[key] for key in keys), _validation(settings), *(f"test nRMSE {task}" for task in tasks))
    rows = [(*head, "trained", "runs")]
    for one in settings:
        values = dict(one.overrides)
        errors = [_mean(one.scores), *(_error(one, task) for task in tasks)]
        spent = [state.seconds for state in one.states if state.seconds is not None]
        states = _states(one.states) if seeds else f"{one.states[0].name}: {one.states[0].word}"
        rows.append((*(values.get(key, "–") for key in keys), *errors, ago(sum(spent)) if spent else "–", states))
    return tuple(rows)


def sentences_of(folder: Path, settings: Sequence[Settings]) -> list[str]:
    """Which settings are best by validation, and whether test trajectories tell them from the others; what failed, and
    why."""
    sentences = choice_of(settings)
    best = [one for one in settings if math.isfinite(one.rank[1])][:BEST]
    folders = [folder / s.name for one in best for s in one.states if s.errors and _has_trajectories(folder / s.name)]
    if len(folders) > 1:
        comparison = compare(candidates(folders, without_effect(), written_once()))
        first = comparison.sides[0]
        held = [pair.sentence for pair in comparison.pairs if pair.first is first]
        held += comparison.sentences() if len(comparison.sides) == 1 else []
        sentences += ["On test trajectories, by which nothing was chosen:"] * bool(held) + held
        if len(comparison.sides) > 1 and any(len(side.runs) == 1 for side in comparison.sides):
            sentences.append("Settings with one seed each: --seeds 3 says how much of it is noise.")
    states = [state for one in settings for state in one.states]
    for word in ("failed", "gate missed", "dead", "stopped", "paused", "unclear", "unreadable"):
        sentences += [f"{state.name}: {word}: {state.sentence}" for state in states if state.word == word]
    return sentences


def choice_of(settings: Sequence[Settings]) -> list[str]:
    """Which settings are best by their validation errors, and what keeps others from being ranked."""
    if not settings:
        return []
    first, measures = settings[0], list(dict.fromkeys(measure for one in settings for measure in one.measures))
    sentences = []
    if len(settings) > 1 and not first.missing and math.isfinite(first.rank[1]):
        sentences.append(f"Best on validation trajectories: {first.words} ({first.measures[0]} {_mean(first.scores)}).")
    elif first.missing and first.scores:
        sentences.append("No settings have a validation error of every run, so none is called best.")
    if len(measures) > 1:
        what = ", ".join(measures)
        sentences.append(f"Validated by different measures ({what}): their order says nothing between these.")
    lacking = [s.name for one in settings for s in one.states if s.word in COMPLETE and s.validation is None]
    if lacking:
        sentences.append(
            f"No validation error is in stages.json of {', '.join(lacking)}, so they are not ranked; remove their "
            "folders, and the same command makes them again."
        )
    return sentences


def page_of(folder: Path, settings: Sequence[Settings]) -> Page:
    """The page of a sweep: best settings, all of them, learning curves, what failed."""
    sentences = sentences_of(folder, settings)
    good = all(state.word == "finished" for one in settings for state in one.states)
    page = Page(f"Sweep: {folder.name}", "Settings in the order of their error on validation trajectories, by ")
    page.lead += (
        "which they are chosen; those of which a run did not finish come last. Errors on test trajectories stand "
    )
    page.lead += "beside that, and choose nothing. "
    page.lead += "Several seeds of one setting are shown as their mean with its 95 % interval."
    page.sections = [Section("Result", verdict="\n".join(sentences) or "Nothing has ended yet.", good=good)]
    page.sections.append(Section("Settings", table=table_of(settings)))
    finished = [folder / s.name for one in settings for s in one.states if s.errors][:DRAWN]
    if finished:
        page.sections += curve_sections(candidates(finished, without_effect(), written_once()))
    page.foot = "This page needs no network."
    return page


def write(folder: Path, points: Sequence[SweepPoint]) -> list[Settings]:
    """The page of a sweep as it stands; what it shows."""
    settings = settings_of(folder, points)
    page_of(folder, settings).write(folder / PAGE)
    return settings


def _error(one: Settings, task: str) -> str:
    """The error of a task: of one run with its interval over trajectories, of several their mean over seeds."""
    values = one.values(task)
    if len(values) == 1:
        return next(state.errors[task].words for state in one.states if task in state.errors)
    return _mean(values)


def _validation(settings: Sequence[Settings]) -> str:
    """The head of the column that settings are chosen by."""
    measures = dict.fromkeys(measure for one in settings for measure in one.measures)
    return " ".join(("validation", ", ".join(measures))).strip()


def _mean(values: Sequence[float]) -> str:
    """The mean over seeds with its interval; one alone has none."""
    if not values or not all(map(math.isfinite, values)):
        return number(math.inf) if values else "–"
    mean = sum(values) / len(values)
    if len(values) == 1:
        return number(mean)
    half = _half(values, mean)
    return f"{number(mean)} ({number(mean - half)} – {number(mean + half)}, {len(values)} seeds)"


def _half(values: Sequence[float], mean: float) -> float:
    """Half of Student's 95 % interval of a mean."""
    from scipy.special import stdtrit

    n = len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)


def _states(states: Sequence[RunState]) -> str:
    counts: Mapping[str, int] = {
        word: sum(s.word == word for s in states) for word in dict.fromkeys(s.word for s in states)
    }
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _has_trajectories(folder: Path) -> bool:
    return (folder / TRAJECTORIES).is_file()
