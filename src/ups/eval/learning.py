"""Reads learning curves from the log of a run, without the steps that a resume has repeated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ups.parsing import Row, end_of, number_of, rows_in

MOST = 1 << 28  # bytes of a log that are read, from its end
LOSS, SCORE = "loss", "validation/score"


@dataclass(frozen=True)
class LearningCurve:
    """A number of a stage against its steps."""

    stage: str
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def title(self) -> str:
        return f"{self.stage}: {'validation' if self.name == SCORE else self.name}"


def stage_of(row: Row) -> str:
    """The stage that a row of the log belongs to; empty where none is named."""
    return next((name.partition("/")[0] for name in row if "/" in name), "")


def curves_of(log: Path) -> list[LearningCurve]:
    """The curves of every stage in a run's log; none where there is none that can be read."""
    return curves_in(rows_in(end_of(log, MOST).splitlines()))


def curves_in(rows: Iterable[Row]) -> list[LearningCurve]:
    """The curves in the rows of a log. Where a step comes again, the run was resumed before it: what an earlier start
    wrote from there on is no longer true."""
    points: dict[tuple[str, str], dict[int, float]] = {}
    reached: dict[str, int] = {}
    for row in rows:
        stage, step = stage_of(row), row.get("step")
        if not stage or not isinstance(step, int):
            continue
        if step < reached.get(stage, step):
            for (owner, _), values in points.items():
                if owner == stage:
                    for later in [s for s in values if s >= step]:
                        del values[later]
        reached[stage] = step
        for name in (LOSS, SCORE):
            value = number_of(row.get(f"{stage}/{name}"))
            if value is not None:
                points.setdefault((stage, name), {})[step] = value
    ordered = {key: sorted(values.items()) for key, values in points.items()}
    return [LearningCurve(*key, *map(tuple, zip(*values, strict=True))) for key, values in ordered.items() if values]
