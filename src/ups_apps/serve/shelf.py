"""The simulators of a service, loaded once: what happens to their files later changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ups.models import Simulator
from ups.models.encoders import Statistics
from ups.models.questions import to_continue, to_solve
from ups.models.request import Request
from ups.physics import EQUATIONS
from ups.run.load import load
from ups.rundir import RunDir
from ups.tensors import numeric_params
from ups.types import ConfigError, TaskSpec, check_known

LONGEST = 200  # steps that are offered at first; more may be asked for
MOST = 1000


@dataclass(frozen=True)
class Shelved:
    """A simulator under the name by which requests ask for it, and where it was loaded from."""

    name: str
    path: Path
    simulator: Simulator


class Shelf:
    """Simulators by name; a task that only one of them knows says which is meant."""

    def __init__(self, paths: Sequence[Path], device: str = "cpu") -> None:
        self.simulators: dict[str, Shelved] = {}
        for path in paths:
            stem = path.resolve().name if path.is_dir() else path.stem
            number, name = 2, stem
            while name in self.simulators:
                number, name = number + 1, f"{stem}-{number}"
            self.simulators[name] = Shelved(name, path, load(path, device))

    def simulator(self, name: str | None, task: str | None) -> Shelved:
        """The simulator that is meant; a ConfigError where none or several may be."""
        if name is not None:
            check_known("simulator", [name], self.simulators)
            return self.simulators[name]
        able = [one for one in self.simulators.values() if task is None or task in one.simulator.codec.tasks]
        if not able:
            check_known("task", [str(task)], [t for one in self.simulators.values() for t in one.simulator.codec.tasks])
        if len(able) > 1:
            raise ConfigError(f"several simulators may be meant ({', '.join(one.name for one in able)}); say which.")
        return able[0]

    def cards(self) -> list[dict[str, Any]]:
        """What there is to know of each task of each simulator, as JSON."""
        return [card_of(one, task) for one in self.simulators.values() for task in one.simulator.tasks]


def card_of(held: Shelved, task: TaskSpec) -> dict[str, Any]:
    """What there is to know of a task, as JSON: see `page.js`."""
    simulator, ranges = held.simulator, held.simulator.ranges()[task.name]
    low, high = ranges["dt"]
    fields, known = simulator.codec.statistics_of(task), {p.name: p for p in task.parameters}
    driven = simulator.operator.inputs.statistics_of(task.name) if task.inputs else None
    trust = simulator.trust.get(task.name)
    return {
        "name": task.name,
        "title": EQUATIONS[task.equation].task.title if task.equation and task.title == task.name else task.title,
        "simulator": held.name,
        "shape": list(simulator.codec.shapes[task.name]),
        "box": [list(ends) for ends in task.bounds],
        "periodic": list(task.periodic),
        "axes": list(task.axes[: task.ndim]),
        "steady": task.steady,
        "context": simulator.looks_back(task.name),
        "steps": 1 if task.steady else min(LONGEST, max(2, round(task.end / low))),
        "most": 1 if task.steady else MOST,
        "dt": low,
        "dt_range": [low, high],
        "fields": _ranged(task.channels, fields),
        "inputs": _ranged(task.given, driven) if driven is not None else [],
        "params": [_param(known, name, *ranges[name]) for name in numeric_params(task)],
        "draws": any(part.draws for part in simulator.awake(task)),
        "estimates": trust is not None and trust.error is not None,
        "equation": task.equation,
        "examples": 0,
        "random": False,
        "truth": False,
    }


def _ranged(names: Sequence[str], statistics: Statistics) -> list[dict[str, Any]]:
    """Names with the range of training: of what has none, its mean and three deviations."""
    rows = (statistics.mean, statistics.std, statistics.least, statistics.most)
    out = []
    for name, mean, std, least, most in zip(names, *(row.tolist() for row in rows), strict=True):
        ends = (least, most) if math.isfinite(least) and math.isfinite(most) else (mean - 3 * std, mean + 3 * std)
        out.append({"name": name, "range": list(ends)})
    return out


def _param(known: Mapping[str, Any], name: str, low: float, high: float) -> dict[str, Any]:
    """A parameter with its range of training and a value to begin with: the middle, of a positive range by its
    logarithm."""
    spec = known[name]
    middle: float | str = math.sqrt(low * high) if low > 0 else (low + high) / 2
    if spec.choices:
        middle = spec.choices[min(len(spec.choices) - 1, round(low))]
    limits = {"above": spec.above, "at_least": spec.at_least, "choices": list(spec.choices)}
    return {"name": name, "help": spec.help, "lo": low, "hi": high, "value": middle, **limits}


def warm(held: Shelved) -> None:
    """Take a step of each task, so that what is paid once is paid before the first request."""
    for task in held.simulator.tasks:
        card = card_of(held, task)
        fields = card["inputs" if task.steady else "fields"]
        means = torch.tensor([sum(f["range"]) / 2 for f in fields]).expand(*card["shape"], len(fields))
        params = {p["name"]: p["value"] for p in card["params"]}
        if task.steady:
            given = to_solve(held.simulator, means, params, task.name, None)
        elif not task.given:
            given = to_continue(held.simulator, means, 1, params, card["dt"], task.name, None, None)
        else:
            continue
        held.simulator.answer(Request(given.window, 1))


def about(held: Sequence[Shelved]) -> list[tuple[str, str]]:
    """A few facts of each simulator for people, as pairs of words."""
    rows: list[tuple[str, str]] = []
    for one in held:
        weights = sum(p.numel() for p in one.simulator.parameters())
        rows.append((one.name, f"{weights:,} weights; parts {', '.join(one.simulator.parts)}"))
        for task in one.simulator.tasks:
            cells = " × ".join(map(str, one.simulator.codec.shapes[task.name]))
            laws = ", ".join(law.name for law in EQUATIONS[task.equation]().laws()) if task.equation else ""
            rows.append((task.name, f"{cells} cells; {', '.join(task.channels)}" + (f"; laws: {laws}" if laws else "")))
        made = one.simulator.provenance
        rows += [(word, str(made[word])) for word in ("program", "config", "commit") if made.get(word)]
        if RunDir(one.path).config.is_file():
            rows.append(("from", one.path.name))
    return rows
