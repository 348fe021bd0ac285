"""Judges rollouts far longer than training saw: are they bounded and lawful; needs no true frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from ups.eval.intervals import ratio
from ups.eval.nrmse import rms
from ups.eval.rollout import Predictor
from ups.run.config import EvalConfig
from ups.run.judging.rollout_watch import RolloutWatch
from ups.tensors import Window
from ups.types import Array

BOUND = 2.0  # times the largest size that the truth has; a rollout that grows beyond it is not bounded
AT_ONCE = 32  # trajectories, about, that are rolled out together


def long_rollouts(
    ours: Predictor,
    rivals: Iterable[tuple[Predictor, object]],
    windows: Iterable[Window],
    settings: EvalConfig,
    count: int,
) -> dict[str, dict[str, Array]]:
    """Numbers of long rollouts by predictor and name, one for each of about `settings.samples` of `count` trajectories.

    A rollout is `settings.horizon` times as long as what is known of the truth. `size` is the largest root mean square
    of any field in any frame, over the largest that the truth has of it; `bounded` is 1 where that is at most BOUND,
    else 0; `law NAME` is how much the rollout breaks a law. Left out are steady tasks, and trajectories with uneven
    time steps, for which the time of the next frame is not known.
    """
    numbers: dict[str, dict[str, list[Array]]] = {}
    if (factor := settings.horizon) is None:
        return {}
    predictors = (ours, *(rival for rival, _ in rivals))
    for window in _some(windows, max(1, count // settings.samples)):
        if window.task.steady:
            break
        if window.dt.ndim > 1:
            continue
        true = torch.cat((window.context, window.targets), 1)
        largest = rms(true.double(), window.weights).amax(1).numpy()
        blind = dataclasses.replace(window, targets=window.targets[:, :0])
        for who in predictors:
            watch = RolloutWatch(who.predict)
            sizes = rms(watch(blind, factor * window.targets.shape[1]).double(), window.weights).amax(1).numpy()
            size = np.nan_to_num(ratio(sizes, largest).max(-1), nan=np.inf, posinf=np.inf)
            values = {"size": size, "bounded": (size <= BOUND).astype(np.float64)}
            values |= {f"law {name}": residual for name, residual in watch.taken().items()}
            rows = numbers.setdefault(who.name, {})
            for name, value in values.items():
                rows.setdefault(f"{factor}x {name}", []).append(value)
    return {who: {name: np.concatenate(parts) for name, parts in rows.items()} for who, rows in numbers.items()}


def _some(windows: Iterable[Window], every: int) -> Iterator[Window]:
    """Every so many-th trajectory of all, those that can be joined together."""
    at, group = 0, list[Window]()
    for window in windows:
        if group and (len(group) >= AT_ONCE or window.kind != group[0].kind):
            yield Window.join(group)
            group = []
        group += [window.rows(i, i + 1) for i in range(len(window)) if (at + i) % every == 0]
        at += len(window)
    if group:
        yield Window.join(group)
