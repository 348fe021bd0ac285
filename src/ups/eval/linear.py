"""The baseline `linear`: the change of a cell as a linear function of its neighbours, fitted by least squares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ups.eval.nrmse import validation_nrmse
from ups.tensors import Losses, Window
from ups.types import DataError, TaskSpec

REACH = {1: 8, 2: 3, 3: 2}  # cells to either side along each axis that are looked at, by the number of axes
ROWS = 2**13  # cells of a trajectory, drawn from all of its frames, that are fitted to: unknowns are hundreds at most
RIDGES = (1e-8, 1e-5, 1e-3)  # of the variance of each feature: with the least, rollouts of smooth fields may explode
LOOKED_AT = 8  # training samples whose rollouts decide which of RIDGES is taken
ROUNDING = 1e-7  # of the mean: a channel with a standard deviation below that never varied


class LinearBaseline(nn.Module):
    """A linear function that gives the rate of change of all channels in a cell.

    It is a function of the given frames in that cell and in those around, of the inputs, and of a constant. `fit`
    solves for its weights; nothing is left to train.

    Args:
        task: What it predicts; it changes in time.
        context: How many given frames it looks at.
    """

    def __init__(self, task: TaskSpec, context: int) -> None:
        super().__init__()
        self.task, self.context, self.name = task, context, "linear"
        looked_at = context * len(task.channels) * (1 + 2 * REACH[task.ndim] * task.ndim)
        shape = (looked_at + len(task.given) + 1, len(task.channels))
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.usual: Tensor
        self.register_buffer("usual", torch.ones(len(task.channels)))  # the size that each channel has in training

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

    def fit(self, windows: Iterable[Window]) -> None:
        """Solve for the weights by least squares: normal equations in float64, added up window by window.

        Args:
            windows: The training windows, each looked at once.

        Raises:
            DataError: There is none.
        """
        features, rng, first = len(self.weight) - 1, torch.Generator().manual_seed(0), list[Window]()
        count, sums = 0, torch.zeros(features + self.weight.shape[1], dtype=torch.float64)
        squares = torch.zeros(len(sums), len(sums), dtype=torch.float64)
        for window in (each.to("cpu") for each in windows):
            first = first or [window.rows(0, LOOKED_AT)]
            rows = self._drawn(window, rng)
            count, sums, squares = count + len(rows), sums + rows.sum(0), squares + rows.T @ rows
        if not count:
            raise DataError(f"there is no window of {self.task.name} to fit a linear model to.")
        mean = sums / count
        covariance = squares / count - torch.outer(mean, mean)
        deviation = covariance.diagonal()[:features].clamp_min(0).sqrt()
        self._learn_sizes(mean[:features], deviation)
        scale = torch.where(deviation > 0, 1 / deviation, 0.0)  # what never changes tells nothing
        system = covariance[:features, :features] * torch.outer(scale, scale)
        rates = covariance[:features, features:] * scale[:, None]
        solved: list[tuple[float, Tensor]] = []
        for ridge in RIDGES:
            ridged = system + ridge * torch.eye(features, dtype=torch.float64)
            slopes = torch.linalg.solve(ridged, rates) * scale[:, None]
            with torch.no_grad():
                self.weight.copy_(torch.cat([slopes, (mean[features:] - mean[:features] @ slopes)[None]]))
                solved.append((self.score(_means(self.evaluate(first[0]))), self.weight.clone()))
        with torch.no_grad():
            self.weight.copy_(min(solved, key=lambda pair: pair[0])[1])

    def _learn_sizes(self, mean: Tensor, deviation: Tensor) -> None:
        """Set the usual size of each channel: its standard deviation, or 1 + |mean| if it never varied. Both are those
        of the first features, a cell's own values in the first frame."""
        own = slice(len(self.task.channels))
        size = mean[own].abs()
        self.usual.copy_(torch.where(deviation[own] > ROUNDING * size, deviation[own], 1 + size))

    def _drawn(self, window: Window, rng: torch.Generator) -> Tensor:
        """Features and rates of change of randomly drawn cells that count, `(rows, features + C)`."""
        frames = torch.cat([window.context[:, -self.context :], window.targets], 1).flatten(2, -2)
        near = neighbours(tuple(window.targets.shape[2:-1]), window.grid.periodic)
        samples, steps, cells = len(frames), window.targets.shape[1], len(near)
        rows = min(ROWS, steps * cells) * samples
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
        shape, weight = window.context.shape[2:], self.weight.to(window.context.device)
        near = neighbours(tuple(shape[:-1]), window.grid.periodic).to(weight.device)
        frames = [*window.context[:, -self.context :].flatten(2, -2).double().unbind(1)]
        by_frame = weight[: len(weight) - 1 - len(self.task.given)].reshape(self.context, near.shape[1], shape[-1], -1)
        constant = window.inputs.flatten(1, -2).double() @ weight[by_frame.shape[:3].numel() : -1] + weight[-1]
        predicted = []
        for i in range(steps):
            rate = constant
            for frame, by_offset in zip(frames[-self.context :], by_frame, strict=True):
                for place, matrix in zip(near.T, by_offset, strict=True):
                    rate = rate + frame[:, place] @ matrix
            dt = (window.dt if window.dt.ndim == 1 else window.dt[:, i]).double()
            frames.append(frames[-1] + dt[:, None, None] * rate)
            frames = frames[-self.context :]
            predicted.append(frames[-1].float().reshape(len(frame), *shape))
        return torch.stack(predicted, 1)

    def loss(self, window: Window) -> Losses:
        """`mse`: the mean square error of the rollout."""
        return {"mse": (self.predict(window, window.targets.shape[1]) - window.targets).square().mean()}

    def view(self, window: Window, progress: float) -> Window:  # noqa: ARG002  (no curriculum)
        """The whole window, at any progress."""
        return window

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the rollout per sample, `(B,)`."""
        rollout = self.predict(window, window.targets.shape[1])
        usual = self.usual.to(rollout.device)
        return {f"{self.task.name} nRMSE": validation_nrmse(rollout, window.targets, usual, window.mask)}

    def score(self, means: Mapping[str, float]) -> float:
        """The mean nRMSE of rollouts: the lower, the better."""
        return means[f"{self.task.name} nRMSE"]


def _means(numbers: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in numbers.items()}


def neighbours(shape: tuple[int, ...], periodic: tuple[bool, ...]) -> Tensor:
    """The numbers of the cells that are looked at for each cell of a grid, `(cells, n)`: itself, then those to either
    side along each axis. Beyond an end that does not wrap the last cell stands for others."""
    cells = torch.arange(torch.Size(shape).numel()).reshape(shape)
    neighbour_cells = [cells]
    for axis, (length, wraps) in enumerate(zip(shape, periodic, strict=True)):
        for by in (by for far in range(1, REACH[len(shape)] + 1) for by in (-far, far)):
            at = torch.arange(length) + by
            neighbour_cells.append(cells.index_select(axis, at % length if wraps else at.clamp(0, length - 1)))
    return torch.stack([each.flatten() for each in neighbour_cells], 1)
