"""Puts the axes of a source into the order of its task, by their names, where a file holds them in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ups.data.source import Source, View
from ups.types import Array, Field, Grid, TaskSpec

Order = tuple[int, ...]  # for each axis of the new order, its place in the old one


def order_of(task: TaskSpec, like: TaskSpec) -> Order | None:
    """The places that the axes of `like` have in `task`; None where the order is the same, or the axes are others."""
    here, there = task.axes[: task.ndim], like.axes[: like.ndim]
    return tuple(here.index(axis) for axis in there) if here != there and sorted(here) == sorted(there) else None


def in_order(task: TaskSpec, like: TaskSpec) -> TaskSpec:
    """A task with its axes, and the components of its vectors, in the order of `like`; itself where it is in order.

    Fields that `like` has too get its order of channels, by their names; other vectors and tensors that of the axes.
    """
    order = order_of(task, like)
    if order is None:
        return task
    known = {frozenset(field.channels): field for field in (*like.fields, *like.inputs)}
    fields, inputs = (tuple(_in_order(f, order, known) for f in group) for group in (task.fields, task.inputs))
    bounds, periodic = tuple(task.bounds[at] for at in order), tuple(task.periodic[at] for at in order)
    axes = (*(task.axes[at] for at in order), *task.axes[task.ndim :])
    return dataclasses.replace(task, fields=fields, inputs=inputs, bounds=bounds, periodic=periodic, axes=axes)


def reordered(source: Source, like: TaskSpec) -> Source:
    """A source with its axes in the order of the task `like`; itself where it is in order or the axes are others."""
    order = order_of(source.task, like)
    return source if order is None else Reordered(source, order, in_order(source.task, like))


def reordering(task: TaskSpec, like: TaskSpec) -> str:
    """The note that `reordered` adds to a source; empty where it leaves it as it is."""
    if order_of(task, like) is None:
        return ""
    old, new = (", ".join(t.axes[: t.ndim]) for t in (task, like))
    return f"its axes are {old}, and are read as {new}, the order of the task"


class Reordered(View):
    """Another source with its axes of space in another order.

    Args:
        source: The other one.
        order: For each axis, its place in `source`.
        task: Its task in the new order, as `in_order` makes it.
    """

    def __init__(self, source: Source, order: Order, task: TaskSpec) -> None:
        notes = (*source.notes, reordering(source.task, task))
        super().__init__(source, task=task, grid=_grid(source.grid, order), notes=notes)
        self._order = order
        self._channels = [source.task.channels.index(name) for name in task.channels]
        self._given = [source.task.given.index(name) for name in task.given]

    def _values(self, index: int, frames: slice) -> Array:
        return self._moved(super()._values(index, frames), 1, self._channels)

    def _inputs(self, index: int) -> Array:
        return self._moved(super()._inputs(index), 0, self._given)

    def seen_as(self, grid: Grid) -> Grid:
        return _grid(grid, self._order)

    def _moved(self, values: Array, before: int, channels: Sequence[int]) -> Array:
        """Values, with `before` axes in front of those of space, reordered; `channels` are the channels' old places."""
        axes = (*range(before), *(before + at for at in self._order), values.ndim - 1)
        return np.ascontiguousarray(values.transpose(axes)[..., channels])


def _in_order(field: Field, order: Order, known: Mapping[frozenset[str], Field]) -> Field:
    """A field with its channels in the order of the known field that has the same ones, or else that of the axes."""
    if same := known.get(frozenset(field.channels)):
        return dataclasses.replace(field, channels=same.channels)
    shape = (len(order),) * field.rank
    if len(field.channels) != int(np.prod(shape)):
        return field
    places = np.arange(len(field.channels)).reshape(shape)[np.ix_(*[order] * field.rank)]
    return dataclasses.replace(field, channels=tuple(field.channels[at] for at in places.ravel()))


def _grid(grid: Grid, order: Order) -> Grid:
    return Grid.along(
        tuple(grid.coordinates[at] for at in order),
        tuple(grid.periodic[at] for at in order),
        tuple(grid.bounds[at] for at in order),
    )
