"""Error against a parameter, the mean over the samples at each value, and the error of each channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ups.eval.intervals import Number, all_strict, strict
from ups.eval.rollout import Evaluation
from ups.tensors import numeric_params
from ups.types import Array

# Values up to which each has a point of its own; more are put into so many bins of as many samples each.
VALUES, BINS = 24, 8


@dataclass(frozen=True)
class ByParameter:
    """nRMSE at each of some values of a parameter, with its 95 % interval."""

    name: str
    values: Array
    numbers: tuple[Number, ...]


def varied(evaluations: Iterable[Evaluation]) -> list[str]:
    """The parameters that have several values in these evaluations of one task."""
    seen = list(evaluations)
    names = numeric_params(seen[0].task) if seen else ()
    columns = [np.concatenate([e.params[:, i] for e in seen]) for i in range(len(names))]
    return [name for name, column in zip(names, columns, strict=True) if len(np.unique(column)) > 1]


def by_parameter(evaluations: Sequence[Evaluation], name: str) -> ByParameter:
    """The error of one predictor against a parameter, over all samples of its evaluations."""
    first = evaluations[0]
    index = numeric_params(first.task).index(name)
    values = np.concatenate([e.params[:, index] for e in evaluations])
    errors = np.concatenate([e.per_sample() for e in evaluations])
    groups = _groups(values)
    return ByParameter(
        name,
        # Six digits: parameters are kept in float32, and 0.00999999978 is nobody's value.
        values=np.array([float(f"{np.median(values[members]):.6g}") for members in groups]),
        numbers=tuple(strict("nrmse-at-parameter", errors[members], first.protocol.label) for members in groups),
    )


def by_channel(evaluation: Evaluation) -> list[Number]:
    """nRMSE and RMSE of each channel, where there are several: a mean over units says little of any of them."""
    channels = evaluation.task.channels
    tables = {name: evaluation.errors.frames(name).mean(1) for name in ("nrmse", "rmse")}
    named = {f"{name} of {c}": table[:, i] for name, table in tables.items() for i, c in enumerate(channels)}
    return all_strict(named, evaluation.protocol.label) if len(channels) > 1 else []


def _groups(values: Array) -> list[Array]:
    """The places of samples of the same value, or of neighbouring ones where nearly every sample has its own."""
    distinct, which = np.unique(values, return_inverse=True)
    if len(distinct) <= VALUES:
        return [np.flatnonzero(which == i) for i in range(len(distinct))]
    return [members for members in np.array_split(np.argsort(values, kind="stable"), BINS) if len(members)]
