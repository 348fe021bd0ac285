"""Toys: a task, windows that are a pure function of the step, and a linear regression to learn from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from grids import grid_of
from ups.tensors import Losses, Window
from ups.types import Field, Storage, TaskSpec

TASK = TaskSpec(
    "toy", "Toy", (Field.scalar("u"),), ((0.0, 1.0),), (True,), 4, 1.0, 3, Storage("array", "toy.hdf5")
)  # fmt: skip
TRUE = torch.tensor([1.0, -2.0, 3.0, 0.5])
OFFSET = 0.25


def window(x: Tensor, y: Tensor, task: TaskSpec = TASK) -> Window:
    n = len(x)
    grid = grid_of(x.unsqueeze(-1), (True,), (1.0,))
    return Window(task, x[:, None, :, None], y[:, None, :, None], torch.zeros(n, 4, 0), x, torch.ones(n), grid)


class Regression:
    """Learns y = x·w + b; its score is the mean squared error."""

    name = "regression"

    def __init__(self, module: nn.Module | None = None) -> None:
        torch.manual_seed(1)
        self.module = module or nn.Linear(4, 1)

    def loss(self, w: Window) -> Losses:
        found, wanted = self.module(w.params), w.targets[:, 0, :, 0]
        return {"fit": (found.float() - wanted).square().mean()}

    def view(self, w: Window, progress: float) -> Window:
        assert 0 <= progress < 1
        return w

    def evaluate(self, w: Window) -> dict[str, Tensor]:
        return {"error": (self.module(w.params).float() - w.targets[:, 0, :, 0]).square().mean(1)}

    def score(self, means: Mapping[str, float]) -> float:
        return means["error"]


class Lines:
    """Windows of y = x·TRUE + OFFSET, drawn by the step alone; at the steps in `bad`, y is not finite."""

    def __init__(self, size: int = 16, bad: Iterable[int] = (), fails_at: int | None = None) -> None:
        self.size, self.bad, self.fails_at = size, set(bad), fails_at

    def batch(self, step: int) -> Window:
        if step == self.fails_at:
            raise KeyboardInterrupt
        x = torch.randn(self.size, 4, generator=torch.Generator().manual_seed(step))
        y = (x @ TRUE + OFFSET)[:, None]
        return window(x, y * float("nan") if step in self.bad else y)

    def count(self, step: int) -> int:  # noqa: ARG002
        return self.size

    def frames(self) -> tuple[int, int]:
        return self.size, self.size

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        yield self.batch(10**6)


class Ledger:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float | str]]] = []

    def log(self, step: int, values: dict[str, float | str]) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        pass

    def of(self, name: str) -> list[float]:
        return [float(values[name]) for _, values in self.rows if name in values]


def dropout_net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))


@pytest.fixture
def toy() -> SimpleNamespace:
    classes = {"Regression": Regression, "Lines": Lines, "Ledger": Ledger}
    return SimpleNamespace(task=TASK, true=TRUE, offset=OFFSET, window=window, net=dropout_net, **classes)
