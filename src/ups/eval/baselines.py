"""BASELINES: the models that ours are compared with, by name; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ups.lazy_imports import torch
from ups.plugins import Table
from ups.types import TaskSpec, check_known

if TYPE_CHECKING:
    from ups.eval.rollout import TrainedPredictor


@dataclass(frozen=True)
class Baseline:
    """A model to compare with; its name is its key in `BASELINES`.

    Args:
        make: `make(task, context, parameters)` gives it untrained, for one task and so many given frames, with about as
            many parameters as our simulator has.
        require: Called before anything is trained; raises a ConfigError that says what to install if it is missing.
        applies: Whether there can be one for a task.
        about: What the report says of it. Empty for a network that is trained for as long as ours.
        solved: It is no network but solved for, and cheap: its `fit` is given some training windows, and some of
            validation to choose by, with as many frames of context as `make`.
    """

    make: Callable[[TaskSpec, int, int], TrainedPredictor]
    require: Callable[[], None]
    applies: Callable[[TaskSpec], bool] = lambda _: True
    about: str = ""
    solved: bool = False

    def untrained(self, task: TaskSpec, context: int, parameters: int, seed: int) -> TrainedPredictor:
        """The untrained model, its weights decided by `seed`; the global random generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # unlike torch.manual_seed, it leaves those of GPUs alone
            return self.make(task, context, parameters)


def _neuralop(kind: str) -> Baseline:
    """A network of the package neuraloperator."""

    def make(task: TaskSpec, context: int, parameters: int) -> TrainedPredictor:
        from ups.eval.fourier import NeuralOpBaseline

        return NeuralOpBaseline.matched(task, context, kind, parameters)

    def require() -> None:
        from ups.eval.fourier import library

        library()

    return Baseline(make, require, lambda task: task.domain == "grid")


def _linear() -> Baseline:
    """Least squares on neighbouring cells, which points do not have; not for steady states, which depend on inputs
    everywhere."""

    def make(task: TaskSpec, context: int, _: int) -> TrainedPredictor:
        from ups.eval.linear import LinearBaseline

        return LinearBaseline(task, context)

    about = (
        "linear: a linear model of neighbouring cells in the given frames, by least squares on some of the training "
        "data, or of the modes of whole fields where there are few trajectories, as validation data choose"
    )
    return Baseline(
        make,
        lambda: None,
        lambda task: not task.steady and task.domain == "grid",
        f"{about}; for tasks that change in time.",
        True,
    )


BUILT_IN: dict[str, Baseline] = {"fno": _neuralop("fno"), "uno": _neuralop("uno"), "linear": _linear()}
BASELINES: Table[Baseline] = Table("baselines", BUILT_IN)
USUAL = ("linear",)  # beside every run that does not say otherwise


def require(names: Iterable[str]) -> None:
    """ConfigError for a name that is no baseline's, or with what to install where a baseline lacks its package."""
    names = tuple(names)
    check_known("baseline", names, BASELINES)
    for name in names:
        BASELINES[name].require()


def notes_on(names: Iterable[str], seconds: float, ours: float, tasks: int) -> tuple[str, ...]:
    """Sentences of a report on how its baselines were made.

    Args:
        names: The baselines.
        seconds: How long each network of a baseline was trained.
        ours: How long our simulator was trained, for all tasks together.
        tasks: How many tasks that were.
    """
    from ups.eval.fourier import INSTALL, installed

    names = tuple(names)
    notes = tuple(BASELINES[name].about for name in names if BASELINES[name].about)
    if networks := " and ".join(name for name in names if not BASELINES[name].about):
        shared = f", shared among the {tasks} tasks" if tasks > 1 else ""
        return (
            f"{networks} (neuraloperator): a network for each task alone, of as many parameters as ours to within 5 % "
            f"and by its library's own recipe, each trained for {seconds:.0f} s, the {ours:.0f} s that ours was "
            f"trained in all{shared}.",
            *notes,
        )
    missing = "" if installed() else f"; it needs a package that is not installed: {INSTALL}"
    return (f"No FNO stands beside it: `evaluation.baselines: [fno]` trains one for the same time{missing}.", *notes)
