"""Heat carried over random points: learnt, judged and rolled out from a file as a user does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import Delaunay

from ups.config import load
from ups.data import open_source
from ups.jobs.recipe.data_profile import holdings
from ups.jobs.rollout import rollout
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.load import load as load_simulator
from ups.run.run import run_alone
from ups.types import OURS, PERSISTENCE, Array, Mesh

CONFIG = """
name: heat
data:
  heat:
    file: heat.npz
    task: {name: heat, periodic: [x, y], bounds: {x: [0, 1], y: [0, 1]}, conserved: [u]}
    split: {fractions: [0.6, 0.2, 0.2]}
model:
  codec: {dim: 16, patch: [4, 2, 2]}
  operator: {width: 32, depth: 2, heads: 2}
codec: {train: {steps: 0}}
operator: {batch: 8, loss: {increment: 0.0}, train: {steps: 120, lr: 4.0e-3, optimizer: muon}}
device: cpu
"""
WAVES = ((1, 0), (0, 1), (1, 1), (2, 1))
WIND, DIFFUSION = np.array([0.3, 0.1]), 0.004


def heat(table: Array, times: Array, samples: int) -> Array:
    """`(N, T, points)`: the analytic solution of advection and diffusion in a box that wraps."""
    draw, total = np.random.default_rng(0), np.zeros((samples, len(times), len(table)), np.float32)
    for wave in WAVES:
        k = 2 * np.pi * np.array(wave)
        size, phase = draw.normal(size=(2, samples, 1, 1))
        angle = (table @ k)[None, None] - (times * (WIND @ k))[None, :, None] + 6 * phase
        total += size * np.exp(-DIFFUSION * (k @ k) * times)[None, :, None] * np.cos(angle)
    return total


def quiet(*_: object) -> None:
    """Not shown."""


@pytest.mark.whole
def test_heat_on_a_mesh_is_learnt_judged_and_continued_also_where_training_had_no_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw, times = np.random.default_rng(1), np.linspace(0, 1, 11)
    table = draw.uniform(0, 1, (500, 2))
    np.savez("heat.npz", points=table, cells=Delaunay(table).simplices, u=heat(table, times, 30), t=times)
    Path("heat.yaml").write_text(CONFIG)
    (profile,) = holdings([Path("heat.npz")], "")
    assert (profile.task.domain, profile.hidden) == ("mesh", False)
    config = load(run_config(), Path("heat.yaml"), {})
    assert isinstance(config, RunConfig)
    folder, report = run_alone(config, Screen(quiet, quiet, quiet))
    errors = {r.predictor: r.value for r in report.records if r.metric == "nrmse" and r.mode == "strict"}
    assert errors[OURS] < 0.5 * errors[PERSISTENCE]
    assert not [r for r in report.records if r.metric.startswith(("frmse", "brmse"))]
    assert "webp" in folder.report.read_text() or "png" in folder.report.read_text()
    out = rollout(folder.folder, Path("heat.npz"), 4, Path("next.h5"), 3, None)
    written = open_source(out, TASKS)
    assert isinstance(written.grid, Mesh)
    assert written.read(0).shape == (5, 500, 1)
    simulator = load_simulator(folder.folder)
    other = draw.uniform(0, 1, (700, 2))
    start, later = heat(other, times[:2], 30)[-1]
    frame = simulator.rollout(start, 1, at=other)[0]
    assert np.linalg.norm(frame - later) < 0.3 * np.linalg.norm(later)
