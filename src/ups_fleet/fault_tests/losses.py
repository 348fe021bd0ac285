"""The losses that a run has logged, and how far those of two runs are apart."""

from __future__ import annotations

import json

from ups.rundir import RunDir
from ups_fleet.fault_tests.case import LAST_STAGE

# How far apart losses and gradients of one process and of several may be: sums in another order, nothing else.
NEAR = {"cpu": 1e-6, "cuda": 1e-5}


def losses(run: RunDir) -> list[tuple[float, float]]:
    """The loss and the gradient norm of every step of the last stage of a run, as it was made last.

    In the first one some gradients are only rounding, of which an optimizer makes steps as large as any.
    """
    rows = [json.loads(text) for text in run.metrics.read_text().splitlines()]
    names = f"{LAST_STAGE}/loss", f"{LAST_STAGE}/gradient"
    steps = {row["step"]: (row[names[0]], row[names[1]]) for row in rows if row.keys() >= set(names)}
    return [steps[step] for step in sorted(steps)]


def largest_gap(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """The largest relative difference between two trainings' losses and gradient norms; inf if their steps differ."""
    if len(a) != len(b) or not a:
        return float("inf")
    pairs = [(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)]
    worst = max(abs(x - y) / max(abs(y), 1e-30) for x, y in pairs)
    return worst if worst == worst else float("inf")
