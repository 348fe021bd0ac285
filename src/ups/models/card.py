"""The card of a task: what a simulator knows of it and what it was trained on, as JSON holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ups.models.encoders import Statistics
from ups.models.simulator_like import SimulatorLike
from ups.physics import EQUATIONS
from ups.tensors import numeric_params
from ups.types import Grid, TaskSpec


def task_card(simulator: SimulatorLike, task: TaskSpec) -> dict[str, Any]:
    """What there is to know of a task.

    `shape` and `box` are of its grid, `context` the frames that it looks back on, `dt_range` the least and the greatest
    step of training, `range` that of a field in training, `lo` and `hi` those of a parameter.
    """
    ranges, fields = simulator.ranges()[task.name], simulator.codec.statistics_of(task)
    shape, known = simulator.codec.shapes[task.name], {p.name: p for p in task.parameters}
    driven = simulator.operator.inputs.statistics_of(task.name) if task.inputs else None
    trust = simulator.trust.get(task.name)
    return {
        "name": task.name,
        "title": EQUATIONS[task.equation].task.title if task.equation and task.title == task.name else task.title,
        "equation": task.equation,
        "steady": task.steady,
        "shape": list(shape),
        "box": [list(ends) for ends in Grid(shape, task.periodic, task.bounds).bounds],
        "periodic": list(task.periodic),
        "axes": list(task.axes[: task.ndim]),
        "context": simulator.operator.looks_back(task.name),
        "dt_range": list(ranges["dt"]),
        "fields": _ranged(task.channels, fields),
        "inputs": [{"name": name} for name in task.given] if driven is None else _ranged(task.given, driven),
        "mask": task.mask or None,
        "params": [_param(known[name], *ranges[name]) for name in numeric_params(task)],
        "draws": any(part.draws for part in simulator.awake(task)),
        "estimates": trust is not None and trust.error is not None,
    }


def _ranged(names: Sequence[str], statistics: Statistics) -> list[dict[str, Any]]:
    """Names with the range of training: of what has none, its mean and three deviations."""
    rows = (statistics.mean, statistics.std, statistics.least, statistics.most)
    out = []
    for name, mean, std, least, most in zip(names, *(row.tolist() for row in rows), strict=True):
        ends = (least, most) if math.isfinite(least) and math.isfinite(most) else (mean - 3 * std, mean + 3 * std)
        out.append({"name": name, "range": list(ends)})
    return out


def _param(spec: Any, low: float, high: float) -> dict[str, Any]:
    """A parameter with its range of training and a value to begin with: the middle, of a positive range by its
    logarithm."""
    middle: float | str = math.sqrt(low * high) if low > 0 else (low + high) / 2
    if spec.choices:
        middle = spec.choices[min(len(spec.choices) - 1, round(low))]
    limits = {"above": spec.above, "at_least": spec.at_least, "choices": list(spec.choices)}
    return {"name": spec.name, "help": spec.help, "lo": low, "hi": high, "value": middle, **limits}
