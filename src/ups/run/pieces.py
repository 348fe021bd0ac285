"""Simulations that a split has torn: trajectories that are judged, and go on in others that are trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ups.data.duplicates import REMEDY, Ends, ends_of, links
from ups.data.splits import PARTS
from ups.data.views import MIRRORED
from ups.run.datasets import DataSet

MOST = 4096  # trajectories of an entry; restarts come in dozens, and of each three frames are read
WORDS = {"train": "training", "valid": "validation", "test": "testing"}


def torn(data: DataSet, judged: Collection[str] = ("valid", "test")) -> str:
    """A sentence where trajectories of the parts `judged` end with the first frame of one that is trained (or, for
    those to test, validated) on; empty where none does. Those that follow what is trained on are its future.

    Data that a run makes itself are not looked at, for each of their trajectories begins by itself; nor are very many.
    """
    part_of: dict[Ends, str] = {}
    looked = [e for e in data.entries if e.config.there and not data.task.steady and len(e.source) <= MOST]
    for entry in looked:
        parts = {name: part for part in PARTS for name in getattr(entry.split, part) if MIRRORED not in name}
        part_of |= {each: parts[each.name] for each in ends_of(entry.source, parts)}
    pairs = [
        (one, later)
        for one, later in links(list(part_of))
        if part_of[one] in judged and PARTS.index(part_of[later]) < PARTS.index(part_of[one])
    ]
    if not pairs:
        return ""
    ours, theirs = ({part_of[each] for each in side} for side in zip(*pairs, strict=True))
    count = sum(part in ours for part in part_of.values())
    return (
        f"{data.task.name}: {len(pairs)} of {count} trajectories for {_words(ours)} end with the first frame of one "
        f"for {_words(theirs)} (such as {pairs[0][0].name} and {pairs[0][1].name}): they are pieces of one simulation, "
        f"which this split puts on both sides, and NOT unseen; {REMEDY}."
    )


def _words(parts: Iterable[str]) -> str:
    return " and ".join(WORDS[part] for part in PARTS if part in parts)
