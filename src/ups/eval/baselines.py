"""BASELINES: networks that are trained for the same time beside ours, by name; importing this imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ups.later import torch
from ups.types import TaskSpec, check_known

if TYPE_CHECKING:
    from ups.eval.rollout import Learner


@dataclass(frozen=True)
class Baseline:
    """A network to compare with; its name is its key in `BASELINES`.

    `make(task, context, parameters)` gives it untrained, for one task and so many given frames, with as many parameters
    as it is compared with. `require` raises a ConfigError that says what to install where that is missing; it is
    called before anything is trained.
    """

    make: Callable[[TaskSpec, int, int], Learner]
    require: Callable[[], None]

    def untrained(self, task: TaskSpec, context: int, parameters: int, seed: int) -> Learner:
        """What `make` gives, of weights that the seed decides. No other random number changes."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # unlike torch.manual_seed, it leaves those of GPUs alone
            return self.make(task, context, parameters)


def _neuralop(kind: str) -> Baseline:
    """A network of the package neuraloperator."""

    def make(task: TaskSpec, context: int, parameters: int) -> Learner:
        from ups.eval.fourier import NeuralOpBaseline

        return NeuralOpBaseline.matched(task, context, kind, parameters)

    def require() -> None:
        from ups.eval.fourier import library

        library()

    return Baseline(make, require)


BASELINES: dict[str, Baseline] = {"fno": _neuralop("fno"), "uno": _neuralop("uno")}


def require(names: Iterable[str]) -> None:
    """Refuse unknown names, and say in one sentence what to install where a baseline cannot be had."""
    names = tuple(names)
    check_known("baseline", names, BASELINES)
    for name in names:
        BASELINES[name].require()
