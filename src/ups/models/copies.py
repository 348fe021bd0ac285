"""Averages a step over shifted, mirrored and turned copies of the state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.models.codec import Codec
from ups.models.operator import LatentOperator
from ups.models.simulator_like import SimulatorLike
from ups.physics.symmetries import Chosen, Turns, turns_of
from ups.tensors import Condition, LatentState
from ups.types import Grid, TaskSpec

Move = tuple[int, ...]  # cells along each axis
CELLS = 2**21  # of copies that are stepped together


@dataclass(frozen=True)
class Copy:
    """A state `(B, *S, C)` mirrored and turned as chosen of `turns`, then rolled by so many cells along each axis.

    In this order the copies of an image are those of the state itself, whatever the moves are: a mean over them is
    turned with the state. The other way round it would be so only where a mirror leaves the set of moves as it is.
    """

    move: Move
    turns: Turns | None = None
    chosen: Chosen = ()

    def there(self, frames: Tensor) -> Tensor:
        frames = frames if self.turns is None else self.turns.there(frames, self.chosen, 1)
        return frames.roll(self.move, self._axes) if any(self.move) else frames

    def back(self, frames: Tensor) -> Tensor:
        frames = frames.roll([-n for n in self.move], self._axes) if any(self.move) else frames
        return frames if self.turns is None else self.turns.back(frames, self.chosen, 1)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.move)))


def advanced(simulator: SimulatorLike, z: Tensor, condition: Condition) -> Tensor:
    """The operator's tokens `(B, *G, D)` after those of `z (B, K, *G, D)`, by as many copies as the simulator's config
    says: what every part behind the operator is given, when it learns and when it is used."""
    task = simulator.codec.task(condition.task)
    copies = copies_of(simulator, task, condition)
    if len(copies) > 1:
        return averaged(simulator.codec, simulator.operator, copies, z, condition, task)
    answer: Tensor = simulator.operator(z, condition)
    return answer


def copies_of(simulator: SimulatorLike, task: TaskSpec, condition: Condition) -> list[Copy]:
    """The copies of a state over which a step is averaged, that as it is first. None but that of a task that is given
    fields or is steady: those have places."""
    config, patch = simulator.config, simulator.codec.config.patch[task.ndim - 1]
    if task.steady or task.inputs:
        return [Copy((0,) * task.ndim)]
    bounds = condition.grid.bounds or task.bounds
    grid = Grid(simulator.codec.shapes[task.name], condition.grid.periodic, bounds)
    turns, moves = images_of(simulator, task, grid), moves_of(patch, grid.periodic, config.shift_average)
    return [Copy(move, turns, chosen) for chosen in (turns.choices if turns else [()]) for move in moves]


def images_of(simulator: SimulatorLike, task: TaskSpec, grid: Grid) -> Turns | None:
    """The images of a state on a grid over which rollouts of a task are averaged; None where there are none."""
    own = grid._replace(corner=simulator.codec.beginning(task, grid))
    return turns_of(task, own) if simulator.config.images_in("rollout", task.name) else None


def moves_of(patch: int, periodic: tuple[bool, ...], count: int) -> list[Move]:
    """`count` moves by other parts of a patch along all axes that wrap, the first by none; as many as there are cells
    in a patch at most, and one where no axis wraps.

    All axes are moved at once. So in 1D, and along the diagonal of a plane or a box, all moves together leave nothing
    of what depends on where patches begin; along one axis of several about half of it is left.
    """
    count = min(count, patch)
    cells = [patch * i // count for i in range(count)] if any(periodic) else [0]
    return [tuple(n if wraps else 0 for wraps in periodic) for n in cells]


def averaged(
    codec: Codec, operator: LatentOperator, copies: Sequence[Copy], z: Tensor, condition: Condition, task: TaskSpec
) -> Tensor:
    """The tokens `(B, *G, D)` of the frame after those of `z (B, K, *G, D)`, which is the mean over copies.

    They are made of the mean alone: what the tokens of one copy hold beside their frame would be turned with no image
    of the state. What encoding loses of the mean is added once more: a trained codec adds no error in each step.
    """
    grid, (count, context) = Grid(codec.shapes[task.name], condition.grid.periodic), z.shape[:2]
    frames = codec.decode(LatentState(z.flatten(0, 1), grid), task)
    cells = math.prod(frames.shape[1:-1])
    # A program that is traced for any number of samples takes all copies together.
    many = len(copies) if torch.compiler.is_exporting() else max(1, CELLS // (count * cells))
    mean = torch.zeros_like(frames[:count])
    for start in range(0, len(copies), many):
        group = copies[start : start + many]
        tokens = [z if copy is copies[0] else _tokens(codec, copy.there(frames), task, grid, context) for copy in group]
        answers = operator(torch.cat(tokens), _repeated(condition, len(group)))
        predicted = torch.unflatten(codec.decode(LatentState(answers, grid), task), 0, (len(group), count))
        for copy, frame in zip(group, predicted.unbind(0), strict=True):
            mean = mean + copy.back(frame) / len(copies)
    after = codec.encode(mean, task, grid).z
    return codec.moved(after, mean - codec.decode(LatentState(after, grid), task), task, grid)


def _tokens(codec: Codec, frames: Tensor, task: TaskSpec, grid: Grid, context: int) -> Tensor:
    return torch.unflatten(codec.encode(frames, task, grid).z, 0, (-1, context))


def _repeated(condition: Condition, times: int) -> Condition:
    return dataclasses.replace(condition, params=condition.params.repeat(times, 1), dt=condition.dt.repeat(times))
