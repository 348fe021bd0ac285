"""The truth beside a prediction: the same question, answered by the equation's own solver."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ups.models.questions import walls_of
from ups.models.solving import steady_system
from ups.physics.incompressible import Incompressible2D
from ups.physics.solver import Equation, Stepper
from ups.progress import reporting
from ups.tensors import Window, numeric_params
from ups.types import ConfigError, Grid
from ups_apps.play.starts import equation_of
from ups_apps.serve.limits import OverdueError
from ups_apps.serve.packets import packed
from ups_apps.serve.questions import Asked

CELLS = 2**21  # of the grid that is solved on, at most
TOLERANCE = 1e-8


@dataclass
class Truth:
    """The solution of what was question, a packet a frame; `stop` ends it between two frames."""

    question: Asked
    params: dict[str, Any]
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Nobody listens any more."""
        self.stopped.set()

    def packets(self) -> Iterator[bytes]:
        """A packet for each frame, and one with `done`."""
        window = self.question.request.window
        if len(window) != 1:
            raise ConfigError("the truth is solved for one sample.")
        frames = self._steady(window) if window.task.steady else self._frames(window)
        step = 0
        while True:
            with torch.no_grad(), reporting(self._tell):
                frame = next(frames, None)
            if frame is None:
                break
            step += 1
            yield packed({"step": step}, frame=frame[0].float().numpy())
        yield packed({"done": True})

    def _tell(self, _: float) -> None:
        if self.stopped.is_set():
            raise OverdueError("nobody listens any more.")

    def _steady(self, window: Window) -> Iterator[Tensor]:
        refined = steady_system(window).refined(torch.zeros_like(window.context[:, -1]).double(), TOLERANCE)
        yield refined.values

    def _frames(self, window: Window) -> Iterator[Tensor]:
        task = window.task
        numbers = dict(zip(numeric_params(task), window.params[0].double().tolist(), strict=True))
        words = {name: value for name, value in self.params.items() if isinstance(value, str)}
        equation = equation_of(task, {**numbers, **words})
        if (
            window.grid.periodic != walls_of(None, task, self.params)
            or equation.grid(8).periodic != window.grid.periodic
        ):
            raise ConfigError(f"{task.name} is solved under its own boundary alone; leave periodic out.")
        scheme = equation.schemes[0]
        factor = equation.refinement(scheme, window.grid)
        fine = window.grid.refined(factor)._replace(corner=())
        if math.prod(fine.shape) > CELLS:
            raise ConfigError(
                f"{task.name}: the solver would need {math.prod(fine.shape)} cells; begin on a coarser grid."
            )
        stepper = _stepper(equation, scheme, fine, window, factor)
        state, now = stepper.start(refined(window.context[:, -1].double(), fine, bool(task.positive))), 0.0
        for i in range(self.question.request.steps):
            self._tell(0.0)
            then = now + float(window.step(i)[0])
            state, now = stepper.advance(state, now, then), then
            yield equation.coarsen(stepper.read(state).unsqueeze(1), factor).squeeze(1)


def _stepper(equation: Equation, scheme: str, fine: Grid, window: Window, factor: int) -> Stepper:
    """What advances a state on the grid that is solved on, under what drives it."""
    if not window.task.given:
        return equation.stepper(scheme, fine, torch.empty(0, dtype=torch.float64))
    if not isinstance(equation, Incompressible2D) or factor != 1:
        raise ConfigError(f"{window.task.name} is driven by {', '.join(window.task.given)}: no solver takes it.")
    return equation.forced(fine, window.inputs.double())


def refined(u: Tensor, fine: Grid, plain: bool = False) -> Tensor:
    """A state `(B, *S, C)` on the cells of a finer grid: along axes that wrap the same waves, else straight lines
    between centres; `plain` lines everywhere, which never leave the range of the values."""
    for axis, (cells, wraps) in enumerate(zip(fine.shape, fine.periodic, strict=True), start=1):
        n = u.shape[axis]
        if n == cells:
            continue
        line = u.movedim(axis, -1)
        if wraps and not plain:
            waves = torch.fft.rfft(line)
            waves = waves[..., : (n + 1) // 2]  # without that of two cells, whose phase is not known
            k = torch.arange(waves.shape[-1], dtype=torch.float64)
            turn = 2 * math.pi * k * (0.5 / cells - 0.5 / n)
            line = torch.fft.irfft(waves * torch.polar(torch.ones_like(turn), turn), cells) * (cells / n)
        else:
            flat = line.reshape(-1, 1, n)
            flat = functional.pad(flat, (1, 1), "circular" if wraps else "replicate")
            many = cells // n
            flat = functional.interpolate(flat, scale_factor=many, mode="linear", align_corners=False)
            line = flat[..., many:-many].reshape(*line.shape[:-1], cells)
        u = line.movedim(-1, axis)
    return u
