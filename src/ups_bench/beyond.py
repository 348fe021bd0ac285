"""Computes from a judged run its errors on finer grids and between trained parameters, as ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ups.eval import trajectories
from ups.eval.intervals import Number, quantiles, ratio, ratio_of_means, resampled_means
from ups.eval.results import ResultRecord
from ups.eval.trajectories import PerTrajectory
from ups.run.config import RunConfig
from ups.run.data.outlines import outlines
from ups.run.data.params import files_of
from ups.run.judging.eval_sets import cells_of, named
from ups.rundir import RunDir
from ups.types import Array

OVER_GRID, OVER_NEIGHBOURS = "nrmse over the trained grid's", "nrmse over its neighbours'"
KEPT = ("nrmse", "diverged")  # metrics of the other splits that the ledger has


def scores_beyond(place: RunDir, config: RunConfig, records: Sequence[ResultRecord]) -> list[dict[str, Any]]:
    """The numbers of every split but the test part of a judged run, and the ratios of them, as the ledger has them."""
    known = [r for r in records if r.metric in KEPT and r.mode == "strict" and r.split not in ("test", "train")]
    keys = ("task", "split", "predictor", "metric", "value", "low", "high", "n")
    scores = [{key: getattr(r, key) for key in keys} for r in known if not r.axis]
    rows = trajectories.read(place.folder)
    for row, number in (*over_grid(config, rows), *over_neighbours(config, rows)):
        values = (row.task, row.split, row.predictor, number.name, number.value, number.low, number.high, number.n)
        scores.append(dict(zip(keys, values, strict=True)))
    return scores


def over_grid(config: RunConfig, rows: Sequence[PerTrajectory]) -> Iterator[tuple[PerTrajectory, Number]]:
    """Errors on finer grids over those on the trained one: of the same trajectories, where the test part has them."""
    grids = {outline.task.name: outline.shape for outline in outlines(config)}
    finer = {
        (task, f"{cells_of([n * factor for n in grid])} (zero-shot)")
        for task, grid in grids.items()
        for factor in config.evaluation.zero_shot
    }
    tests = {(row.task, row.predictor): row for row in rows if row.split == "test"}
    for row in rows:
        part, _, grid = row.split.partition(", ")
        if (row.task, grid) not in finer or (row.task, row.predictor) not in tests:
            continue
        test = tests[row.task, row.predictor]
        trained = dict(zip(test.ids, test.nrmse, strict=True))
        if part == "test" and len(trained) == len(test.ids) and trained.keys() >= set(row.ids):
            same = np.array([trained[name] for name in row.ids])
            yield row, ratio_of_means(np.array(row.nrmse), same, row.protocol, OVER_GRID)
        else:
            yield row, ratio_of_strangers(np.array(row.nrmse), np.array(test.nrmse), row.protocol, OVER_GRID)


def ratio_of_strangers(ours: Array, theirs: Array, protocol: str, name: str) -> Number:
    """Mean over mean of different samples, with the interval of resampling each by itself."""
    above, below = resampled_means(ours[None], 0), resampled_means(theirs[None], 1)
    low, high = quantiles(ratio(above, below))
    value = ratio(ours.mean(), theirs.mean())
    return Number(name, "strict", protocol, float(value), float(low[0]), float(high[0]), len(ours))


def over_neighbours(config: RunConfig, rows: Sequence[PerTrajectory]) -> Iterator[tuple[PerTrajectory, Number]]:
    """Errors at values of a parameter between trained ones, over the mean of those at the trained values next to them.

    All are judged on the same initial states, so the trained values too are asked for in `evaluation.unseen`: those of
    the test part begin from others.
    """
    for task, sets in config.evaluation.unseen.items():
        values = trained_values(config, task)
        for name, value, below, above in _between(sets, values):
            for predictor in dict.fromkeys(row.predictor for row in rows):
                errors = [_at(rows, task, predictor, {name: number}) for number in (value, below, above)]
                ours, left, right = errors
                if ours is None or left is None or right is None or len({row.ids for row in errors if row}) > 1:
                    continue
                mean = (np.array(left.nrmse) + np.array(right.nrmse)) / 2
                yield ours, ratio_of_means(np.array(ours.nrmse), mean, ours.protocol, OVER_NEIGHBOURS)


def trained_values(config: RunConfig, task: str) -> dict[str, list[float]]:
    """The numbers that training has of each parameter of a task that the run makes, whatever its equation is called."""
    values: dict[str, set[float]] = {}
    for data in config.data.values():
        for file in files_of(data.params) if not data.there and data.definition.name == task else ():
            for name, value in file.shared.items():
                if isinstance(value, float | int):
                    values.setdefault(name, set()).add(float(value))
    return {name: sorted(numbers) for name, numbers in values.items()}


def _between(
    sets: Sequence[Mapping[str, float | str]], values: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, float, float, float]]:
    """Name, value, and the trained values below and above it, of sets with one number that was not trained."""
    for params in sets:
        if len(params) != 1:
            continue
        ((name, value),) = params.items()
        known = values.get(name, ())
        if isinstance(value, str) or value in known or not known or not known[0] < value < known[-1]:
            continue
        yield name, value, max(v for v in known if v < value), min(v for v in known if v > value)


def _at(
    rows: Sequence[PerTrajectory], task: str, predictor: str, params: Mapping[str, float | str]
) -> PerTrajectory | None:
    """What a predictor made of the new trajectories at some parameters."""
    begin = f"new trajectories, {named(params)} ("
    return next(
        (r for r in rows if (r.task, r.predictor) == (task, predictor) and r.split.startswith(begin)),
        None,
    )
