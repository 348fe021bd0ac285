"""Comparison: predicted and true frames beside each other, and what several metrics need of them, computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ups.eval.nrmse import is_weight, rms
from ups.eval.spectra import pdebench_power
from ups.types import Array, ConfigError

# A rollout whose error is so many times the size of the truth at any frame has left it for good.
DIVERGED = 100.0
PIECE = 2**17  # numbers of the samples that are measured together


class Comparison:
    """One batch of predicted and true frames, `(N, T, *S, C)` in float64, and what several metrics need of them.

    `dt` is the time between frames, one number or `(N,)`, or that of each step, `(N, T)`. `box` is the length of each
    axis and scales the spectral error only; 1 by default, as in PDEBench's published runs. `mask (N, *S)` is true where
    a cell counts: in the others prediction and truth are 0, and `mean` leaves them out. Of points it holds what each
    counts. `usual (C,)` are sizes of channels in training, with which quiet frames are compared. Tables are
    `(N, T, C)`.
    """

    def __init__(
        self,
        predicted: Array,
        true: Array,
        dt: Array | float = 1.0,
        box: Sequence[float] | None = None,
        mask: Array | None = None,
        usual: Array | None = None,
    ) -> None:
        shape, other = predicted.shape, true.shape
        if shape != other or len(shape) < 4:
            raise ConfigError(
                f"errors compare two arrays (samples, frames, *space, channels), not {shape} with {other}."
            )
        self._given, self.mask, self.usual = (predicted, true), mask, usual
        self.dt, self.box = np.asarray(dt, np.float64), box
        self.space = tuple(range(2, len(shape) - 1))  # the axes of space
        self.table_shape = (*shape[:2], shape[-1])

    def pieces(self) -> list[Comparison]:
        """This comparison in several, of few samples each, whose intermediate results fit into a processor's cache."""
        (predicted, true), dt, mask = self._given, self.dt, self.mask
        step = max(1, PIECE // max(1, math.prod(predicted.shape[1:])))
        pieces = []
        for some in (slice(first, first + step) for first in range(0, len(predicted), step)):
            steps, counting = dt[some] if dt.ndim else dt, None if mask is None else mask[some]
            pieces.append(Comparison(predicted[some], true[some], steps, self.box, counting, self.usual))
        return pieces

    def join(self, pieces: Sequence[Comparison]) -> None:
        """Take over what was computed of all pieces."""
        for name in ("broken", "rmse", "norm", "true_variance", "lost", "power", "correlation"):
            if pieces and all(name in vars(piece) for piece in pieces):
                vars(self)[name] = np.concatenate([getattr(piece, name) for piece in pieces])

    @cached_property
    def predicted(self) -> Array:
        return self._counting(self._given[0])

    @cached_property
    def true(self) -> Array:
        return self._counting(self._given[1])

    def _counting(self, values: Array) -> Array:
        """Values in float64, and 0 in cells that do not count. Of several channels all frames of a cell lie beside each
        other in memory: numpy then adds up cells row by row, and not a frame's few channels at a time."""
        if values.shape[-1] == 1:
            values = np.asarray(values, np.float64)
        else:
            values = np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -2), np.float64), -2, 1)
        return values if self.mask is None else np.where(np.expand_dims(self.mask, (1, -1)), values, 0.0)

    def mean(self, values: Array) -> Array:
        """The mean over the cells that count of `values (N, T, *S, C)`, which are 0 in the others."""
        if self.mask is None:
            return np.asarray(values.mean(self.space))
        return np.asarray(self._weighed(values).sum(self.space) / self.cells)

    @property
    def scattered(self) -> bool:
        """Whether values lie at points, each of which counts as much as its volume."""
        return is_weight(self.mask)

    def _weighed(self, values: Array) -> Array:
        """`values (N, T, *S, C)`, each as many times as it counts."""
        return values * np.expand_dims(self.mask, (1, -1)) if self.mask is not None and self.scattered else values

    @cached_property
    def cells(self) -> Array:
        """How many cells of each sample count, `(N, 1, 1)`; at least 1."""
        assert self.mask is not None
        return np.asarray(np.maximum(self.mask.reshape(len(self.mask), 1, -1).sum(2, keepdims=True), 1))

    def deviation(self, values: Array) -> Array:
        """`values` less their mean, in the cells that count."""
        if self.mask is None:
            return np.asarray(values - values.mean(self.space, keepdims=True))
        gap = values - np.expand_dims(self.mean(values), self.space)
        return np.where(np.expand_dims(self.mask, (1, -1)), gap, 0.0)

    def variance(self, values: Array) -> Array:
        """Over the cells that count, unbiased."""
        if self.mask is None:
            return np.asarray(values.var(self.space, ddof=1))
        return np.asarray(self._weighed(self.deviation(values) ** 2).sum(self.space) / np.maximum(self.cells - 1, 1))

    @cached_property
    def broken(self) -> Array:
        """Where the prediction is not finite."""
        finite = np.isfinite(self.predicted)
        return np.zeros(self.table_shape, bool) if finite.all() else np.asarray(~finite.all(self.space))

    @cached_property
    def lost(self) -> Array:
        """Where no error can be computed: the prediction is not finite, or so large that its square is not."""
        return self.broken | ~np.isfinite(self.rmse)

    @cached_property
    def error(self) -> Array:
        """Prediction − truth, `(N, T, *S, C)`; 0 where the prediction is broken."""
        difference = np.asarray(self.predicted - self.true)
        if self.broken.any():
            difference[np.broadcast_to(np.expand_dims(self.broken, self.space), difference.shape)] = 0.0
        return difference

    @cached_property
    def rmse(self) -> Array:
        """Root mean square error over space."""
        return rms(self.error, self.mask)

    @cached_property
    def norm(self) -> Array:
        """Root mean square of the truth over space."""
        return rms(self.true, self.mask)

    @cached_property
    def true_variance(self) -> Array:
        """That of the truth over space."""
        return self.variance(self.true)

    @property
    def empty(self) -> Array:
        """Where a channel is zero in all frames, true and predicted, `(N, C)`: nothing is to foretell there."""
        return np.asarray(~(self.true.any((1, *self.space)) | self.predicted.any((1, *self.space))))

    @cached_property
    def power(self) -> Array:
        """Power of the error per wavenumber, `(N, T, wavenumbers, C)`; points have no wavenumbers."""
        if self.scattered:
            return np.zeros((*self.table_shape[:2], 0, self.table_shape[2]))
        return pdebench_power(self.error, self.box)

    @cached_property
    def correlation(self) -> Array:
        """Pearson's over space; where a field is constant: 1 if it is met exactly, otherwise 0. 0 where broken."""
        p, q = (self.deviation(x) for x in (self.predicted, self.true))
        squares = (self._weighed(x**2).sum(self.space) for x in (p, q))
        value = self._weighed(p * q).sum(self.space) / np.sqrt(math.prod(squares))
        value = np.where(np.isfinite(value), value, np.where(self.rmse == 0, 1.0, 0.0))
        return np.where(self.broken, 0.0, value)

    @property
    def diverged(self) -> Array:
        """Samples with a frame that is not finite, or that is further from the truth than `DIVERGED` allows, `(N,)`. A
        field that is zero throughout has no size from which to be far."""
        size = self.norm.max(1, keepdims=True)
        far = (self.rmse > DIVERGED * size) & (size > 0)
        return np.asarray((far | self.lost).any((1, 2)))
