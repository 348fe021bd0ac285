"""How the stages of a run went, read from its log."""

from __future__ import annotations

from contextlib import suppress

from ups.eval.results import LearningCurve
from ups.parsing import parse_json
from ups.rundir import RunDir

LOSS, SCORE = "/loss", "/validation/score"


def learning_curves(folder: RunDir) -> tuple[LearningCurve, ...]:
    """A curve for each stage in metrics.jsonl, in the order in which they were trained; none without such a file.

    A step that was taken again after a restart counts as it was the last time; half a line of a killed run does not.
    """
    stages: dict[str, tuple[dict[int, float], dict[int, float]]] = {}
    try:
        lines = folder.metrics.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            row = parse_json(line)
            step = int(row["step"])
            for name, value in row.items():
                for kind, ending in enumerate((LOSS, SCORE)):
                    stage = name.removesuffix(ending)
                    if name.endswith(ending) and "/" not in stage and isinstance(value, float | int):
                        stages.setdefault(stage, ({}, {}))[kind][step] = float(value)
    return tuple(
        LearningCurve(stage, tuple(sorted(losses.items())), tuple(sorted(scores.items())))
        for stage, (losses, scores) in stages.items()
    )
