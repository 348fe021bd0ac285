"""States to begin with: unseen samples of a run's own data, and random draws of an equation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ups.data.trajectories import Trajectories
from ups.jobs.relative_paths import found_config
from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.physics.solver import Equation
from ups.run.data.datasets import as_known, open_sets
from ups.run.load import config_of
from ups.rundir import RunDir
from ups.tensors import numeric_params
from ups.types import Array, ConfigError, DataError, Grid, TaskSpec, UpsError
from ups_apps.serve.shelf import Shelved

SEED = 20_260  # of random draws: others than those of any training


class Beginning(NamedTuple):
    """A state with what drives it, or of a steady task that alone; and the parameters it belongs to."""

    state: Array | None
    inputs: Array | None
    params: dict[str, float | str]
    dt: float | None


class UnseenSamples:
    """The unseen samples of the run that a simulator is of, open until `stack` closes; none where its data are gone."""

    def __init__(self, held: Shelved, stack: ExitStack, say: Callable[[str], None]) -> None:
        self.held, self.parts = held, dict[str, Trajectories]()
        folder = RunDir(held.path)
        if not folder.config.is_file():
            return
        try:
            config = found_config(config_of(RunDir.at(held.path)))
            made = folder.cache("data")
            if any(not (data.there or made.is_dir()) for data in config.data.values()):
                raise DataError(f"{made}: the data that the run was trained on are gone.")
            sets = open_sets(config.data, made, _silent, stack)
            for data in as_known(sets, held.simulator.codec.tasks):
                if data.task.name in held.simulator.codec.tasks and (parts := data.parts("test")):
                    self.parts[data.task.name] = parts[0]
        except UpsError as error:
            say(f"no samples to begin with: {error}")

    def count(self, task: str) -> int:
        """How many there are of a task."""
        return len(self.parts[task]) if task in self.parts else 0

    def __getitem__(self, key: tuple[str, int]) -> Beginning:
        """The first frames of a sample."""
        name, index = key
        if not 0 <= index < self.count(name):
            raise ConfigError(f"{name} has {self.count(name)} samples here, counted from 0; there is no {index}.")
        part, simulator = self.parts[name], self.held.simulator
        task = simulator.codec.task(name)
        back = 1 if task.steady else min(simulator.looks_back(name), int(part.lengths[index]))
        window = part.window([index], [0], back, 0)
        params = _named(task, window.params[0])
        state = None if task.steady else window.context[0].numpy()
        return Beginning(state, _inputs(task, window.inputs[0]), params, None if task.steady else float(window.dt[0]))


def _silent(_: object) -> None:
    """Not shown."""


def _inputs(task: TaskSpec, inputs: Tensor) -> Array | None:
    return inputs.float().numpy() if task.given else None


def _named(task: TaskSpec, numbers: Tensor) -> dict[str, float | str]:
    """Parameters by name: words as words."""
    choices = {p.name: p.choices for p in task.parameters}
    pairs = zip(numeric_params(task), numbers.tolist(), strict=True)
    return {name: choices[name][int(value)] if choices[name] else value for name, value in pairs}


def equation_of(task: TaskSpec, params: dict[str, Any]) -> Equation:
    """The equation of a task with those of the parameters that it has; a ConfigError where the task is not its own."""
    kind = EQUATIONS[task.equation] if task.equation else None
    own = kind is not None and (kind.task.channels, kind.task.given) == (task.channels, task.given) and not task.mask
    if kind is None or not own or kind.task.steady != task.steady:
        raise ConfigError(f"{task.name} has no equation that is known here, so nothing can be drawn or solved.")
    names = {p.name for p in kind.parameters()}
    return kind(**{name: value for name, value in params.items() if name in names})


def has_equation(task: TaskSpec) -> bool:
    """Whether a task has an equation of its own here."""
    try:
        equation_of(task, {})
    except UpsError:
        return False
    return True


def drawn(held: Shelved, name: str, seed: int) -> Beginning:
    """A random initial state of the equation of a task, and what drives it, on the grid of training."""
    task = held.simulator.codec.task(name)
    ranges = held.simulator.ranges()[task.name]
    low = {p.name: ranges[p.name][0] for p in task.parameters if p.name in ranges and not p.choices}
    equation = equation_of(task, low)
    grid = Grid(held.simulator.codec.shapes[task.name], task.periodic, task.bounds)
    draw = Draw(SEED, [seed])
    inputs = equation.inputs(draw, grid)[0]
    if task.steady:
        return Beginning(None, _inputs(task, inputs), {}, None)
    points = equation.points(equation.schemes[0], grid)
    state = equation.initial(dataclasses.replace(draw, dtype=torch.float64), points).float().numpy()
    return Beginning(state, _inputs(task, inputs), {}, None)
