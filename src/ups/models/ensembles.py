"""Draws: the noise of each member of an ensemble, the same whoever is drawn beside it; members stacked in kind."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.tensors import Window
from ups.types import ConfigError

TOGETHER = 16  # members that go together where the rows are not too many
ROWS = 512
MOST = 100_000  # members; more would be a slip of the finger


@dataclass(frozen=True)
class Draws:
    """The noise of some members: of each sample and step a stream of its own, by seed, member and their numbers.

    So a member is the same in an ensemble of any size, and a sample the same in a batch of any size. Rows are those of
    all samples for the first member, then for the second, and so on.

    A part `lasting` (0 to 1) of the variance of a member's noise is the same at all steps: errors that a network makes
    again and again add up over a rollout faster than independent ones, and so do members then.
    """

    seed: int
    members: Sequence[int]
    lasting: float = 0.0

    def __call__(self, step: int, like: Tensor) -> Tensor:
        """Standard normal numbers of the shape `(M · B, …)` of `like`; drawn on the CPU, so that devices agree."""
        samples = range(len(like) // len(self.members))
        rows = [self._row(step, member, sample, like.shape[1:]) for member in self.members for sample in samples]
        return torch.stack(rows).to(like)

    def _row(self, step: int, member: int, sample: int, shape: Sequence[int]) -> Tensor:
        fresh = self._normal(step, member, sample, shape)
        if not self.lasting:
            return fresh
        same = self._normal("always", member, sample, shape)
        return math.sqrt(self.lasting) * same + math.sqrt(1 - self.lasting) * fresh

    def _normal(self, step: int | str, member: int, sample: int, shape: Sequence[int]) -> Tensor:
        words = f"{self.seed} {member} {step} {sample}".encode()
        number = int.from_bytes(hashlib.sha256(words).digest()[:8], "little")
        generator = torch.Generator().manual_seed(number % 2**63)
        return torch.randn(tuple(shape), generator=generator)


def members_of(
    simulate: Callable[..., Tensor],
    window: Window,
    steps: int,
    count: int,
    seed: int = 0,
    points: Tensor | None = None,
    together: int | None = None,
    lasting: float = 0.0,
) -> Tensor:
    """The rollouts `(M, B, steps, …, C)` of an ensemble after the context of a window, by a simulator's `simulate`.

    On a GPU several members go `together`. How many depends on the batch alone, and the last group is filled up, so
    that a member is the same to the bit in an ensemble of any size.
    """
    together = together or together_of(window)
    copies = Window.join([window] * together)
    answers = []
    for first in range(0, count, together):
        draws = Draws(seed, range(first, first + together), lasting)
        answer = simulate(copies, steps, points, draws)
        answers.append(torch.unflatten(answer, 0, (together, len(window)))[: count - first])
    return torch.cat(answers)


def together_of(window: Window) -> int:
    """Members that go together after the context of a window."""
    return max(1, min(TOGETHER, ROWS // len(window))) if window.context.is_cuda else 1


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
