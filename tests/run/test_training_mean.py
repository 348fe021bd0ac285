"""The forecast of a fixed profile, made of the training data a piece at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ups.data import open_source
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.definition import Definition
from ups.eval.learnt import shortfall
from ups.eval.rollout import EvalProtocol, evaluate, persistence
from ups.physics import TASKS
from ups.run.judging import training_mean as training
from ups.run.judging.training_mean import training_mean

RNG = np.random.default_rng(0)
PROFILE = 3 * np.sin(np.arange(32) / 5)
NOISE = (PROFILE + 0.5 * RNG.normal(size=(40, 12, 32))).astype("f4")


@pytest.fixture
def noise(tmp_path: Path) -> Trajectories:
    """White noise about a fixed profile."""
    np.save(tmp_path / "noise.npy", NOISE)
    task = Definition("noise", dims=("sample", "time", "x"), fields={"u": ("u",)}, dt=1.0)
    source = open_source(tmp_path / "noise.npy", TASKS, task)
    return Trajectories(source, source.ids, Reduction())


def test_each_cell_has_its_mean_over_trajectories_and_frames_and_nothing_is_kept_in_memory(
    noise: Trajectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PIECE", 5 * 32 * 4)
    mean = training_mean([noise], (32,))
    assert mean is not None
    assert mean.frame[:, 0].tolist() == pytest.approx(NOISE.mean((0, 1), dtype=float), rel=1e-6)
    assert noise._frames is None
    assert training_mean([noise], (64,)) is None, "no trajectory is on that grid"
    monkeypatch.setattr(training, "READ", 20 * 5 * 32 * 4)
    some = training_mean([noise], (32,))
    assert some is not None
    assert 0 < np.abs(some.frame[:, 0].numpy() - NOISE.mean((0, 1))).max() < 0.3


def test_cells_that_do_not_count_take_no_part_in_a_mean(noise: Trajectories) -> None:
    noise.mask = (torch.arange(40)[:, None] + torch.arange(32)) % 2 == 0
    mean = training_mean([noise], (32,))
    assert mean is not None
    for cell in (6, 7):
        assert float(mean.frame[cell]) == pytest.approx(NOISE[cell % 2 :: 2, :, cell].mean(dtype=float), rel=1e-6)


def test_a_profile_that_is_known_by_heart_is_not_learnt_though_it_beats_persistence(noise: Trajectories) -> None:
    class ByHeart:
        name = "ups"

        def predict(self, _: object, steps: int) -> torch.Tensor:
            return torch.as_tensor(PROFILE + 0.05, dtype=torch.float32)[:, None].expand(10, steps, 32, 1)

    test, asked = noise.window(range(30, 40), [0] * 10, 1, 11), EvalProtocol("A", 1)
    ours, still, mean = (
        evaluate(who, [test], asked) for who in (ByHeart(), persistence, training_mean([noise], (32,)))
    )
    assert shortfall(ours, still).words == "learnt"
    assert shortfall(ours, still, mean).words.startswith("NOT LEARNT: no better than the training mean (0.2")
