"""Turns users' arrays (numpy, torch, xarray) into frames `(B, K, *S, C)`, and answers into the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.masks import fill, unmasked
from ups.models.labels import Labels, is_labelled, unlabelled
from ups.types import Array, ConfigError, Points, TaskSpec, counted

# Cells of an axis of space, under which an array is not taken for samples of a task of one channel.
FEWEST = 4


def tensor_of(given: Any, name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Real numbers of any kind of array as a tensor; `name` is what a sentence calls them."""
    try:
        values = given if isinstance(given, Tensor) else _plain(np.asarray(unmasked(getattr(given, "values", given))))
        raw = torch.as_tensor(values)
        if raw.layout != torch.strided or raw.is_meta:
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{name} is no array of numbers; give numpy, torch, xarray or a list of numbers.") from None
    if raw.is_complex():
        raise ConfigError(f"{name} is complex; give real numbers, for example its real part.")
    return raw.detach().to(device=device, dtype=dtype)


def _plain(array: Array) -> Array:
    """The same numbers in the byte order of this machine, and in memory and a precision that torch knows."""
    array = array.astype(np.float64) if array.dtype == np.longdouble else array
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return array.copy() if any(stride < 0 for stride in array.strides) or not array.flags.writeable else array


@dataclass(frozen=True)
class Given:
    """An array that a user holds as `values (B, K, *S, C)` in float32, and how to give answers back in kind.

    Accepted shapes: `(*S, C)`, `(B, *S, C)` and `(B, K, *S, C)`; for one channel also `(*S,)` and `(B, *S)`. There the
    last axis decides: of length 1 it is the channel. An xarray is arranged by the names of its dimensions.
    """

    values: Tensor
    source: Any
    batched: bool
    flat: bool
    labels: Labels | None = None

    @classmethod
    def of(
        cls,
        source: Any,
        what: str,
        task: TaskSpec,
        names: tuple[str, ...],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        points: Points | None = None,
    ) -> Given:
        """`names` are those of its channels; the task's mask may be left out of them. Values may lie at `points`."""
        ndim = task.ndim if points is None else len(points.shape)
        counts = (len(names), len(names) - 1) if task.mask in names and len(names) > 1 else (len(names),)
        labels = None
        if isinstance(source, Mapping):
            last = f", whose last axis holds {', '.join(names)}" if len(names) > 1 else ""
            raise ConfigError(f"{what} is a dict; give one array{last}.")
        if is_labelled(source) and points is not None:
            raise ConfigError(f"{what} lies at points and is an xarray; give its values as a plain array, `.values`.")
        if is_labelled(source):
            array, labels = unlabelled(source, what, task, names)
            x, batched, flat = tensor_of(array, what, device, dtype), labels.batch is not None, labels.flat
        else:
            x, batched, flat = _arranged(tensor_of(source, what, device, dtype), ndim, counts)
        if points is not None and x.ndim == ndim + 3 and tuple(x.shape[2:-1]) != points.shape:
            raise ConfigError(f"{what} has {x.shape[2]} values, and at=… says where {points.words} lie; give as many.")
        if x.ndim != ndim + 3 or x.shape[-1] not in counts:
            elsewhere = "" if task.domain == "grid" else "; where values lie at points, at=… says where these are"
            c, shape = counts[0], tuple(np.shape(source)) if labels is None else tuple(array.shape)
            raise ConfigError(
                f"{what} has {counted(ndim, 'axis')} and the channels {', '.join(names)}, so it is (*S, {c}), "
                f"(B, *S, {c}) or (B, K, *S, {c}), not {shape}{elsewhere}."
            )
        if not x.numel():
            raise ConfigError(f"{what} is empty, {tuple(x.shape)}; give at least one frame and cell.")
        return cls(x, source, batched, flat, labels)

    def answer(self, frames: Tensor, times: Array, channels: tuple[str, ...], points: bool) -> Any:
        """`(B, steps, …, C)` as the kind, type and rank of what was given: no batch or channel axis if it had none.
        What is in double precision stays so."""
        if self.labels is not None:
            return self.labels.answer(frames.cpu().numpy(), times, channels, points)
        out = frames if self.batched else frames[0]
        out = out[..., 0] if self.flat and len(channels) == 1 else out
        double = out.dtype == torch.float64
        if isinstance(self.source, Tensor):
            same_type = self.source.is_floating_point() and not double
            return out.to(self.source.device, self.source.dtype if same_type else out.dtype)
        dtype = np.asarray(self.source).dtype
        values = out.cpu().numpy()
        same_type = np.issubdtype(dtype, np.floating) and not double
        return values.astype(dtype if same_type else values.dtype, copy=False)

    def per_step(self, values: Tensor, times: Array) -> Any:
        """Numbers of each step `(B, steps)`, in kind; `(steps,)` where no axis of samples was given."""
        if self.labels is not None:
            return self.labels.per_step(values.cpu().numpy(), times)
        out = values if self.batched else values[0]
        return out.to(self.source.device) if isinstance(self.source, Tensor) else out.cpu().numpy()

    def answer_once(self, frames: Tensor, times: Array, channels: tuple[str, ...], points: bool) -> Any:
        """As `answer`, for one frame and without the axis of time."""
        answer = self.answer(frames, times, channels, points)
        if self.labels is not None:
            return answer.isel({self.labels.time or "time": 0}, drop=True)
        return answer[:, 0] if self.batched else answer[0]


def _arranged(x: Tensor, ndim: int, counts: tuple[int, ...]) -> tuple[Tensor, bool, bool]:
    """`(B, K, *S, C)`, and whether there was an axis of samples, and none of channels."""
    samples = x.ndim == ndim + 1 and x.shape[-1] not in counts and min(x.shape[1:]) >= FEWEST
    flat = 1 in counts and (x.ndim == ndim or samples)
    x = x.unsqueeze(-1) if flat else x
    batched = x.ndim > ndim + 1
    x = x.unsqueeze(0) if x.ndim == ndim + 1 else x
    return x.unsqueeze(1) if x.ndim == ndim + 2 else x, batched, flat


def state_of(source: Any, task: TaskSpec, device: torch.device, points: Points | None = None) -> Given:
    """The initial state of a task, on a grid or at `points`."""
    return Given.of(source, f"the initial state of {task.name}", task, task.channels, device, points=points)


def inputs_of(
    source: Any,
    task: TaskSpec,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    points: Points | None = None,
) -> Given | None:
    """What drives a task; None where nothing does, or where it is the mask alone and was left out."""
    if source is None and task.given in ((), (task.mask,)):
        return None
    if source is None or not task.given:
        names = ", ".join(task.given)
        fact = f"is driven by {names}; give inputs=…" if names else "has no inputs; leave inputs out"
        raise ConfigError(f"{task.name} {fact}.")
    inputs = Given.of(source, f"the input of {task.name}", task, task.given, device, dtype, points)
    if inputs.values.shape[1] != 1:
        raise ConfigError(f"the inputs {', '.join(task.given)} of {task.name} do not change in time; give one frame.")
    return inputs


def joined(frames: Tensor, inputs: Tensor | None, task: TaskSpec) -> tuple[Tensor, Tensor]:
    """Frames `(B, K, *S, C)` and inputs `(B, *S, C_in)`, all finite and with the mask among them.

    Where the mask is left out or NaN, a cell counts unless a frame or another input is NaN there. Cells that do not
    count are filled with the nearest that does. A task without a mask refuses NaN.
    """
    batch = len(frames)
    if inputs is not None and len(inputs) not in (1, batch):
        raise ConfigError(
            f"there are inputs for {counted(len(inputs), 'sample')}, but {counted(batch, 'state')}; give one, or one "
            "per sample."
        )
    if task.mask:
        frames, inputs = _filled(frames, inputs, task)
    elif inputs is None:
        inputs = frames.new_zeros(batch, *frames.shape[2:-1], 0)
    if not bool(frames.isfinite().all()):
        raise ConfigError(f"the initial state of {task.name} has values that are not finite; mend or leave it out.")
    if not bool(inputs.isfinite().all()):
        raise ConfigError(f"the inputs of {task.name} have values that are not finite; mend or leave them out.")
    return frames, inputs.expand(batch, *inputs.shape[1:])


def _filled(frames: Tensor, inputs: Tensor | None, task: TaskSpec) -> tuple[Tensor, Tensor]:
    place, grid = task.given.index(task.mask), frames.shape[2:-1]
    if inputs is None:
        inputs = frames.new_full((len(frames), *grid, 1), torch.nan)
    elif inputs.shape[-1] < len(task.given):
        unknown = torch.full_like(inputs[..., :1], torch.nan)
        inputs = torch.cat((inputs[..., :place], unknown, inputs[..., place:]), -1)
    if inputs.shape[1:-1] != grid:
        raise ConfigError(
            f"the mask of {task.name} lies on a grid of {tuple(inputs.shape[1:-1])} cells and the state on one of "
            f"{tuple(grid)}; give both on the same."
        )
    inputs = inputs.expand(len(frames), *inputs.shape[1:]).clone()
    others = [i for i in range(len(task.given)) if i != place]
    nothing = frames.isnan().any(-1).any(1) | inputs[..., others].isnan().any(-1)
    known = inputs[..., place]
    mask = torch.where(known.isnan(), ~nothing, known > 0.5)
    if not bool(mask.flatten(1).any(1).all()):
        raise ConfigError(f"no cell of a state of {task.name} counts; its mask must be 1 where there is a value.")
    inputs[..., place] = mask.float()
    cells = mask.cpu().numpy()
    if not cells.all():
        frames, inputs = (
            torch.stack([torch.from_numpy(fill(x.numpy(), m)) for x, m in zip(values.cpu(), cells, strict=True)])
            for values in (frames, inputs)
        )
        frames, inputs = frames.to(mask.device), inputs.to(mask.device)
        inputs[..., place] = mask.float()
    return frames, inputs
