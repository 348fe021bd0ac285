"""Fits on validation data how wide ensembles must be and how errors are estimated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from ups.data.windows import whole
from ups.eval.ensembles import crps, fitting_stretch
from ups.eval.nrmse import RolloutErrors, over_cells
from ups.models import Simulator
from ups.models.calibration import EDGES, LIMIT, STRETCHED, Calibration, Damping, banded, bands, drawing_part, smooth
from ups.models.ensembles import members_of
from ups.models.trust import ErrorModel, Trust, rollout_with_signs
from ups.progress import Progress, Screen
from ups.run.config import EvalConfig
from ups.run.data.datasets import DataSet
from ups.tensors import Window
from ups.types import Array, TaskSpec

MEMBERS = 16  # of the ensembles that are fitted
LEVEL = 0.9  # the part of the truth that their intervals are to cover
TRAJECTORIES = (16, 64)  # of the validation part of a task, on processors and on a GPU
TRAJECTORIES_AT_ONCE = (8, 32)  # trajectories of which all members are held at a time, on processors and on a GPU
FEW = 8  # trajectories, below which a calibration is a guess
LASTING = (0.0, 0.1, 0.3, 1.0)  # parts of the noise of members that last over all steps, tried in this order
TRIED = 8  # members, and trajectories, on which each of them is tried
PLACES = 512  # of a frame, at most, at which members are compared with the truth
HELD_BYTES = 2**30  # of members, at most, that are held for fitting again; where there are more, they are drawn again
ROUNDS = 2  # of fitting stretch and damping to each other
NEAR = 0.2  # of a step: its factor is averaged with those so much earlier and later


Drawn = tuple[torch.Tensor, torch.Tensor, Window]  # members, the rollout without draws, the window


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
        if few < FEW and drawing_part(simulator, data.task) is not None:
            name = data.task.name
            screen.say(f"{name}: only {few} of its trajectories calibrated its ensembles; their width is a guess.")
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
    drawings = Drawings()
    signs: dict[str, list[Array]] = {}
    errors = RolloutErrors()
    at_steps: list[Array] = []  # of each error
    on_gpu = device.type == "cuda"
    starts = starts_of(simulator, task, given)
    lasting = 0.0 if drawn_by is None else _lasting_noise(simulator, data, device, starts)

    def windows() -> Iterator[Window]:
        return (
            window.to(device) for window in _windows(data, starts, TRAJECTORIES[on_gpu], TRAJECTORIES_AT_ONCE[on_gpu])
        )

    for window in windows():
        steps = window.targets.shape[1]
        members = None if drawn_by is None else _members(simulator, window, MEMBERS, lasting)
        if task.steady:
            plain, rows = simulator.simulate(window, steps), list[dict[str, torch.Tensor]]()
        else:
            plain, rows = rollout_with_signs(simulator, window, steps, members)
        if members is not None:
            drawings.add(members, plain, window)
        if not task.steady:
            for i, row in enumerate(rows):
                at_steps.append(np.full(len(window), i))
                for name, values in row.items():
                    signs.setdefault(name, []).append(values.cpu().numpy())
            errors.add(plain, window.targets, window.mask)
    calibration = None
    if drawn_by is not None and drawings.places:

        def again() -> Iterator[Drawn]:
            for window in windows():
                members = _members(simulator, window, MEMBERS, lasting)
                yield members, simulator.simulate(window, members.shape[2]), window

        calibration = drawings.calibration(drawn_by, lasting, task, device, again)
    if not errors:
        return Trust(calibration)
    true = np.concatenate([rows.T.ravel() for rows in errors.by_step()])  # step by step, as the signs are
    columns = {name: np.concatenate(values) for name, values in signs.items()}
    columns = {name: row for name, row in columns.items() if len(row) == len(true)}  # those under every boundary
    if calibration is not None:  # the spread counts as wide as it will be from now on
        columns["spread"] *= np.array([calibration.width(i) for i in np.concatenate(at_steps)])
    return Trust(calibration, ErrorModel.fit(columns, true))


class Drawings:
    """Members of validation trajectories, from which a calibration is fitted."""

    def __init__(self) -> None:
        self.places: list[list[torch.Tensor]] = []  # of each step, of each window
        self.powers = Powers()
        self.drawn: list[Drawn] | None = []  # None: too many to hold

    def add(self, members: torch.Tensor, plain: torch.Tensor, window: Window) -> None:
        """Members `(M, B, T, *S, C)`, and the rollout without draws."""
        self._place(members, plain, window)
        self.powers.add(members, plain, window)
        if self.drawn is not None:
            self.drawn.append((members.cpu(), plain.cpu(), window.to("cpu")))
            much = sum(one[0].numel() * one[0].element_size() for one in self.drawn) > HELD_BYTES
            self.drawn = None if much else self.drawn

    def calibration(
        self,
        drawn_by: str,
        lasting: float,
        task: TaskSpec,
        device: torch.device,
        again: Callable[[], Iterable[Drawn]],
    ) -> Calibration:
        """Stretch and damping, fitted in turns, for damped members are narrower. `again` draws the members once more,
        where they were too many to hold."""
        factors = factors_of(self.places, task, device)
        calibration = Calibration(drawn_by, factors, lasting, self.powers.damping(factors, task))
        for _ in range(ROUNDS):
            if all(d == 1 for step in calibration.damping for band in step for d in band):
                break
            self.places = []
            for members, plain, window in again() if self.drawn is None else self.drawn:
                here = window.to(device)
                damped = torch.stack([calibration.damped(one, here) for one in members.to(device)])
                self._place(damped, calibration.damped(plain.to(device), here), here)
            factors = factors_of(self.places, task, device)
            calibration = dataclasses.replace(calibration, factors=factors, damping=self.powers.damping(factors, task))
        return calibration

    def _place(self, members: torch.Tensor, plain: torch.Tensor, window: Window) -> None:
        steps = plain.shape[1]
        self.places += [[] for _ in range(steps - len(self.places))]
        for i in range(steps):
            self.places[i].append(thinned(members[:, :, i : i + 1], plain[:, i : i + 1], window, i))


def _members(simulator: Simulator, window: Window, count: int, lasting: float) -> torch.Tensor:
    steps = window.targets.shape[1]
    return members_of(simulator.simulate, window, steps, count, together=count, lasting=lasting)


def _lasting_noise(simulator: Simulator, data: DataSet, device: torch.device, starts: Sequence[int]) -> float:
    """The best part of the noise of members to last over all steps: tries 0, 0.1, 0.3 and 1 on a few members
    of a few trajectories, and stops at the first that does not lower the CRPS. 0 for steady tasks."""
    std, least, best = simulator.codec.statistics_of(data.task).scale, math.inf, 0.0
    for lasting in (0.0,) if data.task.steady else LASTING:
        scores = []
        for window in _windows(data, starts, TRIED, TRIED):
            window = window.to(device)
            score = crps(_members(simulator, window, TRIED, lasting) / std, window.targets / std, fair=True)
            scores.append(over_cells(score, window.mask).mean())
        if not scores:
            break
        total = float(torch.stack(scores).mean())
        if not total < least:
            break
        least, best = total, lasting
    return best


def _windows(data: DataSet, starts: Sequence[int], most: int, rows: int) -> Iterator[Window]:
    """Whole validation trajectories, `rows` at a time and about `most` in all: as many of each grid and after each
    number of given frames in `starts`, and different ones after each, where there are enough."""
    parts = data.parts("valid")
    for part in parts:
        counts = {n: len(part) if part.task.steady else int((part.lengths > n).sum()) for n in starts}
        own = [start for start in starts if counts[start]]
        share = max(1, most // (len(parts) * max(1, len(own))))
        for i, start in enumerate(own):
            first = max(0, min(i * share, counts[start] - share))
            for window in whole([part], start, rows):
                if first < len(window):
                    yield window.rows(max(first, 0), first + share)
                first -= len(window)
                if first + share <= 0:
                    break


def thinned(members: torch.Tensor, plain: torch.Tensor, window: Window, step: int) -> torch.Tensor:
    """One frame of members `(M, B, 1, *S, C)` and of the rollout without draws at no more than `PLACES` places of each
    sample, `(2M + 1, C, places)`: the members' deviations, first what is stretched of them, then the rest, and last the
    error."""
    deviations = members - plain
    wide = torch.stack([smooth(one, window) for one in deviations])
    error = window.targets[:, step : step + 1] - plain
    cells = torch.cat((wide, deviations - wide, error.unsqueeze(0)))[:, :, 0].flatten(2, -2)  # (2M + 1, B, cells, C)
    stride = -(-cells.shape[2] // PLACES) | 1  # odd, so that no column of a grid is the only one
    cells = cells[:, :, ::stride]
    chosen = cells.flatten(1, 2) if window.mask is None else cells[:, window.mask.flatten(1)[:, ::stride]]
    return chosen.transpose(1, 2).cpu()


def factors_of(
    places: Sequence[Sequence[torch.Tensor]], task: TaskSpec, device: torch.device | str = "cpu"
) -> tuple[tuple[float, ...], ...]:
    """The factors of each step and channel: the stretch by which `LEVEL` of the truth is covered, smoothed over steps;
    found on a device, one step at a time.

    Channels of one field have one factor, so that what is linear in them (a divergence) stays as it is.
    """
    ends = list(pairwise(np.cumsum([0, *(len(f.channels) for f in task.fields)]).tolist()))
    logs = np.zeros((len(places), len(task.channels)))
    for i, step in enumerate(places):
        pool = torch.cat(list(step), 2).to(device)
        for first, last in ends:
            values = pool[:, first:last].flatten(1)
            members = len(values) // 2
            factor = fitting_stretch(values[:members], values[members : 2 * members], values[-1], LIMIT, LEVEL)
            logs[i, first:last] = np.log(factor)
    return tuple(tuple(row) for row in _smoothed(logs).clip(1 / LIMIT, LIMIT).tolist())


def _smoothed(logs: Array) -> Array:
    """Factors of steps from their logarithms, each averaged with those of the steps around it."""
    rows = []
    for i in range(len(logs)):
        around = min(int(NEAR * (i + 1)), len(logs) - 1 - i)  # as many before as after: a trend is no error
        rows.append(np.exp(logs[i - around : i + around + 1].mean(0)))
    return np.array(rows)


class Powers:
    """How strong each band of waves is, of the truth, of rollouts without draws, and of what members have beside them:
    sums over trajectories by step, band and channel."""

    def __init__(self) -> None:
        self.sums: list[Array] = []  # (4, T, bands, C), of each window

    def add(self, members: torch.Tensor, plain: torch.Tensor, window: Window) -> None:
        if not banded(window):
            return
        grid, axes = tuple(plain.shape[2:-1]), tuple(range(2, plain.ndim - 1))
        band, times = bands(grid, plain.device)

        def power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            """Of two spectra `(B, T, *K, C)`, in each band `(B, T, bands, C)`."""
            each = ((a * b.conj()).real.double() * times.unsqueeze(-1)).flatten(2, -2)
            total = each.new_zeros(*each.shape[:2], 1 + len(EDGES), each.shape[-1])
            return total.index_add_(2, band.flatten(), each)[:, :, 1:].cpu() / math.prod(grid) ** 2

        truth, own = (torch.fft.rfftn(x, dim=axes) for x in (window.targets, plain))
        both, drawn = torch.zeros(()), torch.zeros(())
        for one in members:
            beside = torch.fft.rfftn(one - plain, dim=axes)
            both, drawn = both + power(own, beside) / len(members), drawn + power(beside, beside) / len(members)
        sums = torch.stack((power(truth, truth), power(own, own), both, drawn))
        sound = sums.isfinite().flatten(2).all(2).all(0)  # a rollout that runs away says nothing of the others
        self.sums.append(sums[:, sound].sum(1).numpy())

    def damping(self, factors: Sequence[Sequence[float]], task: TaskSpec) -> Damping:
        """By what each band of members is multiplied, once they are stretched, to be as strong as the truth's: no more
        than 1. Channels of one field have one factor."""
        if not self.sums:
            return ()
        alike = [np.pad(s, ((0, 0), (0, len(factors) - s.shape[1]), (0, 0), (0, 0))) for s in self.sums]
        truth, own, both, drawn = np.sum(alike, 0)
        stretch = np.array(factors)[:, None]
        fine = np.array(EDGES)[:, None] >= STRETCHED
        part = np.where(fine, np.minimum(stretch, 1.0), stretch)
        power = own + 2 * part * both + part**2 * drawn
        logs = np.zeros_like(truth)
        for first, last in pairwise(np.cumsum([0, *(len(f.channels) for f in task.fields)]).tolist()):
            want, have = (x[..., first:last].sum(-1, keepdims=True) for x in (truth, power))
            ratio = np.divide(want, have, out=np.ones_like(want), where=(want > 0) & (have > 0))
            logs[..., first:last] = 0.5 * np.log(ratio)
        rows = _smoothed(logs).clip(1 / LIMIT, 1.0)
        return tuple(tuple(tuple(band) for band in step) for step in rows.tolist())
