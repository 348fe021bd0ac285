"""Rollouts of any predictor over test trajectories: errors in physical units, against time, with nothing dropped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ups.eval.metrics import Errors, Metric, interval, measure, spectrum, strict, summary
from ups.tensors import Window
from ups.types import Array, ConfigError, DataError, TaskSpec

# A rollout whose error is so many times the size of the truth at any frame has left it for good.
DIVERGED = 100.0


@dataclass(frozen=True)
class EvalProtocol:
    """What is given and what is predicted: so many true frames, then `steps` frames (None: to the end)."""

    id: str
    context: int
    steps: int | None = None

    @property
    def label(self) -> str:
        """How a number under this protocol is labelled; one that departs from the published form says how."""
        known = PROTOCOLS.get(self.id)
        if known is not None and known == self:
            return self.id
        predicted = "to the end" if self.steps is None else f"{self.steps} predicted"
        return f"{self.id} ({self.context} given, {predicted})"


PROTOCOLS = {
    "A": EvalProtocol("A", 10),
    "B": EvalProtocol("B", 1, 1),
    "C": EvalProtocol("C", 10),
    "D": EvalProtocol("D", 4, 1),
    "G": EvalProtocol("G", 1, 100),
}


def protocol(id: str, context: int | None = None, steps: int | None = None) -> EvalProtocol:
    """The published protocol `id`, or its variant with another context or another number of steps."""
    if id not in PROTOCOLS:
        raise ConfigError(f"there is no protocol '{id}'; the protocols are {', '.join(PROTOCOLS)}.")
    known = PROTOCOLS[id]
    return EvalProtocol(id, context or known.context, steps or known.steps)


class Predictor(Protocol):
    """Anything that continues a trajectory. It is shown the window without its targets."""

    @property
    def name(self) -> str: ...

    def predict(self, window: Window, steps: int) -> Tensor:
        """The `steps` frames after the context, `(B, steps, *S, C)`, in physical units."""
        ...


@dataclass(frozen=True)
class Persistence:
    """The forecast that nothing changes. Whoever does not beat it has learnt nothing."""

    name: str = "persistence"

    def predict(self, window: Window, steps: int) -> Tensor:
        state = window.state.unsqueeze(1)
        return state.expand(-1, steps, *state.shape[2:])


persistence = Persistence()


@dataclass(frozen=True)
class Example:
    """One rollout to look at: `truth` and `prediction` `(T, *S, C)`, T predicted frames, at `times` after the start."""

    id: str
    truth: Array
    prediction: Array
    times: Array
    box: tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """How a predictor did on a set of trajectories of one task.

    `dt (N,)`; `diverged (N,)` marks samples with a non-finite frame or an error of over 100 times the truth: they
    count in every mean. `spectra` holds the mean power per wavenumber of truth and prediction at the last frame,
    `(2, wavenumbers, C)`, over the samples that did not diverge. `seconds` is spent in prediction alone.
    """

    task: TaskSpec
    predictor: str
    split: str
    protocol: EvalProtocol
    errors: Errors
    dt: Array
    ids: tuple[str, ...]
    diverged: Array
    spectra: Array
    seconds: float
    examples: tuple[Example, ...] = ()

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def steps(self) -> int:
        """Predicted frames."""
        return int(self.errors.rmse.shape[1])

    @property
    def score(self) -> float:
        """nRMSE, strict: the headline; lower is better."""
        return float(self.per_sample().mean())

    def per_sample(self, name: str = "nrmse") -> Array:
        """The named error of each sample, (N,)."""
        return self.errors.per_sample(name)

    def against_time(self, name: str = "nrmse") -> tuple[Array, Array, Array]:
        """The mean over samples and channels per predicted frame, with the ends of its interval, each (T,)."""
        table = self.errors.frames(name).mean(-1)
        ends = np.array([interval(table[:, t], resamples=500) for t in range(table.shape[1])])
        return table.mean(0), ends[:, 0], ends[:, 1]

    def one_step(self) -> Metric:
        """nRMSE of the first predicted frame."""
        return strict("one-step-nrmse", self.errors.frames("nrmse")[:, 0].mean(-1), self.protocol.label)

    def metrics(self, seed: int = 0) -> list[Metric]:
        """Every metric in every mode, the one-step error, the median and the share of diverged rollouts."""
        label = self.protocol.label
        found = summary(self.errors, label, self.protocol.context, self.dt, seed)
        middle = float(np.median(self.per_sample()))
        found += [self.one_step(), Metric("nrmse-median", "strict", label, middle, middle, middle, len(self))]
        return [*found, strict("diverged", self.diverged.astype(float), label, seed)]


def evaluate(
    predictor: Predictor, windows: Iterable[Window], protocol: EvalProtocol, split: str = "test", examples: int = 1
) -> Evaluation:
    """Roll `predictor` out over every window, as far as its targets go, and compare with them.

    The windows share one task and one number of targets, and may be of any resolution or parameters; they are read
    one at a time, only errors are kept, and of the first `examples` samples the fields.
    """

    def predict(window: Window, steps: int) -> Tensor:
        blind = dataclasses.replace(window, targets=window.targets[:, :0])
        return predictor.predict(blind, steps)

    return _run(predictor.name, predict, windows, protocol, split, examples)


def reconstruct(
    codec: Callable[[Tensor, Window], Tensor], windows: Iterable[Window], protocol: EvalProtocol, split: str = "test"
) -> Evaluation:
    """The same table for a codec that is shown the true frames: what encoding and decoding alone cost.

    `codec(frames (B, *S, C), window)` gives the frames back.
    """

    def predict(window: Window, steps: int) -> Tensor:
        return torch.stack([codec(window.targets[:, t], window) for t in range(steps)], dim=1)

    return _run("reconstruction", predict, windows, protocol, split, 0)


def _run(
    name: str,
    predict: Callable[[Window, int], Tensor],
    windows: Iterable[Window],
    protocol: EvalProtocol,
    split: str,
    examples: int,
) -> Evaluation:
    parts: list[Errors] = []
    shown: list[Example] = []
    spectra: list[tuple[Array, int]] = []
    ids: list[str] = []
    dts: list[Array] = []
    facts: tuple[str, tuple[int, ...]] = ("", ())
    task, seconds = None, 0.0
    for window in windows:
        window, steps = _fit(window, protocol)
        found = (window.task.name, tuple(window.targets.shape[1:]))
        if task is not None and found != facts:
            raise ConfigError(f"an evaluation is of one task and grid, not of {facts} and {found}; make one for each.")
        task, facts = window.task, found
        began = time.perf_counter()
        with torch.no_grad():
            predicted = predict(window, steps)
        pred, true = _numpy(predicted), _numpy(window.targets)
        seconds += time.perf_counter() - began
        if pred.shape != true.shape:
            raise ConfigError(f"{name} predicted frames of shape {pred.shape} where {true.shape} was asked for.")
        parts.append(measure(pred, true))
        good = ~_diverged(parts[-1])
        if good.any():
            both = np.stack([spectrum(true[good, -1]), spectrum(pred[good, -1])])
            spectra.append((both, int(good.sum())))
        dts.append(_numpy(window.dt))
        ids += window.ids
        for i in range(min(examples - len(shown), len(true))):
            times = dts[-1][i] * np.arange(1, steps + 1)
            shown.append(Example(window.ids[i] if window.ids else str(i), true[i], pred[i], times, window.box))
    if task is None:
        raise DataError(f"there is no window to evaluate {name} on; the split '{split}' is empty or too short.")
    errors = Errors.join(parts)
    if protocol.steps is not None and protocol.steps > errors.rmse.shape[1]:  # the label says what was possible
        protocol = dataclasses.replace(protocol, steps=int(errors.rmse.shape[1]))
    weight = sum(n for _, n in spectra)
    mean = sum((both * n for both, n in spectra), np.zeros(())) / max(weight, 1)
    mean = mean if weight else _no_spectra(errors)
    return Evaluation(
        task,
        name,
        split,
        protocol,
        errors,
        np.concatenate(dts),
        tuple(ids),
        _diverged(errors),
        np.asarray(mean),
        seconds,
        tuple(shown),
    )


def _fit(window: Window, protocol: EvalProtocol) -> tuple[Window, int]:
    """The window with the protocol's context and steps; fewer frames than it asks for cannot be made up."""
    given, ahead = window.context.shape[1], window.targets.shape[1]
    steps = ahead if protocol.steps is None else min(protocol.steps, ahead)
    if given < protocol.context or steps < 1:
        raise DataError(
            f"protocol {protocol.label} needs {protocol.context} given frames and one to predict, but the windows of "
            f"{window.task.name} have {given} and {ahead}; use longer trajectories or a smaller context."
        )
    context, targets = window.context[:, given - protocol.context :], window.targets[:, :steps]
    return dataclasses.replace(window, context=context, targets=targets), steps


def _no_spectra(errors: Errors) -> Array:
    return np.full((2, 1, errors.rmse.shape[-1]), np.nan)


def _diverged(errors: Errors) -> Array:
    far = errors.rmse > DIVERGED * np.maximum(errors.norm, errors.norm.max(1, keepdims=True))
    return np.asarray((far | ~np.isfinite(errors.rmse)).any((1, 2)))


def _numpy(x: Tensor) -> Array:
    return np.asarray(x.detach().to("cpu", torch.float64).numpy())
