"""Finds validation and test trajectories that are copies or pieces of training ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ups.data.duplicates import REMEDY, Ends, copies, ends_of, links
from ups.data.splits import PARTS
from ups.data.views import MIRRORED
from ups.run.data.datasets import DataSet

MOST = 4096  # trajectories of an entry; of each three frames are read
WORDS = {"train": "training", "valid": "validation", "test": "testing"}
Pairs = Sequence[tuple[Ends, Ends]]


def leaks(data: DataSet, judged: Collection[str] = ("valid", "test")) -> list[str]:
    """A sentence where trajectories of the parts `judged` are copies of those that are trained (or, for those to test,
    validated) on, and one where they end with the first frame of such a one. Those that follow what is trained on are
    its future.

    Data that a run makes itself are not looked at, for each of their trajectories begins by itself; nor are very many.
    """
    part_of: dict[Ends, str] = {}
    for entry in data.entries:
        if entry.config.there and len(entry.source) <= MOST:
            parts = {name: part for part in PARTS for name in getattr(entry.split, part) if MIRRORED not in name}
            part_of |= {each: parts[each.name] for each in ends_of(entry.source, parts)}
    known = list(part_of)

    def name(each: Ends) -> str:
        return each.name if len(data.entries) == 1 else each.label

    def known_before(pairs: Pairs) -> Pairs:
        return [
            (one, other)
            for one, other in pairs
            if part_of[one] in judged and PARTS.index(part_of[other]) < PARTS.index(part_of[one])
        ]

    def in_words(pairs: Pairs, what: str) -> str:
        ours, theirs = ({part_of[each] for each in side} for side in zip(*pairs, strict=True))
        one, other = pairs[0]
        whole = sum(part in ours for part in part_of.values())
        return (
            f"{data.task.name}: {len({each for each, _ in pairs})} of {whole} trajectories for {_words(ours)} {what} "
            f"for {_words(theirs)} (such as {name(one)} and {name(other)})"
        )

    sentences = []
    groups = [sorted(group, key=lambda each: PARTS.index(part_of[each])) for group in copies(known)]
    if same := known_before([(each, group[0]) for group in groups for each in group[1:]]):
        sentences.append(f"{in_words(same, 'are copies of those')}, and NOT unseen; take the copies out of the files.")
    if torn := known_before([] if data.task.steady else links(known)):
        sentences.append(
            f"{in_words(torn, 'end with the first frame of one')}: they are pieces of one simulation, which this split "
            f"puts on both sides, and NOT unseen; {REMEDY}."
        )
    return sentences


def _words(parts: Iterable[str]) -> str:
    return " and ".join(WORDS[part] for part in PARTS if part in parts)
