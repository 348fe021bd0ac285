"""Tests whether two predictors differ on the same trajectories: paired differences with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ups.types import Array, ConfigError

SUBSETS = 19_999  # of the trajectories, drawn where there are too many to take all
ALL = 13  # trajectories up to which every subset is taken
LEVEL = 0.05


@dataclass(frozen=True)
class PairedDifference:
    """The mean of ours − theirs over `n` trajectories, with an interval, and how likely so much is by chance.

    `level` is the error that the interval allows itself: 0.05 for one comparison, less for each of several. `p` is of
    this comparison alone. Below zero throughout, ours is better.
    """

    value: float
    low: float
    high: float
    p: float
    n: int
    level: float = LEVEL

    @property
    def significant(self) -> bool:
        return self.p <= self.level and (self.low > 0 or self.high < 0)

    @property
    def decidable(self) -> bool:
        """Whether there are trajectories enough for any difference to be significant."""
        return decidable(self.n, self.level)


def decidable(n: int, level: float = LEVEL) -> bool:
    """Whether a difference on so many trajectories can be significant."""
    return 2.0 ** (1 - n) <= level


def surely_lower(ours: Array, theirs: Array) -> bool:
    """Whether ours are the lower errors: significantly, or on every trajectory where these are too few for that."""
    gap = difference(ours, theirs)
    return gap.high < 0 if gap.decidable else bool((np.asarray(ours) < np.asarray(theirs)).all())


def difference(ours: Array, theirs: Array, comparisons: int = 1) -> PairedDifference:
    """Ours − theirs, of errors on the same trajectories, as one of several `comparisons`.

    If nothing but chance decides whose error is the larger on a trajectory, the mean over any subset of the
    differences is as likely above the true one as below (Hartigan's typical values). So the ends of the interval are
    order statistics of subset means, and its promise is exact for any number of trajectories, normal or not, as that
    of a sign-flip test, whose p it agrees with. Two that diverge on one trajectory are equal there; an error that is
    no number is infinite.
    """
    ours, theirs = (np.where(np.isnan(x), np.inf, x) for x in (np.asarray(ours, float), np.asarray(theirs, float)))
    if len(ours) != len(theirs):
        raise ConfigError(f"a comparison in pairs needs the same samples, not {len(ours)} and {len(theirs)}.")
    level, n = LEVEL / max(1, comparisons), len(ours)
    with np.errstate(invalid="ignore"):
        gaps = ours - theirs
    gaps[np.isnan(gaps)] = 0.0
    if np.isinf(gaps).any():
        return _diverging(gaps, level)
    means = _subset_means(gaps)
    count = len(means) + 1
    below, above = int((means <= 0).sum()), int((means >= 0).sum())
    p = min(1.0, 2 * (1 + min(below, above)) / count)
    rank = math.floor(level / 2 * count)  # so many order statistics are left out on each side
    if rank < 1:
        return PairedDifference(float(gaps.mean()), -math.inf, math.inf, p, n, level)
    return PairedDifference(float(gaps.mean()), float(means[rank - 1]), float(means[-rank]), p, n, level)


def _diverging(gaps: Array, level: float) -> PairedDifference:
    """Where one of both diverges the mean does not exist, but who does so more often is a question of signs."""
    ups, downs = int((gaps > 0).sum()), int((gaps < 0).sum())
    n = ups + downs
    tail = sum(math.comb(n, k) for k in range(min(ups, downs) + 1)) / 2**n
    p = min(1.0, 2 * tail)
    infinite = np.isposinf(gaps).any(), np.isneginf(gaps).any()
    sure = p <= level and not all(infinite)
    value = math.nan if all(infinite) else math.inf if infinite[0] else -math.inf
    low, high = (-math.inf, math.inf) if not sure else (0.0, math.inf) if ups > downs else (-math.inf, 0.0)
    low, high = (math.nextafter(0, 1), high) if low == 0.0 else (low, math.nextafter(0, -1) if high == 0.0 else high)
    return PairedDifference(value, low, high, p, len(gaps), level)


def _subset_means(gaps: Array) -> Array:
    """Means over non-empty subsets of the trajectories, sorted: over all of them, or many that are drawn."""
    n = len(gaps)
    if n <= ALL:
        picks = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
        return np.asarray(np.sort(picks @ gaps / picks.sum(1)))
    rng, parts, left = np.random.default_rng(0), [], SUBSETS
    while left:
        count = min(left, max(1, 2_000_000 // n))
        picks = rng.integers(0, 2, (count, n), dtype=np.int8)
        picks = picks[picks.any(1)].astype(np.float64)
        parts.append(picks @ gaps / picks.sum(1))
        left -= len(picks)
    return np.asarray(np.sort(np.concatenate(parts)))
