"""The grid of values, for tests that make windows and conditions by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from ups.tensors import Condition, Window
from ups.types import Grid

Asked = TypeVar("Asked", Condition, Window)


def grid_of(x: Tensor, periodic: tuple[bool, ...], box: Sequence[float] = (), corner: tuple[float, ...] = ()) -> Grid:
    """Of values `(B, *S, C)` in a box of such lengths."""
    return Grid(tuple(x.shape[1:-1]), periodic, tuple((0.0, length) for length in box), corner)


def boxed(asked: Asked, *box: float) -> Asked:
    """The same in a box of other lengths."""
    bounds = tuple((0.0, length) for length in box)
    return dataclasses.replace(asked, grid=asked.grid._replace(bounds=bounds))


def wrapping(asked: Asked, *periodic: bool) -> Asked:
    """The same with other axes that wrap."""
    return dataclasses.replace(asked, grid=asked.grid._replace(periodic=periodic))
