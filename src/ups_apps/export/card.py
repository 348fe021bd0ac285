"""The card of an export: what is in it, what its numbers mean, what it was trained on, and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ups.models import Simulator
from ups.tensors import numeric_params
from ups.types import Grid, TaskSpec
from ups.version import __version__

LICENCE = (
    "The program that this was made with is Apache-2.0. The weights were learnt from the data that are named here; "
    "whoever trained them says what may be done with them."
)
LEFT_OUT = (
    "ensembles: an export gives the one most likely answer, and draws nothing",
    "refinement of steady solutions to a tolerance, searches and estimates of the error",
    "other grids than the one of training, and values between its cells",
    "remarks on what lies outside the trained ranges: see `ranges`",
)


def card_of(simulator: Simulator, tasks: Sequence[TaskSpec], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is said of an export of these tasks, as JSON holds it."""
    return {
        "made_by": f"ups {__version__}",
        "licence": LICENCE,
        "leaves_out": list(LEFT_OUT),
        "parts": list(simulator.parts),
        "weights": sum(p.numel() for p in simulator.parameters()),
        "config": simulator.provenance.get("config"),
        "tasks": [_task(simulator, task) for task in tasks],
        **(more or {}),
    }


def _task(simulator: Simulator, task: TaskSpec) -> dict[str, Any]:
    statistics, ranges = simulator.codec.statistics_of(task), simulator.ranges()[task.name]
    shape = simulator.codec.shapes[task.name]
    choices = {p.name: list(p.choices) for p in task.parameters if p.choices}
    return {
        "name": task.name,
        "title": task.title,
        "equation": task.equation,
        "steady": task.steady,
        "grid": list(shape),
        "box": [list(ends) for ends in Grid(shape, task.periodic, task.bounds).bounds],
        "periodic": list(task.periodic),
        "axes": list(task.axes[: task.ndim]),
        "context": simulator.looks_back(task.name),
        "channels": [
            {"name": name, "least": low, "most": high}
            for name, low, high in zip(task.channels, statistics.least.tolist(), statistics.most.tolist(), strict=True)
        ],
        "inputs": list(task.given),
        "mask": task.mask or None,
        "params": [
            {"name": name, "ranges": list(ranges[name]), "choices": choices.get(name)} for name in numeric_params(task)
        ],
        "dt": list(ranges["dt"]),
    }
