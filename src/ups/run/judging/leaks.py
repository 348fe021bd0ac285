"""Finds validation and test trajectories that are copies or pieces of training ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ups.data.duplicates import REMEDY, Ends
from ups.data.splits import PARTS
from ups.run.data.datasets import DataSet
from ups.run.judging.seen_in_training import Pairs, seen_between

WORDS = {"train": "training", "valid": "validation", "test": "testing"}


def leaks(data: DataSet, judged: Collection[str] = ("valid", "test")) -> list[str]:
    """A sentence where trajectories of the parts `judged` are copies of those that are trained (or, for those to test,
    validated) on, and one where they end with the first frame of such a one. Those that follow what is trained on are
    its future."""
    seen = seen_between(data, judged)

    def name(each: Ends) -> str:
        return each.name if len(data.entries) == 1 else each.label

    def in_words(pairs: Pairs, what: str) -> str:
        ours, theirs = ({seen.part_of[each] for each in side} for side in zip(*pairs, strict=True))
        one, other = pairs[0]
        whole = sum(part in ours for part in seen.part_of.values())
        return (
            f"{data.task.name}: {len({each for each, _ in pairs})} of {whole} trajectories for {_words(ours)} {what} "
            f"for {_words(theirs)} (such as {name(one)} and {name(other)})"
        )

    sentences = []
    if seen.copies:
        what = in_words(seen.copies, "are copies of those")
        sentences.append(f"{what}, and NOT unseen; take the copies out of the files.")
    if seen.pieces:
        sentences.append(
            f"{in_words(seen.pieces, 'end with the first frame of one')}: they are pieces of one simulation, which "
            f"this split puts on both sides, and NOT unseen; {REMEDY}."
        )
    return sentences


def _words(parts: Iterable[str]) -> str:
    return " and ".join(WORDS[part] for part in PARTS if part in parts)
