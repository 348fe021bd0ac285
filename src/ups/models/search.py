"""Search: draws several candidates at each step of a rollout, and goes on from those that look least wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.models.copies import advanced, copies_of
from ups.models.ensembles import Draws
from ups.models.part import Part
from ups.models.simulator_like import SimulatorLike
from ups.models.stepping import Stepping
from ups.physics.laws import broken, laws_of
from ups.tensors import Window
from ups.types import ConfigError, TaskSpec

MOST = 4096  # draws of a step; more would be a slip of the finger

# What is told of a step: which one, how wrong each option looks `(O, B)`, and its frame `(O, B, *S, C)`.
Watch = Callable[[int, Tensor, Tensor], None]


@dataclass(frozen=True)
class Search:
    """At each step every state that was kept is continued by so many `candidates`, and the `beam` best are kept.

    The same `seed`, the same candidates.
    """

    candidates: int = 4
    beam: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("candidates", self.candidates, 1), ("beam", self.beam, 1), ("seed", self.seed, 0)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ConfigError(f"search: {name} is {value!r}, but must be a whole number of at least {least}.")
        if self.beam > self.candidates:
            raise ConfigError(
                f"search: a beam of {self.beam} needs as many candidates, and there are {self.candidates}."
            )
        if self.beam * self.candidates > MOST:
            raise ConfigError(f"search: more than {MOST} draws a step; ask for fewer candidates or a narrower beam.")


def judges_of(simulator: SimulatorLike, task: TaskSpec) -> list[Part]:
    """The parts that say of each draw of a task how wrong it looks."""
    return [part for part in simulator.awake(task) if part.judges]


def calls_of(simulator: SimulatorLike, search: Search, window: Window) -> int:
    """Evaluations of networks in one step of a trajectory: of the operator, on each copy of the state where there
    are any, of the parts that draw, of those that judge draws."""
    stepping = Stepping(simulator, window)
    each = sum(int(part.evaluations) for part in simulator.awake(stepping.task) if part.draws)
    judged = sum(int(part.evaluations) for part in judges_of(simulator, stepping.task))
    copies = copies_of(simulator, stepping.task, stepping.condition(0))
    return search.beam * (len(copies) + search.candidates * (each + judged))


def check_search(
    simulator: SimulatorLike, search: Any, task: TaskSpec, ensemble: Any = None, points: Any = None
) -> None:
    """A ConfigError unless a simulator can be searched in this way."""
    if ensemble is not None or points is not None:
        raise ConfigError("search gives one rollout on the grid; leave ensemble and points out.")
    if not isinstance(search, Search):
        raise ConfigError(f"search is {search!r}, but must be a ups.Search(candidates=…, beam=…).")
    if not any(part.draws for part in simulator.awake(task)):
        raise ConfigError(
            "the simulator has no part that draws, so there is nothing to choose; train a residual stage."
        )


def searched(
    simulator: SimulatorLike, window: Window, steps: int, search: Search, watch: Watch | None = None
) -> Tensor:
    """The `steps` frames `(B, steps, *S, C)` after the context of a window, of the path that looks least wrong.

    How wrong an option looks at a step is the sum of what each part that judges draws says of it, and of how much the
    laws are broken before they are repaired, each as deviations from the mean over the options of its sample. Those of
    all steps of a path add up.
    """
    states, wrong = Stepping(simulator, window).start().unsqueeze(0), None  # (W, B, K, *G, D)
    paths: list[Tensor] = []  # the frames of each step, (W, B, *S, C)
    for step in range(steps):
        looks, states_after, frames = _options(simulator, window, states, step, search)
        if watch is not None:
            watch(step, looks, frames)
        total = looks if wrong is None else looks + wrong.repeat(search.candidates, 1)
        wrong, best = total.topk(min(search.beam, len(total)), dim=0, largest=False)  # (W', B)
        parents = best % len(states)
        paths = [_chosen(path, parents) for path in paths]
        paths.append(_chosen(frames, best))
        states = _chosen(states_after, best)
    return torch.stack([path[0] for path in paths], 1)


def _options(
    simulator: SimulatorLike, window: Window, states: Tensor, step: int, search: Search
) -> tuple[Tensor, Tensor, Tensor]:
    """All options of a step, candidate by candidate and in each state by state.

    Returns:
        How wrong they look `(O, B)`, the tokens they go on from `(O, B, K, *G, D)`, and their frames `(O, B, *S, C)`.
    """
    beams, many = len(states), search.candidates
    few = Stepping(simulator, Window.join([window] * beams))
    z = states.flatten(0, 1)
    predicted = advanced(simulator, z, few.condition(step))
    rows = Stepping(simulator, Window.join([window] * (beams * many)))
    z, predicted = (x.repeat(many, *(1,) * (x.ndim - 1)) for x in (z, predicted))
    after = rows.refine(predicted, z, step, Draws(search.seed, range(beams * many))(step, predicted))
    states_after, frames = rows.settle(z, after, step)
    judges = judges_of(simulator, rows.task)
    signs = [judge.error(after, predicted, z[:, -1], rows.condition(step)) for judge in judges]
    if laws := laws_of(rows.task, rows.grid.periodic):
        assert rows.unrepaired is not None
        signs.append(broken(rows.unrepaired.unsqueeze(1), laws, rows.reference, rows.grid, rows.window.mask).sqrt())
    shape = (beams * many, len(window))
    looks = z.new_zeros(shape)
    for sign in signs:
        looks = looks + _standing(sign.float().reshape(shape))
    return looks, torch.unflatten(states_after, 0, shape), torch.unflatten(frames, 0, shape)


def _standing(sign: Tensor) -> Tensor:
    """Deviations `(O, B)` from the mean over the options of a sample; what is no number stands last."""
    finite = sign.isfinite()
    sound = torch.where(finite, sign, 0.0)
    count = finite.sum(0).clamp_min(1)
    gap = sound - sound.sum(0) / count
    size = (torch.where(finite, gap, 0.0).square().sum(0) / count).sqrt()
    return torch.where(finite, gap / size.clamp_min(torch.finfo(sign.dtype).tiny), 1e6)


def _chosen(options: Tensor, best: Tensor) -> Tensor:
    """The options, of `(O, B, …)`, that `best (W, B)` names: `(W, B, …)`."""
    return options[best, torch.arange(best.shape[1], device=best.device)]
