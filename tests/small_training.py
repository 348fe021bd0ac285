"""A small training for real ranks: a net with named blocks, windows that each rank gets its share of, a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from grids import grid_of
from ups.engine.ranks.dist import Dist
from ups.tensors import Losses, Window
from ups.types import Field, Storage, TaskSpec

TASK = TaskSpec("toy", "Toy", (Field.scalar("u"),), ((0.0, 1.0),), (True,), 4, 1.0, 3, Storage("array", "toy.hdf5"))
SIZE = 10  # does not divide evenly by 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return y


class Net(nn.Module):
    """A small residual net with named blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.enter, self.blocks, self.leave = (
            nn.Linear(4, 12),
            nn.ModuleList(Block() for _ in range(2)),
            nn.Linear(12, 1),
        )

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x)
        for block in self.blocks:
            y = block(y)
        z: Tensor = self.leave(y)
        return z


class Fitting:
    """Learns y = sin(sum x)."""

    name = "fitting"

    def __init__(self) -> None:
        self.module = Net()

    def view(self, w: Window, progress: float) -> Window:  # noqa: ARG002
        return w

    def loss(self, w: Window) -> Losses:
        return {"fit": self._errors(w).mean()}

    def evaluate(self, w: Window) -> dict[str, Tensor]:
        return {"error": self._errors(w)}

    def score(self, means: Mapping[str, float]) -> float:
        return means["error"]

    def _errors(self, w: Window) -> Tensor:
        return (self.module(w.params) - w.targets[:, 0, :, 0]).square().mean(1)


class Waves:
    """Windows of y = sin(sum x); each rank gets its share. `bad` steps are not finite on rank 1."""

    def __init__(self, dist: Dist, bad: tuple[int, ...] = (), size: int = SIZE) -> None:
        self.dist, self.bad, self.size = dist, bad, size

    def whole(self, step: int, size: int) -> Window:
        x = torch.randn(size, 4, generator=torch.Generator().manual_seed(step))
        y = x.sum(1, keepdim=True).sin()
        return Window(
            TASK,
            x[:, None, :, None],
            y[:, None, :, None],
            torch.zeros(size, 4, 0),
            x,
            torch.ones(size),
            grid_of(y[:, :, None], (True,), (1.0,)),
        )

    def batch(self, step: int) -> Window:
        rank, world = self.dist.rank, self.dist.world
        window = self.whole(step, self.size).rows(self.size * rank // world, self.size * (rank + 1) // world)
        if step in self.bad and rank == world - 1:
            window.targets.fill_(float("nan"))
        return window

    def count(self, step: int) -> int:  # noqa: ARG002
        return self.size

    def frames(self) -> tuple[int, int]:
        return self.size, 8

    def validation(self, step: int) -> list[Window]:  # noqa: ARG002
        return [self.whole(10**6, 7), self.whole(10**6 + 1, 1)]


class Rows:
    def __init__(self) -> None:
        self.losses: list[float] = []

    def log(self, step: int, values: Mapping[str, float | str]) -> None:  # noqa: ARG002
        self.losses += [float(v) for k, v in values.items() if k.endswith("/loss")]

    def close(self) -> None:
        """Nothing is open."""


class Failing:
    """Raises the k-th time this rank enters a phase at or after a step, as a real fault there would."""

    def __init__(self, rank: int, phase: str, step: int, error: Exception, times: int = 1) -> None:
        self.rank, self.phase, self.step, self.error, self.times = rank, phase, step, error, times

    def __call__(self, phase: str, step: int) -> None:
        if phase == self.phase and step >= self.step and self.times:
            self.times -= 1
            raise self.error


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(torch.equal(value, b["weights"][name]) for name, value in a["weights"].items())
