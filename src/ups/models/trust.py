"""Estimates the error of a rollout at each step from the spread of draws, broken laws and time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ups.models.calibration import Calibration, calibration_of, drawing_part, lasting_of
from ups.models.ensembles import Draws, together_of
from ups.models.header import checked
from ups.models.interleave import Strides, in_pieces, put_together, strides_of, taken_apart
from ups.models.simulator_like import SimulatorLike
from ups.models.stepping import Stepping
from ups.physics.laws import laws_of
from ups.tensors import Window
from ups.types import Array, ConfigError, DataError, TaskSpec, UpsError, check_known

WATCHERS = 8  # members by whose spread an error is estimated
STEEPEST = 20.0  # the power of a sign
FLOOR = 1e-6  # of a sign and of an error: smaller ones say nothing more
RIDGE = 1e-2  # keeps signs that say the same from outbidding each other


@dataclass(frozen=True)
class ErrorModel:
    """The usual relative error (nRMSE) of a frame, as a product of powers of signs: constant · Π sign ^ power.

    Signs are the spread of draws, what each law is broken by before repair, and the time since the start. No power is
    negative: a larger sign never means a smaller error. `scatter` is the deviation of the errors' logarithms from it.
    """

    signs: tuple[str, ...]
    powers: tuple[float, ...]
    constant: float
    scatter: float

    def __post_init__(self) -> None:
        numbers = (*self.powers, self.constant, self.scatter)
        sound = all(math.isfinite(n) and n >= 0 for n in numbers) and max(self.powers, default=0) <= STEEPEST
        if not self.signs or len(self.signs) != len(self.powers) or not sound:
            raise ConfigError(f"an estimate of errors needs a power from 0 to {STEEPEST:g} for each of its signs")

    @classmethod
    def fit(cls, signs: Mapping[str, Array], errors: Array) -> Self | None:
        """Least squares in logarithms, with powers of at least 0, over frames `(N,)` whose errors are known; None where
        none of them is finite."""
        from scipy.optimize import nnls

        columns = np.stack([np.log(np.maximum(values, FLOOR)) for values in signs.values()], 1)
        wanted = np.log(np.maximum(errors, FLOOR))
        sound = np.isfinite(columns).all(1) & np.isfinite(wanted)
        if not sound.any():
            return None
        columns, wanted = columns[sound], wanted[sound]
        middle, mean = columns.mean(0), float(wanted.mean())
        ridge = math.sqrt(RIDGE * len(wanted)) * np.eye(len(middle))
        rows, goal = np.concatenate((columns - middle, ridge)), np.concatenate((wanted - mean, np.zeros(len(middle))))
        powers = np.minimum(nnls(rows, goal)[0], STEEPEST)
        scatter = float((wanted - mean - (columns - middle) @ powers).std())
        return cls(tuple(signs), tuple(map(float, powers)), math.exp(mean - float(middle @ powers)), scatter)

    def unknown(self, task: TaskSpec, periodic: tuple[bool, ...]) -> list[str]:
        """Its signs that there are none of, of a task under a boundary."""
        here = {"time", "spread", *(f"law {law.name}" for law in laws_of(task, periodic))}
        return [sign for sign in self.signs if sign not in here]

    def __call__(self, signs: Mapping[str, Tensor]) -> Tensor:
        """The estimate `(B,)` from the signs of each sample; infinite where one of them is not finite."""
        columns = torch.stack([signs[name] for name in self.signs])
        powers = torch.tensor(self.powers, device=columns.device, dtype=columns.dtype).unsqueeze(1)
        estimate: Tensor = self.constant * (powers * columns.clamp_min(FLOOR).log()).sum(0).exp()
        return torch.where(columns.isfinite().all(0), estimate, math.inf)


@dataclass(frozen=True)
class Trust:
    """What validation data have said of one task: how wide its ensembles must be, and how its errors are estimated."""

    calibration: Calibration | None = None
    error: ErrorModel | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], task: TaskSpec) -> Self:
        """One made again of what `dataclasses.asdict` and JSON made of it; ConfigError unless it can be of the task."""
        trust = checked(cls, values, "trust")
        if trust.calibration is not None and len(trust.calibration.factors[0]) != len(task.channels):
            raise ConfigError(f"a calibration of {task.name} needs a factor for each of {', '.join(task.channels)}")
        if trust.error is not None and (odd := trust.error.unknown(task, task.periodic)):
            raise ConfigError(f"errors of {task.name} are estimated by '{odd[0]}', which there is not")
        return trust


def read_trust(header: Mapping[str, Any], tasks: Mapping[str, TaskSpec], path: Any) -> dict[str, Trust]:
    """What the header of an artifact says of each task; a DataError where that is damaged."""
    try:
        by_task: dict[str, dict[str, Any]] = checked(dict[str, dict[str, Any]], header.get("trust", {}), "trust")
        check_known("task", by_task, tasks)
        return {name: Trust.of(values, tasks[name]) for name, values in by_task.items()}
    except UpsError as error:
        first = " ".join(str(error).split()).rstrip(".")[:200]
        raise DataError(
            f"{path}: what it says of its ensembles and errors is damaged ({first}); --resume its run to fit it again."
        ) from None


class Watchers:
    """A few members of an ensemble, advanced together step by step."""

    def __init__(self, simulator: SimulatorLike, window: Window, seed: int) -> None:
        together = min(WATCHERS, together_of(window))
        self.window, copies = window, Window.join([window] * together)
        lasting = lasting_of(simulator, window.task)
        self.groups = [Draws(seed, range(first, first + together), lasting) for first in range(0, WATCHERS, together)]
        self.steppings = [Stepping(simulator, copies) for _ in self.groups]
        self.tokens = [stepping.start() for stepping in self.steppings]

    def step(self, step: int) -> Tensor:
        """Their frames `(M, B, *S, C)` after the next step."""
        frames = []
        for i, (draws, stepping) in enumerate(zip(self.groups, self.steppings, strict=True)):
            z = self.tokens[i]
            self.tokens[i], frame = stepping.step(z, step, draws(step, z[:, -1]))
            frames.append(torch.unflatten(frame, 0, (len(draws.members), len(self.window))))
        return torch.cat(frames)[:WATCHERS]


def rollout_with_signs(
    simulator: SimulatorLike, window: Window, steps: int, members: Tensor | None = None
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """The rollout without draws, `(B, steps, *S, C)`, and the signs of its error after each step."""
    if only_time(simulator, window) and members is None:
        rollout, times = simulator.simulate(window, steps), [window.step(i).double() for i in range(steps)]
        return rollout, [{"time": time} for time in torch.stack(times).cumsum(0)]
    frames: list[Tensor] = []
    signs = list(signs_of(simulator, window, steps, members=members, frames=frames))
    return torch.stack(frames, 1), signs


def only_time(simulator: SimulatorLike, window: Window) -> bool:
    """Whether nothing but time is a sign of an error after a window: no law holds there, and no part draws."""
    task = simulator.codec.task(window.task)
    return not laws_of(task, window.grid.periodic) and not any(part.draws for part in simulator.awake(task))


def signs_of(
    simulator: SimulatorLike,
    window: Window,
    steps: int,
    seed: int = 0,
    members: Tensor | None = None,
    frames: list[Tensor] | None = None,
) -> Iterator[dict[str, Tensor]]:
    """The signs `(B,)` of an error after each step of the rollout without draws, whose frames are added to `frames`.
    Where a part draws, the spread of `WATCHERS` rollouts beside it is one, as wide as the calibration makes it; that
    of the first of `members (M, B, T, …)`, where those are drawn already.

    Where the rollout is that of several grids which lie in the window's (see `strides_of`), signs are means over them.
    """
    strides = strides_of(window, simulator.codec)
    if strides is not None and members is None and not any(part.draws for part in simulator.awake(window.task)):
        yield from _signs_apart(simulator, window, steps, strides, frames)
        return
    plain = Stepping(simulator, window)
    z, time = plain.start(), torch.zeros_like(window.step(0), dtype=torch.float64)
    laws = laws_of(plain.task, window.grid.periodic)
    draws = members is None and any(part.draws for part in simulator.awake(plain.task))
    watchers = Watchers(simulator, window, seed) if draws else None
    calibration = calibration_of(simulator, plain.task)
    for i in range(steps):
        z, frame = plain.step(z, i)
        if frames is not None:
            frames.append(frame)
        assert plain.unrepaired is not None
        pair = torch.stack((plain.reference, plain.unrepaired), 1)
        signs = {f"law {law.name}": law.residual(pair, plain.grid, window.mask) for law in laws}
        if watchers is not None or members is not None:
            drawn = members[:WATCHERS, :, i] if members is not None else watchers.step(i) if watchers else None
            assert drawn is not None
            signs["spread"] = relative_spread(drawn, window.mask) * (calibration.width(i) if calibration else 1.0)
        time = time + window.step(i)
        yield {name: value.double() for name, value in (signs | {"time": time}).items()}


def _signs_apart(
    simulator: SimulatorLike, window: Window, steps: int, strides: Strides, frames: list[Tensor] | None
) -> Iterator[dict[str, Tensor]]:
    """`signs_of` the grids that lie in that of a window, each of which is simulated for itself."""
    pieces = list(in_pieces(taken_apart(window, strides)))
    seen: list[list[Tensor]] = [[] for _ in pieces]
    runs = [signs_of(simulator, piece, steps, frames=own) for piece, own in zip(pieces, seen, strict=True)]
    for signs in zip(*runs, strict=True):
        if frames is not None:
            last = torch.cat([own[-1] for own in seen])
            frames.append(put_together(last.unsqueeze(1), strides).squeeze(1))
        for own in seen:
            own.clear()
        together = {name: torch.cat([part[name] for part in signs]) for name in signs[0]}
        yield {name: torch.unflatten(v, 0, (-1, len(window))).mean(0) for name, v in together.items()}


def relative_spread(members: Tensor, mask: Tensor | None) -> Tensor:
    """The spread of members `(M, B, *S, C)` over the size of their mean, averaged over channels, `(B,)`; only over the
    cells of `mask (B, *S)`, where one is given."""
    members = members.double()
    squares = torch.stack((members.var(0), members.mean(0).square())).flatten(2, -2)  # (2, B, cells, C)
    if mask is not None:
        squares = torch.where(mask.flatten(1).unsqueeze(-1), squares, 0.0)
    wide, large = squares.sum(2)
    ratio: Tensor = (wide / large.clamp_min(torch.finfo(torch.float64).tiny)).sqrt().mean(-1)
    return ratio


def error_model(simulator: SimulatorLike, task: TaskSpec, periodic: tuple[bool, ...]) -> ErrorModel:
    """How errors of a task are estimated; ConfigError where nobody has fitted that, or not for this boundary."""
    trust: Trust | None = simulator.trust.get(task.name)
    if trust is not None and trust.calibration is not None:  # it was fitted to the draws of one part
        trust = trust if trust.calibration.drawn_by == drawing_part(simulator, task) else None
    if trust is None or trust.error is None:
        raise ConfigError(
            f"the simulator has no estimate of its errors on {task.name}: a run fits one on validation data when its "
            "training ends, for the part that draws then; leave error and stop_at out, or train it by a run."
        )
    if odd := trust.error.unknown(task, periodic):
        raise ConfigError(
            f"errors of {task.name} are estimated by '{odd[0]}', which does not hold under this boundary; leave error "
            "and stop_at out, or ask under the task's own."
        )
    return trust.error


class Watch:
    """A rollout without draws that is run beside the one that is asked for, to tell its error and where it stops."""

    def __init__(self, simulator: SimulatorLike, window: Window, seed: int = 0, stop_at: Any = None) -> None:
        self.simulator, self.window, self.seed, self.stop_at = simulator, window, seed, check_threshold(stop_at)
        self.model = error_model(simulator, window.task, window.grid.periodic)
        self.errors = torch.zeros(len(window), 0)

    def count(self, steps: int) -> int:
        """The steps to compute: `steps`, or fewer where all samples have passed the threshold. Then `errors (B, n)`
        holds the estimates; after the step at which a sample passes it, NaN."""
        errors, over = [], torch.zeros(len(self.window), dtype=torch.bool, device=self.window.context.device)
        for signs in signs_of(self.simulator, self.window, steps, self.seed):
            error = self.model(signs)
            errors.append(error.masked_fill(over, torch.nan))
            over = over | ~(error <= self.stop_at)
            if bool(over.all()):
                break
        self.errors = torch.stack(errors, 1)
        return len(errors)

    @property
    def over(self) -> Tensor:
        """The frames `(B, n)` from the step on at which the error passes the threshold."""
        return ~(self.errors <= self.stop_at)

    def stopped(self, members: Tensor, steps: int) -> Tensor:
        """Rollouts `(M, B, n, …, C)` of length `steps`, NaN from the step on at which the error passes the threshold;
        `errors` becomes as long."""
        missing = steps - self.errors.shape[1]
        over = self.over.reshape(*self.errors.shape, *(1,) * (members.ndim - 3))
        members = members.masked_fill(over, torch.nan)
        rest = self.errors.new_full((len(self.errors), missing), torch.nan)
        self.errors = torch.cat((self.errors, rest), 1)
        return torch.cat((members, members.new_full((*members.shape[:2], missing, *members.shape[3:]), torch.nan)), 2)


def check_threshold(stop_at: Any) -> float:
    """The error at which a rollout is to stop, infinite where that is None; ConfigError unless it is above 0."""
    if stop_at is None:
        return math.inf
    if not isinstance(stop_at, int | float | np.number) or isinstance(stop_at, bool) or not stop_at > 0:
        raise ConfigError(f"stop_at is {stop_at!r}, but must be a number above 0: the relative error to stop at.")
    return float(stop_at)
