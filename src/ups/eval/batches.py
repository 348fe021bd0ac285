"""Groups windows into batches to predict, and measures each batch while the next is predicted."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ups.eval.metrics import Errors, measure
from ups.eval.spectra import spectrum
from ups.eval.trajectories import mark_of
from ups.tensors import Window
from ups.types import Array, ConfigError, Grid, Points, TaskSpec

THREADS = min(8, os.cpu_count() or 1)  # that measure errors while the next batch is predicted
Measured = tuple[Errors, Array | None, list[str]]


@dataclass(frozen=True)
class Example:
    """One rollout to look at: `truth` and `prediction` `(T, *S, C)`, T predicted frames, at `times` after the start.
    `mask (*S,)` is true in the cells that count; None where all do."""

    id: str
    truth: Array
    prediction: Array
    times: Array
    grid: Grid
    mask: Array | None = None


class BatchParts:
    """What is kept of the batches of an evaluation."""

    def __init__(self, examples: int, usual: Sequence[float] | None = None) -> None:
        self.count, self.seconds = examples, 0.0  # examples to keep, and the time that prediction took
        self.usual = None if usual is None else np.array(usual)
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
        dt, mask = _numpy(window.dt), None if window.weights is None else window.weights.cpu().numpy()
        for i in range(min(self.count - len(self.examples), len(window))):
            times = dt[i] * np.arange(1, predicted.shape[1] + 1) if dt.ndim == 1 else dt[i].cumsum()
            name = window.ids[i] if window.ids else str(i)
            truth, own = _numpy(window.targets[i]), None if window.mask is None else window.mask[i].cpu().numpy()
            self.examples.append(Example(name, truth, _numpy(predicted[i]), times, window.grid, own))
        self.dt.append(dt)
        self.params.append(_numpy(window.params))
        self.ids += window.ids
        self.measuring.append(pool.submit(_measured, predicted, window, dt, mask, self.usual))
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


def grouped(windows: Iterable[Window], at_once: int, batches: BatchParts) -> Iterator[list[Window]]:
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


def _measured(predicted: Tensor, window: Window, dt: Array, mask: Array | None, usual: Array | None) -> Measured:
    """The errors of a batch; the spectra of truth and prediction at the last frame where they have not diverged, in
    cells that do not count those of the truth; and the marks of its samples."""
    frames, true = (_numpy(x, torch.promote_types(x.dtype, torch.float32)) for x in (predicted, window.targets))
    errors = measure(frames, true, dt, mask=mask, usual=usual)
    marks = [mark_of(window, i, usual is not None) for i in range(len(window))]
    if not (good := ~errors.diverged).any() or isinstance(window.grid, Points):
        return errors, None, marks
    last = frames[:, -1] if mask is None else np.where(np.expand_dims(mask, -1), frames[:, -1], true[:, -1])
    return errors, np.stack([spectrum(true[good, -1]), spectrum(last[good])]), marks


def _numpy(x: Tensor, dtype: torch.dtype = torch.float64) -> Array:
    return np.asarray(x.detach().to("cpu", dtype).numpy())
