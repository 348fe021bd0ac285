"""A run as one of several to compare: its settings, its errors trajectory by trajectory, and its learning curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ups.eval.learning import LearningCurve, curves_of
from ups.eval.trajectories import PerTrajectory, main_rows
from ups.eval.trajectories import read as read_trajectories
from ups.parsing import flat, parse_yaml, read_text
from ups.rundir import RunDir
from ups.types import OURS, ConfigError, DataError
from ups_fleet.run_folders.evidence import one_line
from ups_fleet.run_folders.runs import run_at
from ups_fleet.run_folders.state import COMPLETE, RunState, state_of

SEED = "seed"  # which is noise, and no setting


@dataclass(frozen=True)
class Candidate:
    """One run. `settings` are all keys of its config, dotted; `incidental` those, and groups of them, that say how runs
    are called and carried out, and not what is learnt; `shared` those that are written once, and what they count for;
    `errors` those of its simulator by task."""

    name: str
    folder: RunDir
    state: RunState
    settings: Mapping[str, Any]
    incidental: frozenset[str]
    shared: Mapping[str, Sequence[str]]
    errors: Mapping[str, PerTrajectory]
    problem: str = ""  # why it has no errors

    @property
    def side(self) -> str:
        """Equal for runs that differ by their seed alone."""
        settings = {key: value for key, value in self.settings.items() if self.is_setting(key)}
        return json.dumps(settings, sort_keys=True, default=str)

    @cached_property
    def curves(self) -> list[LearningCurve]:
        return curves_of(self.folder.metrics)

    def is_setting(self, key: str) -> bool:
        """Whether a dotted key decides what is learnt, and not by chance alone."""
        return key != SEED and self.incidental.isdisjoint((key, *_above(key)))

    def value(self, key: str) -> str:
        """The value of a key, as a name says it: of one that is written once, of the first section."""
        name = next((name for name in (key, *_above(key)) if name in self.shared), None)
        own = key if name is None else self.shared[name][0] + key.removeprefix(name)
        return str(self.settings[own]) if own in self.settings else setting(self.settings, own)


def candidates(
    folders: Sequence[Path], incidental: frozenset[str], shared: Mapping[str, Sequence[str]]
) -> list[Candidate]:
    """The runs in these folders, named so that no two names are alike; a ConfigError where one stands there twice.
    `incidental` keys of their configs decide nothing of what is learnt; `shared` ones count for several sections."""
    runs = [run_at(folder) for folder in folders]
    places = [run.folder.resolve() for run in runs]
    for place in places:
        if places.count(place) > 1:
            raise ConfigError(f"{place}: is named twice; a run is compared with others, not with itself.")
    depth = 1
    while len({_name(place, depth) for place in places}) < len(places):
        depth += 1
    return [_candidate(run, _name(place, depth), incidental, shared) for run, place in zip(runs, places, strict=True)]


def settings_of(run: RunDir) -> dict[str, Any]:
    """The config of a run with dotted keys; a DataError where it is damaged."""
    try:
        values = parse_yaml(read_text(run.config, stored=True))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{run.config}: cannot be read ({one_line(str(error), 120)}); put it back.") from None
    return flat(values if isinstance(values, dict) else {})


def differing(runs: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """A row for each key in which settings differ: the key, then the value of each run; names and places left out. A
    group that some run has nothing of, such as a data set, is one row, and so is what is alike in all sections that a
    shared key counts for."""
    groups = [{above for key in run.settings for above in _above(key)} for run in runs]
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    shown = dict.fromkeys(next((a for a in _above(key) if any(a not in g for g in groups)), key) for key in keys)
    rows = []
    for key in (key for key in shown if key not in ("name", "out")):
        cells = [setting(run.settings, key) for run in runs]
        if len(set(cells)) > 1:
            rows.append((key, *(cell if len(cell) <= 60 else f"{cell[:60]} …" for cell in cells)))
    return _folded(rows, runs[0].shared)


def _folded(rows: Sequence[tuple[str, ...]], shared: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows by key, of which those of all that a shared key counts for, where they say the same, are one of it."""
    cells = {key: values for key, *values in rows}
    names = {key: key for key in cells}
    for name, (first, *others) in shared.items():
        for key in [key for key in cells if key == first or key.startswith(f"{first}.")]:
            same = [other + key.removeprefix(first) for other in others]
            if all(cells.get(other) == cells[key] for other in same):
                names[key] = name + key.removeprefix(first)
                names = {each: label for each, label in names.items() if each not in same}
    return [(label, *cells[key]) for key, label in names.items()]


def _above(key: str) -> list[str]:
    """The groups in which a dotted key lies, the outermost first."""
    parts = key.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def setting(settings: Mapping[str, Any], key: str) -> str:
    """The value of a key, or of what is set in a group, as JSON; a dash where there is none."""
    below = {name.removeprefix(f"{key}."): value for name, value in settings.items() if name.startswith(f"{key}.")}
    if key not in settings and not below:
        return "–"
    group = {name: value for name, value in below.items() if value not in (None, {})}
    return json.dumps(settings.get(key, group), ensure_ascii=False, default=str)


def _candidate(run: RunDir, name: str, incidental: frozenset[str], shared: Mapping[str, Sequence[str]]) -> Candidate:
    state, problem = state_of(run.folder, name=name), ""
    errors: dict[str, PerTrajectory] = {}
    try:
        errors = main_rows(read_trajectories(run.folder), OURS)
    except DataError as error:
        problem = str(error)
        if state.word not in COMPLETE:
            problem = f"{name}: {state.word}, so it has not been judged: {state.sentence}"
    return Candidate(
        name=name,
        folder=run,
        state=state,
        settings=settings_of(run),
        incidental=incidental,
        shared=shared,
        errors=errors,
        problem=problem,
    )


def _name(place: Path, depth: int) -> str:
    return "/".join(place.parts[-depth:])
