"""Mirrors and turns samples of equations without a preferred direction."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

from ups.lazy_imports import Tensor, torch
from ups.physics import EQUATIONS
from ups.tensors import Window
from ups.types import Grid, TaskSpec

Chosen = tuple[bool, ...]  # of each move, whether it is made


@dataclass(frozen=True)
class Turns:
    """The moves after which a sample is a sample again: `moves` names a mirror by its axis and the exchange of the two
    axes of a plane by 2; channels of `vectors` turn with space."""

    ndim: int
    moves: tuple[int, ...]
    vectors: tuple[tuple[int, ...], ...]

    @property
    def choices(self) -> list[Chosen]:
        """All images, that without any move first."""
        return list(itertools.product((False, True), repeat=len(self.moves)))

    def there(self, values: Tensor, chosen: Chosen, first: int) -> Tensor:
        """An image of `(B, …, *S, C)`, whose axes of space begin at `first`."""
        for move in itertools.compress(self.moves, chosen):
            values = self.move(values, move, first)
        return values

    def back(self, values: Tensor, chosen: Chosen, first: int) -> Tensor:
        """What an image is the image of."""
        for move in reversed(list(itertools.compress(self.moves, chosen))):
            values = self.move(values, move, first)
        return values

    def move(self, values: Tensor, move: int, first: int, vectors: bool = True) -> Tensor:
        """One move of `(B, …, *S, C)`; without `vectors` all channels are scalars."""
        values = values.flip(first + move) if move < self.ndim else values.transpose(first, first + 1)
        if not (vectors and self.vectors):
            return values
        channels = list(values.unbind(-1))
        for vector in self.vectors:
            if move < self.ndim:
                channels[vector[move]] = -channels[vector[move]]
            else:
                x, y = vector
                channels[x], channels[y] = channels[y], channels[x]
        return torch.stack(channels, -1)


def turns_of(task: TaskSpec, grid: Grid) -> Turns | None:
    """The moves that take the cells of a grid to each other, of a task whose equation knows no direction; None where
    there are none. Across walls between which cells were picked no mirror is among them: it leads to other cells."""
    vectors = _vectors_of(task)
    if vectors is None:
        return None
    sides = (set(grid.shape), set(grid.lengths), set(grid.periodic), set(grid.corner or (0.0,)))
    alike = task.ndim == 2 and all(len(side) == 1 for side in sides)
    moves = (*(axis for axis in range(task.ndim) if axis not in grid.one_sided), *((2,) if alike else ()))
    return Turns(task.ndim, moves, vectors) if moves else None


def mirrors_of(task: TaskSpec) -> tuple[tuple[int, ...], ...] | None:
    """The channels whose sign a mirror across each axis of a task changes; None where the equation knows a direction,
    so that a mirrored sample is none."""
    vectors = _vectors_of(task)
    return None if vectors is None else tuple(tuple(v[axis] for v in vectors) for axis in range(task.ndim))


def _vectors_of(task: TaskSpec) -> tuple[tuple[int, ...], ...] | None:
    """The channels of each vector of a task; None where its equation knows a direction, or is not known, or where the
    task has parameters or inputs beside those of the equation: one may belong to a side, or turn with space."""
    kind = EQUATIONS[task.equation] if task.equation else None
    if kind is None or not kind.isotropic:
        return None
    given = [name for name in task.given if name != task.mask]
    if {p.name for p in task.parameters} - {p.name for p in kind.parameters()} or len(given) != len(kind.task.given):
        return None
    # By the equation's own names: foreign data have its channels in the same order, and may call them otherwise.
    named = (*(f.channels for f in kind.task.fields if f.rank), *kind.vectors)
    return tuple(tuple(map(kind.task.channels.index, channels)) for channels in named)


def turned(window: Window) -> Window:
    """A window with each sample mirrored along each axis, and x and y exchanged, or not, by chance; one whose equation
    knows a direction as it is."""
    moves = turns_of(window.task, window.grid)
    if moves is None:
        return window
    return _moved(window, moves, torch.rand(len(moves.moves), len(window), device=window.targets.device) < 0.5)


def images(window: Window, moves: Turns) -> Window:
    """All images of a window, one after the other: `n · len(window)` samples, the first of them as they are."""
    choices = torch.tensor(moves.choices, device=window.context.device)
    return _moved(Window.join([window] * len(choices)), moves, choices.T.repeat_interleave(len(window), 1))


def images_undone(frames: Tensor, moves: Turns) -> Tensor:
    """What was made of the images of a window, `(n · B, T, *S, C)`, moved back: `(n, B, T, *S, C)`."""
    choices = moves.choices
    pairs = zip(choices, frames.chunk(len(choices)), strict=True)
    return torch.stack([moves.back(answer, chosen, 2) for chosen, answer in pairs])


def _moved(window: Window, moves: Turns, chosen: Tensor) -> Window:
    """Each sample moved as `chosen (moves, B)` says, one move after the other. What is given has no vectors."""

    def moved(values: Tensor, first: int, vectors: bool = True) -> Tensor:
        for move, choice in zip(moves.moves, chosen, strict=True):
            rows = choice.reshape(-1, *(1,) * (values.ndim - 1))
            values = torch.where(rows, moves.move(values, move, first, vectors), values)
        return values

    return dataclasses.replace(
        window,
        context=moved(window.context, 2),
        targets=moved(window.targets, 2),
        inputs=moved(window.inputs, 1, vectors=False) if window.task.given else window.inputs,
    )
