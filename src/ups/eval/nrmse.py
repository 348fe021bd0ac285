"""nRMSE, the error that selects weights and stands in every headline: one definition for numpy and torch."""

from __future__ import annotations

from typing import TypeVar

from ups.later import Tensor
from ups.types import Array

Values = TypeVar("Values", Array, Tensor)


def rms(values: Values) -> Values:
    """Root mean square over space of `(N, T, *S, C)`: one number per sample, frame and channel, `(N, T, C)`."""
    n, t, *_, c = values.shape
    roots: Values = (values.reshape(n, t, -1, c) ** 2).mean(2) ** 0.5
    return roots


def nrmse(predicted: Values, truth: Values, floor: float = 1e-12) -> Values:
    """Root mean square error over the truth's root mean square, `(N, T, *S, C)` → `(N, T, C)`; numpy or torch.

    A truth that is zero everywhere has no size to compare with. Validation scores are averaged and selected by, so
    they must be finite: a size under `floor` counts as `floor`. Evaluation passes `floor=0`: an error is infinite
    there, and no error over no size is nan, which `ups.eval.metrics` counts as 0.
    """
    relative: Values = rms(predicted - truth) / rms(truth).clip(floor)
    return relative
