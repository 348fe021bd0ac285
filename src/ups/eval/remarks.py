"""Sentences beside the table of a report: what makes its numbers large, and what training has made worse."""

from __future__ import annotations

import math

import numpy as np

from ups.eval.comparison import DIVERGED
from ups.eval.intervals import number
from ups.eval.results import TaskResult, how_few
from ups.eval.rollout import Evaluation
from ups.types import counted

FEW_MAKE_IT = 4  # times the median error, from which the mean is one of a few trajectories
NAMED = 3  # lost rollouts that are told one by one
SMALL = 10  # times under what is usual, from which a true field is next to nothing


def percent(share: float) -> str:
    """A share of one, in percent."""
    return f"{100 * share:.2f} %"


def codec_complaints(task: TaskResult) -> list[str]:
    """A sentence where the codec alone errs more than the first predicted frame."""
    if task.reconstruction is None or task.ours.cost.steps == 0:
        return []
    alone = task.reconstruction.evaluation
    codec = float(np.median(alone.per_sample())) if made_by_few(alone) else alone.score
    step = task.ours.evaluation.one_step.value
    name = task.ours.evaluation.task.name
    sentence = (
        f"{name}: the codec is the bottleneck, its reconstruction error {number(codec)} exceeds the one-step error."
    )
    return [sentence] if codec > step else []


def rollouts_lost(task: TaskResult) -> list[str]:
    """A sentence where rollouts leave the truth for good: which, from which frame on, and how far they go."""
    e = task.ours.evaluation
    lost = np.flatnonzero(e.diverged)
    if not len(lost) or task.ours.cost.steps == 0:
        return []
    words = [_lost_words(e, int(sample)) for sample in lost[:NAMED]]
    more = f", and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    return [
        f"{e.task.name}: {counted(len(lost), 'rollout')} of {len(e)} left the truth for good: "
        f"{'; '.join(words)}{more}. They count in every mean as they are."
    ]


def rollouts_outside(task: TaskResult) -> list[str]:
    """A sentence where rollouts leave what training saw: how many, and which is the first."""
    e = task.ours.evaluation
    left = [(step, i) for i, step in enumerate(task.left_range_at) if step is not None]
    if not left or task.ours.cost.steps == 0:
        return []
    step, sample = min(left)
    name = e.ids[sample] if len(e.ids) == len(e) else str(sample)
    return [
        f"{e.task.name}: {counted(len(left), 'rollout')} of {len(e)} left the range of values that training saw, first "
        f"{name} at predicted frame {step}; from there on it is kept in bounds, and a guess."
    ]


def _lost_words(e: Evaluation, sample: int) -> str:
    """In words: a rollout's first frame that is further from the truth than `DIVERGED` allows, and how far it gets."""
    rmse, size = e.errors.frames("rmse")[sample], e.errors.sizes[sample].max(0)  # (T, C), (C,)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        times = np.where(size > 0, rmse / size, 0.0)
    times[~np.isfinite(rmse)] = np.inf
    far = (times > DIVERGED).any(1)
    first, name = int(np.argmax(far)), e.ids[sample] if len(e.ids) == len(e) else str(sample)
    at, most = float(times[first].max()), float(times.max())
    far_words = "it is not finite" if math.isinf(at) else f"its error is {number(at)} times the truth"
    later = f", later {number(most)} times" if at < most < math.inf else ""
    return f"{name} from predicted frame {first + 1} on, where {far_words}{later}"


def made_by_few(e: Evaluation) -> bool:
    """Whether the mean is many times the median."""
    return math.isfinite(e.score) and e.score > FEW_MAKE_IT * float(np.median(e.per_sample()))


def empty_fields(task: TaskResult) -> list[str]:
    """A sentence where channels are left out of the means, for nothing is in them."""
    e = task.ours.evaluation
    left = [name for i, name in enumerate(e.task.channels) if i not in e.errors.counting]
    if not left:
        return []
    which = f"{left[0]} is" if len(left) == 1 else f"{', '.join(left)} are"
    return [
        f"{e.task.name}: {which} zero in all that is judged, and predicted so: nothing is to foretell there, and means "
        "over channels leave it out."
    ]


def quiet_fields(task: TaskResult) -> list[str]:
    """A sentence where channels are next to nothing in true frames, whose errors are compared with training then."""
    e = task.ours.evaluation
    shares = (e.errors.zero < 1).mean((0, 1))
    quiet = [f"{name} in {percent(share)}" for name, share in zip(e.task.channels, shares, strict=True) if share]
    if not quiet:
        return []
    return [
        f"{e.task.name}: {', '.join(quiet)} of the true frames is less than a hundredth of its size in training; "
        "errors there are compared with that size (mode pdebench-0.1.0 of results.json compares with the frame itself)."
    ]


def means_of_few(task: TaskResult) -> list[str]:
    """A sentence where the mean says little of most trajectories."""
    e = task.ours.evaluation
    errors = e.per_sample()
    if (nothing := np.isinf(errors) & ~e.diverged).any():
        first = e.ids[int(np.argmax(nothing))] if len(e.ids) == len(e) else str(int(np.argmax(nothing)))
        return [
            f"{e.task.name}: {int(nothing.sum())} of {counted(len(e), 'trajectory')} (such as {first}) have a field "
            "that is zero in every true frame, beside which any error is infinite, and so is the mean; `nrmse-median` "
            "in results.json says what half of them do not exceed. Leave such trajectories out, or that field."
        ]
    if not made_by_few(e):
        return []
    worst, middle = int(np.argmax(errors)), number(float(np.median(errors)))
    name = e.ids[worst] if len(e.ids) == len(e) else str(worst)
    return [
        f"{e.task.name}: a few trajectories make its mean error: half of them have {middle} or less, and {name} has "
        f"{number(float(errors[worst]))}{_why_so_large(e, worst)}; trajectories.json has all of them."
    ]


def _why_so_large(e: Evaluation, sample: int) -> str:
    """What makes the error of a sample large, where a true field is small beside what it is in half of all frames."""
    sizes = np.moveaxis(e.errors.sizes, -1, 0)
    names = [
        name
        for name, size in zip(e.task.channels, sizes, strict=True)
        if (size[sample] < np.median(size) / SMALL).any()
    ]
    if not names:
        return ""
    return f". There {', '.join(names)} is next to nothing in some true frames, and any error is large beside that"


def losses_of_old(task: TaskResult) -> list[str]:
    """A sentence where further training has made a task worse that the simulator it started from knew."""
    if task.before is None or not task.got_worse:
        return []
    e, old = task.ours.evaluation, task.before.evaluation
    return [
        f"{e.task.name} got WORSE: nRMSE {number(e.score)}, where the simulator that training started from has "
        f"{number(old.score)} on the same trajectories{how_few(len(e))}; train on more of its data, or for less time."
    ]
