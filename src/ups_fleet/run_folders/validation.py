"""The error of a run on its validation trajectories, by which settings are chosen: from stages.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ups.eval.nrmse import over_tasks
from ups.parsing import read_json
from ups.rundir import RunDir

# What stages measure in physical space. A critic's guess is no error of a simulator.
MEASURES = ("nRMSE", "CRPS", "reconstruction")


@dataclass(frozen=True)
class Validation:
    """The error of the weights that were kept. `measure` names it, or several where tasks differ in it; `value` is the
    geometric mean over tasks, as stages score themselves."""

    measure: str
    value: float


def validation_of(run: RunDir) -> Validation | None:
    """Of each task the error that the last stage has measured of it in physical space; None where none has."""
    errors: dict[str, tuple[str, float]] = {}
    for outcome in read_json(run.stages).values():
        if isinstance(outcome, dict):
            errors |= {task: (measure, value) for task, measure, value in _measured(outcome)}
    if not errors:
        return None
    measures = " and ".join(dict.fromkeys(measure for measure, _ in errors.values()))
    values = [value for _, value in errors.values()]
    if not all(map(math.isfinite, values)):
        return Validation(measures, math.inf)
    return Validation(measures, over_tasks(values))


def _measured(outcome: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Task, measure and value of what the validation of the best step has found."""
    history = outcome.get("history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    best = next((row for row in reversed(rows) if row.get("step") == outcome.get("best_step")), {})
    for key, value in best.items():
        task, _, measure = key.rpartition(" ")
        if task and measure in MEASURES and isinstance(value, int | float):
            yield task, measure, float(value)
