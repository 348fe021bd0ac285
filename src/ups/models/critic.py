"""Critic: how wrong a drawn frame is, guessed from its tokens; what a search chooses by."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ups.models.config import CriticConfig
from ups.models.tokens import StepNetwork
from ups.tensors import Condition

LARGEST = 20.0  # logarithm of a square error that is guessed


class Critic(StepNetwork):
    """The logarithm of the square error of each number of drawn tokens, in units of what draws usually miss, given the
    operator's prediction and the frame before it. It starts by guessing 0 for all."""

    Config: ClassVar[type] = CriticConfig
    judges: ClassVar[bool] = True

    def forward(self, drawn: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """The guessed logarithms of square errors of tokens `drawn`, where `z` was predicted to follow `last`; all are
        `(B, *G, D)`."""
        row = self.row(condition.task)
        numbers = (drawn, (drawn - z) / self.scale[row], (drawn - last) / self.change[row])
        return self.network(numbers, self.conditioner(condition), condition).clamp(-LARGEST, LARGEST)

    def error(self, drawn: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """The guessed root mean square error of the tokens of each sample, `(B,)`."""
        square = self(drawn, z, last, condition).exp() * self.scale_of(condition.task).square()
        guess: Tensor = square.flatten(1).mean(1).sqrt()
        return guess
