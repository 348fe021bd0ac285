"""FNO and UNO of the `neuralop` package as stages and predictors: as many parameters as ours, its own recipe."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ups.eval.nrmse import validation_nrmse
from ups.tensors import Losses, Window, numeric_params
from ups.types import ConfigError, DataError, TaskSpec, counted

NOTHING = 1e-30  # the least size of what is divided by, in whatever units
INSTALL = "pip install 'universal-physics-stack[baselines]'"


LAYERS = 4
# Wavenumbers kept per axis, by the dimension of a task; of a steady one at most so many, as in the library's config.
MODES, STEADY_MODES = {1: 16, 2: 12, 3: 8}, 8
THIN = 16  # hidden channels below which rather fewer wavenumbers are kept
CLOSE = 0.05  # by how much its parameters may differ from those it is to match
# How `neuraloperator` 2.0 trains in its own repository (config/darcy_config.py): StepLR halves the rate every 60 of 300
# epochs. Its config/navier_stokes_config.py differs by a rate of 3e-4, which in minutes reaches less, and a fifth
# halving. Both normalise inputs and outputs by channel, and pad nothing.
RECIPE: Mapping[str, Any] = {
    "lr": 5e-3,
    "halvings": 4,
    "weight_decay": 1e-4,
    "betas": (0.9, 0.999),
    "warmup": 0.0,
    "ema": 0.0,
    "clip": 0.0,
}


class NeuralOpBaseline(nn.Module):
    """A network of `neuralop` that predicts the normalised increment of the last of `context` frames; of a steady task,
    which has none, the normalised solution.

    The channels are the context's frames, the task's inputs, then parameters and log dt as constant fields, each
    normalised; coordinates are added where an axis does not wrap. It is a training stage and a `Predictor`. Call `fit`
    once, before training, on training windows.
    """

    shift: Tensor
    scale: Tensor
    increment: Tensor
    input_shift: Tensor
    input_scale: Tensor
    param_shift: Tensor
    param_scale: Tensor

    def __init__(self, task: TaskSpec, context: int, kind: str, size: tuple[int, int]) -> None:
        """`kind`: fno, flat, or uno, U-shaped, half the resolution in the middle. `size`: hidden channels, and
        wavenumbers kept per axis."""
        super().__init__()
        self.task, self.context, self.name, self.size = task, context, kind, size
        c, extra = len(task.channels), len(numeric_params(task)) + 1
        inputs = sum(len(f.channels) for f in task.inputs)
        seen = 0 if task.steady else c * context
        self.net = _network(kind, size, task, seen + inputs + extra, c)
        facts = {"shift": torch.zeros(c), "scale": torch.ones(c), "increment": torch.ones(c)}
        for key, count in (("input", inputs), ("param", extra)):
            facts |= {f"{key}_shift": torch.zeros(count), f"{key}_scale": torch.ones(count)}
        for key, value in facts.items():
            self.register_buffer(key, value)

    @classmethod
    def matched(cls, task: TaskSpec, context: int, kind: str, parameters: int) -> NeuralOpBaseline:
        """One with so many parameters, to within a twentieth: the usual wavenumbers, and hidden channels to fit; fewer
        wavenumbers where so few channels would be left that none fits."""
        modes = min(MODES[task.ndim], STEADY_MODES) if task.steady else MODES[task.ndim]
        candidates: list[NeuralOpBaseline] = []
        while modes >= 1 and not (candidates and candidates[-1].size[0] >= THIN):
            network = cls._nearest(task, context, kind, parameters, modes)
            if abs(network.parameter_count - parameters) <= CLOSE * parameters:
                candidates.append(network)
            modes //= 2
        if not candidates:
            raise ConfigError(f"no {kind} of {task.name} has about {parameters} parameters; compare a larger network.")
        return max(candidates, key=lambda network: network.size[0])

    @classmethod
    def _nearest(cls, task: TaskSpec, context: int, kind: str, parameters: int, modes: int) -> NeuralOpBaseline:
        """That with the hidden channels whose parameters are nearest: their number grows about with the square."""
        width, tried = 32, dict[int, NeuralOpBaseline]()
        while width not in tried:
            tried[width] = cls(task, context, kind, (width, modes))
            width = max(1, round(width * (parameters / tried[width].parameter_count) ** 0.5))
        for other in (width - 1, width + 1):
            if other > 0 and other not in tried:
                tried[other] = cls(task, context, kind, (other, modes))
        return min(tried.values(), key=lambda network: abs(network.parameter_count - parameters))

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def recipe(self) -> Mapping[str, Any]:
        """What of a training is the library's own: keys of `RivalTrainConfig`."""
        return RECIPE

    @property
    def parameter_count(self) -> int:
        """Real numbers that are learnt: a complex weight is two."""
        return sum(p.numel() * (2 if p.is_complex() else 1) for p in self.parameters())

    def fit(self, windows: Iterable[Window], valid: Iterable[Window] = ()) -> None:  # noqa: ARG002  (nothing to choose)
        """Take mean and deviation of frames, of increments, of inputs and of conditions from training windows."""
        frames, steps, inputs, numbers = (_Moments() for _ in range(4))
        for window in windows:
            self._same_task(window)
            values = window.targets if self.task.steady else torch.cat([window.context, window.targets], 1)
            for moments, frame in ((frames, values), (steps, values.diff(dim=1))):
                moments.add(frame if window.mask is None else frame.movedim(1, -2)[window.mask])
            inputs.add(window.inputs if window.mask is None else window.inputs[window.mask])
            for i in range(1 if window.dt.ndim == 1 else window.dt.shape[1]):
                numbers.add(_numbers(window, i))
        if not frames.count:
            raise DataError(f"there is no window of {self.task.name} to normalise {self.name} with.")
        self.shift.copy_(frames.mean)
        self.scale.copy_(frames.deviation.clamp_min(NOTHING))
        typical = frames.deviation if self.task.steady else (steps.squares / steps.count).sqrt()
        self.increment.copy_(typical.clamp_min(NOTHING))
        self.input_shift.copy_(inputs.mean)
        self.input_scale.copy_(_heard(inputs.deviation, inputs.mean.abs()))
        self.param_shift.copy_(numbers.mean)
        size = numbers.mean.abs()
        size[-1] = 1  # the last is a logarithm, that of dt
        self.param_scale.copy_(_heard(numbers.deviation, size))

    def forward(self, frames: Tensor, inputs: Tensor, numbers: Tensor) -> Tensor:
        """The frame after `frames (B, K, *S, C)`, physical in and out; those of a steady task are not looked at."""
        space = frames.shape[2:-1]
        unit = ((frames.float() - self.shift) / self.scale).unbind(1)
        given = (inputs.float() - self.input_shift) / self.input_scale
        conditions = ((numbers - self.param_shift) / self.param_scale).reshape(len(frames), *(1,) * len(space), -1)
        stack = [*(() if self.task.steady else unit), given, conditions.expand(-1, *space, -1)]
        x = torch.cat(stack, -1).movedim(-1, 1)
        y: Tensor = self.net(x).movedim(1, -1)
        return (self.shift if self.task.steady else frames[:, -1]) + self.increment * y

    def predict(self, window: Window, steps: int) -> Tensor:
        """Autoregressive rollout, `(B, steps, *S, C)`."""
        self._same_task(window)
        if window.context.shape[1] < self.context:
            raise DataError(
                f"{self.name} needs {counted(self.context, 'given frame')}, but there are {window.context.shape[1]}."
            )
        frames, predicted = window.context[:, -self.context :], []
        numbers, uneven = _numbers(window, 0), window.dt.ndim > 1
        for i in range(steps):
            numbers = _numbers(window, i) if uneven else numbers
            predicted.append(self(frames, window.inputs, numbers))
            frames = torch.cat([frames[:, 1:], predicted[-1].unsqueeze(1)], 1)
        return torch.stack(predicted, 1)

    def loss(self, window: Window) -> Losses:
        """`h1`: the library's relative Sobolev norm of the error of normalised frames; through the rollout. Cells that
        do not count are right."""
        with torch.autocast(window.context.device.type, enabled=False):
            predicted, truth = self.predict(window, window.targets.shape[1]), window.targets.float()
            if window.mask is not None:
                predicted = torch.where(window.mask[:, None, ..., None], predicted, truth)
            pair = [((frames - self.shift) / self.scale).flatten(0, 1).movedim(-1, 1) for frames in (predicted, truth)]
            periodic = dict(
                zip(("periodic_in_x", "periodic_in_y", "periodic_in_z"), window.grid.periodic, strict=False)
            )
            norm = library("losses").H1Loss(d=self.task.ndim, reduction="mean", **periodic)
            return {"h1": norm(*pair)}

    def view(self, window: Window, progress: float) -> Window:  # noqa: ARG002  (no curriculum)
        """All of a window is trained on throughout."""
        return window

    def evaluate(self, window: Window) -> dict[str, Tensor]:
        """nRMSE of the rollout and of its first frame per sample, `(B,)`, in physical units."""
        pair = (self.predict(window, window.targets.shape[1]), window.targets)
        # As of a simulator: for a channel that never varied, something of its size.
        usual = torch.where(self.scale > NOTHING, self.scale, 1 + self.shift.abs())
        score = partial(validation_nrmse, *pair, usual, self.task, window.mask)
        whole, first = score(slice(None)), score(slice(1))
        return {f"{self.task.name} nRMSE": whole, f"{self.task.name} one step": first}

    def score(self, means: Mapping[str, float]) -> float:
        """The nRMSE of whole rollouts."""
        return means[f"{self.task.name} nRMSE"]

    def _same_task(self, window: Window) -> None:
        if window.task.name != self.task.name:
            raise ConfigError(f"this {self.name} is for {self.task.name}, not for {window.task.name}; make another.")


def installed() -> bool:
    """Whether the package with the baselines is installed; it is not imported, which takes seconds and alone would show
    whether all that it needs is there too."""
    return importlib.util.find_spec("neuralop") is not None


def available() -> bool:
    """Whether the package with the baselines, and all that it needs, is installed."""
    try:
        library()
    except ConfigError:
        return False
    return True


def library(room: str = "models") -> Any:
    """A part of the package with the networks; one sentence says what to install where it is missing."""
    try:
        return importlib.import_module(f"neuralop.{room}")
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the baselines need a package that is not installed ({missing.name}): {INSTALL}.") from None


def _network(kind: str, size: tuple[int, int], task: TaskSpec, channels_in: int, channels_out: int) -> nn.Module:
    grid, (width, modes) = None if all(task.periodic) else "grid", size
    shared: dict[str, Any] = {"in_channels": channels_in, "out_channels": channels_out, "positional_embedding": grid}
    # The library counts positive and negative wavenumbers together.
    coarse, fine = [modes] * task.ndim, [2 * modes] * task.ndim
    if kind == "fno":
        shared |= {"norm": "group_norm"} if task.steady else {"projection_channel_ratio": 4}  # as in those two
        flat: nn.Module = library().FNO(n_modes=tuple(fine), n_layers=LAYERS, hidden_channels=width, **shared)
        return flat
    with contextlib.redirect_stdout(io.StringIO()):  # its constructor prints
        shaped: nn.Module = library().UNO(
            n_layers=LAYERS,
            hidden_channels=width,
            uno_out_channels=[width, 2 * width, 2 * width, width],
            uno_n_modes=[fine, coarse, coarse, fine],
            uno_scalings=[[s] * task.ndim for s in (1.0, 0.5, 1.0, 2.0)],
            lifting_channels=2 * width,
            projection_channels=2 * width,
            channel_mlp_skip="linear",
            **shared,
        )
    return shaped


def _numbers(window: Window, step: int) -> Tensor:
    """Parameters on a scale that is linear near zero and logarithmic beyond 1e-4, then log of a step, `(B, P + 1)`."""
    params = torch.asinh(window.params.float() / 1e-4)
    return torch.cat([params, window.step(step).float().clamp_min(NOTHING).log().unsqueeze(-1)], -1)


def _heard(deviation: Tensor, size: Tensor) -> Tensor:
    """The divisor of each number: its deviation, or 1 if it never varied, so that it stays near zero."""
    return torch.where(deviation > 1e-6 * size, deviation, torch.ones_like(deviation))


class _Moments:
    """Sums and sums of squares over all axes but the last."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, values: Tensor) -> None:
        flat = values.double().flatten(0, -2).cpu()
        self.count += len(flat)
        self.total, self.squares = self.total + flat.sum(0), self.squares + flat.square().sum(0)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def deviation(self) -> Tensor:
        return (self.squares / self.count - self.mean.square()).clamp_min(0).sqrt()
