"""Finds the ranks whose values differ from those of the majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def odd_ranks(values: Mapping[int, str]) -> tuple[list[int], int | None]:
    """The ranks that differ from more than half of all, and one of those; where no value has more than half, all ranks
    and None: then it cannot be told who is wrong."""
    value, count = Counter(values.values()).most_common(1)[0]
    if count * 2 <= len(values):
        return list(values), None
    usual = next(rank for rank in values if values[rank] == value)
    return [rank for rank in values if values[rank] != value], usual


def named(ranks: Sequence[int]) -> str:
    """ranks 0, 1 and 4"""
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"
