"""What several seeds of a row say of one more."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import permutations

from ups.bench.ledger import Score

LEAST = 3  # seeds that say how far others may lie; two say too little of it


def further_seed(values: Mapping[int, float]) -> tuple[float, float] | None:
    """Between which numbers one more seed lies 19 times in 20, by the spread of the logarithms of earlier ones
    (Student's t), given by seed; None of fewer than `LEAST`, or where one has no finite number."""
    if len(values) < LEAST or not all(0 < value < math.inf for value in values.values()):
        return None
    from scipy.special import stdtrit

    logs = [math.log(value) for value in values.values()]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    reach = float(stdtrit(len(logs) - 1, 0.975)) * spread
    return math.exp(mean - reach), math.exp(mean + reach)


def pairs_held(rows: Sequence[Sequence[Score]]) -> tuple[int, int]:
    """Of the scores of rows by several seeds: how many times the number of one lies in the interval of another, and of
    how many pairs."""
    pairs = [(one, other) for scores in rows for one, other in permutations(scores, 2)]
    return sum(one.low <= other.value <= one.high for one, other in pairs), len(pairs)
