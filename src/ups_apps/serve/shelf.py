"""The simulators of a service, loaded once: what happens to their files later changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ups.models import Simulator
from ups.models.card import task_card
from ups.models.questions import to_continue, to_solve
from ups.models.request import Request
from ups.physics import EQUATIONS
from ups.run.load import load
from ups.rundir import RunDir
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
    card = task_card(held.simulator, task)
    low = card["dt_range"][0]
    return {
        **card,
        "simulator": held.name,
        "steps": 1 if task.steady else min(LONGEST, max(2, round(task.end / low))),
        "most": 1 if task.steady else MOST,
        "dt": low,
        "examples": 0,
        "random": False,
        "truth": False,
    }


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
