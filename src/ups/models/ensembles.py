"""Draws: the noise of each member of an ensemble, the same whoever is drawn beside it; members stacked in kind."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.types import ConfigError

MOST = 100_000  # members; more would be a slip of the finger


@dataclass(frozen=True)
class Draws:
    """The noise of one member: of each sample and step a stream of its own, by the seed, the member and their numbers.

    So a member is the same in an ensemble of any size, and a sample the same in a batch of any size.
    """

    seed: int
    member: int

    def __call__(self, step: int, like: Tensor) -> Tensor:
        """Standard normal numbers of the shape `(B, …)` of `like`; drawn on the CPU, so that devices agree."""
        rows = [self._row(step, sample, like.shape[1:]) for sample in range(len(like))]
        return torch.stack(rows).to(like)

    def _row(self, step: int, sample: int, shape: Sequence[int]) -> Tensor:
        words = f"{self.seed} {self.member} {step} {sample}".encode()
        number = int.from_bytes(hashlib.sha256(words).digest()[:8], "little")
        generator = torch.Generator().manual_seed(number % 2**63)
        return torch.randn(tuple(shape), generator=generator)


def check_ensemble(members: Any, seed: Any) -> None:
    """A ConfigError unless they are whole numbers that make sense."""
    for name, value, least in (("ensemble", members, 1), ("seed", seed, 0)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} is {value!r}, but must be a whole number of at least {least}.")
    if members > MOST:
        raise ConfigError(f"an ensemble of {members} members is more than the {MOST} that make sense; ask for fewer.")


def stacked(answers: Sequence[Any]) -> Any:
    """Answers of one kind along a new first axis, `member`."""
    if isinstance(answers[0], Tensor):
        return torch.stack(list(answers))
    if isinstance(answers[0], np.ndarray):
        return np.stack(list(answers))
    return importlib.import_module("xarray").concat(list(answers), dim="member")
