"""Rollouts of any predictor over test trajectories: errors in physical units, against time, with nothing dropped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ups.eval.batches import THREADS, BatchParts, Example, grouped
from ups.eval.intervals import Number, intervals, strict
from ups.eval.metrics import Errors, summary
from ups.tensors import Losses, Window
from ups.types import PERSISTENCE, Array, ConfigError, DataError, TaskSpec, counted

AT_ONCE = 2**21  # cells that a GPU predicts together


@dataclass(frozen=True)
class EvalProtocol:
    """What is given and predicted: so many true frames, then `steps` frames (None: to the end; 0: a steady state); and
    with what errors are compared."""

    id: str
    context: int
    steps: int | None = None
    usual: tuple[float, ...] | None = None  # sizes of channels in training, with which quiet frames are compared

    @property
    def label(self) -> str:
        """How a number under this protocol is labelled; one that departs from the published form says how."""
        known = PROTOCOLS.get(self.id)
        if known is not None and known == self:
            return self.id
        predicted = "to the end" if self.steps is None else f"{self.steps} predicted"
        words = f"{self.context} given, {predicted}" if self.steps != 0 else "steady state"
        return f"{self.id} ({words}{'' if self.usual is None else ', robust'})"


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
    """Anything that continues a trajectory."""

    @property
    def name(self) -> str: ...

    def predict(self, window: Window, steps: int) -> Tensor:
        """The `steps` frames after the context, `(B, steps, *S, C)`, in physical units."""
        ...


class TrainedPredictor(Predictor, Protocol):
    """A predictor that is trained: a stage of training for one task, whose statistics `fit` takes from its windows."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def parameter_count(self) -> int: ...
    @property
    def recipe(self) -> Mapping[str, Any]: ...  # keys of a RivalTrainConfig that are its own
    def fit(self, windows: Iterable[Window], valid: Iterable[Window] = ()) -> None: ...
    def view(self, window: Window, progress: float) -> Window: ...
    def loss(self, window: Window) -> Losses: ...
    def evaluate(self, window: Window) -> Mapping[str, Tensor]: ...
    def score(self, means: Mapping[str, float]) -> float: ...


@dataclass(frozen=True)
class Persistence:
    """The forecast that nothing changes. Whoever does not beat it has learnt nothing."""

    name: str = PERSISTENCE

    def predict(self, window: Window, steps: int) -> Tensor:
        return window.state.unsqueeze(1).expand(-1, steps, *window.state.shape[1:])


persistence = Persistence()


@dataclass(frozen=True)
class ModulePredictor:
    """A network on its device as a predictor: windows are moved there, and frames come back to the CPU. `function`
    (window, steps) is the rollout, for example `Simulator.simulate` with what it needs of the window."""

    name: str
    device: torch.device | str
    function: Callable[[Window, int], Tensor]

    @property
    def at_once(self) -> int:
        """Cells of all samples that are predicted together: a GPU is idle with few, a CPU has no use for many."""
        return AT_ONCE if torch.device(self.device).type == "cuda" else 0

    def predict(self, window: Window, steps: int) -> Tensor:
        with torch.no_grad():
            return self.function(window.to(self.device), steps).cpu()


@dataclass(frozen=True)
class Evaluation:
    """How a predictor did on a set of trajectories of one task.

    Args:
        task: Of all trajectories.
        predictor: Who predicted.
        split: Which part of the data they are.
        protocol: What was given, and how far they were continued.
        errors: Of each sample, frame and channel. Samples that diverged (a frame that is not finite, or an error of
            over 100 times the truth) count in every mean.
        dt: The time of a step, `(N,)`, or `(N, T)` where steps differ.
        ids: The names of the samples.
        spectra: The mean power per wavenumber of truth and prediction at the last frame, `(2, wavenumbers, C)`, over
            the samples that did not diverge.
        seconds: Spent in prediction alone.
        examples: A few samples, to be shown.
        params: Of each sample, `(N, P)` in the order of `numeric_params(task)`.
        marks: What each sample is.
    """

    task: TaskSpec
    predictor: str
    split: str
    protocol: EvalProtocol
    errors: Errors
    dt: Array
    ids: tuple[str, ...]
    spectra: Array
    seconds: float
    examples: tuple[Example, ...] = ()
    params: Array = field(default_factory=lambda: np.zeros((0, 0)))
    marks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def diverged(self) -> Array:
        """Which samples left the truth for good, `(N,)`."""
        return self.errors.diverged

    @property
    def steps(self) -> int:
        """Predicted frames."""
        return int(self.errors.frames("nrmse").shape[1])

    @property
    def score(self) -> float:
        """nRMSE, strict: the headline; lower is better."""
        return float(self.per_sample().mean())

    def per_sample(self, name: str = "nrmse") -> Array:
        """The named error of each sample, (N,)."""
        return self.errors.per_sample(name)

    @cached_property
    def against_time(self) -> tuple[Array, Array, Array]:
        """nRMSE over samples and channels per predicted frame, with the ends of its interval, each (T,)."""
        table = self.errors.over_channels("nrmse")
        return table.mean(0), *intervals(table.T, resamples=500)

    @cached_property
    def one_step(self) -> Number:
        """nRMSE of the first predicted frame."""
        return strict("one-step-nrmse", self.errors.over_channels("nrmse")[:, 0], self.protocol.label)

    def metrics(self, seed: int = 0) -> list[Number]:
        """Every metric in every mode, the one-step error, medians and the share of diverged rollouts."""
        label = self.protocol.label
        numbers = summary(self.errors, label, self.protocol.context, seed)
        for name in ("nrmse", "vrmse"):
            middle = float(np.median(self.per_sample(name)))
            numbers.append(Number(f"{name}-median", "strict", label, middle, middle, middle, len(self)))
        numbers.append(self.one_step)
        return [*numbers, strict("diverged", self.diverged.astype(float), label, seed)]


def evaluate(
    predictor: Predictor,
    windows: Iterable[Window],
    protocol: EvalProtocol,
    split: str = "test",
    examples: int = 1,
    blind: bool = True,
) -> Evaluation:
    """Roll `predictor` out over every window, as far as its targets go, and compare with them.

    The windows share one task and one number of targets, and may be of any resolution or parameters; they are read
    one at a time, only errors are kept, and of the first `examples` samples the fields. A `blind` predictor is shown
    the window without its targets.
    """
    batches = BatchParts(examples, protocol.usual)
    with ThreadPoolExecutor(THREADS, "metrics") as pool:
        for group in grouped((_cut(window, protocol) for window in windows), getattr(predictor, "at_once", 0), batches):
            whole = Window.join(group)
            began = time.perf_counter()
            with torch.no_grad():
                shown = dataclasses.replace(whole, targets=whole.targets[:, :0]) if blind else whole
                predicted = predictor.predict(shown, whole.targets.shape[1])
            batches.seconds += time.perf_counter() - began
            if predicted.shape != whole.targets.shape:
                shape, wanted = tuple(predicted.shape), tuple(whole.targets.shape)
                raise ConfigError(f"{predictor.name} predicted frames of shape {shape} where {wanted} was asked for.")
            for window, frames in zip(group, torch.split(predicted, [len(w) for w in group]), strict=True):
                batches.add(window, frames, pool)
        batches.settle(0)
    if batches.task is None:
        raise DataError(f"there is no window to evaluate {predictor.name} on; '{split}' is empty or too short.")
    errors = Errors.join(batches.errors)
    steps = errors.frames("nrmse").shape[1]
    if batches.task.steady or (protocol.steps or 0) > steps:  # the label says what was possible
        protocol = dataclasses.replace(protocol, steps=0 if batches.task.steady else steps)
    if any(dt.ndim > 1 for dt in batches.dt):  # in some of them steps differ
        batches.dt = [dt if dt.ndim > 1 else np.tile(dt[:, None], (1, steps)) for dt in batches.dt]
    return Evaluation(
        task=batches.task,
        predictor=predictor.name,
        split=split,
        protocol=protocol,
        errors=errors,
        dt=np.concatenate(batches.dt),
        ids=tuple(batches.ids),
        spectra=batches.mean_spectra(),
        seconds=batches.seconds,
        examples=tuple(batches.examples),
        params=np.concatenate(batches.params),
        marks=tuple(batches.marks),
    )


def reconstruct(
    codec: Callable[[Window, int], Tensor],
    device: torch.device | str,
    windows: Iterable[Window],
    protocol: EvalProtocol,
    split: str = "test",
) -> Evaluation:
    """As `evaluate`, for a codec that is shown the true frames: what encoding and decoding alone cost.

    `codec(window, steps)` gives the first targets of a window back.
    """
    predictor = ModulePredictor("reconstruction", device, codec)
    return evaluate(predictor, windows, protocol, split, examples=0, blind=False)


def _cut(window: Window, protocol: EvalProtocol) -> Window:
    """The window with the protocol's context and steps; fewer frames than it asks for cannot be made up."""
    given, ahead = window.context.shape[1], window.targets.shape[1]
    steps = ahead if protocol.steps is None else min(protocol.steps, ahead)
    if given < protocol.context or steps < 1:
        raise DataError(
            f"protocol {protocol.label} needs {counted(protocol.context, 'given frame')} and one to predict, but the "
            f"windows of {window.task.name} have {given} and {ahead}; use longer trajectories or a smaller context."
        )
    context, targets = window.context[:, given - protocol.context :], window.targets[:, :steps]
    dt = window.dt if window.dt.ndim == 1 else window.dt[:, :steps]
    return dataclasses.replace(window, context=context, targets=targets, dt=dt)
