"""Fields that hardly differ from their mean: whether a prediction knows more of them than that mean."""

from __future__ import annotations

import numpy as np

from ups.eval.rollout import Evaluation

FAR = 10.0  # times what varies in a field: a mean beside which errors look small, however wrong
AS_WRONG = 0.95  # of what varies: an error from which on the mean is as good an answer


def missed_beside_mean(evaluation: Evaluation) -> str:
    """Which fields have a mean far from zero and are predicted no better than by it, in words; nothing where none is.

    Air pressure in Pa that varies by 30 is within 3e-4 of 101 325 everywhere: nRMSE says nothing of it.
    """
    rmse, nrmse, vrmse = (evaluation.errors.frames(name) for name in ("rmse", "nrmse", "vrmse"))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size, spread = rmse / nrmse, rmse / vrmse  # of the truth, (N, T, C); nan where nothing is wrong
        mean = np.sqrt(np.maximum(size**2 - spread**2, 0.0))
    missed = []
    for channel, name in enumerate(evaluation.task.channels):
        known = np.isfinite(mean[..., channel]) & np.isfinite(spread[..., channel])
        if not known.any():
            continue
        level, wrong = mean[..., channel][known], rmse[..., channel][known]
        varies = float(np.sqrt(np.mean(spread[..., channel][known] ** 2) + np.var(level)))
        if level.min() > FAR * varies and np.sqrt(np.mean(wrong**2)) >= AS_WRONG * varies:
            missed.append(name)
    if not missed:
        return ""
    verb, whose = ("is", "its mean") if len(missed) == 1 else ("are", "their means")
    return f"{', '.join(missed)} {verb} no better than {whose}"
