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
        raw = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(getattr(given, "values", given)))
        x = raw.to(device=device, dtype=torch.float32)
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
                f"(B, *S, {channels}) or (B, K, *S, {channels}), not {tuple(raw.shape)}."
            )
        if not bool(x.isfinite().all()):
            raise ConfigError(f"the initial state of {task.name} has values that are not finite; mend or leave it out.")
        return cls(x, given, task)

    def answer(self, frames: Tensor, dt: float, points: bool) -> Any:
        """`(B, steps, …, C)` as the kind, type and rank of what was given: no batch or channel axis if it had none."""
        rank = len(self.given.shape) if hasattr(self.given, "shape") else np.ndim(self.given)
        flat = rank == self.task.ndim
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
        space = ("point",) if points else old[:n] if flat else old[-n - 1 : -1]
        dims = (*old[:1] * batched, "time", *space, *old[-1:] * (not flat))
        kept = {d: self.given.coords[d].values for d in dims if d in self.given.coords}
        times = {"time": dt * np.arange(1, array.shape[int(batched)] + 1)}
        return xarray.DataArray(array, dims=dims, coords={**kept, **times})


def parameters(given: Mapping[str, Any] | Any, task: TaskSpec, trained: ParamRange, batch: int) -> Tensor:
    """Parameters `(B, P)` from names and numbers (or one per sample), or from an array in the order of the task.

    One that never varied in training may be left out. One outside the trained range warns.
    """
    names = numbers_of(task)
    low, high = trained.low.tolist(), trained.high.tolist()
    if not isinstance(given, Mapping):
        table = torch.as_tensor(np.asarray(given, dtype=np.float32)).reshape(-1, len(names)).expand(batch, -1)
        given = {name: table[:, i] for i, name in enumerate(names)}
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
        value = torch.as_tensor(np.asarray(given.get(name, lo), dtype=np.float32)).reshape(-1)
        if len(value) not in (1, batch):
            raise ConfigError(f"{name} has {len(value)} values for {batch} samples; give one, or one per sample.")
        warn_outside(name, value.amin().item(), value.amax().item(), lo, hi, task.name)
        columns.append(value.expand(batch))
    return torch.stack(columns, 1) if columns else torch.zeros(batch, 0)


def warn_outside(name: str, least: float, most: float, low: float, high: float, task: str) -> None:
    """Warn where a value lies outside what training saw (up to rounding)."""
    slack = 1e-5 * max(abs(low), abs(high))
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ConfigError(f"{task}: {name} is not a finite number.")
    if least < low - slack or most > high + slack:
        value = least if least < low - slack else most
        warnings.warn(
            f"{task}: {name} = {value:g} lies outside the trained range {low:g} to {high:g}; the answer is a guess.",
            stacklevel=4,
        )
