"""What is exported of a simulator: the first tokens of a rollout, one step, or the solution of a steady task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ups.models import Simulator
from ups.models.stepping import Stepping
from ups.tensors import Window, numeric_params
from ups.types import Grid, TaskSpec

EXAMPLES = 3  # samples of the batch that is traced: neither 0 nor 1, which a tracer takes for constants, nor an axis


@dataclass(frozen=True)
class Arguments:
    """What is asked of an exported simulator, by the names of its arguments: all that its task needs, and no more."""

    task: TaskSpec
    grid: Grid

    def window(self, state: Tensor | None, inputs: Tensor | None, params: Tensor | None, dt: Tensor | None) -> Window:
        """The arguments as a window."""
        first = state if state is not None else inputs
        assert first is not None
        count = first.shape[0]
        if state is None:
            state = first.new_zeros(count, 1, *self.grid.shape, len(self.task.channels))
        inputs = first.new_zeros(count, *self.grid.shape, 0) if inputs is None else inputs
        params = first.new_zeros(count, 0) if params is None else params
        dt = first.new_ones(count) if dt is None else dt
        return Window(self.task, state, state[:, :0], inputs, params, dt, self.grid)

    def arguments(self, window: Window) -> dict[str, Tensor]:
        """A window as the arguments."""
        given = {} if self.task.steady else {"state": window.context}
        if self.task.inputs:
            given["inputs"] = window.inputs
        if numeric_params(self.task):
            given["params"] = window.params
        return given if self.task.steady else {**given, "dt": window.dt}


def example(simulator: Simulator, task: TaskSpec, grid: Grid, samples: int = EXAMPLES) -> Window:
    """A window of values like those of training."""
    random = torch.Generator().manual_seed(0)

    def drawn(statistics: object, *shape: int) -> Tensor:
        mean, std = statistics.mean, statistics.std  # type: ignore[attr-defined]
        values: Tensor = mean + std * torch.randn(*shape, len(mean), generator=random).clamp(-2, 2)
        return values

    context = drawn(simulator.codec.statistics_of(task), samples, simulator.looks_back(task.name), *grid.shape)
    if task.steady:
        context = torch.zeros_like(context[:, :1])
    inputs = torch.zeros(samples, *grid.shape, 0)
    if task.inputs:
        inputs = drawn(simulator.operator.inputs.statistics_of(task.name), samples, *grid.shape)
        if task.mask:
            inputs[..., task.given.index(task.mask)] = (torch.rand(inputs.shape[:-1], generator=random) > 0.2).float()
    ranges = simulator.ranges()[task.name]
    middle = [sum(ranges[name]) / 2 for name in numeric_params(task)]
    params = torch.tensor(middle).expand(samples, -1) if middle else torch.zeros(samples, 0)
    dt = torch.full((samples,), 1.0 if task.steady else ranges["dt"][0])
    return Window(task, context, context[:, :0], inputs, params.clone(), dt, grid)


class Program(nn.Module):
    """A function of a simulator on the grid of a task, as a module that a tracer takes apart."""

    def __init__(self, simulator: Simulator, given: Arguments) -> None:
        super().__init__()
        self.simulator, self.given = simulator, given


class FirstTokens(Program):
    """The tokens that a rollout begins with."""

    def forward(
        self, state: Tensor, inputs: Tensor | None = None, params: Tensor | None = None, dt: Tensor | None = None
    ) -> Tensor:
        return Stepping(self.simulator, self.given.window(state, inputs, params, dt)).start()


class NextStep(Program):
    """One step of a rollout that began with the frames `state` and the tokens `start`: the `tokens` after those given,
    and the frame that they stand for, as the guard repairs it; NaN in cells that do not count."""

    def forward(
        self,
        start: Tensor,
        tokens: Tensor,
        state: Tensor,
        inputs: Tensor | None = None,
        params: Tensor | None = None,
        dt: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        window = self.given.window(state, inputs, params, dt)
        stepping = Stepping(self.simulator, window)
        stepping.keep_near(start)
        after, frame = stepping.step(tokens, 0)
        return after, without(frame, window.mask)


class SteadySolution(Program):
    """The solution of a steady task."""

    def forward(self, inputs: Tensor | None = None, params: Tensor | None = None) -> Tensor:
        window = self.given.window(None, inputs, params, None)
        return without(self.simulator.simulate(window, 1)[:, 0], window.mask)


def without(frame: Tensor, mask: Tensor | None) -> Tensor:
    """A frame `(B, *S, C)` with NaN in cells that do not count."""
    return frame if mask is None else frame.masked_fill(~mask.unsqueeze(-1), torch.nan)
