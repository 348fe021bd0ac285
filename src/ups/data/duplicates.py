"""Finds trajectories that are stored twice, cut in time, or go on where another ends, by hashes of frames."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ups.data.source import BLOCK_BYTES, Source
from ups.data.splits import PARTS, parts_of
from ups.types import Array, counted

# What to do about pieces of one simulation.
REMEDY = (
    "join the pieces of each simulation into one trajectory and divide that in time with `split: {time: [0.75, 0.1, "
    "0.15]}`, or keep them in one part with `split: {files: {train: …, valid: …, test: …}}`"
)


@dataclass(eq=False)
class Ends:
    """A trajectory by hashes of its first and last frame, and of these and the middle one together (`whole`).

    Hashes are of the numbers that training sees: a frame has one in whatever format, precision, byte order and order of
    channels it is stored, and whatever stands in cells that do not count. All else is read when it is asked for.
    """

    source: Source
    row: int
    first: str
    last: str
    whole: str

    @property
    def name(self) -> str:
        return self.source.ids[self.row]

    @property
    def label(self) -> str:
        return f"{self.source.path.name}:{self.name}"

    @cached_property
    def given(self) -> tuple[object, ...]:
        """Parameters, numbers to five digits, and a hash of the inputs."""
        params = self.source.params_of(self.row).items()
        words = sorted((key, value if isinstance(value, str) else f"{value:.5g}") for key, value in params)
        return (*words, self.inputs)

    @cached_property
    def inputs(self) -> str:
        return _digest(self.source.inputs(self.row), self.source.task.given, self._counts)

    @cached_property
    def second(self) -> str:
        return _digest(self.source.read(self.row, slice(1, 2))[0], self.source.task.channels, self._counts)

    @property
    def _counts(self) -> Array | None:
        return _counting(self.source, range(self.row, self.row + 1))[0]

    @property
    def moves(self) -> bool:
        return self.first != self.last or self.first_tells

    @cached_property
    def first_tells(self) -> bool:
        """Whether no other trajectory has its first frame by chance: it is not uniform, and the next is another."""
        return self._tells(self.source.read(self.row, slice(0, 2)))

    @cached_property
    def last_tells(self) -> bool:
        """Whether no other has its last frame by chance: it is not uniform, nor a state that has come to rest."""
        return self._tells(self.source.read(self.row, slice(-2, None))[::-1])

    def _tells(self, frames: Array) -> bool:
        if len(frames) < 2:
            return False
        cells, beside = _single(frames, self._counts).reshape(2, -1, frames.shape[-1])
        return bool((cells != cells[:1]).any() and (cells != beside).any())


def ends_of(source: Source, ids: Collection[str] | None = None) -> list[Ends]:
    """The trajectories of a source, or those of `ids` alone; of each, three frames are read."""
    result = []
    for rows in _runs(source, [i for i, name in enumerate(source.ids) if ids is None or name in ids]):
        last = len(source.times_of(rows[0])) - 1
        frames = {t: source.read_several(rows, slice(t, t + 1)) for t in sorted({0, last // 2, last})}
        counts = _counting(source, rows)
        for at, row in enumerate(rows):
            digests = {t: _digest(values[at, 0], source.task.channels, counts[at]) for t, values in frames.items()}
            whole = hashlib.sha256("".join(digests.values()).encode()).hexdigest()[:16]
            result.append(Ends(source, row, digests[0], digests[last], whole))
    return result


def copies(known: Iterable[Ends]) -> list[list[Ends]]:
    """Trajectories that are there more than once, with the same inputs: all that are the same in one list, the first
    of them first. What is said of their parameters does not matter. States at rest are no copies of each other."""
    groups: dict[tuple[str, str], list[Ends]] = {}
    for alike in _by(known, "whole").values():
        for each in alike if len(alike) > 1 else ():
            groups.setdefault((each.whole, each.inputs), []).append(each)
    return [group for group in groups.values() if len(group) > 1 and (group[0].moves or group[0].source.task.steady)]


def pieces(new: Iterable[Ends], old: Sequence[Ends]) -> tuple[list[Ends], list[Ends]]:
    """New trajectories that are pieces of the same simulation as an old one, told by first and last frames.

    Frames that many may have by chance do not count. A first frame counts where parameters and inputs are the same too,
    and only where old trajectories that begin with it all go the same way: the same initial state under other
    conditions is no piece.

    Returns:
        Those that are old ones cut in time or lead up to one, and those that go on from the end of one.
    """
    begin, end = _by(old, "first"), _by(old, "last")
    cut, onward = [], []
    for each in new:
        starts = [o for o in begin.get(each.first, ()) if o.first_tells and o.given == each.given]
        same_start = bool(starts) and each.first_tells and len({o.second for o in starts}) == 1
        same_end = any(o.last_tells for o in end.get(each.last, ())) and each.last_tells
        before = any(o.first_tells and o.given == each.given for o in begin.get(each.last, ())) and each.last_tells
        after = any(o.last_tells and o.given == each.given for o in end.get(each.first, ())) and each.first_tells
        if same_start or same_end or before:
            cut.append(each)
        elif after:
            onward.append(each)
    return cut, onward


def links(known: Sequence[Ends]) -> list[tuple[Ends, Ends]]:
    """Pairs `(one, next)` of which the last frame of one is the first of the next, and of no other: pieces of one
    simulation. Frames that many may have by chance do not count."""
    begin, end = _by(known, "first"), _by(known, "last")
    pairs = []
    for digest, lasts in end.items():
        firsts = begin.get(digest, [])
        if len({each.whole for each in firsts}) == len({each.whole for each in lasts}) == 1:
            one, following = lasts[0], firsts[0]
            if one.whole != following.whole and one.last_tells and following.first_tells:
                pairs.append((one, following))
    return pairs


def scattered(known: Sequence[Ends]) -> list[str]:
    """A sentence where trajectories are pieces of one simulation, unless folders have them in one part, or those for
    training before those to be tested."""
    parts = {source: parts_of(source.ids) or {} for source in {each.source for each in known}}

    def apart(one: Ends, later: Ends) -> bool:
        before, after = (parts[each.source].get(each.name, "") for each in (one, later))
        return not before or not after or PARTS.index(after) < PARTS.index(before)

    pairs = [pair for pair in links([each for each in known if not each.source.task.steady]) if apart(*pair)]
    if not pairs:
        return []
    (one, later), count = pairs[0], counted(len(pairs), "trajectory")
    return [
        f"{count} {'begins' if len(pairs) == 1 else 'begin'} with the last frame of another (such as {later.label} "
        f"after {one.label}): these are pieces of one simulation, which a split by trajectories puts on both sides, so "
        f"that what is tested lies between what is trained on; {REMEDY}"
    ]


def _by(known: Iterable[Ends], end: str) -> dict[str, list[Ends]]:
    """Trajectories by one of their hashes: `end` is a field of `Ends`."""
    by_hash: dict[str, list[Ends]] = {}
    for each in known:
        by_hash.setdefault(getattr(each, end), []).append(each)
    return by_hash


def _runs(source: Source, rows: Sequence[int]) -> Iterator[range]:
    """Samples that are read together: side by side in a file, and no more than memory should hold."""
    at = 0
    while at < len(rows):
        first = rows[at]
        beside = source.beside(first)
        frame = 8 * len(source.task.channels) * math.prod(source.grid_of(first).shape)
        most = max(1, BLOCK_BYTES // max(1, frame))
        count = 1
        while at + count < len(rows) and count < most and rows[at + count] == first + count in beside:
            count += 1
        yield range(first, first + count)
        at += count


def _counting(source: Source, rows: range) -> list[Array | None]:
    """The cells `(*S,)` of each sample that count; None where all do."""
    task = source.task
    if not task.mask:
        return [None] * len(rows)
    return list(source.inputs_of(rows)[..., task.given.index(task.mask)] > 0.5)


def _single(values: Array, counts: Array | None) -> Array:
    """`(…, *S, C)` in float32, of cells that count: `(…, cells, C)`."""
    with np.errstate(over="ignore"):
        single = values.astype("<f4") + np.float32(0)  # a zero has no sign
    return np.asarray(single if counts is None else single[..., counts, :])


def _digest(values: Array, names: Sequence[str], counts: Array | None) -> str:
    """The hash of `(*S, C)`, its channels in the order of their names."""
    ordered = values if list(names) == sorted(names) else values[..., np.argsort(names)]
    where = b"" if counts is None else counts.tobytes()
    return hashlib.sha256(str(values.shape).encode() + where + _single(ordered, counts).tobytes()).hexdigest()[:16]
