"""Finds where a rollout has left all that training saw, so that it stops there instead of giving absurd numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.models.encoders import Statistics
from ups.types import TaskSpec, counted

FAR_OFF = 100.0  # root mean square over a frame of its deviations in training: no state of any data is so far away
TOGETHER = 2**22  # numbers that are looked at together


@dataclass(frozen=True)
class Departure:
    """The first frame of one rollout that is far from all that training saw: of which sample, after how many steps, in
    which channel, by how many standard deviations of it (root mean square over the frame)."""

    member: int
    sample: int
    step: int
    channel: str
    deviations: float

    @property
    def words(self) -> str:
        return f"{self.channel} is {self.deviations:.3g} standard deviations away from its mean in training"


def limits(
    context: Tensor, statistics: Statistics, inputs: Tensor, driving: Statistics | None, cells: Tensor | None = None
) -> Tensor:
    """The deviations from which on a frame after `context (B, K, *S, C)` has left what training saw, `(B,)`:
    FAR_OFF, or so many times the distance of the given states and inputs, where these are far away already."""
    given = [distances(context, statistics, cells).amax((1, 2))]
    if driving is not None and inputs.shape[-1]:
        given.append(distances(inputs.unsqueeze(1), driving, cells).amax((1, 2)))
    farthest = torch.stack([one.nan_to_num(1.0, math.inf) for one in given]).amax(0)
    return FAR_OFF * farthest.clamp_min(1.0)


def distances(frames: Tensor, statistics: Statistics, cells: Tensor | None = None) -> Tensor:
    """Root mean square deviations `(B, T, C)` of frames `(B, T, …, C)` from the mean of training, in float64: those of
    cells that count alone (`cells (B, …)`), and 0 for channels that never varied in training."""
    mean, std = (x.to(frames.device, torch.float64) for x in (statistics.mean, statistics.std))
    gaps = (frames.double() - mean) / std.where(std > 0, math.inf)
    if cells is None:
        return gaps.flatten(2, -2).square().mean(2).sqrt()
    counts = cells.to(frames.device)[:, None, ..., None]
    total = torch.where(counts, gaps, 0.0).flatten(2, -2).square().sum(2)
    return (total / counts.flatten(2, -2).sum(2).clamp_min(1)).sqrt()


def departures(
    frames: Tensor, statistics: Statistics, limit: Tensor, names: Sequence[str], cells: Tensor | None = None
) -> list[Departure]:
    """Where rollouts `(M, B, T, …, C)` first leave what training saw, of each one that does, the earliest first. One
    that is not finite before that is none: there is no saying how far it is."""
    size, departed = max(1, TOGETHER // max(1, frames[0, :, :1].numel())), list[Departure]()
    for member, rollouts in enumerate(frames):
        open_ones = torch.ones(len(rollouts), dtype=torch.bool, device=frames.device)
        for first in range(0, rollouts.shape[1], size):
            away = distances(rollouts[:, first : first + size], statistics, cells)
            far = ~(away <= limit.to(away)[:, None, None]).all(2)
            for sample in (far.any(1) & open_ones).nonzero().flatten().tolist():
                open_ones[sample] = False
                step = int(far[sample].int().argmax())
                row = away[sample, step]
                if bool(row.isfinite().all()):
                    channel = int(row.argmax())
                    departed.append(Departure(member, sample, first + step + 1, names[channel], float(row[channel])))
    return sorted(departed, key=lambda one: (one.step, one.sample, one.member))


def gone(frames: Tensor, departed: Sequence[Departure]) -> Tensor:
    """Which frames `(M, B, T, 1, …)` of rollouts `(M, B, T, …, C)` come after these departures."""
    after = torch.zeros(frames.shape[:3], dtype=torch.bool, device=frames.device)
    for one in departed:
        after[one.member, one.sample, one.step - 1 :] = True
    return after.reshape(*after.shape, *(1,) * (frames.ndim - 3))


def finite(frames: Tensor, nothing: Tensor | None = None) -> Tensor:
    """Which frames `(M, B, T)` of rollouts `(M, B, T, …, C)` are finite, but for `nothing (M, B, T, …)`, which does not
    count."""
    size = max(1, TOGETHER // max(1, frames[:, :, :1].numel()))
    nothing = gone(frames, ()) if nothing is None else nothing
    pairs = zip(torch.split(frames, size, 2), torch.split(nothing, size, 2), strict=True)
    return torch.cat([(piece.isfinite() | without).flatten(3).all(-1) for piece, without in pairs], 2)


def in_words(departed: Sequence[Departure], samples: int, task: TaskSpec) -> str:
    """A sentence of the first rollout that leaves what training saw and of how many do, or nothing."""
    if not departed:
        return ""
    first, count = departed[0], len({one.sample for one in departed})
    who = "leaves what training has seen"
    if samples > 1:
        who = (
            f"of {count} of {counted(samples, 'sample')} leaves what training has seen, first of sample {first.sample}"
        )
    return (
        f"{task.name}: the rollout {who} at step {first.step}: {first.words}; frames from there on are NaN; "
        "give values like those of training, or ask for fewer steps."
    )
