"""Fields that hardly differ from their mean: whether a prediction knows more of them than that mean."""

from __future__ import annotations

import numpy as np

from ups.eval.metrics import variance_floor
from ups.eval.rollout import Evaluation

FAR = 10.0  # times what varies in a field: a mean beside which errors look small, however wrong
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # part of a mean, which a field varies by that is as good as constant
AS_WRONG = 0.95  # of what varies: an error from which on the mean is as good an answer


def missed_beside_mean(evaluation: Evaluation) -> str:
    """Which fields have a mean far from zero and are predicted no better than by it, in words; nothing where none is.

    Air pressure in Pa that varies by 30 is within 3e-4 of 101 325 everywhere: nRMSE says nothing of it.
    """
    rmse, nrmse, vrmse = (evaluation.errors.frames(name) for name in ("rmse", "nrmse", "vrmse"))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size, spread = (rmse / nrmse) ** 2, (rmse / vrmse) ** 2  # of the truth, (N, T, C); nan where nothing is wrong
        spread = np.maximum(spread - variance_floor(size), 0.0)
        mean, wrong = np.sqrt(np.maximum(size - spread, 0.0)), np.ma.masked_invalid(rmse**2)
    missed = []
    for channel, name in enumerate(evaluation.task.channels):
        level = np.ma.masked_invalid(mean[..., channel])
        if not level.count():
            continue
        # A state that is given tells the level of its sample; from inputs alone that is to be learnt too.
        moves = level.var() if evaluation.task.steady else level.var(1).mean()
        varies = float(np.sqrt(np.ma.masked_invalid(spread[..., channel]).mean() + moves))
        far = level.min() > FAR * varies > FAR * ROUNDING * level.max()
        if far and np.sqrt(wrong[..., channel].mean()) >= AS_WRONG * varies:
            missed.append(name)
    if not missed:
        return ""
    verb, whose = ("is", "its mean") if len(missed) == 1 else ("are", "their means")
    return f"{', '.join(missed)} {verb} no better than {whose}"
