"""Learning curves drawn in a terminal with plain Unicode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ups.eval.learning import LearningCurve

HEIGHT, WIDTH = 6, 60  # of a chart, in letters
LEVELS = " ▁▂▃▄▅▆▇█"


def drawn(curve: LearningCurve, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """A chart as lines of text: columns of the values over the steps, on a logarithmic axis where all are positive."""
    finite = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if math.isfinite(v)]
    if not finite:
        return [f"{curve.title}: no finite number"]
    title = f"{curve.title}, {finite[-1][1]:.4g} at step {finite[-1][0]} (least {min(v for _, v in finite):.4g})"
    if finite[0][0] == finite[-1][0]:  # a single step is no curve
        return [title]
    columns = _columns(finite, width)
    shown = [value for value in columns if value is not None]
    scale = math.log if min(shown) > 0 else float
    low, high = scale(min(shown)), scale(max(shown))
    labels = {height - 1: f"{max(shown):.3g}", 0: f"{min(shown):.3g}"}
    lines = [title]
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
    parts: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        parts[min(width - 1, int((step - first) / (last - first) * width))].append(value)
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
