"""Refines predicted steady states by iterations until they solve their equations to a tolerance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.models.arrays import Given, inputs_of, tensor_of
from ups.physics import EQUATIONS
from ups.physics.steady import MOST_ITERATIONS, SteadySystem
from ups.tensors import Window, numeric_params
from ups.types import Array, ConfigError, PhysicsError

# Below this, round-off in double precision is all that is left of a residual on fine grids.
FINEST = 1e-10


@dataclass(frozen=True)
class Solution:
    """A steady state refined to a tolerance. `field` and `predicted`, the network's own, are arrays of the kind that
    the inputs were, `field` in double precision; all else is one number per sample, `(B,)`.

    A residual is ‖b − A u‖ / ‖b‖ of the discrete equations A u = b. `iterations` led from the prediction to the
    tolerance; `iterations_from_zero` are those that the same solver needs from nothing.
    """

    field: Any
    predicted: Any
    residual: Array
    residual_predicted: Array
    iterations: Array
    iterations_from_zero: Array


def check_tolerance(tolerance: Any) -> float:
    """A ConfigError unless it is a number that a relative residual can reach."""
    if not isinstance(tolerance, int | float | np.number) or isinstance(tolerance, bool) or not FINEST <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance!r}, but must be a relative residual from {FINEST:g} to below 1.")
    return float(tolerance)


def check_alone(points: Any, ensemble: Any) -> None:
    """A ConfigError where points or draws are asked for together with a tolerance."""
    if points is not None:
        raise ConfigError("a refined solution is one on the grid of its inputs; leave points out, or tolerance.")
    if ensemble is not None:
        raise ConfigError("refined to a tolerance all draws are one solution; leave ensemble out, or tolerance.")


def unrefinable(window: Window) -> str:
    """Why the fields of a window cannot be refined, as a sentence; nothing where they can."""
    task = window.task
    if not task.steady:
        return f"{task.name} is not steady, so there is no residual to refine it by; leave tolerance out."
    if not task.equation:
        return (
            f"{task.name} names no equation, so there is no residual to refine it by; leave tolerance out, or say "
            "equation: … in its definition."
        )
    kind = EQUATIONS[task.equation]
    if window.grid.periodic != kind.task.periodic or task.mask or len(task.given) != len(kind.task.given):
        return (
            f"{task.name} is asked for under other boundaries, or has other inputs, than the equation {task.equation}, "
            "whose residual is known for its own alone; leave tolerance out."
        )
    missing = [p.name for p in kind.parameters() if p.name not in numeric_params(task)]
    if missing:
        return f"{task.name} does not state {missing[0]}, which the residual of {task.equation} needs."
    return ""


def in_double(window: Window, inputs: Any, params: Any) -> Window:
    """The window of what a user gives to be solved, its inputs and parameters as exact as they were given."""
    driven = inputs_of(inputs, window.task, window.inputs.device, torch.float64)
    assert driven is not None
    names, numbers = numeric_params(window.task), window.params.double().clone()
    if isinstance(params, Mapping):
        for column, name in enumerate(names):
            if isinstance(params.get(name), int | float | np.ndarray | np.number | Tensor | list | tuple):
                numbers[:, column] = tensor_of(params[name], name, numbers.device, torch.float64).reshape(-1)
    elif params is not None:
        numbers[:] = tensor_of(params, "params", numbers.device, torch.float64).reshape(-1, len(names))
    return dataclasses.replace(window, inputs=driven.values[:, 0], params=numbers)


def steady_system(window: Window) -> SteadySystem:
    """The equations that the steady states of a window solve; a ConfigError where they are not known."""
    if sentence := unrefinable(window):
        raise ConfigError(sentence)
    params = dict(zip(numeric_params(window.task), window.params.double().unbind(1), strict=True))
    return EQUATIONS[window.task.equation].steady_system(params, window.inputs, window.grid)


def solution_of(
    system: SteadySystem, frames: Tensor, tolerance: float, driven: Given, channels: tuple[str, ...]
) -> Solution:
    """Predicted frames `(B, 1, *S, C)` refined to a tolerance; a PhysicsError where it is not reached."""
    refined = system.refined(frames[:, 0], tolerance)
    if not bool((refined.after <= tolerance).all()):
        worst = float(refined.after.max())
        raise PhysicsError(
            f"{MOST_ITERATIONS} iterations reached a residual of {worst:.1e}, not {tolerance:g}; ask for a larger "
            "tolerance."
        )
    from_zero = system.refined(torch.zeros_like(refined.values), tolerance)
    fields = (driven.answer_once(u, np.ones(1), channels, False) for u in (refined.values.unsqueeze(1), frames))
    numbers = (refined.after, refined.before, refined.iterations, from_zero.iterations)
    return Solution(*fields, *(x.cpu().numpy() for x in numbers))
