"""What judged trajectories are to those of training: the same, pieces of them, their future, or of the same start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ups.data.duplicates import Ends, copies, ends_of, links, pieces
from ups.data.splits import PARTS
from ups.data.trajectories import Trajectories
from ups.data.views import MIRRORED
from ups.run.data.datasets import DataEntry, DataSet

# What a reader must know where the trajectories are those of training themselves.
WARNING = "These trajectories were trained on: the numbers say nothing about unseen ones."
MOST = 4096  # trajectories of an entry that are compared between its parts; of each three frames are read
Pairs = Sequence[tuple[Ends, Ends]]


@dataclass(frozen=True)
class Seen:
    """What some trajectories are to those that a run was trained and validated on; each lies in one group at most.

    `copies` have the first, middle and last frame of one; `pieces` are one cut in time, or lead up to one; `onward` go
    on from the end of one; those of the `same_start` begin with the first frame of one and go on otherwise.
    """

    copies: Sequence[Ends]
    pieces: Sequence[Ends]
    onward: Sequence[Ends]
    same_start: Sequence[Ends]


def seen_in(judged: Sequence[Ends], used: Sequence[Ends]) -> Seen:
    """What judged trajectories are to those that were used."""
    known = {each.whole for each in used}
    rest = [each for each in judged if each.whole not in known]
    cut, onward = pieces(rest, used)
    named = {*cut, *onward}
    others = [each for each in rest if each not in named]
    first = {each.first for each in others}
    begun = {each.first for each in used if each.first in first and each.first_tells}
    return Seen(
        copies=[each for each in judged if each.whole in known],
        pieces=cut,
        onward=onward,
        same_start=[each for each in others if each.first in begun],
    )


def used_by(entries: Iterable[DataEntry]) -> list[Ends]:
    """What entries are trained and validated on."""
    return [each for entry in entries for each in ends_of(entry.source, {*entry.split.train, *entry.split.valid})]


def are_of_training(parts: Sequence[Trajectories], entries: Sequence[DataEntry]) -> bool:
    """Whether parts of the very sources of a run have any trajectory that it is trained on."""
    return any(part.source is e.source and set(part.ids) & set(e.split.train) for part in parts for e in entries)


@dataclass(frozen=True)
class SeenBetween:
    """Pairs of trajectories of a data set, the first of a part that is judged and the second of one used before it:
    training before validation, and that before testing.

    `copies` are the same with the same inputs; `pieces` end with the first frame of the second. `part_of` has the part
    of every trajectory that was looked at.
    """

    part_of: Mapping[Ends, str]
    copies: Pairs
    pieces: Pairs


def seen_between(data: DataSet, judged: Collection[str]) -> SeenBetween:
    """What trajectories of the parts `judged` are to those of parts that are used before them. Data that a run makes
    itself are not looked at, for each of their trajectories begins by itself; nor are very many."""
    part_of: dict[Ends, str] = {}
    for entry in data.entries:
        if entry.config.there and len(entry.source) <= MOST:
            parts = {name: part for part in PARTS for name in getattr(entry.split, part) if MIRRORED not in name}
            part_of |= {each: parts[each.name] for each in ends_of(entry.source, parts)}
    rank = {each: PARTS.index(part) for each, part in part_of.items()}

    def used_before(pairs: Pairs) -> Pairs:
        return [(one, other) for one, other in pairs if part_of[one] in judged and rank[other] < rank[one]]

    known = list(part_of)
    groups = [sorted(group, key=rank.__getitem__) for group in copies(known)]
    return SeenBetween(
        part_of=part_of,
        copies=used_before([(each, group[0]) for group in groups for each in group[1:]]),
        pieces=used_before([] if data.task.steady else links(known)),
    )
