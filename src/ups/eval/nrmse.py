"""nRMSE, the error that selects weights and stands in every headline: one definition for numpy and torch."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from ups.later import Tensor
from ups.types import Array

Values = TypeVar("Values", Array, Tensor)
# What a rollout counts as that is no number any more: far beyond any other, and still fit to be averaged.
LOST = 1e6


def rms(values: Values, mask: Values | None = None) -> Values:
    """Root mean square over space of `(N, T, *S, C)`: one number per sample, frame and channel, `(N, T, C)`; over the
    cells of `mask (N, *S)` alone, where one is given."""
    n, t, *_, c = values.shape
    squares: Values = values.reshape(n, t, -1, c) ** 2
    if mask is None:
        roots: Values = squares.mean(2) ** 0.5
        return roots
    cells: Values = mask.reshape(n, 1, -1, 1)
    counted: Values = ((squares * cells).sum(2) / cells.sum(2).clip(1)) ** 0.5
    return counted


def nrmse(predicted: Values, truth: Values, floor: float | Values = 1e-25, mask: Values | None = None) -> Values:
    """Root mean square error over the truth's root mean square, `(N, T, *S, C)` → `(N, T, C)`; numpy or torch. Both are
    over the cells of `mask (N, *S)`, where one is given, and fields may be as small and as large as numbers go.

    A frame that is zero everywhere, as before anything has entered the box, is compared with the mean size that the
    field has in the other frames. A field that is zero in all of them has no size. Validation scores are averaged and
    selected by, so they must be finite: its size counts as `floor`, one number or one per channel. Evaluation passes
    `floor=0`: an error is infinite there, and no error over no size is nan, which `ups.eval.metrics` counts as 0.
    """
    size = _rms_in_units(truth, mask)
    there = size != 0
    usual = (size.sum(1) / there.sum(1).clip(1))[:, None]
    size = np.where(there, size, usual) if isinstance(size, np.ndarray) else size.where(there, usual)
    relative: Values = _rms_in_units(predicted - truth, mask) / (size + floor * (size == 0))
    return relative


def validation_nrmse(
    predicted: Tensor, truth: Tensor, usual: Tensor, mask: Tensor | None = None, frames: slice = slice(None)
) -> Tensor:
    """The nRMSE of each sample `(N,)` over all frames, or some of them, by which weights are chosen: of ours and of
    every baseline. A field that is zero throughout is compared with its `usual` size `(C,)`; none is above `LOST`."""
    errors = nrmse(predicted, truth, usual, mask)[:, frames].mean((1, 2))
    return errors.nan_to_num(LOST, LOST).clamp_max(LOST)


def _rms_in_units(values: Values, mask: Values | None) -> Values:
    """What `rms` gives, squared in units of the values: a power of two, by which no digit changes, for each sample,
    frame and channel. 1 where nothing is there, or nothing finite."""
    n, t, *space, c = values.shape
    sizes: Values = abs(values) if mask is None else abs(values) * mask.reshape(n, 1, *space, 1)
    sizes = sizes.reshape(n, t, -1, c)
    if isinstance(sizes, np.ndarray):
        size = sizes.max(2)
        size = np.where((size > 0) & (size < math.inf), size, np.ones_like(size))
        mantissa = np.frexp(size)[0]
    else:
        size = sizes.amax(2)
        size = size.masked_fill(~((size > 0) & (size < math.inf)), 1.0)
        mantissa = size.frexp()[0]
    unit: Values = size / (2 * mantissa)
    roots: Values = rms(values / unit.reshape(n, t, *(1 for _ in space), c), mask) * unit
    return roots
