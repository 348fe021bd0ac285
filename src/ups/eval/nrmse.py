"""nRMSE, the error that selects weights and stands in every headline: one definition for numpy and torch."""

from __future__ import annotations

from typing import TypeVar

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
    """
    relative: Values = rms(predicted - truth, mask) / rms(truth, mask).clip(floor)
    return relative
