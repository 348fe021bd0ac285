"""Keeps the states of a rollout near all that training saw, and says where a rollout has left it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.models.encoders import Statistics
from ups.models.simulator_like import SimulatorLike
from ups.tensors import Window
from ups.types import TaskSpec, counted

# Beyond the range of training, on either side of it, in widths of that range:
LEFT = 0.5  # from here on a rollout has left what training saw
FARTHEST = 1.0  # no value of a rollout is further away
FARTHEST_REPAIRED = 2.0  # but for what a law moves, and none at all is further than that
FARTHEST_TOKEN = 2.0  # nor is a number of a token, whose range is that of a part of the training data
USUAL = 10.0  # root mean square deviations of inputs in training: those of most data are nearer
TOGETHER = 2**22  # numbers that are looked at together


@dataclass(frozen=True)
class ValueRange:
    """The range of each channel, `low` and `high` `(B, C)`, for each sample of a batch. Infinite where nothing is known
    of it."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor, given: Tensor, cells: Tensor | None = None) -> ValueRange:
        """The range `(C,)` of training, and of what is `given (B, K, *S, C)`: of cells that count (`cells (B, *S)`)."""
        least = most = given.detach()
        if cells is not None:
            counts = cells.to(given.device)[:, None, ..., None]
            least, most = least.masked_fill(~counts, math.inf), most.masked_fill(~counts, -math.inf)
        axes = tuple(range(1, given.ndim - 1))
        low, high = (bound.to(given.device, given.dtype) for bound in (low, high))
        return cls(torch.minimum(low, least.amin(axes)), torch.maximum(high, most.amax(axes)))

    def widened(self, widths: float | Tensor) -> ValueRange:
        """With so many of its own widths more on either side."""
        more = ((self.high - self.low) * widths).nan_to_num(math.inf, math.inf)  # 0 of what is infinite: that
        return ValueRange(self.low - more, self.high + more)

    def keep(self, x: Tensor) -> Tensor:
        """Values `(B, …, C)` with what lies beyond the range brought back to its end; all others to the bit."""
        low, high = (bound.to(x.dtype).reshape(x.shape[0], *(1,) * (x.ndim - 2), -1) for bound in (self.low, self.high))
        return x.clamp(low, high)


def known_span(simulator: SimulatorLike, window: Window) -> ValueRange:
    """The range of the values of a window's task in training and in the frames that are given; so many times as wide as
    its inputs are further away than `USUAL`."""
    task, statistics = window.task, simulator.codec.statistics_of(window.task)
    span = ValueRange.of(statistics.least, statistics.most, window.context, window.mask)
    if not simulator.codec.task(task).inputs or not window.inputs.shape[-1]:
        return span
    driving = simulator.operator.inputs.statistics_of(task.name)
    away = distances(window.inputs, driving, window.mask).amax(1, keepdim=True) / USUAL
    return span.widened((away.nan_to_num(1.0, math.inf).clamp_min(1.0) - 1).to(span.low.dtype))


def distances(x: Tensor, statistics: Statistics, cells: Tensor | None = None) -> Tensor:
    """Root mean square deviations `(B, C)` of `x (B, *S, C)` from the mean of training, in float64: those of cells that
    count alone (`cells (B, *S)`), and 0 for channels that never varied in training."""
    mean, std = (each.to(x.device, torch.float64) for each in (statistics.mean, statistics.std))
    gaps = (x.double() - mean) / std.where(std > 0, math.inf)
    if cells is None:
        return gaps.flatten(1, -2).square().mean(1).sqrt()
    counts = cells.to(x.device)[..., None]
    total = torch.where(counts, gaps, 0.0).flatten(1, -2).square().sum(1)
    return (total / counts.flatten(1, -2).sum(1).clamp_min(1)).sqrt()


@dataclass(frozen=True)
class Departure:
    """The first frame of one rollout that is outside all that training saw: of which sample, after how many steps, in
    which channel, the value that is furthest away, and the range (of training and of what was given) that it left."""

    member: int
    sample: int
    step: int
    channel: str
    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        return f"{self.channel} is {self.value:.4g}, and training had {self.low:.4g} to {self.high:.4g}"


def departed_of(
    simulator: SimulatorLike, window: Window, frames: Tensor, cells: Tensor | None = None
) -> list[Departure]:
    """Where rollouts `(M, B, T, …, C)` after a window leave what training saw; `cells (B, …)` are those of a frame that
    count, the window's own unless given. None of a steady task: there a solution may be as large as what drives it
    makes it."""
    if window.task.steady:
        return []
    span = known_span(simulator, window.to(simulator.dt.device))
    return departures(frames, span, window.task.channels, window.mask if cells is None else cells)


def first_steps(departed: Sequence[Departure], samples: int) -> list[int | None]:
    """The step after which each of so many samples, or any member of it, left what training saw."""
    first: list[int | None] = [None] * samples
    for one in reversed(departed):  # the earliest comes last
        first[one.sample] = one.step
    return first


def departures(frames: Tensor, span: ValueRange, names: Sequence[str], cells: Tensor | None = None) -> list[Departure]:
    """Where rollouts `(M, B, T, …, C)` first leave a range, of each one that does, the earliest first. `cells (B, …)`
    are those of a frame that count. One that is not finite before that is none: there is no saying how far it is."""
    size, departed = max(1, TOGETHER // max(1, frames[0, :, :1].numel())), list[Departure]()
    low, high = (bound.to(frames.device, torch.float64).unsqueeze(1) for bound in (span.low, span.high))
    width = high - low
    for member, rollouts in enumerate(frames):
        open_ones = torch.ones(len(rollouts), dtype=torch.bool, device=frames.device)
        for first in range(0, rollouts.shape[1], size):
            least, most = _ends(rollouts[:, first : first + size], cells)  # (B, t, C)
            outside = torch.maximum(low - least, most - high)
            beyond = ~(outside <= LEFT * width)  # of what is not a number, too
            far = beyond.any(2)
            for sample in (far.any(1) & open_ones).nonzero().flatten().tolist():
                open_ones[sample] = False
                step = int(far[sample].int().argmax())
                channel = int((outside / width)[sample, step].where(beyond[sample, step], -math.inf).argmax())
                ends = [float(bound[sample, 0, channel]) for bound in (low, high)]
                under, over = (float(end[sample, step, channel]) for end in (least, most))
                if math.isfinite(under) and math.isfinite(over):
                    value = under if ends[0] - under > over - ends[1] else over
                    departed.append(Departure(member, sample, first + step + 1, names[channel], value, *ends))
    return sorted(departed, key=lambda one: (one.step, one.sample, one.member))


def _ends(frames: Tensor, cells: Tensor | None) -> tuple[Tensor, Tensor]:
    """The least and the greatest value `(B, T, C)` of each frame and channel, of cells that count, in float64."""
    least = most = frames
    if cells is not None:
        nothing = ~cells.to(frames.device)[:, None, ..., None]
        least, most = frames.masked_fill(nothing, math.inf), frames.masked_fill(nothing, -math.inf)
    return least.flatten(2, -2).amin(2).double(), most.flatten(2, -2).amax(2).double()


def finite(frames: Tensor, nothing: Tensor | None = None) -> Tensor:
    """Which frames `(M, B, T)` of rollouts `(M, B, T, …, C)` are finite, but for `nothing (B, …)`, which does not
    count."""
    size, sound_frames = max(1, TOGETHER // max(1, frames[:, :, :1].numel())), list[Tensor]()
    for piece in torch.split(frames, size, 2):
        sound = piece.isfinite()
        sound_frames.append(
            (sound if nothing is None else sound | nothing[None, :, None, ..., None]).flatten(3).all(-1)
        )
    return torch.cat(sound_frames, 2)


def in_words(departed: Sequence[Departure], samples: int, task: TaskSpec, names: Sequence[str] = ()) -> str:
    """A sentence of the first rollout that leaves what training saw and of how many do, or nothing; `names` are those
    of the samples, which else are numbered."""
    if not departed:
        return ""
    first, count = departed[0], len({one.sample for one in departed})
    name = names[first.sample] if names else first.sample
    who = f"of sample {name} leaves what training has seen" if names else "leaves what training has seen"
    if samples > 1:
        who = f"of {count} of {counted(samples, 'sample')} leaves what training has seen, first of sample {name}"
    return (
        f"{task.name}: the rollout {who} at step {first.step}: {first.words}; frames from there on are a guess that is "
        "kept in bounds; give values like those of training, or ask for fewer steps."
    )
