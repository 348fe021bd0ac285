"""Numbers with 95 % bootstrap intervals over samples, alone and as ratios."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ups.types import Array, ConfigError

TAILS = (0.5 - 0.95 / 2, 0.5 + 0.95 / 2)
AT_ONCE = 2_000_000  # drawn samples that are in memory at a time


@dataclass(frozen=True)
class Number:
    """One number with what it means: `low` and `high` bound its 95 % bootstrap interval over `n` samples.

    A mode without samples of its own (the batch means of PDEBench) has no interval: `low = high = value`.
    """

    name: str
    mode: str
    protocol: str
    value: float
    low: float
    high: float
    n: int


def number(value: float) -> str:
    """Four significant digits; `infinite` or `-infinite` for infinity, `–` for NaN."""
    if math.isnan(value):
        return "–"
    return f"{value:.4g}" if math.isfinite(value) else f"{'-' * (value < 0)}infinite"


def with_interval(value: float, low: float, high: float, n: int) -> str:
    """A number over `n` samples and the interval around it; one sample has none."""
    return f"{number(value)} ({number(low)} – {number(high)})" if n > 1 else number(value)


def intervals(rows: Array, seed: int = 0, resamples: int = 2000) -> tuple[Array, Array]:
    """The 95 % bootstrap percentile interval of the mean of each row of `rows` (M, N), the same samples drawn for all.

    Lower and upper ends, each (M,). Same seed, same intervals; infinite values are kept.
    """
    return quantiles(resampled_means(rows, seed, resamples))


def resampled_means(rows: Array, seed: int = 0, resamples: int = 2000) -> Array:
    """The mean of each row of `rows` (M, N) over samples drawn anew, the same for all, `(M, resamples)`."""
    rows = np.ascontiguousarray(rows, np.float64)
    parts = [[row[draws].mean(1) for row in rows] for draws in _draws(rows.shape[1], seed, resamples)]
    return np.concatenate(parts, axis=1)


def quantiles(values: Array) -> tuple[Array, Array]:
    """The ends of the middle 95 % of each row of `values` (M, resamples), each (M,)."""
    # An order statistic, never an interpolation, which would make nan out of inf - inf.
    low, high = np.quantile(values, TAILS, axis=1, method="inverted_cdf")
    return low, high


def ratio_of_means(ours: Array, theirs: Array, protocol: str, name: str) -> Number:
    """Mean of ours over mean of theirs, with the interval of resampling both together: below one is better."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    _check_same_samples(ours, theirs)
    above, below = resampled_means(np.stack((ours, theirs)))
    low, high = (float(end[0]) for end in quantiles(ratio(above, below)[None]))
    value = ratio(ours.mean(), theirs.mean())
    return Number(name, "strict", protocol, float(value), low, high, len(ours))


def strict(name: str, values: Array, protocol: str, seed: int = 0) -> Number:
    """The mean of per-sample values `(N,)` with its interval, as a number."""
    return all_strict({name: values}, protocol, seed)[0]


def all_strict(values: Mapping[str, Array], protocol: str, seed: int = 0) -> list[Number]:
    """`strict` of several values of the same samples, by name."""
    ends = zip(*intervals(np.stack(list(values.values())), seed), strict=True)
    rows = zip(values.items(), ends, strict=True)
    return [
        Number(name, "strict", protocol, float(np.mean(row)), float(low), float(high), len(row))
        for (name, row), (low, high) in rows
    ]


def ratio(error: Array, norm: Array) -> Array:
    """error / norm; nothing over nothing is no error, something over nothing and infinity over any is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(error == 0, 0.0, np.where(np.isinf(error), np.inf, error / norm)))


def _check_same_samples(ours: Array, theirs: Array) -> None:
    if len(ours) != len(theirs):
        raise ConfigError(f"a paired comparison needs the same samples, not {len(ours)} and {len(theirs)}.")


def _draws(count: int, seed: int, resamples: int) -> Iterator[Array]:
    """Which samples each resample takes, `(part of the resamples, count)`, in parts that fit in memory."""
    if resamples * count < 2 * AT_ONCE:
        yield _all_draws(count, seed, resamples)
        return
    rng = np.random.default_rng(seed)
    for part in np.array_split(np.arange(resamples), resamples * count // AT_ONCE):
        yield rng.integers(0, count, (len(part), count))


@lru_cache(maxsize=4)
def _all_draws(count: int, seed: int, resamples: int) -> Array:
    return np.random.default_rng(seed).integers(0, count, (resamples, count))
