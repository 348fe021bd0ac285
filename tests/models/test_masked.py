"""Masks: nothing that stands where nothing counts changes an answer, a repair or a law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_simulators import awaken

from ups.models import CodecConfig, OperatorConfig, Simulator, SimulatorConfig, build
from ups.physics.constraints import Conserved
from ups.physics.divergence import DivergenceFree
from ups.physics.laws import laws_of
from ups.types import ConfigError, Field, Grid, TaskSpec

PLAIN = TaskSpec(
    name="lake",
    title="A lake",
    fields=(Field.scalar("h"), Field.vector("v", "vx", "vy")),
    bounds=((0.0, 1.0), (0.0, 2.0)),
    periodic=(False, True),
    resolution=16,
    end=1.0,
    frames=11,
    conserved=("h",),
    positive=("h",),
    divergence_free=("v",),
)
LAKE = dataclasses.replace(PLAIN, inputs=(Field.scalar("wind"), Field.scalar("water")), mask="water")
ALONE = dataclasses.replace(PLAIN, inputs=(Field.scalar("water"),), mask="water")
ISLAND = np.ones((16, 16), bool)
ISLAND[5:9, 6:11] = False


def simulator(task: TaskSpec, lossless: bool = False, **config: bool) -> Simulator:
    small = OperatorConfig(width=16, depth=1, heads=2)
    sim = build([task], CodecConfig(dim=48), small, SimulatorConfig(**config), {task.name: (16, 16)}).eval()
    awaken(sim.operator if lossless else sim)
    return sim


def state(seed: int = 0) -> np.ndarray:
    return 1 + np.random.default_rng(seed).random((16, 16, 3)).astype(np.float32)


def with_nan(u: np.ndarray) -> np.ndarray:
    return np.where(ISLAND[..., None], u, np.nan).astype(np.float32)


def test_nan_in_a_state_is_the_mask_and_comes_back() -> None:
    sim = simulator(ALONE)
    out = sim.rollout(with_nan(state()), 3)
    assert (np.isfinite(out) == ISLAND[None, :, :, None]).all()
    said = sim.rollout(np.where(ISLAND[..., None], state(), 777.0), 3, inputs=ISLAND.astype(float))
    assert np.array_equal(out, said, equal_nan=True)
    whole = sim.rollout(state(), 3)
    assert np.isfinite(whole).all()
    assert not np.allclose(whole[:, ISLAND], out[:, ISLAND])


def test_the_mask_may_be_left_out_of_other_inputs_or_be_nan_itself() -> None:
    sim, wind = simulator(LAKE), np.random.default_rng(1).random((16, 16, 1)).astype(np.float32)
    mask = ISLAND[..., None].astype(np.float32)
    told = sim.rollout(with_nan(state()), 2, inputs=np.concatenate((wind, mask), -1))
    for inputs in (wind, wind[..., 0], np.concatenate((wind, np.full_like(mask, np.nan)), -1), with_nan(wind)):
        assert np.array_equal(sim.rollout(with_nan(state()), 2, inputs=inputs), told, equal_nan=True)
    with pytest.raises(ConfigError, match="driven by wind, water"):
        sim.rollout(with_nan(state()), 2)


def test_samples_may_have_masks_of_their_own() -> None:
    sim = simulator(ALONE)
    both = np.stack((with_nan(state()), state(1)))
    out = sim.rollout(both, 2)
    assert np.allclose(out[0], sim.rollout(both[0], 2), atol=1e-5, equal_nan=True)
    assert np.allclose(out[1], sim.rollout(both[1], 2), atol=1e-5)


def test_nan_is_refused_without_a_mask_and_where_the_mask_says_that_a_cell_counts() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        simulator(PLAIN).rollout(with_nan(state()), 1)
    with pytest.raises(ConfigError, match="not finite"):
        simulator(ALONE).rollout(with_nan(state()), 1, inputs=np.ones((16, 16)))
    with pytest.raises(ConfigError, match="give both on the same"):
        simulator(ALONE).rollout(state(), 1, inputs=np.ones((8, 8)))
    with pytest.raises(ConfigError, match="no cell"):
        simulator(ALONE).rollout(np.full((16, 16, 3), np.nan), 1)


def test_points_in_a_hole_are_nan_and_those_beside_it_are_not_drawn_to_what_fills_it() -> None:
    sim = simulator(ALONE)
    cells = [(i, j) for i in range(16) for j in range(16)]
    points = np.array([((i + 0.5) / 16, (j + 0.5) / 8) for i, j in cells])
    there = sim.rollout(with_nan(state()), 2, points=points)
    grid = sim.rollout(with_nan(state()), 2).reshape(2, 256, 3)
    assert np.allclose(there, grid, atol=1e-5, equal_nan=True)


def test_the_guard_keeps_totals_and_signs_of_the_cells_that_count() -> None:
    sim, much = simulator(ALONE, lossless=True), state() + 100
    total = sim.rollout(with_nan(much), 3)[:, ISLAND, 0].astype(np.float64).mean(1)
    assert np.abs(total / much[ISLAND, 0].astype(np.float64).mean() - 1).max() < 1e-6
    assert sim.rollout(with_nan(state()), 3)[:, ISLAND, 0].min() >= 0


def test_laws_are_measured_where_cells_count_and_no_divergence_is_claimed_of_a_masked_box() -> None:
    ring = dataclasses.replace(PLAIN, periodic=(True, True))
    assert any(isinstance(law, DivergenceFree) for law in laws_of(ring, ring.periodic))
    masked = dataclasses.replace(ring, inputs=ALONE.inputs, mask="water")
    assert any(isinstance(law, DivergenceFree) for law in laws_of(PLAIN, PLAIN.periodic))
    assert not any(isinstance(law, DivergenceFree) for law in laws_of(masked, masked.periodic))
    u = torch.rand(2, 3, 16, 16, 3, generator=torch.Generator().manual_seed(0)).double() + 1
    mask = torch.as_tensor(ISLAND).expand(2, 16, 16)
    u[..., 0] = torch.where(mask.unsqueeze(1), 1.5, -1e3 * u[..., 0])
    grid = Grid((16, 16), PLAIN.periodic, PLAIN.bounds)
    for law in laws_of(masked, masked.periodic):
        assert law.residual(u, grid, mask).max() < 1e-12
        assert law.residual(u, grid).min() > 1e-3
        if isinstance(law, Conserved):
            assert law.sampling_error(u, grid, mask).max() < 1e-12
            fixed = law.project(u + 1, u[:, 0], grid, mask)
            assert torch.allclose(fixed[:, :, mask[0]][..., 0], u[:, :, mask[0]][..., 0])


def test_xarray_holds_masks_as_nan_too_in_whatever_order() -> None:
    xarray = pytest.importorskip("xarray")
    sim, names = simulator(LAKE), ("h", "vx", "vy")
    wind = np.random.default_rng(1).random((16, 16)).astype(np.float32)
    told = sim.rollout(with_nan(state()), 2, inputs=wind)
    given = xarray.Dataset({name: (("y", "x"), with_nan(state())[..., i].T) for i, name in enumerate(names)})
    blown = xarray.Dataset({"wind": (("y", "x"), wind.T)})
    for inputs in (blown, blown["wind"], blown.assign(water=(("x", "y"), ISLAND.astype(float)))):
        out = sim.rollout(given, 2, inputs=inputs)
        for i, name in enumerate(names):
            assert np.array_equal(out[name].transpose("time", "x", "y").values, told[..., i], equal_nan=True)
