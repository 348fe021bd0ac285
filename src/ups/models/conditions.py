"""Conditioner: embeds as one vector what drives a step: parameters, time step, boundary, box and task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ups.models.layers import AXES, drawn, fourier_features
from ups.models.part import NamedAxis
from ups.tensors import Condition, numeric_params, table
from ups.types import ConfigError, TaskSpec

DT_WAVES = 3


class ParamScaling(nn.Module):
    """The range of each parameter of a task in training, and the map of a value to about ±1 within it.

    Parameters that are always positive are compared by their logarithm, others by asinh, so that decades count alike.
    """

    low: Tensor
    high: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("low", torch.ones(count))
        self.register_buffer("high", torch.ones(count))

    def fit(self, low: Tensor, high: Tensor) -> None:
        self.low.copy_(low)
        self.high.copy_(high)

    def forward(self, params: Tensor) -> Tensor:
        # All three by the same kernels.
        scaled = self._scaled(torch.cat((self.low.unsqueeze(0), self.high.unsqueeze(0), params)))
        low, high = scaled[0], scaled[1]
        half = (high - low) / 2
        # A parameter that never varied is measured in its own size, so that another value is at least seen.
        half = torch.where(half > 1e-6, half, torch.ones_like(half))
        return (scaled[2:] - (low + high) / 2) / half

    def _scaled(self, x: Tensor) -> Tensor:
        size = torch.maximum(self.low.abs(), self.high.abs())
        size = torch.where(size > 0, size, 1.0)
        # No unit is too small: what counts as nothing is so beside the least value that training saw.
        nothing = (1e-12 * self.low).clamp_min(torch.finfo(x.dtype).tiny)
        return torch.where(self.low > 0, x.maximum(nothing).log(), torch.asinh(x / size))


@table
def _stretch(logs: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(logs, dtype=torch.float32, device=device).unsqueeze(1)


@table
def _as_mask(places: tuple[bool, ...], device: torch.device) -> Tensor:
    return torch.tensor(places, dtype=torch.float32, device=device)


class Conditioner(nn.Module):
    """Embeds a `Condition` as `(B, width)`: the sum of what its parts say, through a small network."""

    def __init__(self, width: int, tasks: Sequence[TaskSpec]) -> None:
        super().__init__()
        names = [task.name for task in tasks]
        self.index: Mapping[str, int] = {name: i for i, name in enumerate(names)}
        self.numbers: Mapping[str, tuple[str, ...]] = {task.name: numeric_params(task) for task in tasks}
        self.hidden_params: Mapping[str, Sequence[str]] = {}  # by task: left out where all axes wrap
        counts = {name: len(numbers) for name, numbers in self.numbers.items()}
        self.ranges = nn.ModuleDict({name: ParamScaling(n) for name, n in counts.items()})
        self.params = nn.ModuleDict({name: nn.Linear(n, width, bias=False) for name, n in counts.items() if n})
        self.dt = nn.Linear(2 * DT_WAVES + 1, width, bias=False)
        self.task = nn.Parameter(drawn(len(names), width, over=2))
        self.boundary = nn.Parameter(drawn(AXES, 2, width, over=2))
        self.leave = nn.Linear(width, width)
        # How the box is stretched beside the task's own; an unstretched one adds nothing.
        self.lengths = {task.name: tuple(hi - lo for lo, hi in task.bounds) for task in tasks}
        self.box = nn.Parameter(torch.zeros(AXES, width))

    def range_of(self, task: str) -> ParamScaling:
        if task not in self.index:
            raise ConfigError(f"the simulator was not trained on '{task}'; it knows {', '.join(self.index)}.")
        trained = self.ranges[task]
        assert isinstance(trained, ParamScaling)
        return trained

    def forward(self, condition: Condition) -> Tensor:
        name = condition.task
        total = self.task[self.index[name]] + self.dt(fourier_features(condition.dt.float().log() / 4, DT_WAVES))
        for axis, wraps in enumerate(condition.grid.periodic):
            total = total + self.boundary.flatten(0, 1)[2 * axis + wraps]
        if condition.grid.bounds:
            logs = tuple(math.log(a / b) for a, b in zip(condition.grid.lengths, self.lengths[name], strict=True))
            # Coordinates in files are rounded; a box is another one only beyond that.
            if any(abs(x) > 1e-3 for x in logs):
                total = total + (_stretch(logs, total.device) * self.box[: len(logs)]).sum(0)
        if name in self.params:
            scaled = self.range_of(name)(condition.params.float())
            if name in self.hidden_params and all(condition.grid.periodic):
                visible = tuple(number not in self.hidden_params[name] for number in self.numbers[name])
                scaled = scaled * _as_mask(visible, scaled.device)
            total = total + self.params[name](scaled)
        y: Tensor = functional.silu(self.leave(functional.silu(total)))
        return y


def driven_by(task: TaskSpec) -> dict[str, NamedAxis]:
    """The tensors of a part with a `conditioner` and an encoder of `inputs` in which each parameter and input of a task
    has a place of its own."""
    name, numbers = task.name, numeric_params(task)
    named = {f"conditioner.ranges.{name}.{end}": NamedAxis(0, numbers) for end in ("low", "high")}
    named[f"conditioner.params.{name}.weight"] = NamedAxis(1, numbers, silent=True)
    named |= {f"inputs.statistics.{name}.{moment}": NamedAxis(0, task.given) for moment in ("mean", "std")}
    return named | {f"inputs.encoder.enter.{name}.weight": NamedAxis(1, task.given, silent=True)}
