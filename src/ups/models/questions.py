"""Turns what a user asks in arrays, numbers and words into windows, and says what is unusual about it."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.clouds import nearest_volumes
from ups.models.arrays import Given, inputs_of, joined, state_of, tensor_of
from ups.models.conditions import ParamScaling
from ups.models.encoders import Statistics
from ups.models.ensembles import stacked
from ups.models.simulator_like import SimulatorLike
from ups.tensors import Window, mask_of, numeric_params
from ups.types import Array, ConfigError, Grid, Points, TaskSpec, counted

# What is not to be trusted where a question lies outside the trained range, in an answer and in one that is refined.
GUESS = "the answer is a guess"
ROUNDING = 1e-5  # of an end of a trained range, by which a value may leave it unsaid
FAR = 10.0  # deviations from the mean, root mean square over a sample: more than any state of most data has
START = "only the prediction, from which refinement starts, is a guess"


@dataclass(frozen=True)
class UserArrays:
    """The arrays that a user gives, as a window, and how the answer is given back in their kind.

    `each` is the time of every one of the `steps`, or of all; `remarks` are sentences on what is unlike training.
    """

    window: Window
    kind: Given
    steps: int
    each: Tensor
    remarks: tuple[str, ...]

    @property
    def times(self) -> Array:
        """The times of the frames that are asked for, `(steps,)`."""
        together = len(self.each) == 1
        times: Array = self.each.item() * np.arange(1, self.steps + 1) if together else self.each.cumsum(0).numpy()
        return times

    def places(self, points: Any) -> Tensor | None:
        """Points in the task's own coordinates as those of [0, 1)^n; None where there are none."""
        return None if points is None else places_of(points, self.window.task, self.window.grid.periodic)

    def given_back(
        self, frames: Tensor, points: Any, ensemble: int | None, left: Sequence[int | None] | None = None
    ) -> Any:
        """Frames `(M, B, steps, …, C)` as the user's kind of array, with the members along a new first axis. An xarray
        holds in its attributes after which step each sample `left` what training saw, 0 for one that did not."""
        names, task = self.window.task.channels, self.window.task
        back = self.kind.answer_once if task.steady else self.kind.answer
        answers = [back(member, self.times, names, points is not None) for member in frames]
        answer = answers[0] if ensemble is None else stacked(answers)
        if left is not None and self.kind.labels is not None:
            answer.attrs["left_range_at"] = [step or 0 for step in left]
        return answer


def asked_task(simulator: SimulatorLike, task: TaskSpec | str | None) -> TaskSpec:
    """The task that is meant; a ConfigError where several may be."""
    if task is None and len(simulator.tasks) > 1:
        raise ConfigError(f"the simulator knows {', '.join(simulator.codec.tasks)}; say which with task=….")
    return simulator.codec.task(task if task is not None else simulator.tasks[0])


def to_continue(
    simulator: SimulatorLike,
    u0: Any,
    steps: Any,
    params: Any,
    dt: Any,
    task: Any,
    periodic: Any,
    inputs: Any,
    at: Any = None,
) -> UserArrays:
    """A state to be continued by `steps`; see `Simulator.rollout`."""
    spec, device = asked_task(simulator, task), simulator.dt.device
    if not isinstance(steps, int | np.integer) or steps < 1:
        raise ConfigError(f"a rollout has at least one step, and a whole number of them, not {steps!r}.")
    if spec.steady:
        raise ConfigError(f"{spec.name} is steady and has no steps; ask for its solution with sim.solve(inputs, …).")
    points = None if at is None else points_of(at, spec, walls_of(periodic, spec, params or {}))
    state, driven = state_of(u0, spec, device, points), inputs_of(inputs, spec, device, points=points)
    given = joined(state.values, None if driven is None else driven.values[:, 0], spec)
    remarks = unusual(simulator, *given, spec)
    trained = simulator.ranges()[spec.name]
    window, each = window_of(*given, int(steps), params, dt, periodic, spec, trained, remarks, grid=points)
    return UserArrays(window, state, int(steps), each, tuple(remarks))


def to_solve(
    simulator: SimulatorLike, inputs: Any, params: Any, task: Any, periodic: Any, guess: str = GUESS
) -> UserArrays:
    """What drives a steady task, to be solved; see `Simulator.solve`."""
    spec = asked_task(simulator, task)
    if not spec.steady:
        raise ConfigError(f"{spec.name} is not steady; continue a state of it with sim.rollout(u0, steps, …).")
    driven = inputs_of(inputs, spec, simulator.dt.device)
    if driven is None:
        raise ConfigError(f"{spec.name} has no inputs that would drive it, so there is nothing to solve.")
    there = driven.values
    given = joined(there.new_zeros(*there.shape[:-1], len(spec.channels)), there[:, 0], spec)
    remarks = unusual(simulator, *given, spec, guess=guess)
    trained = simulator.ranges()[spec.name]
    window, each = window_of(*given, 1, params, None, periodic, spec, trained, remarks, guess)
    return UserArrays(window, driven, 1, each, tuple(remarks))


def warn(remarks: Iterable[str]) -> None:
    """Warn of each at the user's line: the first on the way up that is not in this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("ups.models."):
        level, frame = level + 1, frame.f_back
    for sentence in remarks:
        warnings.warn(sentence, stacklevel=level)


def window_of(
    frames: Tensor,
    inputs: Tensor,
    steps: int,
    params: Any,
    dt: Any,
    periodic: Any,
    task: TaskSpec,
    trained: Mapping[str, tuple[float, float]],
    remarks: list[str],
    guess: str = GUESS,
    grid: Grid | None = None,
) -> tuple[Window, Tensor]:
    """Frames `(B, K, *S, C)` to continue by `steps`, with all that drives them, and the time of each step (see
    `steps_of`). What lies outside the `trained` ranges is remarked on; `guess` says what of the answer suffers."""
    given = {} if params is None else params
    batch, device = len(frames), frames.device
    each = steps_of(dt, steps, *trained["dt"], task.name, remarks)
    length = each.to(device, torch.float32).expand(batch, -1)
    window = Window(
        task=task,
        context=frames,
        targets=frames[:, :0],
        inputs=inputs,
        params=parameters(given, task, trained, batch, remarks, guess).to(device),
        dt=length[:, 0] if len(each) == 1 else length,
        grid=grid or Grid(tuple(frames.shape[2:-1]), walls_of(periodic, task, given), task.bounds),
    )
    return window, each


def parameters(
    given: Mapping[str, Any] | Any,
    task: TaskSpec,
    trained: Mapping[str, tuple[float, float]],
    batch: int,
    remarks: list[str],
    guess: str = GUESS,
) -> Tensor:
    """Parameters `(B, P)` from names and numbers (or one per sample), or from an array in the order of the task.

    One that never varied in training may be left out. One outside the trained range is remarked on.
    """
    names = numeric_params(task)
    if not isinstance(given, Mapping):
        table = tensor_of(given, f"params of {task.name}")
        if table.numel() not in (len(names), batch * len(names)):
            wanted = ", ".join(names) or "none"
            raise ConfigError(
                f"params of {task.name} has {counted(table.numel(), 'number')}; give {wanted}, once or per sample."
            )
        given = dict(zip(names, table.reshape(-1, max(1, len(names))).T, strict=False))
    known = {p.name for p in task.parameters}
    for name in given:
        if name not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{task.name} has no parameter '{name}'; its parameters are: {offered}.")
    columns = []
    for name, (lo, hi) in ((name, trained[name]) for name in names):
        if name not in given and lo != hi:
            words = _choices(name, task)
            hint = f"one of {', '.join(words)}" if words else f"trained from {lo:g} to {hi:g}"
            raise ConfigError(f"{task.name} needs the parameter {name}, {hint}; give params={{'{name}': …}}.")
        placed = _placed(given[name], name, task) if name in given else lo
        value = tensor_of(placed, f"{name} of {task.name}").reshape(-1)
        if len(value) not in (1, batch):
            raise ConfigError(
                f"{name} has {counted(len(value), 'value')} for {counted(batch, 'sample')}; give one, or one per "
                "sample."
            )
        remarks += beyond(name, value.amin().item(), value.amax().item(), lo, hi, task.name, guess)
        columns.append(value.expand(batch))
    return torch.stack(columns, 1) if columns else torch.zeros(batch, 0)


def _choices(name: str, task: TaskSpec) -> tuple[str, ...]:
    """The words that a parameter may be; none where it is a number."""
    return next(p.choices for p in task.parameters if p.name == name)


def _placed(given: Any, name: str, task: TaskSpec) -> Any:
    """A parameter that is a word, or one per sample, as its place among the choices; numbers as they are."""
    choices = _choices(name, task)
    words = _words(given) if choices else None
    if choices and words is None:
        places = tensor_of(given, f"{name} of {task.name}", dtype=torch.float64).reshape(-1).tolist()
        words = [choices[int(x)] if x in range(len(choices)) else f"{x:g}" for x in places]
    for word in words or ():
        if word not in choices:
            raise ConfigError(f"{task.name} was not trained on {name} = '{word}'; it knows {', '.join(choices)}.")
    return given if words is None else [choices.index(word) for word in words]


def _words(given: Any) -> list[str] | None:
    """Text in any kind of array, or alone; None for what holds none."""
    if isinstance(given, Tensor):
        return None
    plain = getattr(given, "values", given)
    many = np.asarray(plain, object if isinstance(plain, list | tuple) else None).reshape(-1).tolist()
    many = [x.decode(errors="replace") if isinstance(x, bytes) else x for x in many]
    return [str(x) for x in many] if any(isinstance(x, str) for x in many) else None


def places_of(given: Any, task: TaskSpec, periodic: tuple[bool, ...]) -> Tensor:
    """Points `(P, n)` in the task's coordinates, or `(P,)` on a line, to [0, 1)^n, wrapped where the box does."""
    x = tensor_of(given, f"points of {task.name}", dtype=torch.float64)
    shape = tuple(x.shape)
    x = x.reshape(-1, 1) if task.ndim == 1 and x.ndim < 2 else x
    if x.ndim != 2 or x.shape[1] != task.ndim:
        raise ConfigError(f"points of {task.name} are (P, {task.ndim}), a row for each point, not {shape}.")
    low, high = torch.tensor(task.bounds, dtype=torch.float64).T
    x = (x - low) / (high - low)
    x = torch.where(torch.tensor(periodic), x % 1.0, x)
    if not bool(((x >= 0) & (x <= 1)).all()):
        box = " × ".join(f"[{lo:g}, {hi:g}]" for lo, hi in task.bounds)
        raise ConfigError(f"a point lies outside the box {box} of {task.name}; ask for points within it.")
    return x.float()


def points_of(given: Any, task: TaskSpec, periodic: tuple[bool, ...]) -> Points:
    """Places `(N, n)` in the task's coordinates as points in its box, each with what is nearest to it."""
    if task.mask:
        raise ConfigError(f"{task.name} has a mask, which points cannot have; give its states on a grid, without at=….")
    low, high = np.array(task.bounds, np.float64).T
    table = low + places_of(given, task, periodic).double().numpy() * (high - low)
    return Points.at(table, periodic, task.bounds, nearest_volumes(table, task.bounds, periodic))


def steps_of(given: Any, count: int, low: float, high: float, task: str, remarks: list[str]) -> Tensor:
    """The time of each step that is asked for: one number `(1,)` for all, the trained one by default, or `count` of
    them. One that was not trained is remarked on."""
    if given is None and high > 1.001 * low:
        raise ConfigError(f"{task} was trained with steps of time from {low:g} to {high:g}; say which with dt=….")
    if given is None:
        return torch.tensor([low])
    values = tensor_of(given, f"dt of {task}", dtype=torch.float64).reshape(-1)
    if len(values) not in (1, count) or not bool(((values > 0) & values.isfinite()).all()):
        raise ConfigError(f"{task}: dt is {given}, but must be one finite number above 0, or {count}, one per step.")
    remarks += beyond("dt", values.amin().item(), values.amax().item(), low, high, task)
    return values


def walls_of(given: Any, task: TaskSpec, params: Any) -> tuple[bool, ...]:
    """Which axes wrap: as given, by name or True and False for each, else as the task does at these parameters."""
    if given is None:
        return task.periodicity(_one_boundary(task, params if isinstance(params, Mapping) else {}))
    axes = task.axes[: task.ndim]
    named = (given,) if isinstance(given, str) else given
    if isinstance(named, tuple | list) and all(isinstance(name, str) and name in axes for name in named):
        return tuple(axis in named for axis in axes)
    if not isinstance(named, tuple | list) or [type(wraps) for wraps in named] != [bool] * task.ndim:
        raise ConfigError(
            f"{task.name}: periodic is {given}, but must be names of axes ({', '.join(axes)}), or True or False for "
            f"each of {counted(task.ndim, 'axis')}."
        )
    return tuple(named)


def _one_boundary(task: TaskSpec, params: Mapping[str, Any]) -> dict[str, Any]:
    """The boundary among parameters as one word: all samples of a question share it."""
    choices = next((p.choices for p in task.parameters if p.name == "boundary"), ())
    if "boundary" not in params or not choices:
        return {}
    given = params["boundary"]
    many = [given] if isinstance(given, str) else np.asarray(given).reshape(-1).tolist()
    words = {choices[int(x)] if isinstance(x, int | float) and x in range(len(choices)) else str(x) for x in many}
    if len(words) != 1 or not words <= {*choices}:
        raise ConfigError(
            f"{task.name}: boundary is {given!r}, but must be one of {', '.join(choices)}, the same for all samples."
        )
    return {"boundary": words.pop()}


def unusual(
    simulator: SimulatorLike,
    frames: Tensor,
    inputs: Tensor,
    task: TaskSpec,
    mask: Tensor | None = None,
    guess: str = GUESS,
) -> list[str]:
    """A sentence for each field whose given frames are unlike all that training saw, and for each such input."""
    sentences: list[str] = []
    if not task.steady:  # there, nothing is given but what drives it
        sentences += strange(frames, simulator.codec.statistics_of(task), task.channels, task.name, mask)
    if task.inputs:
        sentences += strange_inputs(inputs, simulator.operator.inputs.statistics_of(task.name), task, guess)
    return sentences


def strange(
    frames: Tensor,
    statistics: Statistics,
    names: Sequence[str],
    task: str,
    mask: Tensor | None = None,
    constant: str = "and is so in the answer; give that",
    guess: str = GUESS,
) -> list[str]:
    """A sentence for each channel of given frames `(B, K, *S, C)` that never varied in training and has another value,
    or that lies far from all that training saw. Cells outside `mask (B, *S)` do not count. `constant` says what another
    value of what never varied means."""
    mean, std = statistics.mean, statistics.std
    counts = torch.ones_like(frames[..., :1], dtype=torch.bool)
    counts = counts if mask is None else counts & mask[:, None, ..., None]
    gap = torch.where(counts, frames.float() - mean, 0).abs()  # where nothing counts, anything may stand, also NaN
    moved = (std == 0) & (gap.flatten(0, -2).amax(0) > 1e-5 * mean.abs())
    squares = (gap / std.where(std > 0, math.inf)).square().flatten(1, -2).sum(1)
    away = (squares / counts.flatten(1).sum(1, keepdim=True).clamp_min(1)).sqrt().amax(0)
    rows, sentences = (mean.tolist(), moved.tolist(), away.tolist()), list[str]()
    for name, value, other, times in zip(names, *rows, strict=True):
        if other:
            sentences.append(f"{task}: {name} was {value:g} everywhere in training, {constant}.")
        elif times > FAR:
            sentences.append(f"{task}: {name} is {times:.3g} deviations away from its mean in training; {guess}.")
    return sentences


def strange_inputs(inputs: Tensor, statistics: Statistics, task: TaskSpec, guess: str = GUESS) -> list[str]:
    """As `strange`, for the inputs of a task, `(B, *S, C_in)`; its mask may be any and is left out."""
    places = [i for i, name in enumerate(task.given) if name != task.mask]
    names, own = [task.given[i] for i in places], Statistics(len(places)).to(inputs.device)
    own.fit(statistics.mean[places], statistics.std[places])
    constant = f"and nothing is known of other values; {guess}"
    return strange(inputs[..., places].unsqueeze(1), own, names, task.name, mask_of(task, inputs), constant, guess)


def beyond(
    name: str, least: float, most: float, low: float, high: float, task: str, guess: str = GUESS
) -> tuple[str, ...]:
    """The sentence that says of values from `least` to `most` that they leave the trained range, if they do."""
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ConfigError(f"{task}: {name} is not a finite number.")
    first, last = reach(low, high)
    if first <= least and most <= last:
        return ()
    values = dict.fromkeys([*([least] if least < first else []), *([most] if most > last else [])])
    lie = "lies" if len(values) == 1 else "lie"
    words = " and ".join(f"{value:g}" for value in values)
    return (f"{task}: {name} = {words} {lie} outside the trained range {low:g} to {high:g}; {guess}.",)


def reach(low: float, high: float, part: float = 0.0) -> tuple[float, float]:
    """The ends of a trained range, moved apart by `part` of it and by what may be rounding.

    The part of a positive range is of its logarithm, by which `ParamScaling` compares such parameters.
    """
    if low > 0:
        factor = (high / low) ** part
        low, high = low / factor, high * factor
    else:
        more = part * (high - low)
        low, high = low - more, high + more
    span = high - low  # what rounds a value that should be 0
    return low - ROUNDING * (abs(low) or span), high + ROUNDING * (abs(high) or span)


def trained_ranges(
    task: TaskSpec, scaled: ParamScaling, seen: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """The range by which each parameter is `scaled`, widened by the ranges that later training has `seen`."""
    ranges = {}
    for name, low, high in zip(numeric_params(task), scaled.low.tolist(), scaled.high.tolist(), strict=True):
        least, most = seen.get(name, (low, high))
        ranges[name] = (min(low, least), max(high, most))
    return ranges


def outside(params: Any, dt: float | None, trained: Mapping[str, tuple[float, float]], task: TaskSpec) -> list[str]:
    """A sentence for each parameter, and for dt, that leaves its trained range; see `Simulator.outside`."""
    names = numeric_params(task)
    if not isinstance(params, Mapping):
        table = torch.as_tensor(params, dtype=torch.float64).reshape(-1, max(1, len(names)))
        params = dict(zip(names, table.unbind(1), strict=False))
    given = {**{name: params[name] for name in names if name in params}, **({} if dt is None else {"dt": dt})}
    values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in given.items()}
    each = [beyond(k, v.amin().item(), v.amax().item(), *trained[k], task.name) for k, v in values.items()]
    return [sentence for sentences in each for sentence in sentences]
