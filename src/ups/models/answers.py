"""Answers: what users ask of a simulator with arrays: rollouts, ensembles, searches and solutions."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ups.models.arrays import Given, inputs_of, joined, state_of
from ups.models.calibration import ensemble_of
from ups.models.codec import Codec
from ups.models.config import SimulatorConfig
from ups.models.departures import Departure, departures, finite, gone, limits, warn_departed
from ups.models.ensembles import Draws, check_ensemble, stacked
from ups.models.frames_memory import check_memory
from ups.models.operator import LatentOperator
from ups.models.part import Part
from ups.models.points import cells_at, seen_from
from ups.models.questions import GUESS, START, outside, places_of, strange, strange_inputs, warn_lost, window_of
from ups.models.search import Search, check_search, searched
from ups.models.solving import (
    Solution,
    asked_to_solve,
    check_alone,
    check_tolerance,
    in_double,
    solution_of,
    steady_system,
)
from ups.models.trust import Trust, Watch
from ups.tensors import Condition, Window
from ups.types import ConfigError, TaskSpec


class Answers(nn.Module):
    """The questions that a simulator answers. It gives its tasks, what it was trained on, its parts and rollouts of
    windows; all else is here."""

    codec: Codec
    dt: Tensor
    trust: dict[str, Trust]
    config: SimulatorConfig
    operator: LatentOperator
    parts: dict[str, Part]

    @property
    @abstractmethod
    def tasks(self) -> tuple[TaskSpec, ...]:
        """Those it knows."""

    @abstractmethod
    def ranges(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Per task, the trained range of each parameter and of dt."""

    @abstractmethod
    def awake(self, task: TaskSpec) -> list[Part]:
        """The parts that refine what is predicted of a task."""

    @abstractmethod
    def encode_context(self, context: Tensor, condition: Condition) -> Tensor:
        """Frames to tokens."""

    @abstractmethod
    def simulate(self, window: Window, steps: int, points: Tensor | None = None, draw: Draws | None = None) -> Tensor:
        """The frames after the context of a window."""

    def outside(self, params: Any, task: TaskSpec | str | None = None, dt: float | None = None) -> list[str]:
        """A sentence for each parameter, and for dt, that lies outside what training saw.

        `params` maps names to numbers or arrays, or is an array `(B, P)` in the order of `numbers_of(task)`.
        """
        spec = self._asked_task(task)
        return outside(params, dt, self.ranges()[spec.name], spec)

    def strange(self, window: Window) -> list[str]:
        """A sentence for each field whose given frames are unlike all that training saw, and for each such input."""
        here = window.to(self.dt.device)
        return self._strange(here.context, here.inputs, here.task, here.mask)

    def _strange(
        self, frames: Tensor, inputs: Tensor, task: TaskSpec, mask: Tensor | None = None, guess: str = GUESS
    ) -> list[str]:
        sentences: list[str] = []
        if not task.steady:  # there, nothing is given but what drives it
            sentences += strange(frames, self.codec.statistics_of(task), task.channels, task.name, mask)
        if task.inputs:
            sentences += strange_inputs(inputs, self.operator.inputs.statistics_of(task.name), task, guess)
        return sentences

    def rollout(
        self,
        u0: Any,
        steps: int,
        params: Any = None,
        dt: Any = None,
        task: TaskSpec | str | None = None,
        periodic: Sequence[bool] | Sequence[str] | None = None,
        points: Any = None,
        inputs: Any = None,
        ensemble: int | None = None,
        seed: int = 0,
        search: Search | None = None,
        error: bool = False,
        stop_at: float | None = None,
    ) -> Any:
        """The `steps` frames after `u0`, as the kind of array `u0` is (numpy, torch or xarray).

        `u0` is `(*S, C)`, `(B, *S, C)` or `(B, K, *S, C)` in physical units, on any grid of the task's box; of a task
        with one channel also `(*S,)` or `(B, *S)`, unless the last axis has length 1 and so is the channel. The answer
        is `(steps, …)` or `(B, steps, …)`. An xarray is arranged by the names of its dimensions (the task's axes, time,
        channel), and a Dataset has a variable for each channel; answers are labelled alike. With fewer frames than the
        operator's context, the first stands for those before it, carried back where parameters carry states along.
        `params` maps names to a number, or to one per sample; one outside the trained range warns. `dt` is the trained
        one unless given: a number, or one for each step. `task` is needed where the simulator knows several. `periodic`
        names the axes that wrap, or says True or False of each, where it is not as the task says. `points (P, n)`, in
        the task's own coordinates, asks for values there instead of on the grid. `inputs`, `(*S, C_in)` or one per
        sample, is what drives the task (a force), where it is driven. Where the task has a mask and `inputs` leaves it
        out, NaN in `u0` says which cells do not count; they are NaN in the answer too. `ensemble` asks for so many
        draws, along a new first axis, where a part of the simulator has learnt what the operator misses; the same
        `seed`, the same members. `search` spends compute on one rollout: of several draws at each step those go on that
        look least wrong. With `error` the answer is a pair: the frames, and an estimate `(steps,)` or `(B, steps)` of
        the relative error (nRMSE) of each, were nothing drawn. From the step on at which the estimate passes `stop_at`,
        frames are NaN. Whatever else is not finite warns.
        """
        spec = self._asked_task(task)
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise ConfigError(f"a rollout has at least one step, and a whole number of them, not {steps!r}.")
        check_ensemble(1 if ensemble is None else ensemble, seed)
        if spec.steady:
            raise ConfigError(
                f"{spec.name} is steady and has no steps; ask for its solution with sim.solve(inputs, …)."
            )
        state, driven = state_of(u0, spec, self.dt.device), inputs_of(inputs, spec, self.dt.device)
        given = joined(state.values, None if driven is None else driven.values[:, 0], spec)
        for sentence in self._strange(*given, spec):
            warnings.warn(sentence, stacklevel=2)
        window, each = window_of(*given, steps, params, dt, periodic, spec, self.ranges()[spec.name])
        self._check_memory(window, steps, points, ensemble)
        times = each.item() * np.arange(1, steps + 1) if len(each) == 1 else each.cumsum(0).numpy()
        if search is not None:
            check_search(self, search, spec, ensemble, points)
        watch = Watch(self, window, seed, stop_at) if error or stop_at is not None else None
        count = steps if watch is None else watch.count(steps)
        over = watch.over if watch is not None and stop_at is not None else None
        frames = self._answer(window, count, points, ensemble, seed, search, over)
        frames = frames if watch is None else watch.stopped(frames, steps)
        answers = [state.answer(member, times, spec.channels, points is not None) for member in frames]
        answer = answers[0] if ensemble is None else stacked(answers)
        return (answer, state.per_step(watch.errors, times)) if error and watch is not None else answer

    def solve(
        self,
        inputs: Any,
        params: Any = None,
        task: TaskSpec | str | None = None,
        periodic: Sequence[bool] | Sequence[str] | None = None,
        points: Any = None,
        tolerance: float | None = None,
        ensemble: int | None = None,
        seed: int = 0,
    ) -> Any:
        """The solution of a steady task driven by `inputs` (`(*S,)`, `(*S, C_in)` or `(B, *S, C_in)`), as the kind of
        array that is: `(*S, C)` or `(B, *S, C)`, or `(*S,)` where it came so. With a `tolerance` it is refined as by
        `solution`, and in double precision. The rest as in `rollout`."""
        if tolerance is not None:
            check_alone(points, ensemble)
            return self._solution(inputs, tolerance, params, task, periodic).field
        driven, window = self._driven(inputs, params, task, periodic)
        self._check_memory(window, 1, points, ensemble)
        frames, names = self._answer(window, 1, points, ensemble, seed), window.task.channels
        answers = [driven.answer_once(member, np.ones(1), names, points is not None) for member in frames]
        return answers[0] if ensemble is None else stacked(answers)

    def solution(
        self,
        inputs: Any,
        tolerance: float = 1e-6,
        params: Any = None,
        task: TaskSpec | str | None = None,
        periodic: Sequence[bool] | Sequence[str] | None = None,
    ) -> Solution:
        """The solution of a steady task, refined by iterations of a solver until the relative residual of its discrete
        equations is at most `tolerance`, with what that took. The rest as in `solve`."""
        return self._solution(inputs, tolerance, params, task, periodic)

    def _solution(
        self,
        inputs: Any,
        tolerance: float,
        params: Any,
        task: TaskSpec | str | None,
        periodic: Sequence[bool] | Sequence[str] | None,
    ) -> Solution:
        tolerance = check_tolerance(tolerance)
        driven, window = self._driven(inputs, params, task, periodic, START, level=4)
        system, names = steady_system(in_double(window, inputs, params)), window.task.channels
        return solution_of(system, self._answer(window, 1)[0], tolerance, driven, names)

    def _driven(
        self,
        inputs: Any,
        params: Any,
        task: TaskSpec | str | None,
        periodic: Sequence[bool] | Sequence[str] | None,
        guess: str = GUESS,
        level: int = 3,
    ) -> tuple[Given, Window]:
        """What a user gives to be solved, and the window of it; the user's line is `level` calls up."""
        spec = self._asked_task(task)
        driven, given = asked_to_solve(inputs, spec, self.dt.device)
        for sentence in self._strange(*given, spec, guess=guess):
            warnings.warn(sentence, stacklevel=level)
        return driven, window_of(*given, 1, params, None, periodic, spec, self.ranges()[spec.name], guess)[0]

    def _answer(
        self,
        window: Window,
        steps: int,
        points: Any = None,
        ensemble: int | None = None,
        seed: int = 0,
        search: Search | None = None,
        over: Tensor | None = None,
    ) -> Tensor:
        """The frames `(M, B, steps, …, C)` after a window, NaN where nothing counts; M is 1 without an ensemble. Other
        values that are not finite warn, but for frames that are left out for being `over (B, steps)` a threshold."""
        if ensemble is not None:
            self._check_ensemble(ensemble, seed, window.task)
        places = (
            None if points is None else places_of(points, window.task, window.grid.periodic).to(window.context.device)
        )
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                if search is not None:
                    answer = searched(self, window, steps, search).unsqueeze(0)
                elif ensemble is None:
                    answer = self.simulate(window, steps, places).unsqueeze(0)
                else:
                    answer = ensemble_of(self, window, steps, ensemble, seed, places)
        finally:
            self.train(training)
        cells = window.mask
        if cells is not None and places is not None:
            begins = self.codec.beginning(window.task, window.grid)
            cells = cells_at(cells, seen_from(begins, places), window.grid.periodic)
        left = self.departures(window, answer, cells)
        warned = [one for one in left if over is None or not bool(over[one.sample, one.step - 1])]
        warn_departed(warned, len(window), window.task)
        nothing = gone(answer, left)
        if cells is not None:
            nothing = nothing | ~cells.unsqueeze(1).unsqueeze(-1)
        warn_lost(finite(answer, nothing), over, window.task)
        return answer.masked_fill(nothing, torch.nan) if left or cells is not None else answer

    def departures(self, window: Window, frames: Tensor, cells: Tensor | None = None) -> list[Departure]:
        """Where rollouts `(M, B, T, …, C)` after a window leave what training has seen; `cells (B, …)` are those of a
        frame that count. None of a steady task: there a solution may be as large as what drives it makes it."""
        spec = self.codec.task(window.task)
        if spec.steady:
            return []
        own = self.codec.statistics_of(spec)
        driving = self.operator.inputs.statistics_of(spec.name) if spec.inputs else None
        limit = limits(window.context, own, window.inputs, driving, window.mask)
        return departures(frames, own, limit, spec.channels, cells)

    def _check_memory(self, window: Window, steps: int, points: Any, ensemble: int | None) -> None:
        """ConfigError unless the frames fit into memory, where they are made and where they are given back."""
        cells = window.context[0, 0, ..., 0].numel()
        cells = cells if points is None else len(places_of(points, window.task, window.grid.periodic))
        ask = partial(check_memory, window.task.name, int(steps), len(window), cells * len(window.task.channels))
        # A rollout is there twice where some of it is left out, and an ensemble as often as it takes to stretch it.
        ask(self.dt.device, 2 if ensemble is None else 4 * ensemble)
        ask(torch.device("cpu"), ensemble or 1)

    def _check_ensemble(self, members: int, seed: int, task: TaskSpec) -> None:
        check_ensemble(members, seed)
        if not any(part.draws for part in self.awake(task)):
            stage = "residual or steady" if task.steady else "residual"
            raise ConfigError(
                f"the simulator has no part that draws {task.name}, so all members would be one; train a {stage} stage."
            )

    def _asked_task(self, task: TaskSpec | str | None) -> TaskSpec:
        if task is None and len(self.tasks) > 1:
            raise ConfigError(f"the simulator knows {', '.join(self.codec.tasks)}; say which with task=….")
        return self.codec.task(task if task is not None else self.tasks[0])
