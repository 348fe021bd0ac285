"""nRMSE, the error that selects weights and stands in every headline: one definition for numpy and torch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ups.later import Tensor
from ups.types import Array

Values = TypeVar("Values", Array, Tensor)


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


def nrmse(predicted: Values, truth: Values, floor: float = 1e-25, mask: Values | None = None) -> Values:
    """Root mean square error over the truth's root mean square, `(N, T, *S, C)` → `(N, T, C)`; numpy or torch. Both are
    over the cells of `mask (N, *S)`, where one is given.

    A truth that is zero everywhere has no size to compare with. Validation scores are averaged and selected by, so
    they must be finite: a size under `floor` counts as `floor`. Evaluation passes `floor=0`: an error is infinite
    there, and no error over no size is nan, which `ups.eval.metrics` counts as 0.

    Fields may be as small and as large as their numbers go: what is squared is in units of the truth.
    """
    unit = _unit(truth, mask)
    relative: Values = rms((predicted - truth) / unit, mask) / rms(truth / unit, mask).clip(floor)
    return relative


def _unit(truth: Values, mask: Values | None) -> Values:
    """The power of two below the mean magnitude of `truth (N, T, *S, C)` in space, `(N, T, 1, …, C)`; 1 where that is
    0. Division by it changes no digit."""
    n, t, *space, c = truth.shape
    sizes: Values = abs(truth)
    if mask is not None:
        sizes = sizes * mask.reshape(n, 1, *space, 1)
    size = sizes.reshape(n, t, -1, c).mean(2)
    size = size + (size == 0)
    mantissa = np.frexp(size)[0] if isinstance(size, np.ndarray) else size.frexp()[0]
    unit: Values = (size / (2 * mantissa)).reshape(n, t, *(1 for _ in space), c)
    return unit
