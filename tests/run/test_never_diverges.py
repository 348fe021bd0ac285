"""A thousand rollouts of poor simulators from states nobody should give, ten times the horizon: none diverges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ups.config import load
from ups.data import open_source
from ups.models.limits import FARTHEST_REPAIRED
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import run_config
from ups.run.load import load as load_simulator
from ups.run.run import run_alone
from ups.tensors import numeric_params
from ups.types import Array

FRAMES, LONGER, EACH = 11, 10, 168  # of the data; times as many are predicted; rollouts of each data set
SETS: dict[str, dict[str, Any]] = {
    "burgers1d": {"resolution": 64, "params": {"nu": 0.01}},
    "ks1d": {"resolution": 64, "params": {}},
    "reacdiff2d": {"resolution": 16, "params": {}},
    "swe2d": {"resolution": 16, "params": {}},
    "cfd2d": {"resolution": 16, "params": {"eta": 0.1, "zeta": 0.1}},
    "cfd3d": {"resolution": 8, "params": {"eta": 0.1, "zeta": 0.1}},
}


def trained(name: str, out: Path) -> Path:
    """A simulator of few seconds at a learning rate at which it hardly learns."""
    settings: dict[str, Any] = {"out": str(out), "name": name, "device": "cpu", "batch": 4}
    settings |= {f"data.x.{key}": value for key, value in SETS[name].items()}
    settings |= {"data.x.task": name, "data.x.samples": 12, "data.x.frames": FRAMES, "data.x.device": "cpu"}
    settings |= {"train.seconds": 1.5, "train.lr": 0.02, "evaluation.baselines": []}
    settings |= {"model.operator.width": 32, "model.operator.depth": 2, "model.operator.heads": 2}
    return run_alone(load(run_config(), None, settings), Screen.silent())[0].folder


def odd_states(real: Array, low: Array, high: Array, rng: np.random.Generator) -> dict[str, Array]:
    """States `(B, *S, C)` by kind: real ones, and what no one should give."""
    size, shape = EACH // 6, (EACH // 6, *real.shape[1:])
    whole = real[rng.integers(0, len(real), size)]
    spikes = whole.copy()
    for state in spikes.reshape(size, -1, real.shape[-1]):
        state[rng.integers(len(state))] = high + 1e3 * (high - low)
    return {
        "real": whole,
        "noise": rng.uniform(low, high, shape),
        "zeros": np.zeros(shape),
        "rough": whole + rng.normal(size=shape) * (high - low),
        "outside": whole * 10.0 + (high - low),
        "spikes": spikes,
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETS)
def test_no_rollout_diverges_whatever_it_starts_from(name: str, tmp_path: Path) -> None:
    folder = trained(name, tmp_path)
    sim = load_simulator(folder)
    task, (path,) = sim.tasks[0], [*(folder / "cache" / "data").glob("*.h*5")]
    statistics = sim.codec.statistics_of(task)
    low, high = (x.double().numpy() for x in (statistics.least, statistics.most))
    with open_source(path, TASKS, name) as source:
        real = np.stack([source[i].values[-1] for i in range(len(source))])
        params = {p: float(v) for p, v in source.params_of(0).items() if p in numeric_params(task)}
        words = {p: v for p, v in source.params_of(0).items() if p not in params}
    counts: dict[str, dict[str, int]] = {}
    for kind, states in odd_states(real, low, high, np.random.default_rng(0)).items():
        answer = sim.rollout(states.astype(np.float32), LONGER * (FRAMES - 1), {**params, **words}, details=True)
        least, most = (end(states, tuple(range(1, states.ndim - 1))) for end in (np.amin, np.amax))
        least, most = np.minimum(least, low), np.maximum(most, high)
        width = FARTHEST_REPAIRED * (most - least) * (1 + 1e-6)
        axes = tuple(range(1, answer.frames.ndim - 1))
        far = (answer.frames.min(axes) < least - width) | (answer.frames.max(axes) > most + width)
        lost = ~np.isfinite(answer.frames).all((*axes, answer.frames.ndim - 1))
        left = sum(step is not None for step in answer.left_range_at)
        counts[kind] = {"rollouts": len(states), "left": left, "diverged": int((far.any(1) | lost).sum())}
    print(name, json.dumps(counts))
    assert torch.tensor([row["diverged"] for row in counts.values()]).sum() == 0, counts
