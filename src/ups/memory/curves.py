"""Learning curves: read from the log of a run, and drawn in a terminal with plain Unicode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ups.memory.evidence import Row, end_of, rows_in, stage_of

MOST = 1 << 28  # bytes of a log that are read, from its end
HEIGHT, WIDTH = 6, 60  # of a chart, in letters
LEVELS = " ▁▂▃▄▅▆▇█"
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


def curves_of(log: Path, names: Sequence[str] = (LOSS, SCORE)) -> list[LearningCurve]:
    """The curves of every stage in a run's log; none where there is none that can be read."""
    return curves_in(rows_in(end_of(log, MOST).splitlines()), names)


def curves_in(rows: Iterable[Row], names: Sequence[str] = (LOSS, SCORE)) -> list[LearningCurve]:
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
        for name in names:
            value = row.get(f"{stage}/{name}")
            if isinstance(value, int | float):
                points.setdefault((stage, name), {})[step] = float(value)
    ordered = {key: sorted(values.items()) for key, values in points.items()}
    return [LearningCurve(*key, *map(tuple, zip(*values, strict=True))) for key, values in ordered.items() if values]


def drawn(curve: LearningCurve, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """A chart as lines of text: columns of the values over the steps, on a logarithmic axis where all are positive."""
    finite = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if math.isfinite(v)]
    if not finite:
        return [f"{curve.title}: no finite number"]
    columns = _columns(finite, width)
    shown = [value for value in columns if value is not None]
    scale = math.log if min(shown) > 0 else float
    low, high = scale(min(shown)), scale(max(shown))
    labels = {height - 1: f"{max(shown):.3g}", 0: f"{min(shown):.3g}"}
    lines = [f"{curve.title}, {finite[-1][1]:.4g} at step {finite[-1][0]} (least {min(v for _, v in finite):.4g})"]
    for row in reversed(range(height)):
        cells = "".join(
            _cell(None if v is None else (scale(v) - low) / ((high - low) or 1), row, height) for v in columns
        )
        lines.append(f"{labels.get(row, ''):>9} ┤{cells}".rstrip())
    first, last = str(finite[0][0]), str(finite[-1][0])
    lines.append(f"{'':>9} └{'─' * len(columns)}")
    lines.append(f"{'':>11}{first}{last.rjust(max(1, len(columns) - len(first)))}")
    return lines


def _columns(points: Sequence[tuple[int, float]], width: int) -> list[float | None]:
    """The mean of the values in each of `width` equal parts of the steps; a part without one goes on as before."""
    first, last = points[0][0], points[-1][0]
    count = width if last > first else 1
    parts: list[list[float]] = [[] for _ in range(count)]
    for step, value in points:
        parts[min(count - 1, int((step - first) / max(1, last - first) * count))].append(value)
    columns: list[float | None] = []
    for part in parts:
        columns.append(sum(part) / len(part) if part else (columns[-1] if columns else None))
    return columns


def _cell(share: float | None, row: int, height: int) -> str:
    """The letter of a column in one row of a chart; the least value is still a line."""
    if share is None:
        return " "
    level = max(1, round(share * height * 8)) - row * 8
    return LEVELS[min(8, max(0, level))]
