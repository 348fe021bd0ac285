"""Scores beside those of a rollout: what draws, estimates of errors, searches and iterations on solutions are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.eval.ensembles import EnsembleScores
from ups.eval.error_estimates import ErrorScores
from ups.eval.nrmse import RolloutErrors
from ups.eval.refinement import RefinementScores
from ups.eval.rollout import EvalProtocol
from ups.eval.searches import SearchScores
from ups.models import Simulator
from ups.models.calibration import calibrated, doubt_of_draws, drawing_part, lasting_of
from ups.models.ensembles import TOGETHER, members_of
from ups.models.search import Search, calls_of, judges_of, searched
from ups.models.solving import steady_system, unrefinable
from ups.models.trust import WATCHERS, Trust, rollout_with_signs
from ups.progress import Say
from ups.run.config import EvalConfig
from ups.run.judging.calibrate import TRAJECTORIES_AT_ONCE, operator_alone, usual_of
from ups.run.judging.eval_sets import EvalSet
from ups.tensors import Window
from ups.types import PhysicsError


@dataclass(frozen=True)
class ScoredSimulator:
    """A simulator on the trajectories of an exam, and how it is judged there."""

    simulator: Simulator
    exam: EvalSet
    windows: Callable[[int], Iterator[Window]]  # the trajectories, so many cells together; 0: batch by batch
    protocol: EvalProtocol
    settings: EvalConfig
    device: torch.device

    @property
    def few(self) -> int:
        """Trajectories of which all members are held at a time."""
        return TRAJECTORIES_AT_ONCE[self.device.type == "cuda"]

    def steps(self, window: Window) -> int:
        """The steps of a window that are judged."""
        return min(self.protocol.steps or window.targets.shape[1], window.targets.shape[1])


def trust_scores(
    subject: ScoredSimulator, at_once: int, known: ErrorScores | None, show: Callable[[int], None]
) -> tuple[EnsembleScores | None, ErrorScores | None]:
    """What draws are worth beside the operator alone, None where no part draws, none are asked for, or they do not
    pay; and what the simulator knows of its errors, None where nothing was fitted: `known` where that was seen already.
    `show` is told how many trajectories are done."""
    if known is not None:
        return None, known
    sim, exam = subject.simulator, subject.exam
    task = exam.part.task
    draws = drawing_part(sim, task) is not None and not doubt_of_draws(sim, task)
    count = subject.settings.ensemble if draws else 0
    trust = sim.trust.get(task.name, Trust())
    usual = usual_of(sim, task)
    scores = EnsembleScores(count, usual=usual) if count else None
    errors = ErrorScores(errors=RolloutErrors(usual=usual)) if trust.error else None
    cells, done = 0 if count else at_once, 0  # where no members are held there is room for many samples
    rows = exam.count if cells else subject.few
    for window in (part.to(subject.device) for many in subject.windows(cells) for part in many.split(rows)):
        show(done)
        done += len(window)
        steps = subject.steps(window)
        truth, members = window.targets[:, :steps], None
        with torch.no_grad():
            if scores is not None:
                members = members_of(
                    sim.simulate, window, steps, count, together=min(count, TOGETHER), lasting=lasting_of(sim, task)
                )
            if trust.error is not None and errors is not None and not trust.error.unknown(task, window.grid.periodic):
                plain, signs = rollout_with_signs(sim, window, steps, members if count >= WATCHERS else None)
                estimates = torch.stack([trust.error(row) for row in signs], 1)
                errors.add(estimates, plain, truth, window.mask)
            elif scores is not None:
                plain = sim.simulate(window, steps)
            if scores is not None and members is not None:
                _add(scores, sim, window, truth, members, plain)
    return scores, errors if errors is not None and errors.samples else None


def _add(
    scores: EnsembleScores, simulator: Simulator, window: Window, truth: Tensor, members: Tensor, plain: Tensor
) -> None:
    """The scores of one window, before and after calibration."""
    alone = operator_alone(simulator, window, truth.shape[1])
    std, before = simulator.codec.statistics_of(window.task).scale, members
    members = calibrated(simulator, window, members)
    scores.add(members, alone, truth, std, window.mask, None if members is before else before, plain)


def search_scores(subject: ScoredSimulator) -> SearchScores | None:
    """What compute buys on a few trajectories, where a part judges draws."""
    sim, task = subject.simulator, subject.exam.part.task
    scores = SearchScores(usual=usual_of(sim, task))
    budgets = [Search(many, max(1, many // 4)) for many in sorted(set(subject.settings.search))]
    if task.steady or not judges_of(sim, task) or drawing_part(sim, task) is None or not budgets:
        return None
    window = next(iter(subject.windows(0))).rows(0, subject.few).to(subject.device)
    steps = subject.steps(window)

    def watch(step: int, looks: Tensor, frames: Tensor) -> None:
        scores.watch(looks, frames, window.targets[:, step], window.mask)

    with torch.no_grad():
        for budget in budgets:
            look = watch if budget is budgets[-1] and budget.candidates > 1 else None
            rollout = searched(sim, window, steps, budget, look)
            scores.add(calls_of(sim, budget, window), rollout, window.targets[:, :steps], window.mask)
    return scores


def refinement_scores(subject: ScoredSimulator, warn: Say) -> RefinementScores | None:
    """What iterations make of predicted steady states; None where the equations of the task are not known, or, after a
    word to `warn`, cannot be solved."""
    scores = RefinementScores(subject.settings.tolerance)
    if not subject.exam.part.task.steady:
        return None
    for window in (batch.to(subject.device) for batch in subject.windows(0)):
        if unrefinable(window):
            return None
        try:
            system = steady_system(window)
        except PhysicsError as error:
            warn(f"{window.task.name} could not be refined: {error}")
            return None
        with torch.no_grad():
            predicted, truth = subject.simulator.simulate(window, 1), window.targets.double()
        refined = system.refined(predicted[:, 0].nan_to_num(0.0, 0.0, 0.0), scores.tolerance)
        from_zero = system.refined(torch.zeros_like(truth[:, 0]), scores.tolerance)
        measured = {
            "residual predicted": refined.before,
            "residual refined": refined.after,
            "iterations": refined.iterations,
            "iterations from zero": from_zero.iterations,
        }
        scores.add(measured, refined.values.unsqueeze(1), truth)
    return scores
