"""What users hold, numpy, torch or xarray of several shapes, to frames `(B, K, *S, C)`, and answers back in kind."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.models.conditions import ParamRange
from ups.tensors import numbers_of
from ups.types import ConfigError, TaskSpec


@dataclass(frozen=True)
class Asked:
    """A user's initial state: frames `(B, K, *S, C)` in float32, and how to give answers back in kind.

    Accepted shapes: `(*S,)` for a task of one channel, `(*S, C)`, `(B, *S, C)` and `(B, K, *S, C)`.
    """

    frames: Tensor
    given: Any
    task: TaskSpec

    @classmethod
    def of(cls, given: Any, task: TaskSpec, device: torch.device) -> Asked:
        x = _tensor(given, f"the initial state of {task.name}", device)
        shape = tuple(x.shape)
        n, channels = task.ndim, len(task.channels)
        if x.ndim == n and channels == 1:
            x = x.unsqueeze(-1)
        if x.ndim == n + 1:
            x = x.unsqueeze(0)
        if x.ndim == n + 2:
            x = x.unsqueeze(1)
        if x.ndim != n + 3 or x.shape[-1] != channels:
            names = ", ".join(task.channels)
            raise ConfigError(
                f"{task.name} has {n} axes and the channels {names}, so a state is (*S, {channels}), "
                f"(B, *S, {channels}) or (B, K, *S, {channels}), not {shape}."
            )
        if not x.numel():
            raise ConfigError(f"the initial state of {task.name} is empty, {shape}; give at least one frame and cell.")
        if not bool(x.isfinite().all()):
            raise ConfigError(f"the initial state of {task.name} has values that are not finite; mend or leave it out.")
        return cls(x, given, task)

    @classmethod
    def nothing(cls, like: Any, inputs: Tensor, task: TaskSpec) -> Asked:
        """The start of a steady task: a zero field on the grid of its inputs `(B, *S, C_in)`, which came as `like`."""
        if hasattr(like, "drop_vars") and like.ndim > task.ndim:  # the names of its channels are not the answer's
            like = like.drop_vars(like.dims[-1], errors="ignore")
        return cls(inputs.new_zeros(len(inputs), 1, *inputs.shape[1:-1], len(task.channels)), like, task)

    def answer(self, frames: Tensor, dt: float, points: bool) -> Any:
        """`(B, steps, …, C)` as the kind, type and rank of what was given: no batch or channel axis if it had none."""
        rank = len(self.given.shape) if hasattr(self.given, "shape") else np.ndim(self.given)
        flat = rank == self.task.ndim and len(self.task.channels) == 1
        out = frames[0] if rank <= self.task.ndim + 1 else frames
        out = out[..., 0] if flat else out
        if isinstance(self.given, Tensor):
            kind = self.given.dtype if self.given.is_floating_point() else torch.float32
            return out.to(self.given.device, kind)
        dtype = np.asarray(self.given).dtype
        array = out.cpu().numpy().astype(dtype if np.issubdtype(dtype, np.floating) else np.float32)
        if type(self.given).__module__.split(".")[0] != "xarray":
            return array
        return self._labelled(array, dt, points, batched=rank > self.task.ndim + 1, flat=flat)

    def _labelled(self, array: Any, dt: float, points: bool, *, batched: bool, flat: bool) -> Any:
        import xarray  # type: ignore[import-not-found,unused-ignore]

        n = self.task.ndim
        old = tuple(str(d) for d in self.given.dims)
        bare = len(old) == n  # no axis of channels
        space = ("point",) if points else old[:n] if bare else old[-n - 1 : -1]
        channel = () if flat else ("channel",) if bare else old[-1:]
        dims = (*old[:1] * batched, "time", *space, *channel)
        kept = {d: self.given.coords[d].values for d in dims if d in self.given.coords}
        times = {"time": dt * np.arange(1, array.shape[int(batched)] + 1)}
        return xarray.DataArray(array, dims=dims, coords={**kept, **times})


def _tensor(given: Any, name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Real numbers of any kind of array as a tensor; `name` is what a sentence calls them."""
    try:
        raw = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(getattr(given, "values", given)))
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{name} is no array of numbers; give numpy, torch, xarray or a list of numbers.") from None
    if raw.is_complex():
        raise ConfigError(f"{name} is complex; give real numbers, for example its real part.")
    return raw.detach().to(device=device, dtype=dtype)


def inputs_of(given: Any, task: TaskSpec, batch: int | None, device: torch.device) -> Tensor | None:
    """What a task is driven by, `(B, *S, C_in)`, from `(*S,)` (one channel), `(*S, C_in)` or one of these per sample.

    None for a task without inputs, which must be given none.
    """
    names = [channel for f in task.inputs for channel in f.channels]
    if given is None and not names:
        return None
    if given is None or not names:
        fact = f"is driven by {', '.join(names)}; give inputs=…" if names else "has no inputs; leave inputs out"
        raise ConfigError(f"{task.name} {fact}.")
    x = _tensor(given, f"the input of {task.name}", device)
    shape, n = tuple(x.shape), task.ndim
    if x.ndim == n and len(names) == 1:
        x = x.unsqueeze(-1)
    if x.ndim == n + 1:
        x = x.unsqueeze(0)
    if x.ndim != n + 2 or x.shape[-1] != len(names):
        raise ConfigError(
            f"the inputs {', '.join(names)} of {task.name} are (*S, {len(names)}) or (B, *S, {len(names)}) with "
            f"{n} axes, not {shape}."
        )
    if not bool(x.isfinite().all()):
        raise ConfigError(f"the inputs of {task.name} have values that are not finite; mend or leave them out.")
    if batch is not None and len(x) not in (1, batch):
        raise ConfigError(f"there are inputs for {len(x)} samples, but {batch} states; give one, or one per sample.")
    return x if batch is None else x.expand(batch, *x.shape[1:])


def parameters(given: Mapping[str, Any] | Any, task: TaskSpec, trained: ParamRange, batch: int) -> Tensor:
    """Parameters `(B, P)` from names and numbers (or one per sample), or from an array in the order of the task.

    One that never varied in training may be left out. One outside the trained range warns.
    """
    names = numbers_of(task)
    low, high = trained.low.tolist(), trained.high.tolist()
    if not isinstance(given, Mapping):
        table = _tensor(given, f"params of {task.name}")
        if table.numel() not in (len(names), batch * len(names)):
            wanted = ", ".join(names) or "none"
            raise ConfigError(f"params of {task.name} has {table.numel()} numbers; give {wanted}, once or per sample.")
        given = dict(zip(names, table.reshape(-1, max(1, len(names))).T, strict=False))
    known = {p.name for p in task.parameters}
    for name in given:
        if name not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{task.name} has no parameter '{name}'; its parameters are: {offered}.")
    columns = []
    for name, lo, hi in zip(names, low, high, strict=True):
        if name not in given and lo != hi:
            raise ConfigError(
                f"{task.name} needs the parameter {name}, trained from {lo:g} to {hi:g}; give params={{'{name}': …}}."
            )
        value = _tensor(given.get(name, lo), f"{name} of {task.name}").reshape(-1)
        if len(value) not in (1, batch):
            raise ConfigError(f"{name} has {len(value)} values for {batch} samples; give one, or one per sample.")
        warn_outside(name, value.amin().item(), value.amax().item(), lo, hi, task.name)
        columns.append(value.expand(batch))
    return torch.stack(columns, 1) if columns else torch.zeros(batch, 0)


def places_of(given: Any, task: TaskSpec, periodic: tuple[bool, ...]) -> Tensor:
    """Points `(P, n)` in the task's coordinates, or `(P,)` on a line, to [0, 1)^n, wrapped where the box does."""
    x = _tensor(given, f"points of {task.name}", dtype=torch.float64)
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


def step_of(given: Any, low: float, high: float, task: str) -> float:
    """The time between frames that is asked for, the trained one by default; one that was not trained warns."""
    if given is None:
        return low
    value = _tensor(given, f"dt of {task}", dtype=torch.float64)
    if value.numel() != 1 or not value.item() > 0 or not math.isfinite(value.item()):
        raise ConfigError(f"{task}: dt is {given}, but must be one finite number above 0.")
    warn_outside("dt", value.item(), value.item(), low, high, task)
    return float(value)


def walls_of(given: Any, task: TaskSpec, params: Any) -> tuple[bool, ...]:
    """Which axes wrap: as given, else as the task does at these parameters."""
    if given is None:
        return task.periodicity(params if isinstance(params, Mapping) else {})
    if not isinstance(given, tuple | list) or [type(wraps) for wraps in given] != [bool] * task.ndim:
        raise ConfigError(f"{task.name}: periodic is {given}, but must be True or False for each of {task.ndim} axes.")
    return tuple(given)


def warn_outside(name: str, least: float, most: float, low: float, high: float, task: str) -> None:
    """Warn where a value lies outside what training saw (up to rounding)."""
    sentence = beyond(name, least, most, low, high, task)
    if sentence:
        warnings.warn(sentence, stacklevel=5)


def beyond(name: str, least: float, most: float, low: float, high: float, task: str) -> str:
    """The sentence that says of values from `least` to `most` that they leave the trained range, or nothing."""
    slack = 1e-5 * max(abs(low), abs(high))
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ConfigError(f"{task}: {name} is not a finite number.")
    if low - slack <= least and most <= high + slack:
        return ""
    value = least if least < low - slack else most
    return f"{task}: {name} = {value:g} lies outside the trained range {low:g} to {high:g}; the answer is a guess."


def outside(params: Any, dt: float | None, trained: Mapping[str, tuple[float, float]], task: TaskSpec) -> list[str]:
    """A sentence for each parameter, and for dt, that leaves its trained range; see `Simulator.outside`."""
    names = numbers_of(task)
    if not isinstance(params, Mapping):
        table = torch.as_tensor(params, dtype=torch.float64).reshape(-1, max(1, len(names)))
        params = dict(zip(names, table.unbind(1), strict=False))
    given = {**{name: params[name] for name in names if name in params}, **({} if dt is None else {"dt": dt})}
    values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in given.items()}
    sentences = [beyond(k, v.amin().item(), v.amax().item(), *trained[k], task.name) for k, v in values.items()]
    return [sentence for sentence in sentences if sentence]
