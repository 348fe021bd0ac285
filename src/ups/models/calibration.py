"""Calibration: stretches the members of an ensemble around their mean, where that lowers their CRPS."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.models.ensembles import members_of
from ups.models.points import frames_at, seen_from
from ups.models.simulator_like import SimulatorLike
from ups.models.stepping import Stepping
from ups.physics.laws import repaired
from ups.tensors import Window
from ups.types import ConfigError, TaskSpec

LIMITS = (1 / 4, 4)  # by how much members are stretched, at least and at most
MOST = 10.0  # the largest factor that is taken for one
PAYS = 0.95  # of the operator's absolute error: a CRPS above it is not worth drawing for


@dataclass(frozen=True)
class Calibration:
    """Factors by which deviations of members from their mean are stretched, one for each step and channel, `(T, C)`,
    fitted for the members that the part `drawn_by` draws. The last step's hold for all after it. The mean stays.

    `lasting` is the part of their noise that is the same at all steps (`Draws`). `worth` is the CRPS of the members, so
    stretched, over the absolute error of the operator alone, both on validation data; None where nobody has measured
    it.
    """

    drawn_by: str
    factors: tuple[tuple[float, ...], ...]
    lasting: float = 0.0
    worth: float | None = None

    def __post_init__(self) -> None:
        sound = all(0 < f <= MOST for row in self.factors for f in row)
        if not self.factors or len({len(row) for row in self.factors}) != 1 or not sound:
            raise ConfigError(f"a calibration needs for each step and channel a factor above 0, of at most {MOST:g}")
        if not 0 <= self.lasting <= 1:
            raise ConfigError(f"of the noise of members a part of {self.lasting:g} lasts, which is not from 0 to 1")
        if self.worth is not None and not self.worth >= 0:
            raise ConfigError(f"the worth of members is {self.worth:g}, which is not at least 0")

    @property
    def stretches(self) -> bool:
        """Whether members are not as drawn."""
        return any(factor != 1 for row in self.factors for factor in row)

    @property
    def pays(self) -> bool:
        """Whether members know enough more than the operator alone to be drawn unasked."""
        return self.worth is None or self.worth <= PAYS

    def width(self, step: int) -> float:
        """The mean factor of a step."""
        row = self.factors[min(step, len(self.factors) - 1)]
        return sum(row) / len(row)

    def stretched(self, members: Tensor) -> Tensor:
        """Members `(M, B, T, *S, C)`, each as far from their mean as the factors say."""
        rows = [self.factors[min(i, len(self.factors) - 1)] for i in range(members.shape[2])]
        factors = members.new_tensor(rows).reshape(len(rows), *(1,) * (members.ndim - 4), -1)
        mean = members.mean(0)
        return mean + factors * (members - mean)


def drawing_part(simulator: SimulatorLike, task: TaskSpec) -> str | None:
    """The name of the part that draws members of a task, where one does."""
    awake = simulator.awake(task)
    return next((name for name, part in simulator.parts.items() if part.draws and part in awake), None)


def calibration_of(simulator: SimulatorLike, task: TaskSpec) -> Calibration | None:
    """What has been fitted for a task and the part that draws now."""
    trust = simulator.trust.get(task.name)
    calibration: Calibration | None = None if trust is None else trust.calibration
    return calibration if calibration is not None and calibration.drawn_by == drawing_part(simulator, task) else None


def doubt_of_draws(simulator: SimulatorLike, task: TaskSpec) -> str:
    """A sentence where ensembles of a task do not pay, or nothing."""
    calibration = calibration_of(simulator, task)
    if calibration is None or calibration.pays:
        return ""
    return (
        f"{task.name}: ensembles do not pay here: on validation data their CRPS is {calibration.worth:.3g} times the "
        f"absolute error of the operator alone, and above {PAYS:g} they are left off; `ensemble=…` still draws them."
    )


def lasting_of(simulator: SimulatorLike, task: TaskSpec) -> float:
    """The part of the noise of its members that is the same at all steps."""
    calibration = calibration_of(simulator, task)
    return 0.0 if calibration is None else calibration.lasting


def calibrated(simulator: SimulatorLike, window: Window, members: Tensor) -> Tensor:
    """Members `(M, B, T, *S, C)` after the context of a window as the calibration stretches them; as they are, where
    none does. Then the laws that are repaired in a rollout are repaired again: bounds may be crossed."""
    calibration = calibration_of(simulator, window.task)
    if calibration is None or not calibration.stretches:
        return members
    members = calibration.stretched(members)
    stepping, copies = Stepping(simulator, window), (len(members), members.shape[2])
    laws, mask = stepping.laws, window.mask

    def of_each_frame(values: Tensor) -> Tensor:
        """`(B, …)` as `(M · T · B, …)`."""
        return values.expand(math.prod(copies), *values.shape).flatten(0, 1)

    if stepping.values is not None:
        members = torch.stack([stepping.values.keep(member) for member in members])
    rows = members.transpose(1, 2).flatten(0, 2)
    cells = None if mask is None else of_each_frame(mask)
    rows = repaired(rows, laws, of_each_frame(stepping.reference), stepping.grid, cells)
    members = torch.unflatten(rows, 0, (*copies, len(window))).transpose(1, 2)
    if laws and stepping.repaired_values is not None:
        members = torch.stack([stepping.repaired_values.keep(member) for member in members])
    return members


def ensemble_of(
    simulator: SimulatorLike, window: Window, steps: int, count: int, seed: int = 0, points: Tensor | None = None
) -> Tensor:
    """The calibrated rollouts `(M, B, steps, …, C)` of an ensemble after the context of a window; at `points` those of
    the grid, between its cells."""
    task = window.task
    simulate, lasting, calibration = simulator.simulate, lasting_of(simulator, task), calibration_of(simulator, task)
    if points is None or calibration is None or not calibration.stretches:
        drawn = members_of(simulate, window, steps, count, seed, points, lasting=lasting)
        return calibrated(simulator, window, drawn)
    members = calibrated(simulator, window, members_of(simulate, window, steps, count, seed, lasting=lasting))
    begins = simulator.codec.beginning(task, window.grid)
    places = seen_from(begins, points)
    return torch.stack([frames_at(member, places, window.grid.periodic, window.mask) for member in members])
