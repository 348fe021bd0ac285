"""Mirrored and turned samples: where an equation knows no direction, each of them is a sample again."""

from __future__ import annotations

import dataclasses

from ups.later import Tensor, torch
from ups.physics import EQUATIONS
from ups.tensors import Window


def turned(window: Window) -> Window:
    """A window with each sample mirrored along each axis, and x and y exchanged, or not, by chance.

    Only where the equation of its task is isotropic, and axes are exchanged only where they are alike; any other window
    is left as it is.
    """
    task = window.task
    if not task.equation or not EQUATIONS[task.equation].isotropic:
        return window
    cells, ndim = tuple(window.targets.shape[2:-1]), task.ndim
    alike = ndim == 2 and len(set(cells)) == len(set(window.box)) == len(set(window.periodic)) == 1
    chance = torch.rand(ndim + 1, len(window), device=window.targets.device) < 0.5

    def moved(values: Tensor, first: int) -> Tensor:
        """`(B, …, *S, C)` whose axes of space begin at `first`."""
        for i, choice in enumerate(chance[: ndim + alike]):
            rows = choice.reshape(-1, *(1,) * (values.ndim - 1))
            other = values.flip(first + i) if i < ndim else values.transpose(first, first + 1)
            values = torch.where(rows, other, values)
        return values

    return dataclasses.replace(
        window,
        context=moved(window.context, 2),
        targets=moved(window.targets, 2),
        inputs=moved(window.inputs, 1) if task.given else window.inputs,
    )
