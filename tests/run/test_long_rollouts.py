"""Rollouts far beyond the truth: their sizes against growth that is known, trajectory by trajectory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grids import grid_of
from ups.eval.rollout import persistence
from ups.physics import TASKS
from ups.run.config import EvalConfig
from ups.run.judging.long_rollouts import long_rollouts
from ups.tensors import Window


@dataclass
class Growing:
    """Every frame is so many times as large as the one before it."""

    rate: float
    name: str = "growing"

    def predict(self, window: Window, steps: int) -> Tensor:
        assert window.targets.shape[1] == 0, "a predictor is not shown the answer"
        return torch.stack([window.state * self.rate ** (step + 1) for step in range(steps)], 1)


def window(samples: int, first: int = 0) -> Window:
    """Sines around a mean of 1 that decay by a tenth from frame to frame, two given and four to predict."""
    x = 2 * torch.pi * torch.arange(16) / 16
    sizes = 0.9 ** torch.arange(6)[:, None] * torch.arange(first + 1, first + samples + 1)[:, None, None]
    values = (sizes * (1 + torch.sin(x)))[..., None]
    numbers = (torch.zeros(samples, 16, 0), torch.full((samples, 1), 0.01), torch.full((samples,), 0.1))
    facts = (*numbers, grid_of(values[:, 0], (True,), (1.0,)))
    return Window(TASKS["burgers1d"], values[:, :2], values[:, 2:], *facts)


def test_the_size_of_a_rollout_is_its_largest_over_the_largest_of_the_truth() -> None:
    """From the second frame on, 0.9 of the largest, twelve frames are three times those of the truth."""
    asked = EvalConfig(horizon=3)
    found = long_rollouts(persistence, [(Growing(1.05), None), (Growing(1.3, "far"), None)], [window(2)], asked, 2)
    still, slow, fast = found["persistence"], found["growing"], found["far"]
    assert set(still) == {"3x size", "3x bounded", "3x law mass", "3x law range of u"}
    np.testing.assert_allclose(still["3x size"], 0.9, rtol=1e-6)
    np.testing.assert_allclose(slow["3x size"], 0.9 * 1.05**12, rtol=1e-5)
    np.testing.assert_allclose(fast["3x size"], 0.9 * 1.3**12, rtol=1e-5)
    assert [list(row["3x bounded"]) for row in (still, slow, fast)] == [[1, 1], [1, 1], [0, 0]]
    assert float(still["3x law mass"].max()) < 1e-6 < 0.1 < float(slow["3x law mass"].min())
    assert float(still["3x law range of u"].max()) == 0 < 0.1 < float(slow["3x law range of u"].min())
    lost = long_rollouts(Growing(float("nan")), [], [window(2)], asked, 2)["growing"]
    assert (lost["3x size"] == np.inf).all()
    assert (lost["3x bounded"] == 0).all()


def test_about_as_many_trajectories_as_are_asked_for_are_rolled_out_from_all_over() -> None:
    windows = [window(3, first) for first in (0, 3, 6, 9)]

    def seen(samples: int) -> list[float]:
        starts: list[Tensor] = []

        @dataclass
        class Watching(Growing):
            def predict(self, window: Window, steps: int) -> Tensor:
                starts.append(window.state[:, 4, 0] / 1.8)
                return super().predict(window, steps)

        long_rollouts(Watching(1.0), [], windows, EvalConfig(horizon=2, samples=samples), 12)
        return torch.cat(starts).tolist()

    np.testing.assert_allclose(seen(4), [1, 4, 7, 10], rtol=1e-5)
    np.testing.assert_allclose(seen(16), range(1, 13), rtol=1e-5)


def test_nothing_is_asked_without_a_horizon_or_where_the_next_time_is_unknown() -> None:
    assert long_rollouts(persistence, [], [window(2)], EvalConfig(), 2) == {}
    uneven = dataclasses.replace(window(2), dt=torch.tensor([[0.1, 0.2, 0.1, 0.3]] * 2))
    assert long_rollouts(persistence, [], [uneven], EvalConfig(horizon=2), 2) == {}
    (sizes,) = (
        r["2x size"] for r in long_rollouts(persistence, [], [uneven, window(3)], EvalConfig(horizon=2), 5).values()
    )
    assert len(sizes) == 3, "the others of the task are asked all the same"
