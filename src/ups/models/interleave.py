"""Runs a simulator on a grid k times finer than its own, split into interleaved grids of trained spacing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ups.models.codec import Codec
from ups.models.copies import CELLS
from ups.tensors import TENSORS, Window

Strides = tuple[int, ...]


def strides_of(window: Window, codec: Codec) -> Strides | None:
    """How many grids of trained spacing lie in that of a window, along each axis; None where there is one alone.

    Data of which every k-th cell was picked have k such grids in the whole file. Along an axis that wraps they differ
    only in where they begin, of which an operator knows nothing. Between walls the place of a cell counts, and data
    that were not picked have no such grids: there the window's stays whole.
    """
    corner, grid = codec.corners.get(window.task.name), codec.shapes[window.task.name]
    cells = window.context.shape[2:-1]
    if corner is None or (window.task.given and window.inputs.shape[1:-1] != cells):
        return None
    picked = [wraps and bool(at) for wraps, at in zip(window.grid.periodic, corner, strict=True)]
    parts = tuple(n // g if apart and n % g == 0 else 1 for n, g, apart in zip(cells, grid, picked, strict=True))
    return parts if max(parts) > 1 else None


def taken_apart(window: Window, strides: Strides) -> Window:
    """All grids of every `strides`-th cell of a window, as samples of one: the first of all samples, then the next."""
    count = math.prod(strides)
    fields = {"context": 2, "targets": 2, "inputs": 1}  # and how many axes stand before those of space

    def change(name: str, x: Tensor) -> Tensor:
        return _apart(x, fields[name], strides) if name in fields else x.repeat(count, *[1] * (x.ndim - 1))

    held: dict[str, Any] = {name: change(name, getattr(window, name)) for name in TENSORS if name != "tokens"}
    grid = window.grid._replace(shape=tuple(held["context"].shape[2:-1]))
    return dataclasses.replace(window, **held, grid=grid, tokens=None, ids=window.ids * count)


def in_pieces(window: Window) -> Iterator[Window]:
    """The grids that are stepped together, few at a time, for they are many."""
    return window.split(max(1, CELLS // math.prod(window.context.shape[2:-1])))


def put_together(frames: Tensor, strides: Strides) -> Tensor:
    """The frames `(B, T, *S, C)` of which `taken_apart` would make these."""
    n = len(strides)
    x = torch.unflatten(frames, 0, (*strides, -1))  # (*strides, B, T, *G, C)
    order = [n, n + 1, *itertools.chain.from_iterable((n + 2 + axis, axis) for axis in range(n)), 2 * n + 2]
    x = x.permute(order)
    cells = [frames.shape[2 + axis] * stride for axis, stride in enumerate(strides)]
    return x.reshape(*x.shape[:2], *cells, x.shape[-1])


def _apart(x: Tensor, before: int, strides: Strides) -> Tensor:
    """`x` with `before` axes in front of those of space, its every-th cells as more samples."""
    lead, picked = (slice(None),) * before, []
    for place in itertools.product(*map(range, strides)):
        picked.append(x[(*lead, *itertools.starmap(_every, zip(place, strides, strict=True)))])
    return torch.cat(picked)


def _every(first: int, stride: int) -> slice:
    return slice(first, None, stride)
