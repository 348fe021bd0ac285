"""The baseline `linear`: the change of a cell as a linear function of its neighbours, or of a field of its modes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ups.eval.modes import LinearModes, modes_of
from ups.eval.nrmse import validation_nrmse
from ups.tensors import Losses, Window
from ups.types import DataError, TaskSpec

REACH = {1: 8, 2: 3, 3: 2}  # cells to either side along each axis that are looked at, by the number of axes
ROWS = 64  # cells for each weight of a channel, drawn from all frames, that are fitted to
LEAST = 256  # of each trajectory
RIDGES = (1e-8, 1e-5, 1e-3)  # of the variance of each feature: with the least, rollouts of smooth fields may explode
FEW = 16  # trajectories of training, up to which a linear rule for modes of the whole field is tried too
LOOKED_AT = 4  # windows whose rollouts decide which of RIDGES is taken, where there are none of validation
AT_ONCE = 2**24  # numbers that a rollout holds in between
ROUNDING = 1e-7  # of the mean: a channel with a standard deviation below that never varied


class LinearBaseline(nn.Module):
    """A linear function that gives the rate of change of all channels in a cell, or that of the modes of a field.

    The first is one of the given frames in that cell and in those around, of the inputs, and of a constant. Where there
    are few trajectories, `LinearModes` takes its place on their grid, if its rollouts of validation trajectories are
    better. `fit` solves for all of it; nothing is left to train.

    Args:
        task: What it predicts; it changes in time.
        context: How many given frames it looks at.
    """

    def __init__(self, task: TaskSpec, context: int) -> None:
        super().__init__()
        self.task, self.context, self.name = task, context, "linear"
        self.weight = nn.Parameter(torch.zeros(unknowns(task, context), len(task.channels), dtype=torch.float64))
        self.usual: Tensor
        self.register_buffer("usual", torch.ones(len(task.channels)))  # the size that each channel has in training
        self.modes: LinearModes | None = None

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Settings of a training without any step."""
        return {"steps": 0, "seconds": None, "ema": 0.0}

    @property
    def parameter_count(self) -> int:
        return self.weight.numel()

    def fit(self, windows: Iterable[Window], valid: Iterable[Window] = ()) -> None:
        """Solve for the weights by least squares: normal equations in float64, added up window by window.

        Args:
            windows: The training windows, each looked at once.
            valid: Windows of validation, whose rollouts choose the ridge, and the modes; those of training where
                there are none.

        Raises:
            DataError: There is no training window.
        """
        features, rng = len(self.weight) - 1, torch.Generator().manual_seed(0)
        count, sums = 0, torch.zeros(features + self.weight.shape[1], dtype=torch.float64)
        squares = torch.zeros(len(sums), len(sums), dtype=torch.float64)
        windows = [*windows]
        samples = sum(map(len, windows))
        for window in (each.to("cpu") for each in windows):
            rows = self._drawn(window, max(LEAST, ROWS * features // samples), rng)
            count, sums, squares = count + len(rows), sums + rows.sum(0), squares + rows.T @ rows
        if not count:
            raise DataError(f"there is no window of {self.task.name} to fit a linear model to.")
        mean = sums / count
        covariance = squares / count - torch.outer(mean, mean)
        self._learn_sizes(mean[:features], covariance.diagonal()[:features].clamp_min(0).sqrt())
        exam = [window.to("cpu") for window in [*valid] or windows[:LOOKED_AT]]
        solved = [(self._error(exam, weight), weight) for weight in _ridged(mean, covariance, features)]
        least, weight = min(solved, key=lambda pair: pair[0])
        with torch.no_grad():
            self.weight.copy_(weight)
        if samples <= FEW:
            tried = [(self._error(exam, modes=modes), modes) for modes in modes_of(windows, self.usual)]
            error, modes = min(tried, key=lambda pair: pair[0], default=(math.inf, None))
            self.modes = modes if error < least else None

    def _error(self, exam: Sequence[Window], weight: Tensor | None = None, modes: LinearModes | None = None) -> float:
        """The mean nRMSE of rollouts of windows by these weights, or these modes."""
        self.modes = modes
        with torch.no_grad():
            if weight is not None:
                self.weight.copy_(weight)
            return float(torch.cat([*map(self._nrmse, exam)]).mean())

    def _learn_sizes(self, mean: Tensor, deviation: Tensor) -> None:
        """Set the usual size of each channel: its standard deviation, or 1 + |mean| if it never varied. Both are those
        of the first features, a cell's own values in the first frame."""
        own = slice(len(self.task.channels))
        size = mean[own].abs()
        self.usual.copy_(torch.where(deviation[own] > ROUNDING * size, deviation[own], 1 + size))

    def _drawn(self, window: Window, rows: int, rng: torch.Generator) -> Tensor:
        """Features and rates of change of randomly drawn cells that count, `(rows, features + C)`; of each sample so
        many, or as many as it has."""
        frames = torch.cat([window.context[:, -self.context :], window.targets], 1).flatten(2, -2)
        near = neighbours(tuple(window.targets.shape[2:-1]), window.grid.periodic)
        samples, steps, cells = len(frames), window.targets.shape[1], len(near)
        rows = min(rows, steps * cells) * samples
        b, t, x = (torch.randint(n, (rows,), generator=rng) for n in (samples, steps, cells))
        if window.mask is not None:
            counts = window.mask.flatten(1)[b, x]
            b, t, x = b[counts], t[counts], x[counts]
        looked_at = [frames[b[:, None], (t + k)[:, None], near[x]].flatten(1).double() for k in range(self.context)]
        now, after = (frames[b, t + self.context - 1 + i, x].double() for i in (0, 1))
        dt = window.dt.double()[b] if window.dt.ndim == 1 else window.dt.double()[b, t]
        given = window.inputs.flatten(1, -2)[b, x].double()
        return torch.cat([*looked_at, given, (after - now) / dt[:, None]], 1)

    def predict(self, window: Window, steps: int) -> Tensor:
        """Frames after those of a window, `(B, steps, *S, C)`: each adds dt times its rate of change to the last."""
        if self.modes is not None and self.modes.knows(window):
            return self.modes.predict(window, steps)
        few = max(1, AT_ONCE // (len(self.weight) * math.prod(window.context.shape[2:-1])))
        return torch.cat([self._predicted(some, steps) for some in window.split(few)])

    def _predicted(self, window: Window, steps: int) -> Tensor:
        """`predict`, of few samples. What the cells around give is added up as soon as a frame is known, for each of
        the `context` steps that look back on it: `ahead[0]` is what is known of the next rate of change."""
        shape, periodic = tuple(window.context.shape[2:-1]), window.grid.periodic
        weight, channels = self.weight.to(window.context.device), len(self.task.channels)
        near = len(weight) - 1 - len(self.task.given)
        by_step = weight[:near].reshape(self.context, -1, channels).flip(0).permute(0, 2, 1)  # the newest frame first
        constant = (window.inputs.flatten(1, -2).double() @ weight[near:-1] + weight[-1]).mT  # (B, C, cells)
        ahead = [constant] * self.context

        def see(frame: Tensor) -> None:
            values = around(frame.reshape(*frame.shape[:2], *shape), periodic)
            ahead.append(constant)
            del ahead[0]
            for i, matrix in enumerate(by_step):
                ahead[i] = ahead[i] + matrix @ values

        given = window.context[:, -self.context :].double().movedim(-1, 2).flatten(3)
        for frame in given.unbind(1):
            see(frame)
        frame, predicted = given[:, -1], list[Tensor]()
        for i in range(steps):
            if i:
                see(frame)
            dt = (window.dt if window.dt.ndim == 1 else window.dt[:, i]).double()
            frame = frame + dt[:, None, None] * ahead[0]
            predicted.append(frame.float().mT.reshape(len(frame), *shape, channels))
        return torch.stack(predicted, 1)

    def loss(self, window: Window) -> Losses:
        """`mse`: the mean square error of the rollout."""
        return {"mse": (self.predict(window, window.targets.shape[1]) - window.targets).square().mean()}

    def view(self, window: Window, progress: float) -> Window:  # noqa: ARG002  (no curriculum)
        """The whole window, at any progress."""
        return window

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the rollout per sample, `(B,)`."""
        return {f"{self.task.name} nRMSE": self._nrmse(window)}

    def _nrmse(self, window: Window) -> Tensor:
        rollout = self.predict(window, window.targets.shape[1])
        return validation_nrmse(rollout, window.targets, self.usual.to(rollout.device), self.task, window.mask)

    def score(self, means: Mapping[str, float]) -> float:
        """The mean nRMSE of rollouts: the lower, the better."""
        return means[f"{self.task.name} nRMSE"]


def _ridged(mean: Tensor, covariance: Tensor, features: int) -> Iterator[Tensor]:
    """The weights for each of RIDGES, from mean and covariance of features and rates of change."""
    deviation = covariance.diagonal()[:features].clamp_min(0).sqrt()
    scale = torch.where(deviation > 0, 1 / deviation, 0.0)  # what never changes tells nothing
    system = covariance[:features, :features] * torch.outer(scale, scale)
    rates = covariance[:features, features:] * scale[:, None]
    for ridge in RIDGES:
        slopes = torch.linalg.solve(system + ridge * torch.eye(features, dtype=torch.float64), rates) * scale[:, None]
        yield torch.cat([slopes, (mean[features:] - mean[:features] @ slopes)[None]])


def unknowns(task: TaskSpec, context: int) -> int:
    """How many weights there are for each channel, where so many given frames are looked at."""
    return context * len(task.channels) * (1 + 2 * REACH[task.ndim] * task.ndim) + len(task.given) + 1


def neighbours(shape: tuple[int, ...], periodic: tuple[bool, ...]) -> Tensor:
    """The numbers of the cells that are looked at for each cell of a grid, `(cells, n)`: itself, then those to either
    side along each axis. Beyond an end that does not wrap the last cell stands for others."""
    cells = torch.arange(math.prod(shape)).reshape(1, 1, *shape)
    return around(cells, periodic)[0].T


def around(values: Tensor, periodic: tuple[bool, ...]) -> Tensor:
    """The values `(B, n · C, cells)` of all channels in the cells that are looked at for each, of `(B, C, *S)`; see
    `neighbours`."""
    near = [values]
    for axis, (length, wraps) in enumerate(zip(values.shape[2:], periodic, strict=True)):
        for by in (by for far in range(1, REACH[len(periodic)] + 1) for by in (-far, far)):
            at = torch.arange(length, device=values.device) + by
            near.append(values.index_select(axis + 2, at % length if wraps else at.clamp(0, length - 1)))
    return torch.cat(near, 1).flatten(2)
