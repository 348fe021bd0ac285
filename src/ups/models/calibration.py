"""Calibration: stretches the members of an ensemble around the plain rollout until spread fits error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ups.models.ensembles import members_of
from ups.models.grids import resample
from ups.models.points import frames_at, seen_from
from ups.models.simulator_like import SimulatorLike
from ups.models.stepping import Stepping
from ups.physics.laws import repaired
from ups.tensors import Window
from ups.types import ConfigError, TaskSpec

LIMIT = 10.0  # by how much members are stretched at most, and its inverse at least
STRETCHED = 1 / 2  # of the cells along each axis: what so many show is stretched, finer structure is not
# Structure that such a part of the cells along each axis does not show, up to the next: a band. What data resolve may
# end far below what the grid could hold, so that their fine structure is no fine structure of the grid.
EDGES = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 2 / 3, 5 / 6)
Damping = tuple[tuple[tuple[float, ...], ...], ...]  # of each step, band and channel


@dataclass(frozen=True)
class Calibration:
    """Factors by which deviations of members from the rollout without draws are stretched, one for each step and
    channel, `(T, C)`, fitted for the members that the part `drawn_by` draws. The last step's hold for all after it.

    Around that rollout and not around the members' mean, so that a member does not depend on how many are drawn.
    Structure that half as many cells do not show may shrink, but never grows beyond what is drawn. `lasting` is the
    part of their noise that is the same at all steps (`Draws`). `damping (T, bands, C)`, from 0 to 1, is by what the
    structure of stretched members in a box that wraps is multiplied, band by band, to be as strong as the truth's.
    """

    drawn_by: str
    factors: tuple[tuple[float, ...], ...]
    lasting: float = 0.0
    damping: Damping = ()

    def __post_init__(self) -> None:
        sound = all(math.isfinite(f) and 0 < f <= LIMIT for row in self.factors for f in row)
        if not self.factors or len({len(row) for row in self.factors}) != 1 or not sound:
            raise ConfigError(f"a calibration needs for each step and channel a factor above 0, of at most {LIMIT:g}")
        if not 0 <= self.lasting <= 1:
            raise ConfigError(f"of the noise of members a part of {self.lasting:g} lasts, which is not from 0 to 1")
        shapes = {(len(step), *map(len, step)) for step in self.damping}
        if not shapes <= {(len(EDGES), *[len(self.factors[0])] * len(EDGES))} or not all(
            0 < d <= 1 for step in self.damping for band in step for d in band
        ):
            raise ConfigError("a calibration needs for each step, band and channel a damping above 0, of at most 1")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From what `dataclasses.asdict` and JSON made of it."""
        factors = tuple(tuple(map(float, row)) for row in values["factors"])
        damping = tuple(tuple(tuple(map(float, band)) for band in step) for step in values.get("damping", ()))
        return cls(str(values["drawn_by"]), factors, float(values.get("lasting", 0.0)), damping)

    def width(self, step: int) -> float:
        """The mean factor of a step."""
        row = self.factors[min(step, len(self.factors) - 1)]
        return sum(row) / len(row)

    def stretched(self, members: Tensor, plain: Tensor, window: Window) -> Tensor:
        """Members `(M, B, T, *S, C)` around the rollout `plain (B, T, *S, C)` after the context of a window."""
        factors, answers = self._of_steps(self.factors, plain), []
        for one in members:
            wide = smooth(one - plain, window)
            answers.append(self.damped(plain + factors * wide + factors.clamp_max(1.0) * (one - plain - wide), window))
        return torch.stack(answers)

    def damped(self, frames: Tensor, window: Window) -> Tensor:
        """Frames `(B, T, *S, C)` whose bands are as strong as the truth's."""
        if not self.damping or not banded(window):
            return frames
        grid, axes, channels = frames.shape[2:-1], tuple(range(2, frames.ndim - 1)), frames.shape[-1]
        rows = [[0.0] * channels + [by - 1 for band in step for by in band] for step in self.damping]
        table = torch.unflatten(self._of_steps(rows, frames).flatten(1), 1, (-1, channels))  # (T, 1 + bands, C)
        less = table[:, bands(tuple(grid), frames.device)[0]] * torch.fft.rfftn(frames, dim=axes)
        result: Tensor = frames + torch.fft.irfftn(less, s=grid, dim=axes)
        return result

    @staticmethod
    def _of_steps(rows: Sequence[Sequence[float]], frames: Tensor) -> Tensor:
        """Numbers of each step and channel, for frames `(B, T, *S, C)`; the last step's hold for all after it."""
        count = frames.shape[1]
        chosen = torch.tensor([rows[min(i, len(rows) - 1)] for i in range(count)], device=frames.device)
        return chosen.to(frames.dtype).reshape(count, *(1,) * (frames.ndim - 3), -1)


def smooth(frames: Tensor, window: Window) -> Tensor:
    """Frames `(B, T, *S, C)` as half as many cells along each axis show them; as they are where a mask leaves cells
    out, of which those around would be made."""
    if window.mask is not None:
        return frames
    grid = tuple(frames.shape[2:-1])
    coarse = resample(frames.flatten(0, 1), tuple(math.ceil(n * STRETCHED) for n in grid), window.periodic)
    return resample(coarse, grid, window.periodic).reshape(frames.shape)


def banded(window: Window) -> bool:
    """Whether frames can be split into bands by waves: in a box that wraps, without holes."""
    return window.mask is None and all(window.periodic)


def bands(grid: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each wave `(*K)` of `torch.fft.rfftn` on a grid: its band, 0 for none, and how many waves it stands for."""
    counts = [torch.fft.fftfreq(n, 1 / n, device=device).abs().round().long() for n in grid]
    counts[-1] = counts[-1][: grid[-1] // 2 + 1]
    band = torch.zeros([len(waves) for waves in counts], dtype=torch.long, device=device)
    for axis, (n, waves) in enumerate(zip(grid, counts, strict=True)):
        here = sum((2 * waves >= math.ceil(n * edge)).long() for edge in EDGES)
        assert isinstance(here, Tensor)
        band = torch.maximum(band, here.reshape([-1 if i == axis else 1 for i in range(len(grid))]))
    twice = (counts[-1] > 0) & (2 * counts[-1] < grid[-1])
    return band, (1 + twice.long()).expand(band.shape)


def drawing_part(simulator: SimulatorLike, task: TaskSpec) -> str | None:
    """The name of the part that draws members of a task, where one does."""
    awake = simulator.awake(task)
    return next((name for name, part in simulator.parts.items() if part.draws and part in awake), None)


def calibration_of(simulator: SimulatorLike, task: TaskSpec) -> Calibration | None:
    """What has been fitted for a task and the part that draws now."""
    trust = simulator.trust.get(task.name)
    calibration: Calibration | None = None if trust is None else trust.calibration
    return calibration if calibration is not None and calibration.drawn_by == drawing_part(simulator, task) else None


def lasting_of(simulator: SimulatorLike, task: TaskSpec) -> float:
    """The part of the noise of its members that is the same at all steps."""
    calibration = calibration_of(simulator, task)
    return 0.0 if calibration is None else calibration.lasting


def calibrated(simulator: SimulatorLike, window: Window, members: Tensor, plain: Tensor | None = None) -> Tensor:
    """Members `(M, B, T, *S, C)` after the context of a window as the calibration stretches them; as they are, where
    none was fitted. Then the laws that are repaired in a rollout are repaired again: bounds may be crossed."""
    calibration = calibration_of(simulator, window.task)
    if calibration is None:
        return members
    plain = simulator.simulate(window, members.shape[2]) if plain is None else plain
    members = calibration.stretched(members, plain, window)
    stepping, copies = Stepping(simulator, window), (len(members), plain.shape[1])
    laws, mask = stepping.laws, window.mask

    def of_each_frame(values: Tensor) -> Tensor:
        """`(B, …)` as `(M · T · B, …)`."""
        return values.expand(math.prod(copies), *values.shape).flatten(0, 1)

    rows = members.transpose(1, 2).flatten(0, 2)
    cells = None if mask is None else of_each_frame(mask)
    rows = repaired(rows, laws, of_each_frame(stepping.reference), stepping.domain, cells)
    return torch.unflatten(rows, 0, (*copies, len(window))).transpose(1, 2)


def ensemble_of(
    simulator: SimulatorLike, window: Window, steps: int, count: int, seed: int = 0, points: Tensor | None = None
) -> Tensor:
    """The calibrated rollouts `(M, B, steps, …, C)` of an ensemble after the context of a window; at `points` those of
    the grid, between its cells."""
    simulate, lasting = simulator.simulate, lasting_of(simulator, window.task)
    if points is None or calibration_of(simulator, window.task) is None:
        drawn = members_of(simulate, window, steps, count, seed, points, lasting=lasting)
        return calibrated(simulator, window, drawn)
    members = calibrated(simulator, window, members_of(simulate, window, steps, count, seed, lasting=lasting))
    begins = simulator.codec.beginning(window.task, tuple(members.shape[3:-1]), window.corner)
    places = seen_from(begins, points)
    return torch.stack([frames_at(member, places, window.periodic, window.mask) for member in members])
