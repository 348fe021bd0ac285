"""nRMSE, the error that selects weights and stands in every headline, and how errors of rollouts are averaged."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ups.lazy_imports import Tensor
from ups.types import Array, TaskSpec

Values = TypeVar("Values", Array, Tensor)
# What a rollout counts as that is no number any more: far beyond any other, and still fit to be averaged.
LOST = 1e6
QUIET = 0.01  # of the size that a channel has in training: a true frame below that is compared with that size


def over_tasks(errors: Collection[float]) -> float:
    """The geometric mean of the errors of tasks, so that none is too small to count."""
    return math.exp(sum(math.log(max(error, 1e-12)) for error in errors) / len(errors))


def over_cells(values: Values, mask: Values | None = None) -> Values:
    """Mean over space of `(N, T, *S, C)`, numpy or torch: one number per sample, frame and channel, `(N, T, C)`; over
    the cells of `mask (N, *S)` alone, each as much as it counts there, where one is given. NaN where one of them is."""
    n, t, *space, c = values.shape
    count = math.prod(space) if mask is None else mask.reshape(n, 1, -1, 1).sum(2).clip(1)
    means: Values = _counted(values, mask).reshape(n, t, -1, c).sum(2) / count
    return means


def is_weight(mask: Array | Tensor | None) -> bool:
    """Whether a mask says how much each cell counts, as of points, and not only whether it does."""
    return mask is not None and "float" in str(mask.dtype)


def rms(values: Values, mask: Values | None = None) -> Values:
    """The root of the mean square, as `over_cells`."""
    roots: Values = over_cells(values**2, mask) ** 0.5
    return roots


def nrmse(
    predicted: Values,
    truth: Values,
    floor: float | Values = 0.0,
    mask: Values | None = None,
    usual: Values | None = None,
) -> Values:
    """Root mean square error over the truth's root mean square, `(N, T, *S, C)` → `(N, T, C)`; numpy or torch. Both are
    over the cells of `mask (N, *S)`, where one is given, and fields may be as small and as large as numbers go.

    A frame that is zero everywhere, as before anything has entered the box, is compared with the mean size that the
    field has in the other frames. A field that is zero in all of them has no size: an error is infinite there, and no
    error is NaN, which is left to whoever averages. Nothing else is NaN: what is no number is infinitely wrong.
    Validation scores must be finite: they give as `floor` the size of such a field, one number or one per channel.
    `usual (C,)` are the sizes of channels in training: a frame that is `QUIET` beside that is compared with that. 0 for
    a channel of which none is known.
    """
    size, error = _rms_in_units(truth, mask), _rms_in_units(predicted - truth, mask)
    size = size if usual is None else loud(size, usual)
    there = size != 0
    size = _where(there, size, (size.sum(1) / there.sum(1).clip(1))[:, None])
    relative: Values = error / (size + floor * (size == 0))
    return _where((relative >= 0) | (error == 0), relative, math.inf)


def loud(size: Values, usual: Values) -> Values:
    """The sizes `(N, T, C)` that errors are compared with: the `usual (C,)` one in the place of what is quiet."""
    return _where(size < QUIET * usual, usual + 0 * size, size)


def by_training(task: TaskSpec) -> bool:
    """Whether errors of quiet frames are compared with the training data: those of a user's own task. A built-in task
    is judged as PDEBench does it."""
    return task.name != task.equation


def capped(errors: Tensor) -> Tensor:
    """Errors of samples, fit to be averaged: none is above `LOST`, and one that is no number is that."""
    return errors.nan_to_num(LOST, LOST).clamp_max(LOST)


def validation_nrmse(
    predicted: Tensor,
    truth: Tensor,
    usual: Tensor,
    task: TaskSpec,
    mask: Tensor | None = None,
    frames: slice = slice(None),
) -> Tensor:
    """The nRMSE of each sample `(N,)` over all frames, or some of them, by which weights are chosen: of ours and of
    every baseline. A field that is zero throughout is compared with its `usual` size `(C,)`, and, where `by_training`
    says so, what is quiet beside it; none is above `LOST`."""
    quiet = usual if by_training(task) else None
    return capped(nrmse(predicted, truth, usual, mask, quiet)[:, frames].mean((1, 2)))


def counting(empty: Array) -> Array:
    """The channels that means are over, of `empty (N, C)`, which says where nothing is to foretell: those that are not
    empty in every sample, or all."""
    left = np.flatnonzero(~empty.all(0))
    return left if len(left) else np.arange(empty.shape[1])


@dataclass
class RolloutErrors:
    """nRMSE of rollouts of one task, gathered window by window and averaged as the headline is: over the channels that
    count in all windows together."""

    tables: list[Array] = field(default_factory=list)  # (B, T, C) of each window
    usual: Sequence[float] | None = None  # the sizes of channels in training, where quiet frames are compared with them

    def add(self, predicted: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        """Rollouts `(B, T, *S, C)` beside their truth."""
        usual = None if self.usual is None else truth.new_tensor(self.usual)
        self.tables.append(nrmse(predicted, truth, mask=mask, usual=usual).double().cpu().numpy())

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def by_step(self) -> list[Array]:
        """The error of each sample at each step, `(B, T)` of each window."""
        channels = counting(np.concatenate([np.isnan(table).all(1) for table in self.tables]))
        return [np.nan_to_num(table[..., channels], posinf=np.inf).mean(-1) for table in self.tables]

    def per_sample(self) -> Array:
        """The error of each sample, `(N,)`."""
        return np.concatenate([errors.mean(1) for errors in self.by_step()])


def _where(condition: Values, values: Values, other: Values | float) -> Values:
    """`values` where the condition holds, else `other`."""
    return np.where(condition, values, other) if isinstance(values, np.ndarray) else values.where(condition, other)


def _counted(values: Values, mask: Values | None) -> Values:
    """`values (N, T, *S, C)`, and 0 in cells that do not count, whatever is there; each as many times as it counts,
    where `mask` holds numbers."""
    if mask is None:
        return values
    cells: Values = mask.reshape(len(mask), 1, *mask.shape[1:], 1)
    return values * cells if is_weight(mask) else _where(cells, values, 0.0)


def _rms_in_units(values: Values, mask: Values | None) -> Values:
    """What `rms` gives, squared in units of the values: a power of two, by which no digit changes, for each sample,
    frame and channel. 1 where nothing is there, or nothing finite."""
    n, t, *space, c = values.shape
    sizes: Values = abs(_counted(values, mask)).reshape(n, t, -1, c)
    size: Values = sizes.max(2) if isinstance(sizes, np.ndarray) else sizes.amax(2)
    size = _where((size > 0) & (size < math.inf), size, 1.0)
    mantissa: Values = np.frexp(size)[0] if isinstance(size, np.ndarray) else size.frexp()[0]
    unit: Values = size / (2 * mantissa)
    roots: Values = rms(values / unit.reshape(n, t, *(1 for _ in space), c), mask) * unit
    return roots
