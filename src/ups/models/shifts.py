"""Steps averaged over copies of a state that are moved by parts of a patch: no answer knows where patches begin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ups.models.codec import Codec
from ups.models.config import SimulatorConfig
from ups.models.operator import LatentOperator
from ups.tensors import Condition, LatentState
from ups.types import TaskSpec

Move = tuple[int, ...]  # cells along each axis


class Stepper(Protocol):
    """What takes steps: a simulator."""

    codec: Codec
    operator: LatentOperator
    config: SimulatorConfig


def advanced(simulator: Stepper, z: Tensor, condition: Condition) -> Tensor:
    """The operator's tokens `(B, *G, D)` after those of `z (B, K, *G, D)`, by as many copies as the simulator's config
    says: what every part behind the operator is given, when it learns and when it is used."""
    codec, task = simulator.codec, simulator.codec.task(condition.task)
    patch = codec.config.patch[task.ndim - 1]
    if moves := moves_of(task, patch, condition.periodic, simulator.config.shifts):
        return averaged(codec, simulator.operator, moves, z, condition, task)
    answer: Tensor = simulator.operator(z, condition)
    return answer


def moves_of(task: TaskSpec, patch: int, periodic: tuple[bool, ...], count: int) -> tuple[Move, ...]:
    """`count` moves by other parts of a patch along all axes that wrap, the first by none; as many as there are cells
    in a patch at most. None of a task that is given fields or is steady, and where no axis wraps: those have places."""
    if count < 2 or task.steady or task.inputs or not any(periodic):
        return ()
    cells = sorted({patch * i // count for i in range(count)})
    return tuple(tuple(n if wraps else 0 for wraps in periodic) for n in cells)


def averaged(
    codec: Codec, operator: LatentOperator, moves: Sequence[Move], z: Tensor, condition: Condition, task: TaskSpec
) -> Tensor:
    """The operator's tokens `(B, *G, D)` after those of `z (B, K, *G, D)`, as the mean over moved copies says."""
    periodic, (count, context) = condition.periodic, z.shape[:2]
    axes = tuple(range(1, 1 + len(periodic)))
    frames = codec.decode(LatentState(z.flatten(0, 1), periodic), task)
    others = torch.cat([frames.roll(move, axes) for move in moves[1:]])
    copies = torch.unflatten(codec.encode(others, task, periodic).z, 0, (-1, context))
    many = len(moves)
    everyone = dataclasses.replace(condition, params=condition.params.repeat(many, 1), dt=condition.dt.repeat(many))
    answers = operator(torch.cat((z, copies)), everyone)
    found = codec.decode(LatentState(answers, periodic), task).chunk(many)
    back = [frame.roll([-n for n in move], axes) for frame, move in zip(found, moves, strict=True)]
    change = torch.stack(back).mean(0) - back[0]
    return codec.moved(answers[:count], change, task, periodic)
