"""Other views of a source: each trajectory cut in time, so that the past is for training and the future for testing."""

from __future__ import annotations

import math

from ups.data.source import Source, View
from ups.data.splits import PARTS
from ups.types import Array, Domain, Params


class CutInTime(View):
    """Every trajectory as three, one after the other in time: `<id>@train`, `<id>@valid`, `<id>@test`.

    No frame is in two of them. valid and test get `floor(frames · fraction)` frames, train the rest. `parts` says which
    part each id is of.
    """

    def __init__(self, source: Source, fractions: tuple[float, float, float]) -> None:
        self._spans: list[tuple[int, range]] = []
        self.parts: dict[str, str] = {}
        for row, name in enumerate(source.ids):
            frames = len(source.times_of(row))
            valid, test = (math.floor(frames * fraction + 1e-9) for fraction in fractions[1:])
            ends = (0, frames - valid - test, frames - test, frames)
            for part, first, last in zip(PARTS, ends, ends[1:], strict=False):
                if last > first:
                    self._spans.append((row, range(first, last)))
                    self.parts[f"{name}@{part}"] = part
        row, span = self._spans[0]
        times = source.times_of(row)[span.start : span.stop]
        super().__init__(source, ids=tuple(self.parts), times=times, domain=source.domain_of(row))

    def _span(self, index: int) -> tuple[int, range]:
        """The row of a piece, and its frames."""
        return self._spans[self._position(index)]

    def times_of(self, index: int) -> Array:
        row, span = self._span(index)
        return self.source.times_of(row)[span.start : span.stop]

    def params_of(self, index: int) -> Params:
        return self.source.params_of(self._span(index)[0])

    def domain_of(self, index: int) -> Domain:
        return self.source.domain_of(self._span(index)[0])

    def _values(self, index: int, frames: slice) -> Array:
        row, span = self._span(index)
        wanted = span[frames]
        return self.source.read(row, slice(wanted.start, wanted.stop, wanted.step))

    def _inputs(self, index: int) -> Array:
        return self.source.inputs(self._span(index)[0])
