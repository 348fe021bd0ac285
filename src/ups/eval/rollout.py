"""Rollouts of any predictor over test trajectories: errors in physical units, against time, with nothing dropped."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ups.eval.intervals import Number, intervals, strict
from ups.eval.metrics import Errors, measure, summary
from ups.eval.spectra import spectrum
from ups.eval.trajectories import mark_of
from ups.tensors import Losses, Window
from ups.types import Array, ConfigError, DataError, TaskSpec, counted

AT_ONCE = 2**21  # cells that a GPU predicts together
THREADS = min(8, os.cpu_count() or 1)  # that measure errors while the next batch is predicted
Measured = tuple[Errors, Array | None, list[str]]


@dataclass(frozen=True)
class EvalProtocol:
    """What is given and predicted: so many true frames, then `steps` frames (None: to the end; 0: a steady state)."""

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
        return f"{self.id} ({self.context} given, {predicted})" if self.steps != 0 else f"{self.id} (steady state)"


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


class Learner(Predictor, Protocol):
    """A predictor that is trained: a stage of training for one task, whose statistics `fit` takes from its windows."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def parameter_count(self) -> int: ...
    @property
    def recipe(self) -> Mapping[str, Any]: ...  # keys of a TrainConfig that are its own
    def fit(self, windows: Iterable[Window]) -> None: ...
    def view(self, window: Window, progress: float) -> Window: ...
    def loss(self, window: Window) -> Losses: ...
    def evaluate(self, window: Window) -> Mapping[str, Tensor]: ...
    def score(self, means: Mapping[str, float]) -> float: ...


@dataclass(frozen=True)
class Persistence:
    """The forecast that nothing changes. Whoever does not beat it has learnt nothing."""

    name: str = "persistence"

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
class Example:
    """One rollout to look at: `truth` and `prediction` `(T, *S, C)`, T predicted frames, at `times` after the start.
    `mask (*S,)` is true in the cells that count; None where all do."""

    id: str
    truth: Array
    prediction: Array
    times: Array
    box: tuple[float, ...]
    mask: Array | None = None


@dataclass(frozen=True)
class Evaluation:
    """How a predictor did on a set of trajectories of one task.

    `dt (N,)`, or `(N, T)` where steps differ. Samples that diverged (a non-finite frame, or an error of over 100 times
    the truth) count in every mean. `spectra` holds the mean power per wavenumber of truth and prediction at the last
    frame, `(2, wavenumbers, C)`, over the samples that did not diverge. `seconds` is spent in prediction alone.
    `params (N, P)` are the parameters of each sample, in the order of `numbers_of(task)`; `marks` what each sample is.
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
        """Every metric in every mode, the one-step error, the median and the share of diverged rollouts."""
        label = self.protocol.label
        numbers = summary(self.errors, label, self.protocol.context, seed)
        middle = float(np.median(self.per_sample()))
        numbers += [self.one_step, Number("nrmse-median", "strict", label, middle, middle, middle, len(self))]
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
    batches = _Batches(predictor.name, examples)
    with ThreadPoolExecutor(THREADS, "metrics") as pool:
        for group in _groups((_cut(window, protocol) for window in windows), getattr(predictor, "at_once", 0), batches):
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
    facts = (np.concatenate(batches.dt), tuple(batches.ids), batches.mean_spectra(), batches.seconds)
    last = (tuple(batches.examples), np.concatenate(batches.params), tuple(batches.marks))
    return Evaluation(batches.task, predictor.name, split, protocol, errors, *facts, *last)


def reconstruct(
    codec: Callable[[Window, int], Tensor],
    device: torch.device | str,
    windows: Iterable[Window],
    protocol: EvalProtocol,
    split: str = "test",
) -> Evaluation:
    """The same table for a codec that is shown the true frames: what encoding and decoding alone cost.

    `codec(window, steps)` gives the first targets of a window back.
    """
    predictor = ModulePredictor("reconstruction", device, codec)
    return evaluate(predictor, windows, protocol, split, examples=0, blind=False)


class _Batches:
    """What is kept of the batches of an evaluation."""

    def __init__(self, predictor: str, examples: int) -> None:
        self.predictor, self.count, self.seconds = predictor, examples, 0.0
        self.task: TaskSpec | None = None
        self.shape: tuple[int, ...] = ()
        self.measuring: deque[Future[Measured]] = deque()
        self.errors, self.examples, self.ids, self.marks = list[Errors](), list[Example](), list[str](), list[str]()
        self.spectra, self.dt, self.params = list[tuple[Array, int]](), list[Array](), list[Array]()

    def check(self, window: Window) -> None:
        """All windows are of one task and one shape."""
        shape = tuple(window.targets.shape[1:])
        if self.task is not None and (self.task.name, self.shape) != (window.task.name, shape):
            first, other = (self.task.name, self.shape), (window.task.name, shape)
            raise ConfigError(f"an evaluation is of one task and grid, not of {first} and {other}; make one for each.")
        self.task, self.shape = window.task, shape

    def add(self, window: Window, predicted: Tensor, pool: ThreadPoolExecutor) -> None:
        """Begin to measure a batch; the oldest are waited for, so that only a few are in memory."""
        dt, mask = _numpy(window.dt), None if window.mask is None else window.mask.cpu().numpy()
        for i in range(min(self.count - len(self.examples), len(window))):
            times = dt[i] * np.arange(1, predicted.shape[1] + 1) if dt.ndim == 1 else dt[i].cumsum()
            name = window.ids[i] if window.ids else str(i)
            both = (_numpy(window.targets[i]), _numpy(predicted[i]))
            self.examples.append(Example(name, *both, times, window.box, None if mask is None else mask[i]))
        self.dt.append(dt)
        self.params.append(_numpy(window.params))
        self.ids += window.ids
        self.measuring.append(pool.submit(_measured, predicted, window, dt, mask))
        self.settle(THREADS)

    def settle(self, left: int) -> None:
        """Keep what the oldest measurements gave, until so many are left."""
        while len(self.measuring) > left:
            errors, both, marks = self.measuring.popleft().result()
            self.errors.append(errors)
            self.marks += marks
            if both is not None:
                self.spectra.append((both, int((~errors.diverged).sum())))

    def mean_spectra(self) -> Array:
        """The mean over samples, of truth and prediction; nan where every sample diverged."""
        samples = sum(n for _, n in self.spectra)
        if not samples:
            return np.full((2, 1, self.shape[-1]), np.nan)
        return np.asarray(sum((both * n for both, n in self.spectra), np.zeros(())) / samples)


def _groups(windows: Iterable[Window], at_once: int, batches: _Batches) -> Iterator[list[Window]]:
    """Windows that are predicted together: as many as have `at_once` cells, and at least one."""
    group: list[Window] = []
    for window in windows:
        batches.check(window)
        cells = math.prod(window.context.shape[2:-1])
        if group and (window.kind != group[0].kind or cells * sum(len(w) for w in (*group, window)) > at_once):
            yield group
            group = []
        group.append(window)
    yield from [group] if group else []


def _measured(predicted: Tensor, window: Window, dt: Array, mask: Array | None) -> Measured:
    """The errors of a batch; the spectra of truth and prediction at the last frame where they have not diverged, in
    cells that do not count those of the truth; and the marks of its samples."""
    frames, true = (_numpy(x, torch.promote_types(x.dtype, torch.float32)) for x in (predicted, window.targets))
    errors, marks = measure(frames, true, dt, mask=mask), [mark_of(window, i) for i in range(len(window))]
    if not (good := ~errors.diverged).any():
        return errors, None, marks
    last = frames[:, -1] if mask is None else np.where(np.expand_dims(mask, -1), frames[:, -1], true[:, -1])
    return errors, np.stack([spectrum(true[good, -1]), spectrum(last[good])]), marks


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


def _numpy(x: Tensor, dtype: torch.dtype = torch.float64) -> Array:
    return np.asarray(x.detach().to("cpu", dtype).numpy())
