"""Turns xarray objects into frames by the names of their dimensions, and answers into xarray again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ups.types import Array, ConfigError, TaskSpec

TIMES = ("time", "t")
CHANNELS = ("channel", "channels", "field", "fields", "variable", "component")
SAMPLES = ("batch", "sample", "samples", "member", "trajectory", "realization")


def is_labelled(source: Any) -> bool:
    """Whether it is an xarray; told without importing xarray."""
    return type(source).__module__.split(".")[0] == "xarray"


@dataclass(frozen=True)
class Labels:
    """How an xarray was arranged: the dimensions of samples, time, space and channels, by their names.

    `order` holds the dimensions as they were given; `flipped` those whose coordinate falls; `start` is the last given
    time, to which those of the answer are added; `dataset`: every channel was a variable of its own.
    """

    order: tuple[str, ...]
    space: tuple[str, ...]
    batch: str | None
    time: str | None
    channel: str | None
    coordinates: Mapping[str, Array]
    flipped: tuple[str, ...]
    start: float
    dataset: bool
    dtype: Any

    @property
    def flat(self) -> bool:
        """Whether there is no dimension of channels."""
        return self.channel is None

    def answer(self, frames: Array, times: Array, channels: tuple[str, ...], points: bool) -> Any:
        """`(B, steps, *S, C)`, or `(B, steps, P, C)` at points, with names; a Dataset where one was given."""
        import xarray  # type: ignore[import-not-found,unused-ignore]

        time, channel = self.time or "time", self.channel or "channel"
        space = ("point",) if points else self.space
        dims = (self.batch or "batch", time, *space, channel)
        coordinates = {d: self.coordinates[d] for d in dims if d in self.coordinates and d not in (time, channel)}
        values = frames if frames.dtype == np.float64 else frames.astype(self.dtype)
        array = xarray.DataArray(values, dims=dims, coords={**coordinates, time: self.start + times})
        if not points:
            array = array.isel({d: slice(None, None, -1) for d in self.flipped}).assign_coords(coordinates)
        array = array if self.batch else array.isel({dims[0]: 0})
        array = array.transpose(*self._order(array.dims))
        if self.dataset:
            return xarray.Dataset({name: array.isel({channel: i}) for i, name in enumerate(channels)})
        if self.channel is None and len(channels) == 1:
            return array.isel({channel: 0})
        return array.assign_coords({channel: list(channels)}) if channel in self.coordinates else array

    def per_step(self, values: Array, times: Array) -> Any:
        """Numbers of each step `(B, steps)` with names; of one sample without the dimension of samples."""
        import xarray  # type: ignore[import-not-found,unused-ignore]

        time, batch = self.time or "time", self.batch or "batch"
        coordinates = {batch: self.coordinates[batch]} if batch in self.coordinates else {}
        array = xarray.DataArray(values, dims=(batch, time), coords={**coordinates, time: self.start + times})
        return array if self.batch else array.isel({batch: 0})

    def _order(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The order in which they were given; new ones where they are: time after the samples, points as space."""
        if not set(self.space) <= set(dims):
            return dims
        order = [d for d in self.order if d in dims]
        time = self.time or "time"
        if time not in order:
            order.insert(1 if order[0] == self.batch else 0, time)
        return (*order, *(d for d in dims if d not in order))


def unlabelled(source: Any, what: str, task: TaskSpec, names: tuple[str, ...]) -> tuple[Array, Labels]:
    """`(B, K, *S, C)` of a DataArray, or of a Dataset with a variable for each of `names` (the mask may be missing)."""
    dataset = hasattr(source, "data_vars")
    if dataset:
        source = _stacked(source, what, task, names)
    dims = tuple(str(d) for d in source.dims)
    batch, time, space, channel = _roles(source, what, task, names)
    if channel is not None and _words(source, channel):
        source = source.isel({channel: _places(source, channel, what, task, names)})
    flipped = tuple(d for d, bounds in zip(space, task.bounds, strict=True) if _falls(source, d, bounds, what))
    coordinates = {d: np.asarray(source.coords[d].values) for d in dims if d in source.coords}
    ordered = source.isel({d: slice(None, None, -1) for d in flipped})
    ordered = ordered.transpose(*(d for d in (batch, time, *space, channel) if d is not None))
    array = np.asarray(ordered.values)
    for axis, dim in ((0, batch), (1, time), (task.ndim + 2, channel)):
        array = np.expand_dims(array, axis) if dim is None else array
    dtype = array.dtype if np.issubdtype(array.dtype, np.floating) else np.float32
    start = _last_time(source, time)
    return array, Labels(dims, space, batch, time, channel, coordinates, flipped, start, dataset, dtype)


def _roles(
    source: Any, what: str, task: TaskSpec, names: tuple[str, ...]
) -> tuple[str | None, str | None, tuple[str, ...], str | None]:
    """The dimensions of samples, time, space and channels: by name, and what has none of the known ones by its place,
    in the order `(B, K, *S, C)`."""
    dims = [str(d) for d in source.dims]
    axes, several = task.axes[: task.ndim], len([name for name in names if name != task.mask]) > 1
    channel = next((d for d in dims if d in CHANNELS or _named(source, d, names)), None)
    time = next((d for d in dims if d in TIMES and d != channel), None)
    rest = [d for d in dims if d not in (channel, time)]
    space = axes
    if not set(axes) <= set(rest):
        unknown = [d for d in rest if d not in SAMPLES]
        extra = channel is None and len(unknown) > task.ndim and (several or source.sizes[unknown[-1]] == 1)
        space = tuple(unknown[: len(unknown) - extra][-task.ndim :])
    rest = [d for d in rest if d not in space]
    if channel is None and rest and rest[-1] not in SAMPLES and (several or source.sizes[rest[-1]] == 1):
        channel = rest.pop()
    if time is None and len(rest) == 2:
        time = rest.pop()
    if len(space) != task.ndim or len(rest) > 1 or (channel is None and several):
        raise ConfigError(
            f"{what} has the dimensions {', '.join(dims)}, in which those of space ({', '.join(axes)}), of time and of "
            f"the channels {', '.join(names)} cannot be told apart; name them so, and at most one more, of samples."
        )
    return rest[0] if rest else None, time, space, channel


def _stacked(source: Any, what: str, task: TaskSpec, names: tuple[str, ...]) -> Any:
    """The variables of a Dataset that `names` names as one array with a dimension of channels."""
    import xarray  # type: ignore[import-not-found,unused-ignore]

    held = [name for name in names if name in source.data_vars or name != task.mask]
    missing = [name for name in held if name not in source.data_vars]
    if missing:
        has = ", ".join(str(name) for name in source.data_vars) or "none"
        raise ConfigError(f"{what} has no variable '{missing[0]}'; it has {has}.")
    parts = xarray.broadcast(*(source[name] for name in held))
    coords = {d: c for d, c in parts[0].coords.items() if d in parts[0].dims or d in TIMES}
    stacked = np.stack([part.values for part in parts], -1)
    return xarray.DataArray(stacked, dims=(*parts[0].dims, "channel"), coords={**coords, "channel": held})


def _words(source: Any, dim: str) -> bool:
    return dim in source.coords and source.coords[dim].dtype.kind in "UOS"


def _named(source: Any, dim: str, names: tuple[str, ...]) -> bool:
    """Whether the coordinate of a dimension holds names of channels."""
    return _words(source, dim) and bool({str(v) for v in source.coords[dim].values} & set(names))


def _places(source: Any, dim: str, what: str, task: TaskSpec, names: tuple[str, ...]) -> list[int]:
    """Where along a dimension of names each channel lies, in the order of the task."""
    held = [str(v) for v in source.coords[dim].values]
    missing = [name for name in names if name not in held and name != task.mask]
    if missing:
        raise ConfigError(f"{what} has no channel '{missing[0]}' along {dim}; it has {', '.join(held)}.")
    return [held.index(name) for name in names if name in held]


def _falls(source: Any, dim: str, bounds: tuple[float, float], what: str) -> bool:
    """Whether the coordinate of an axis falls; refused where it does not run through the box."""
    if dim not in source.coords or source.coords[dim].dtype.kind not in "fiu":
        return False
    x, (low, high) = np.asarray(source.coords[dim].values, np.float64), bounds
    steps = np.diff(x)
    if not len(steps) or not ((steps > 0).all() or (steps < 0).all()):
        raise ConfigError(f"{what}: its coordinate {dim} neither rises nor falls throughout; sort it.")
    cell = 1.01 * float(np.abs(steps).max())
    ends = (x.min() - low, high - x.max())  # half a cell where these are centres, 0 where they are walls
    if min(ends) < -cell / 2 or max(ends) > cell:
        raise ConfigError(
            f"{what}: its coordinate {dim} runs from {x.min():g} to {x.max():g}, but the task's box from {low:g} to "
            f"{high:g}; give a state on the whole of it."
        )
    return bool(steps[0] < 0)


def _last_time(source: Any, time: str | None) -> float:
    """The last given time, where it is a number; 0 where none is known."""
    name = time or next((t for t in TIMES if t in source.coords), None)
    if name is None or name not in source.coords or source.coords[name].dtype.kind not in "fiu":
        return 0.0
    return float(np.asarray(source.coords[name].values).reshape(-1)[-1])
