"""Fits on validation data whether and how ensembles are stretched, and how errors are estimated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from ups.data.windows import at_once
from ups.eval.ensembles import crps, stretched_crps
from ups.eval.nrmse import RolloutErrors, by_training, over_cells
from ups.models import Simulator
from ups.models.calibration import LIMITS, Calibration, doubt_of_draws, drawing_part
from ups.models.ensembles import members_of
from ups.models.trust import ErrorModel, Trust, rollout_with_signs
from ups.progress import Progress, Screen
from ups.run.config import EvalConfig
from ups.run.data.datasets import DataSet
from ups.tensors import Window
from ups.types import Array, TaskSpec

MEMBERS = 16  # of the ensembles that are fitted
TRAJECTORIES = (16, 64)  # of the validation part of a task, on processors and on a GPU
TRAJECTORIES_AT_ONCE = (8, 32)  # trajectories of which all members are held at a time, on processors and on a GPU
FEW = 8  # trajectories, below which a calibration is a guess
LASTING = (0.0, 0.1, 0.3, 1.0)  # parts of the noise of members that last over all steps, tried in this order
TRIED = 8  # members, and trajectories, on which each of them is tried
FACTORS = np.exp(
    np.linspace(math.log(LIMITS[0]), math.log(LIMITS[1]), 25)
)  # by which stretching is tried; the middle one changes nothing
DRAWN = len(FACTORS) // 2
NEAR = 0.2  # of a step: what is found there is averaged with what is so much earlier and later
SURE = 2.0  # standard errors by which a stretch must lower the CRPS of a usual trajectory that it was not fitted to


def trust_of(
    simulator: Simulator, sets: Sequence[DataSet], device: torch.device, screen: Screen, settings: EvalConfig
) -> dict[str, Trust]:
    """Per task, what is fitted on its validation part, for rollouts that begin where users may begin them and where
    they are judged by `settings`; the screen shows how far it is, and where nothing could be fitted."""
    given = settings.given_to(simulator.context)
    simulator.to(device).eval()
    simulator.trust = trust = {}  # nothing of what was fitted before
    for i, data in enumerate(sets):
        screen.following(Progress(i, len(sets), "calibrating tasks"))
        with torch.no_grad():
            trust[data.task.name] = _fitted(simulator, data, device, given)
        few = sum(len(part) for part in data.parts("valid"))
        if doubt := doubt_of_draws(simulator, data.task):
            screen.say(doubt)
        if few < FEW and drawing_part(simulator, data.task) is not None:
            name = data.task.name
            screen.say(f"{name}: only {few} validation trajectories say how wide its ensembles must be.")
        if trust[data.task.name].error is None and not data.task.steady:
            least = min(starts_of(simulator, data.task, given))
            long = any(bool((part.lengths > least).any()) for part in data.parts("valid"))
            why = "no error on validation data is finite" if long else "no validation data follow the context"
            screen.say(f"{data.task.name}: {why}; its errors cannot be estimated.")
    screen.following(Progress(len(sets), len(sets), "calibrating tasks"))
    return trust


def starts_of(simulator: Simulator, task: TaskSpec, given: int) -> tuple[int, ...]:
    """True frames before the rollouts that are fitted, in ascending order: as few as a rollout of the task needs, and
    as many as are `given` where it is judged. Errors after few and after many frames may differ by a factor."""
    if task.steady:
        return (simulator.context,)
    return tuple(sorted({simulator.looks_back(task.name), given}))


def _fitted(simulator: Simulator, data: DataSet, device: torch.device, given: int) -> Trust:
    """Calibration and error model of one task, fitted on its validation part."""
    drawn_by, task = drawing_part(simulator, data.task), data.task
    stretches = Stretches()
    signs: dict[str, list[Array]] = {}
    errors = RolloutErrors(usual=usual_of(simulator, task))
    at_steps: list[Array] = []  # of each error
    on_gpu = device.type == "cuda"
    starts = starts_of(simulator, task, given)
    lasting = 0.0 if drawn_by is None else _lasting_noise(simulator, data, device, starts)
    for window, numbers in _windows(data, starts, TRAJECTORIES[on_gpu], TRAJECTORIES_AT_ONCE[on_gpu]):
        window = window.to(device)
        steps = window.targets.shape[1]
        members = None if drawn_by is None else _members(simulator, window, MEMBERS, lasting)
        if members is not None:
            std = simulator.codec.statistics_of(task).scale
            stretches.add(members, window, std, numbers, operator_alone(simulator, window, steps))
        if not task.steady:
            plain, rows = rollout_with_signs(simulator, window, steps, members)
            for i, row in enumerate(rows):
                at_steps.append(np.full(len(window), i))
                for name, values in row.items():
                    signs.setdefault(name, []).append(values.cpu().numpy())
            errors.add(plain, window.targets, window.weights)
    calibration = None
    if drawn_by is not None and stretches.tables:
        factors = stretches.factors(task)
        calibration = Calibration(drawn_by, factors, lasting, stretches.worth(factors))
    if not errors:
        return Trust(calibration)
    true = np.concatenate([rows.T.ravel() for rows in errors.by_step()])  # step by step, as the signs are
    columns = {name: np.concatenate(values) for name, values in signs.items()}
    columns = {name: row for name, row in columns.items() if len(row) == len(true)}  # those under every boundary
    if calibration is not None:  # the spread counts as wide as it will be from now on
        columns["spread"] *= np.array([calibration.width(i) for i in np.concatenate(at_steps)])
    return Trust(calibration, ErrorModel.fit(columns, true))


def usual_of(simulator: Simulator, task: TaskSpec) -> tuple[float, ...] | None:
    """The sizes of channels in training, where quiet frames of a task are compared with them; else None."""
    return tuple(simulator.codec.statistics_of(task).usual.tolist()) if by_training(task) else None


def operator_alone(simulator: Simulator, window: Window, steps: int) -> torch.Tensor:
    """The rollout `(B, steps, *S, C)` without any part that draws."""
    drawing = {name for name, part in simulator.parts.items() if part.draws}
    simulator.idle, idle = simulator.idle | drawing, simulator.idle
    try:
        return simulator.simulate(window, steps)
    finally:
        simulator.idle = idle


class Stretches:
    """The CRPS that validation trajectories would have, were the deviations of their members from their mean multiplied
    by each of `FACTORS`. Trajectories of even numbers are fitted to, those of odd ones say whether that is any good."""

    def __init__(self) -> None:
        self.tables: list[Array] = []  # (B, T, C, factors) of each window
        self.even: list[bool] = []
        self.alone: list[Array] = []  # (B, T, C) of each window: the absolute error of the operator alone

    def add(
        self,
        members: torch.Tensor,
        window: Window,
        std: torch.Tensor,
        numbers: Sequence[int],
        alone: torch.Tensor | None = None,
    ) -> None:
        """Members `(M, B, T, *S, C)` of the trajectories of those numbers, and what the operator `alone` answers."""
        if alone is not None:
            errors = over_cells(((alone - window.targets) / std).abs(), window.mask)
            self.alone.append(errors.double().cpu().numpy())
        steps = []
        for i in range(members.shape[2]):  # one by one: there may be many members
            at = slice(i, i + 1)
            tried = stretched_crps(members[:, :, at] / std, window.targets[:, at] / std, FACTORS.tolist())
            steps.append(torch.stack([over_cells(score, window.weights) for score in tried], -1))
        self.tables.append(torch.cat(steps, 1).double().cpu().numpy())
        self.even += [number % 2 == 0 for number in numbers]

    def factors(self, task: TaskSpec) -> tuple[tuple[float, ...], ...]:
        """The factor of each step and channel that gives the trajectories it is fitted to the least CRPS.

        It is 1 throughout unless that surely lowers the CRPS of the other trajectories too. Channels of one field share
        a factor, so that what is linear in them (a divergence) stays as it is.
        """
        table = _padded(self.tables)
        table = np.where(np.isfinite(table), table, 0.0)  # a rollout that runs away says nothing of the others
        even, logs = np.array(self.even), np.zeros(table.shape[1:3])
        nearest = np.argsort(np.abs(np.arange(len(FACTORS)) - DRAWN), kind="stable")  # where all are alike, as drawn
        for first, last in pairwise(np.cumsum([0, *(len(f.channels) for f in task.fields)]).tolist()):
            curves = _smoothed(table[even, :, first:last].sum((0, 2)))
            best = nearest[curves[:, nearest].argmin(1)]
            logs[:, first:last] = _smoothed(np.log(FACTORS[best])[:, None])
        gains = table[~even, :, :, DRAWN] - _between(table[~even], logs)
        gain, drawn = gains.sum((1, 2)), table[~even, :, :, DRAWN].sum((1, 2))
        shares = gain[drawn > 0] / drawn[drawn > 0]  # a few trajectories may make most of a CRPS
        sure = len(shares) > 1 and shares.mean() > SURE * shares.std(ddof=1) / math.sqrt(len(shares))
        if not (sure and gain.mean() > 0):
            logs[:] = 0.0
        return tuple(tuple(row) for row in np.exp(logs).tolist())

    def worth(self, factors: tuple[tuple[float, ...], ...]) -> float | None:
        """The CRPS of members so stretched over the absolute error of the operator alone: of the trajectories that the
        factors were not fitted to, or of all where they change nothing. None where it is not known."""
        crps = _between(_padded(self.tables), np.log(np.array(factors))).mean((1, 2))
        alone, others = _padded(self.alone).mean((1, 2)), ~np.array(self.even)
        stretched = any(factor != 1 for row in factors for factor in row)
        counts = np.isfinite(crps) & np.isfinite(alone) & (others if stretched else True)
        total = float(alone[counts].sum())
        return float(crps[counts].sum()) / total if total > 0 else None


def _padded(tables: Sequence[Array]) -> Array:
    """Tables `(B, T, …)` of windows as one, with zeros after the last step of the shorter ones."""
    most = max(table.shape[1] for table in tables)
    return np.concatenate([np.pad(t, [(0, 0), (0, most - t.shape[1]), *[(0, 0)] * (t.ndim - 2)]) for t in tables])


def _between(table: Array, logs: Array) -> Array:
    """What `table (N, T, C, factors)` holds for factors of these logarithms `(T, C)`, by interpolation: `(N, T, C)`."""
    place = np.interp(logs, np.log(FACTORS), np.arange(len(FACTORS)))
    low = np.minimum(place.astype(int), len(FACTORS) - 2)
    left, right = (np.take_along_axis(table, (low + i)[None, ..., None], 3)[..., 0] for i in (0, 1))
    values: Array = left + (place - low) * (right - left)
    return values


def _smoothed(rows: Array) -> Array:
    """Rows of steps, each averaged with those of the steps around it."""
    means = []
    for i in range(len(rows)):
        around = min(int(NEAR * (i + 1)), len(rows) - 1 - i)  # as many before as after: a trend is no error
        means.append(rows[i - around : i + around + 1].mean(0))
    return np.array(means)


def _members(simulator: Simulator, window: Window, count: int, lasting: float) -> torch.Tensor:
    steps = window.targets.shape[1]
    return members_of(simulator.simulate, window, steps, count, together=count, lasting=lasting)


def _lasting_noise(simulator: Simulator, data: DataSet, device: torch.device, starts: Sequence[int]) -> float:
    """The best part of the noise of members to last over all steps: tries 0, 0.1, 0.3 and 1 on a few members
    of a few trajectories, and stops at the first that does not lower the CRPS. 0 for steady tasks."""
    std, least, best = simulator.codec.statistics_of(data.task).scale, math.inf, 0.0
    for lasting in (0.0,) if data.task.steady else LASTING:
        scores = []
        for window in (window.to(device) for window, _ in _windows(data, starts, TRIED, TRIED)):
            score = crps(_members(simulator, window, TRIED, lasting) / std, window.targets / std, fair=True)
            scores.append(over_cells(score, window.weights).mean())
        if not scores:
            break
        total = float(torch.stack(scores).mean())
        if not total < least:
            break
        least, best = total, lasting
    return best


def _windows(data: DataSet, starts: Sequence[int], most: int, rows: int) -> Iterator[tuple[Window, list[int]]]:
    """Whole validation trajectories and their numbers, `rows` at a time and about `most` in all: as many of each grid
    and after each number of given frames in `starts`, and different ones after each, where there are enough."""
    parts = data.parts("valid")
    for part in parts:
        steady = part.task.steady
        long = {start: np.flatnonzero(steady | (part.lengths > start)) for start in starts}
        own = [start for start in starts if len(long[start])]
        share = max(1, most // (len(parts) * max(1, len(own))))
        for i, start in enumerate(own):
            first = max(0, min(i * share, len(long[start]) - share))
            chosen = long[start][first : first + share]
            for length in dict.fromkeys(part.lengths[chosen].tolist()):
                same = chosen[part.lengths[chosen] == length].tolist()
                size = at_once(rows, length, part.shape, 0)
                for numbers in (same[k : k + size] for k in range(0, len(same), size)):
                    yield part.window(numbers, [0] * len(numbers), start, 1 if steady else length - start), numbers
