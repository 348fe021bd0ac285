"""Mirror images and turns of samples: where an equation knows no direction, each of them is a sample again."""

from __future__ import annotations

import dataclasses
import itertools

from ups.later import Tensor, torch
from ups.physics import EQUATIONS
from ups.tensors import Window


def isotropic(window: Window) -> bool:
    """Whether the equation of a window's task knows no direction."""
    return bool(window.task.equation) and EQUATIONS[window.task.equation].isotropic


def turned(window: Window) -> Window:
    """A window with each sample mirrored along each axis, and x and y exchanged, or not, by chance; one whose equation
    knows a direction as it is."""
    if not isotropic(window):
        return window
    return _moved(window, torch.rand(_moves(window), len(window), device=window.targets.device) < 0.5)


def images(window: Window) -> Window:
    """All images of a window, one after the other: `n · len(window)` samples, the first of them as they are."""
    choices = torch.tensor(list(itertools.product((False, True), repeat=_moves(window))), device=window.context.device)
    return _moved(Window.join([window] * len(choices)), choices.T.repeat_interleave(len(window), 1))


def images_undone(frames: Tensor, window: Window) -> Tensor:
    """What was made of the images of a window, `(n · B, T, *S, C)`, moved back: `(n, B, T, *S, C)`."""
    choices = list(itertools.product((False, True), repeat=_moves(window)))
    answers = []
    for chosen, answer in zip(choices, frames.chunk(len(choices)), strict=True):
        for axis in reversed([axis for axis, moves in enumerate(chosen) if moves]):
            answer = _move(answer, axis, 2, window.task.ndim)
        answers.append(answer)
    return torch.stack(answers)


def _moves(window: Window) -> int:
    """How many moves there are: a mirror for each axis, and an exchange of the two axes of a plane that are alike."""
    cells = set(window.context.shape[2:-1])
    alike = window.task.ndim == 2 and len(cells) == len(set(window.box)) == len(set(window.periodic)) == 1
    return window.task.ndim + alike


def _moved(window: Window, chosen: Tensor) -> Window:
    """Each sample moved as `chosen (moves, B)` says, one move after the other."""

    def moved(values: Tensor, first: int) -> Tensor:
        for move, choice in enumerate(chosen):
            rows = choice.reshape(-1, *(1,) * (values.ndim - 1))
            values = torch.where(rows, _move(values, move, first, window.task.ndim), values)
        return values

    return dataclasses.replace(
        window,
        context=moved(window.context, 2),
        targets=moved(window.targets, 2),
        inputs=moved(window.inputs, 1) if window.task.given else window.inputs,
    )


def _move(values: Tensor, move: int, first: int, ndim: int) -> Tensor:
    """`(B, …, *S, C)`, whose axes of space begin at `first`, mirrored along one, or with two exchanged."""
    return values.flip(first + move) if move < ndim else values.transpose(first, first + 1)
