"""Decides whether a task and its fields are learnt: better than forecasts that know nothing of the physics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ups.eval.pairs import surely_lower
from ups.eval.rollout import Evaluation
from ups.types import Array

MUCH = 0.95  # of the error of a forecast that knows nothing, under which ours must be
FAR = 10.0  # times what varies in a field: a mean beside which errors look small, however wrong
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # part of a field: what varies by less is as good as constant
CLOSE = 0.05  # of a field that is as good as constant: an error up to which there is nothing to complain of


@dataclass(frozen=True)
class Shortfall:
    """Why a task is not learnt: `whole` by its mean over channels, and `fields` those of its fields that are not, each
    with the reason; empty where all is well. `judged` are the fields in which there is something to foretell."""

    whole: str
    fields: Mapping[str, str]
    judged: tuple[str, ...]

    @property
    def words(self) -> str:
        """A verdict without its circumstances; `learnt` where nothing falls short."""
        if self.whole:
            return f"NOT LEARNT: {self.whole}"
        each = ", ".join(f"{name} is {reason}" for name, reason in self.fields.items())
        if each and len(self.fields) == len(self.judged):
            return f"NOT LEARNT: {each}"
        if not each:
            return "learnt"
        names = " and ".join(self.fields)
        return f"learnt, but not {names}: {each if len(self.fields) > 1 else next(iter(self.fields.values()))}"

    def numbers(self, trained: bool) -> dict[str, float]:
        """1 where the task is learnt, and each of several fields, else 0; by the name of its record."""
        fields = {f"learnt of {name}": name not in self.fields for name in self.judged}
        good = {"learnt": self.words == "learnt", **(fields if len(fields) > 1 else {})}
        return {name: float(learnt and trained) for name, learnt in good.items()}


def shortfall(
    mine: Evaluation, still: Evaluation, mean: Evaluation | None = None, linear: Evaluation | None = None
) -> Shortfall:
    """What ours fall short of, as a whole and field by field: persistence, a forecast of zero, means (the `mean` of
    training in each cell where it is known, and the level of a field), and a `linear` model where one was judged.

    Better means: on the same samples, with 95 % confidence, and by more than a twentieth. Where the samples are too few
    for confidence, on each of them. A linear model is a forecast that has learnt too: it counts where its error is
    below ours.
    """
    everything = range(len(mine.task.channels))
    moves = mine.task.steady or _errors_of(still, everything).max() > ROUNDING
    whole = "nothing changes in what is judged"
    if moves:
        whole = _no_better_than_any(mine, still, mean, everything) or _worse_than_linear(mine, linear, everything)
    fields, first, judged = {}, 0, []
    for name, size in ((f.name, len(f.channels)) for f in mine.task.fields):
        channels = [i for i in range(first, first + size) if i in mine.errors.counting]
        first += size
        if not channels:
            continue
        judged.append(name)
        alone = ""
        if len(mine.task.fields) > 1:
            alone = _no_better_than_any(mine, still, mean, channels, CLOSE) or _worse_than_linear(
                mine, linear, channels
            )
        if reason := alone or no_better_than_mean(mine, channels):
            fields[name] = reason
    return Shortfall(whole, fields, tuple(judged))


def _no_better_than_any(
    mine: Evaluation, still: Evaluation, mean: Evaluation | None, channels: Sequence[int], constant: float = 0.0
) -> str:
    """Which forecast that knows nothing is not beaten over some channels, in words."""
    errors = _errors_of(mine, channels)
    zero = mine.errors.zero[..., channels].mean((1, 2))
    others = {"persistence": _errors_of(still, channels), "predicting zero": zero}
    if mean is not None:
        theirs = _errors_of(mean, channels)
        others[f"the training mean ({theirs.mean():.4g})"] = theirs
    return _no_better(errors, others, constant)


def _worse_than_linear(mine: Evaluation, linear: Evaluation | None, channels: Sequence[int]) -> str:
    """Words where a linear model has the lower error over some channels, on the trajectories that it was judged on;
    none where ours is but rounding."""
    if linear is None:
        return ""
    errors, theirs = _errors_of(mine, channels), _errors_of(linear, channels)
    if len(theirs) < len(errors):
        errors = errors[[mine.marks.index(mark) for mark in linear.marks]]
    return f"worse than a linear model ({theirs.mean():.4g})" if max(theirs.mean(), ROUNDING) < errors.mean() else ""


def _errors_of(e: Evaluation, channels: Sequence[int]) -> Array:
    """nRMSE of each sample over some channels; over all of them it is the headline's."""
    if len(channels) == len(e.task.channels):
        return e.per_sample()
    return np.asarray(e.errors.frames("nrmse")[..., channels].mean((1, 2)))


def no_better_than_mean(mine: Evaluation, channels: Sequence[int]) -> str:
    """Words where one of the channels has a mean far from zero and is predicted no better than by it; else nothing."""
    return "no better than its mean" if any(_no_better_than_level(mine, i) for i in channels) else ""


def _no_better(errors: Array, others: Mapping[str, Array], constant: float = 0.0) -> str:
    """Which of the other forecasts, with their errors on the same samples, these are not better than, in words. One
    that is exact but for rounding is no mark to beat while errors are at most `constant`."""
    for what, theirs in others.items():
        if theirs.max() <= ROUNDING and errors.mean() <= constant:
            continue
        if (no := errors.mean() > MUCH * theirs.mean()) or not surely_lower(errors, theirs):
            return f"{'no' if no else 'not surely'} better than {what}"
    return ""


def _no_better_than_level(mine: Evaluation, channel: int) -> bool:
    """Whether a channel has a mean far from zero and is predicted no better than by the mean of each of its frames.

    Air pressure in Pa that varies by 30 is within 3e-4 of 101 325 everywhere: nRMSE says nothing of it.
    """
    at = slice(channel, channel + 1)
    rmse, size, spread = mine.errors.frames("rmse"), mine.errors.sizes**2, mine.errors.variances
    rmse, size, spread = rmse[..., at], size[..., at], spread[..., at]  # (N, T, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        level, wrong = np.ma.masked_invalid(np.sqrt(np.maximum(size - spread, 0.0))), np.ma.masked_invalid(rmse**2)
    if not level.count():
        return False
    # A state that is given tells the level of its sample; from inputs alone that is to be learnt too.
    moves = level.var() if mine.task.steady else level.var(1).mean()
    varies = float(np.sqrt(np.ma.masked_invalid(spread).mean() + moves))
    far = level.min() > FAR * varies > FAR * ROUNDING * level.max()
    return bool(far and np.sqrt(wrong.mean()) >= MUCH * varies)
