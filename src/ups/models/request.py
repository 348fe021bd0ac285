"""Request and Answer: what is asked of a simulator in tensors, whoever asks: arrays, files or a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ups.models.calibration import doubt_of_draws, ensemble_of
from ups.models.ensembles import check_ensemble
from ups.models.frames_memory import check_memory
from ups.models.limits import Departure, departed_of, finite, first_steps, in_words
from ups.models.points import cells_at, seen_from
from ups.models.search import Search, check_search, searched
from ups.models.simulator_like import SimulatorLike
from ups.models.trust import Watch
from ups.tensors import Window
from ups.types import ConfigError, TaskSpec, counted


@dataclass(frozen=True)
class Request:
    """The `steps` frames after the context of a window; for a steady task the one step to its solution.

    `points (P, n)` of [0, 1)^n asks for values there instead of on the grid; `ensemble` for so many draws, the same for
    the same `seed`; `search` for the best of several draws at each step; `error` for an estimate of each frame's error,
    and `stop_at` for the error from which on frames are left out.
    """

    window: Window
    steps: int
    points: Tensor | None = None
    ensemble: int | None = None
    seed: int = 0
    search: Search | None = None
    error: bool = False
    stop_at: float | None = None


@dataclass(frozen=True)
class Answer:
    """The frames `(M, B, steps, …, C)` in physical units; M is 1 without an ensemble. NaN in cells that do not count,
    and from `stop_at` on.

    `errors (B, steps)` are estimates, where they were asked for. `departed` are the rollouts that leave what training
    saw, `lost (B, steps)` frames that are not finite, and `remarks` the sentences that say so.
    """

    frames: Tensor
    errors: Tensor | None
    departed: tuple[Departure, ...]
    lost: Tensor
    remarks: tuple[str, ...]

    def rows(self, first: int, last: int, task: TaskSpec) -> Answer:
        """What it says of samples `first` … `last` − 1, as if they had been asked for alone."""
        frames, lost = self.frames[:, first:last], self.lost[first:last]
        errors = None if self.errors is None else self.errors[first:last]
        left = [replace(one, sample=one.sample - first) for one in self.departed if first <= one.sample < last]
        remarks = (in_words(left, last - first, task), _lost_in_words(lost, task))
        return Answer(frames, errors, tuple(left), lost, tuple(filter(None, remarks)))

    @property
    def left_range_at(self) -> list[int | None]:
        """Of each sample, the first step after which it (of an ensemble, any member) is outside what training saw."""
        return first_steps(self.departed, self.frames.shape[1])


@dataclass(frozen=True)
class RolloutDetails:
    """A rollout with all that is known of it, as `Simulator.rollout(…, details=True)` gives it.

    `frames` and `error` are arrays of the kind that was given; `error` is None where it was not asked for.
    `left_range_at` has for each sample the first step after which it is outside what training saw, None for one that
    stays. `remarks` are the sentences that else are warnings.
    """

    frames: Any
    error: Any
    left_range_at: list[int | None]
    remarks: tuple[str, ...]


def answered(simulator: SimulatorLike, request: Request) -> Answer:
    """What a simulator answers; a ConfigError where it cannot, or where the frames do not fit into memory."""
    task = simulator.codec.task(request.window.task)
    _check(simulator, request, task)
    window, steps, watch, over = request.window.to(simulator.dt.device), request.steps, None, None
    points = None if request.points is None else request.points.to(simulator.dt.device)
    with _evaluated(simulator):
        if request.error or request.stop_at is not None:
            watch = Watch(simulator, window, request.seed, request.stop_at)
            steps = watch.count(steps)
            over = watch.over if request.stop_at is not None else None
        if request.search is not None:
            frames = searched(simulator, window, steps, request.search).unsqueeze(0)
        elif request.ensemble is None:
            frames = simulator.simulate(window, steps, points).unsqueeze(0)
        else:
            frames = ensemble_of(simulator, window, steps, request.ensemble, request.seed, points)
    cells = window.mask
    if cells is not None and points is not None:
        begins = simulator.codec.beginning(task, window.grid)
        cells = cells_at(cells, seen_from(begins, points), window.grid.periodic)
    left = departed_of(simulator, window, frames, cells)
    nothing = None if cells is None else ~cells
    lost = ~finite(frames, nothing).all(0)
    if nothing is not None:
        frames = frames.masked_fill(nothing[None, :, None, ..., None], torch.nan)
    if over is not None:  # frames that nobody is given need no remark
        left, lost = [one for one in left if not bool(over[one.sample, one.step - 1])], lost & ~over
    frames = frames if watch is None else watch.stopped(frames, request.steps)
    errors = watch.errors if watch is not None and request.error else None
    draws = "" if request.ensemble is None else doubt_of_draws(simulator, task)
    remarks = (draws, in_words(left, len(window), task, window.ids), _lost_in_words(lost, task))
    return Answer(frames, errors, tuple(left), lost, tuple(filter(None, remarks)))


@contextmanager
def _evaluated(simulator: SimulatorLike) -> Iterator[None]:
    """A block without gradients and with the simulator in evaluation mode; afterwards it is in the mode it was in."""
    training = simulator.training
    simulator.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        simulator.train(training)


def _check(simulator: SimulatorLike, request: Request, task: TaskSpec) -> None:
    """A ConfigError where the simulator cannot draw or search as it is asked to, or memory holds too few frames."""
    check_ensemble(1 if request.ensemble is None else request.ensemble, request.seed)
    if request.ensemble is not None and not any(part.draws for part in simulator.awake(task)):
        stage = "residual or steady" if task.steady else "residual"
        raise ConfigError(
            f"the simulator has no part that draws {task.name}, so all members would be one; train a {stage} stage."
        )
    if request.search is not None:
        check_search(simulator, request.search, task, request.ensemble, request.points)
    window, members = request.window, request.ensemble
    cells = window.context[0, 0, ..., 0].numel() if request.points is None else len(request.points)
    ask = partial(check_memory, task.name, request.steps, len(window), cells * len(task.channels))
    # A rollout is there twice where some of it is left out, and an ensemble as often as it takes to stretch it.
    ask(simulator.dt.device, 2 if members is None else 4 * members)
    ask(torch.device("cpu"), members or 1)


def _lost_in_words(lost: Tensor, task: TaskSpec) -> str:
    """A sentence where frames of an answer are `lost (B, T)`, or nothing."""
    if not bool(lost.any()):
        return ""
    count, first = int(lost.any(1).sum()), 1 + int(lost.any(0).nonzero()[0])
    when, fewer = ("", "") if task.steady else (f", first at step {first}", ", or ask for fewer steps")
    who = f"{count} of {counted(len(lost), 'sample')}"
    return f"{task.name}: the answer to {who} is not finite{when}; give values like those of training{fewer}."
