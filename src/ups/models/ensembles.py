"""Draws: the noise of each member of an ensemble, the same whoever is drawn beside it; and members stacked."""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ups.physics.random import philox
from ups.tensors import Window
from ups.types import ConfigError

TOGETHER = 16  # members that go together where the rows are not too many
ROWS = 512
MOST = 100_000  # members; more would be a slip of the finger
AT_ONCE = 2**22  # random numbers that are drawn for several steps at once
ALWAYS = 2**32 - 1  # in the place of a step: the noise that is the same at all of them


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
        """Standard normal numbers of the shape `(M · B, …)` of `like`; on all devices the same but for
        round-off in float64."""
        return self._of([step], like)[0]

    def of_steps(self, steps: int, like: Tensor) -> Iterator[Tensor]:
        """The numbers of each of the first `steps`, drawn for many steps at once."""
        together = max(1, AT_ONCE // like.numel())
        for first in range(0, steps, together):
            yield from self._of(range(first, min(first + together, steps)), like)

    def _of(self, steps: Sequence[int], like: Tensor) -> Tensor:
        fresh = self._normal(steps, like)
        if self.lasting:
            fresh = math.sqrt(self.lasting) * self._normal([ALWAYS], like) + math.sqrt(1 - self.lasting) * fresh
        return fresh.to(like.dtype)

    def _normal(self, steps: Sequence[int], like: Tensor) -> Tensor:
        """`(steps, M · B, …)`: of four random words four normal numbers, by Box and Muller in float64, in which devices
        hardly differ."""
        whole = functools.partial(torch.tensor, dtype=torch.int64, device=like.device)
        size = math.prod(like.shape[1:])
        counter = (
            torch.arange(-(-size // 4), device=like.device),
            whole(list(steps)).reshape(-1, 1, 1, 1),
            torch.arange(len(like) // len(self.members), device=like.device).unsqueeze(-1),
            whole(list(self.members)).reshape(-1, 1, 1),
        )
        digest = hashlib.sha256(f"members {self.seed}".encode()).digest()
        key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
        a, b, c, d = ((word.double() + 0.5) * 2.0**-32 for word in philox(counter, key))
        numbers = []
        for size_word, turn_word in ((a, b), (c, d)):
            radius, angle = (-2 * size_word.log()).sqrt(), 2 * math.pi * turn_word
            numbers += [radius * angle.cos(), radius * angle.sin()]
        return torch.stack(numbers, -1).flatten(-2)[..., :size].float().reshape(len(steps), *like.shape)


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
