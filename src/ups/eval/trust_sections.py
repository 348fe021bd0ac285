"""The parts of a report's page on ensembles and on estimates of error: tables and charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ups.eval.ensembles import AS_DRAWN, EnsembleScores
from ups.eval.intervals import number
from ups.eval.remarks import percent
from ups.eval.results import TaskResult, times_of
from ups.pages import Curve, Section, chart
from ups.types import Array

FINE = ("fine members", f"fine members{AS_DRAWN}", "fine alone")
KNOWS = 0.3  # the rank correlation above which estimates say something about errors
ABOUT = 0.1  # by which the part of the truth in the 90 % interval may differ from that
TIME = "time after the last given frame"


def ensembles_section(tasks: Sequence[TaskResult]) -> Section:
    """What draws are worth, task by task, beside the operator alone, and whether they are as wide as they are wrong."""
    first = ("task", "members", "CRPS", "as drawn", "absolute error of the operator alone", "nRMSE of the mean")
    wide = ("of the operator alone", "spread over error", "in the 90 % interval", "as drawn")
    rows: list[tuple[str, ...]] = [
        (*first, *wide, "fine structure", "as drawn", "of the operator alone", "calibration", "verdict")
    ]
    for task in tasks:
        if task.ensemble is not None:
            n = task.ensemble.numbers()
            names = ("crps", f"crps{AS_DRAWN}", "absolute error alone", "nrmse of the mean", "nrmse alone")
            scores = [n[name] for name in (*names, "spread over error")]
            covered = [percent(n[key]) for key in ("coverage", f"coverage{AS_DRAWN}")]
            name = task.ours.evaluation.task.name
            fine = [number(n.get(key, n["fine members"])) for key in FINE]
            members = "stretched" if task.ensemble.calibrated else "as drawn"
            cells = (*map(number, scores), *covered, *fine, members, _ensemble_verdict(task.ensemble))
            rows.append((name, str(task.ensemble.members), *cells))
    text = (
        "CRPS and absolute error are in deviations of the data, over whole rollouts; a CRPS below the absolute error "
        "says that the draws know more than the operator alone. Spread over error is 1, and nine tenths of the truth "
        "lie in the 90 % interval, where an ensemble is as wide as it is wrong. The interval is that in which one more "
        "member would lie nine times in ten: its ends are the (M + 1) · 5 % and (M + 1) · 95 % of M members in order. "
        "Calibration stretches members around their mean; it was fitted to one half of validation trajectories, and "
        "is kept only where it lowers the CRPS of the other. Fine structure: the power in the highest third of "
        "wavenumbers at the last frame, over the truth's."
    )
    section = Section("Ensembles", text, tuple(rows))
    ranks: list[Curve] = []
    for task in tasks:
        if task.ensemble is not None:
            name, times, curves = task.ours.evaluation.task.name, _times(task), task.ensemble.curves()
            shares = task.ensemble.shares()
            ranks += [Curve(f"{name}{key}", np.linspace(0, 1, len(v)), v) for key, v in shares.items()]
            section.pictures.append(_coverage(name, times, curves))
            section.pictures.append(_spread(name, times, curves))
    words = (
        "How often the truth has each rank among the members, over an even share: 1 throughout where it is one of them."
    )
    even = Curve("one of them", np.array([0.0, 1.0]), np.ones(2), dashed=True)
    section.pictures.insert(0, (words, chart([*ranks, even], "rank, from lowest to highest", "share", log_y=False)))
    return section


def ensemble_line(task: TaskResult) -> str:
    """What the draws of a task are worth, in a sentence."""
    assert task.ensemble is not None
    n, name = task.ensemble.numbers(), task.ours.evaluation.task.name
    error = number(n["absolute error alone"])
    as_drawn = f"as drawn {number(n[f'crps{AS_DRAWN}'])}" if task.ensemble.calibrated else "as drawn"
    plain = number(n["absolute error without draws"])
    plain = f" and the answer without draws {plain}" if plain != error else ""
    before = f" (as drawn {percent(n[f'coverage{AS_DRAWN}'])})" if task.ensemble.calibrated else ""
    return (
        f"{name}: ensembles of {task.ensemble.members} have a CRPS of {number(n['crps'])} ({as_drawn}), the operator "
        f"alone an absolute error of {error}{plain}; {percent(n['coverage'])} of the truth{before} lie in the 90 % "
        f"interval: {_ensemble_verdict(task.ensemble)}."
    )


def errors_line(task: TaskResult) -> str:
    """How well the simulator knows its own error on a task, in a sentence."""
    assert task.errors is not None
    n, name = task.errors.numbers(), task.ours.evaluation.task.name
    both = (n["rank correlation"], n["rank correlation at a step"])
    return f"{name}: estimates of error have a rank correlation of {number(both[0])} with errors: {_verdict(*both)}."


def errors_section(tasks: Sequence[TaskResult]) -> Section:
    """How well the simulator knows its own error, task by task."""
    rows: list[tuple[str, ...]] = [("task", "rank correlation", "at a step", "usual factor", "verdict")]
    section = Section("Estimates of error")
    for task in tasks:
        if task.errors is not None:
            n, name = task.errors.numbers(), task.ours.evaluation.task.name
            both = (n["rank correlation"], n["rank correlation at a step"])
            rows.append((name, *map(number, (*both, n["usual factor"])), _verdict(*both)))
            curves, times = task.errors.curves(), _times(task)
            lines = [Curve("estimated", times, curves["estimated error"])]
            lines.append(Curve("true", times, curves["true error"], dashed=True))
            words = f"{name}: error as the simulator estimates it and as it is, medians over samples."
            section.pictures.append((words, chart(lines, TIME, "nRMSE")))
    section.text = (
        "Every rollout can carry an estimate of its own relative error (`sim.rollout(…, error=True)`), made of the "
        "spread of draws, of the laws that frames break before their repair and of the time, as validation data have "
        "shown. Here it stands beside the true error: rank correlation over all samples and steps, and over samples at "
        "a step, averaged over steps; the usual factor is that by which half of the estimates are off, up or down."
    )
    section.table = tuple(rows)
    return section


def search_section(tasks: Sequence[TaskResult]) -> Section:
    """What compute buys in a rollout, task by task."""
    rows: list[tuple[str, ...]] = [("task", "samples", "error by calls a step", "rank correlation", "verdict")]
    curves: list[Curve] = []
    for task in tasks:
        if task.search is not None:
            name, by_budget = task.ours.evaluation.task.name, task.search.by_budget()
            errors = "; ".join(f"{calls}: {number(error)}" for calls, error in by_budget.items())
            verdict = "worth its cost" if task.search.worth_it else "not worth it: what looks right is hardly so"
            rows.append((name, str(task.search.samples), errors, number(task.search.correlation), verdict))
            curves.append(Curve(name, np.array(list(by_budget), float), np.array(list(by_budget.values()))))
    text = (
        "Of several draws at each step those go on that look least wrong, by the laws that they break and by what the "
        "critic guesses (`sim.rollout(…, search=ups.Search(8, beam=2))`). A budget counts evaluations of networks in a "
        "step of a trajectory. The rank correlation is that, over the draws of a step, of how wrong they look with how "
        "wrong they are; below 0.3 search is not worth it."
    )
    section = Section("Search", text, tuple(rows))
    section.pictures.append(("Error against budget.", chart(curves, "evaluations of networks a step", "nRMSE")))
    return section


def _verdict(overall: float, at_step: float) -> str:
    """What an estimate is good for."""
    if math.isnan(overall):
        return "cannot be told: the estimates, or the errors, are all the same"
    if overall <= KNOWS:
        return "says little about the error here"
    if math.isnan(at_step):
        return "knows when; too few samples to say whether it knows which"
    return "knows when, and which sample" if at_step > KNOWS else "knows when, but not which sample"


def _ensemble_verdict(scores: EnsembleScores) -> str:
    """What draws are good for, and whether they are as wide as they are wrong."""
    covered = scores.numbers()["coverage"]
    width = "" if abs(covered - 0.9) <= ABOUT else ", but too narrow" if covered < 0.9 else ", but too wide"
    return "WORSE than the operator alone" if scores.worse else f"knows more than the operator alone{width}"


def _coverage(name: str, times: Array, curves: dict[str, Array]) -> tuple[str, str]:
    lines = [Curve("after calibration" if f"coverage{AS_DRAWN}" in curves else "members", times, curves["coverage"])]
    if f"coverage{AS_DRAWN}" in curves:
        lines.append(Curve("as drawn", times, curves[f"coverage{AS_DRAWN}"]))
    lines.append(Curve("nine tenths", times, np.full(len(times), 0.9), dashed=True))
    words = f"{name}: part of the truth in the 90 % interval, against time."
    return words, chart(lines, TIME, "coverage", log_y=False)


def _spread(name: str, times: Array, curves: dict[str, Array]) -> tuple[str, str]:
    lines = [Curve("spread", times, curves["spread"])]
    if f"spread{AS_DRAWN}" in curves:
        lines.append(Curve("spread as drawn", times, curves[f"spread{AS_DRAWN}"]))
    lines.append(Curve("error of the mean", times, curves["error"], dashed=True))
    words = f"{name}: spread of the members and error of their mean, in deviations of the data."
    return words, chart(lines, TIME, "deviations")


def _times(task: TaskResult) -> Array:
    return np.asarray(times_of(task.ours.evaluation))
