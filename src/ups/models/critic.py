"""Critic: how wrong a drawn frame is, guessed from its tokens; what a search chooses by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ups.models.config import CriticConfig
from ups.models.tokens import TokenNetwork
from ups.tensors import Condition
from ups.types import TaskSpec

LEAST = 1e-6  # of a deviation that numbers are measured in
LARGEST = 20.0  # logarithm of a square error that is guessed


class Critic(TokenNetwork):
    """The logarithm of the square error of each number of drawn tokens, in units `s_task (D,)` of what draws usually
    miss (`fit_scales`), given the operator's prediction and the frame before it. It starts by guessing 0 for all."""

    Config: ClassVar[type] = CriticConfig
    rows: ClassVar[tuple[str, ...]] = ("scale", "change", "conditioner.task")
    scale: Tensor
    change: Tensor

    def __init__(
        self,
        config: CriticConfig,
        dim: int,
        tasks: Sequence[TaskSpec],
        patch: Sequence[int] = (4, 4, 2),
        grids: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(config, 3, dim, tasks, patch, grids)
        self.register_buffer("scale", torch.ones(len(tasks), dim))
        self.register_buffer("change", torch.ones(len(tasks), dim))

    def fit_scales(self, task: str, missed: Tensor, change: Tensor) -> None:
        """Record rms `(D,)` of what draws miss of `task`, and of what a step changes."""
        row = self.row(task)
        self.scale[row], self.change[row] = missed.clamp_min(LEAST), change.clamp_min(LEAST)

    def scale_of(self, task: str) -> Tensor:
        return self.scale[self.row(task)]

    def forward(self, drawn: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """Of tokens `drawn (B, *G, D)` where `z` was predicted to follow `last`: logarithms of square errors, alike."""
        row = self.row(condition.task)
        numbers = (drawn, (drawn - z) / self.scale[row], (drawn - last) / self.change[row])
        return self.network(numbers, self.conditioner(condition), condition).clamp(-LARGEST, LARGEST)

    def error(self, drawn: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """The guessed root mean square error of the tokens of each sample, `(B,)`."""
        square = self(drawn, z, last, condition).exp() * self.scale_of(condition.task).square()
        guess: Tensor = square.flatten(1).mean(1).sqrt()
        return guess
