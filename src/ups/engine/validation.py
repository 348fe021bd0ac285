"""Validation: when one is due, and what every rank measures of its rows with the averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from ups.engine.optim import Ema
from ups.engine.ranks.dist import Dist
from ups.engine.stage import Learnable
from ups.engine.state import TrainingState
from ups.engine.train import VALIDATION_SHARE, TrainConfig, affordable
from ups.heartbeat import Pulse
from ups.tensors import Window

FORWARD_OF_STEP = 3  # a training step costs about three times its forward pass
MANY = 10**6  # steps, where nobody knows how many there will be


class Timetable:
    """When validations come: every so many steps, at parts of the budget, or (auto) at i/n of it, n from 1 to 10.

    n follows from what a validation costs, so that all of them take at most a tenth of the time. For a budget in steps
    that is counted in target frames, `frames` of a step and of a validation, which counts as so many plain `rollouts`:
    the same n in every run. For one in seconds it is timed once there has been a validation.
    """

    def __init__(self, config: TrainConfig, state: TrainingState, frames: tuple[int, int], rollouts: float = 1) -> None:
        self.config, self.state = config, state
        self.timed = config.validate_every == "auto" and config.steps is None
        of_step, of_validation = frames
        self.cost = rollouts * of_validation / (FORWARD_OF_STEP * of_step)  # of a validation, in steps

    def due(self, progress: float) -> bool:
        """Whether one comes after the step that was just taken."""
        every, state = self.config.validate_every, self.state
        if isinstance(every, int):
            return every > 0 and state.step % every == 0
        before, state.validations = state.validations, self._behind(progress)
        return state.validations > before

    def took(self, seconds: float, progress: float) -> None:
        """A validation took so long, by a clock that all ranks share."""
        self.state.validation_seconds = seconds
        self.state.validations = self._behind(progress)  # among as many as there will be now

    def _behind(self, progress: float) -> int:
        """How many validations should have been by now."""
        every = self.config.validate_every
        if isinstance(every, str):
            return int(progress * self._count() + 1e-9)
        return _passed(every, progress)

    def _count(self) -> int:
        """How many validations there are in all."""
        c, state = self.config, self.state
        if c.steps is not None:
            return affordable(c.steps / (1 - VALIDATION_SHARE), self.cost)
        assert c.seconds is not None
        cost = state.validation_seconds or self.cost * state.seconds / max(state.step, 1)
        return affordable(c.seconds / (1 - VALIDATION_SHARE), cost)


def validations_of(train: TrainConfig, steps: int = MANY) -> int:
    """How many validations a training of so many steps has, the one at its end included; not for auto, of which the
    number follows from what they cost."""
    every, steps = train.validate_every, max(1, steps)
    assert not isinstance(every, str)
    before = (steps - 1) // every if isinstance(every, int) and every else _passed(every, 1 - 1 / steps)
    return min(steps, 1 + before)


def _passed(every: float, progress: float) -> int:
    """How many multiples of a part of the budget lie behind."""
    return int(progress / every + 1e-9) if every else 0


@torch.no_grad()
def measure(
    stage: Learnable,
    windows: Iterable[Window],
    ema: Ema,
    dist: Dist,
    pulse: Pulse,
    say: Callable[[str], None] = lambda sentence: None,  # noqa: ARG005
) -> dict[str, tuple[float, float]]:
    """Per name the sum over this rank's rows of every validation window, and their count. What makes it slow is said.

    The average is swapped in place, so whatever has noted where the weights are finds the average there.
    """
    at_rest: Callable[..., AbstractContextManager[None]] | None = getattr(stage, "at_rest", None)
    sums: dict[str, tuple[float, float]] = {}
    with at_rest(say) if at_rest else resting(stage.module), ema.swapped():
        for window in windows:
            pulse.beat("validate")
            add_rows(sums, stage, window, dist)
    return sums


def add_rows(sums: dict[str, tuple[float, float]], stage: Learnable, window: Window, dist: Dist) -> None:
    """Add what a stage is judged by on this rank's rows of a window, and their count, to `sums` by name."""
    first, last = (len(window) * rank // dist.world for rank in (dist.rank, dist.rank + 1))
    # A rank without a row runs one all the same: in a sharded model all must take part.
    part = window.rows(first, last) if last > first else window.rows(0, 1)
    for name, values in stage.evaluate(part.to(dist.device)).items():
        total, count = sums.get(name, (0.0, 0.0))
        rows = values.double()[: last - first]
        sums[name] = (total + float(rows.sum()), count + len(rows))


@contextmanager
def resting(module: nn.Module) -> Iterator[None]:
    """Inside, a module is not in training; afterwards each of its parts is in the mode it had before."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:  # also where memory ran out: it is done again
        for m, mode in modes:
            m.training = mode
