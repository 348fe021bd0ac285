"""Predicts from several seeds of a row where one more seed will lie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from ups_bench.cells import shown
from ups_bench.ledger import LedgerEntry, Score
from ups_bench.rows import BenchRow

LEAST = 3  # seeds that say how far others may lie; two say too little of it
FREEDOM = 10  # degrees of it, below which rows together say too little of one that has fewer seeds


class SeedSpread(NamedTuple):
    """The standard deviation of the logarithms of a row's numbers from seed to seed, and its degrees of freedom."""

    deviation: float
    freedom: int

    def allows(self, values: Collection[float]) -> bool:
        """Whether numbers of one row differ no more than one set in a thousand does by this spread."""
        from scipy.special import fdtri

        if len(values) < 2 or not _positive(values):
            return len(values) < 2
        most = float(fdtri(len(values) - 1, self.freedom, 0.999))  # of the ratio of two variances
        return variance_of(values) <= most * self.deviation**2


def variance_of(values: Collection[float]) -> float:
    """The variance of the logarithms of numbers."""
    return statistics.variance(math.log(value) for value in values)


def common_spread(rows: Iterable[Collection[float]]) -> SeedSpread | None:
    """The spread from seed to seed that rows have in common, for those with too few seeds to have one of their own.
    Rows are left out that differ by more than the middle one of all allows; None where too little is left."""
    from scipy.special import chdtri

    known = [values for values in rows if len(values) > 1 and _positive(values)]
    if not known:
        return None
    freedom = [len(values) - 1 for values in known]
    # By which a half of the rows differ by more than half of all sets of seeds do.
    middle = statistics.median(
        variance_of(values) * free / float(chdtri(free, 0.5)) for values, free in zip(known, freedom, strict=True)
    )
    among = SeedSpread(math.sqrt(middle), sum(freedom))
    known = [values for values in known if among.allows(values)]
    left = sum(len(values) - 1 for values in known)
    if left < FREEDOM:
        return None
    return SeedSpread(math.sqrt(sum((len(values) - 1) * variance_of(values) for values in known) / left), left)


def spread_of(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> SeedSpread | None:
    """That which the rows of the accuracy table have in common, as it shows them."""
    runs = [shown(entries, row) for row in rows.values() if not row.beyond]
    return common_spread([score.value for run in several if (score := run.score()) is not None] for several in runs)


def further_seed(values: Collection[float], common: SeedSpread | None = None) -> tuple[float, float] | None:
    """Between which numbers one more seed lies 19 times in 20, by the spread of the logarithms of those of earlier
    seeds (Student's t); of fewer than `LEAST` by the `common` spread of other rows. None where neither says it, or a
    number is not finite."""
    if not values or not _positive(values):
        return None
    if len(values) >= LEAST:
        common = SeedSpread(math.sqrt(variance_of(values)), len(values) - 1)
    if common is None or not common.allows(values):
        return None
    from scipy.special import stdtrit

    mean = statistics.fmean(math.log(value) for value in values)
    reach = float(stdtrit(common.freedom, 0.975)) * common.deviation * math.sqrt(1 + 1 / len(values))
    return math.exp(mean - reach), math.exp(mean + reach)


def _positive(values: Collection[float]) -> bool:
    return all(0 < value < math.inf for value in values)


def pairs_held(rows: Sequence[Sequence[Score]]) -> tuple[int, int]:
    """How often, among scores of rows by several seeds, the number of one seed lies in the interval of another; and of
    how many pairs."""
    pairs = [(one, other) for scores in rows for one, other in permutations(scores, 2)]
    return sum(one.low <= other.value <= one.high for one, other in pairs), len(pairs)


def pairs_expected(rows: Sequence[Sequence[float]]) -> tuple[int, int]:
    """How many times the number of one seed lies where it is expected beside that of another by the spread of all rows
    but their own, and of how many pairs; rows that lie far outside of that spread count too."""
    within = []
    for number, values in enumerate(rows):
        spread = common_spread([*rows[:number], *rows[number + 1 :]])
        if spread is not None and _positive(values):
            spans = [(further_seed([one], spread), other) for one, other in permutations(values, 2)]
            within += [low <= other <= high for (low, high), other in ((span, other) for span, other in spans if span)]
    return sum(within), len(within)
