"""Values at points go through the codec and come back; nothing depends on the order in which points stand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ups.clouds import nearest_volumes
from ups.models import build
from ups.models.config import CodecConfig, OperatorConfig
from ups.models.scattered import at_points, on_grid
from ups.models.simulator import Simulator
from ups.tensors import LatentState
from ups.types import Array, ConfigError, Field, Grid, Points, TaskSpec

DRAW = np.random.default_rng(0)
BOX, WRAPS = ((0.0, 1.0), (0.0, 1.0)), (True, True)
TASK = TaskSpec("heat", "", (Field.scalar("u"),), BOX, WRAPS, 16, 1.0, 11, domain="points")


def cloud(table: Array) -> Points:
    return Points.at(table, WRAPS, BOX, nearest_volumes(table, BOX, WRAPS))


def wave(table: Array) -> Tensor:
    """`(2, N, 1)`: two smooth fields at points."""
    x, y = 2 * np.pi * table.T
    return torch.as_tensor(np.stack((np.sin(x) * np.cos(y), np.cos(x + y + 1)))[..., None], dtype=torch.float32)


def simulator(cells: int) -> Simulator:
    sim = build(
        [TASK],
        CodecConfig(dim=16, patch=(4, 2, 2)),
        OperatorConfig(width=16, depth=1, heads=2),
        shapes={"heat": (cells, cells)},
    )
    sim.codec.fit_statistics(TASK, torch.zeros(1), torch.ones(1))
    return sim.eval()


def test_what_a_grid_resolves_comes_back_at_the_points_and_at_places_between_them() -> None:
    table, sim = DRAW.uniform(0, 1, (1200, 2)), simulator(32)
    points, u = cloud(table), wave(table)
    state = sim.codec.encode(u, TASK, points)
    back = sim.codec.decode(state, TASK, points.shape)
    assert (back - u).square().mean().sqrt() < 0.01 * u.square().mean().sqrt()
    elsewhere = DRAW.uniform(0, 1, (300, 2))
    there = sim.codec.decode(LatentState(state.z, cloud(elsewhere)), TASK, (300,))
    assert (there - wave(elsewhere)).square().mean().sqrt() < 0.02


def test_a_grid_given_as_points_in_any_order_has_the_tokens_of_the_grid() -> None:
    at = (np.arange(16) + 0.5) / 16
    table = np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
    order, sim = DRAW.permutation(256), simulator(16)
    u = torch.randn(3, 256, 1)
    whole = sim.codec.encode(u.reshape(3, 16, 16, 1), TASK, Grid((16, 16), WRAPS, BOX)).z
    assert torch.allclose(sim.codec.encode(u[:, order], TASK, cloud(table[order])).z, whole, atol=1e-5)


def test_another_order_of_the_points_is_another_order_of_the_answer() -> None:
    table, sim = DRAW.uniform(0, 1, (400, 2)), simulator(16)
    order, u = DRAW.permutation(400), wave(table).numpy()
    with torch.no_grad():
        for weight in sim.operator.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    straight = sim.rollout(u, 3, dt=0.1, at=table)
    turned = sim.rollout(u[:, order], 3, dt=0.1, at=table[order])
    assert straight.shape == (2, 3, 400, 1)
    assert np.abs(straight - u[:, None]).max() > 1e-3
    assert np.allclose(turned, straight[:, :, order], atol=1e-5)


def test_gradients_through_points_are_those_of_differences() -> None:
    table = DRAW.uniform(0, 1, (60, 2))
    points = cloud(table)
    x, w = torch.randn(2, 60, 1, requires_grad=True), torch.randn(2, 8, 8, 1)
    (on_grid(x, points, (8, 8)) * w).sum().backward()
    step = torch.zeros_like(x)
    step[1, 7] = 1.0
    assert x.grad is not None
    with torch.no_grad():
        slope = ((on_grid(x + step, points, (8, 8)) - on_grid(x, points, (8, 8))) * w).sum()
    assert slope.item() == pytest.approx(x.grad[1, 7].item(), abs=1e-3)
    g, v = torch.randn(2, 8, 8, 1, requires_grad=True), torch.randn(2, 60, 1)
    (at_points(g, points) * v).sum().backward()
    assert g.grad is not None
    assert (g * g.grad).sum().item() == pytest.approx((at_points(g, points) * v).sum().item(), rel=1e-3)


def test_a_conserved_channel_is_kept_by_the_volumes_of_the_points() -> None:
    table = np.concatenate([DRAW.uniform(0, 1, (300, 2)), DRAW.uniform(0, 0.5, (300, 2))])
    task = TaskSpec("heat", "", (Field.scalar("u"),), BOX, WRAPS, 16, 1.0, 11, domain="points", conserved=("u",))
    sim = build([task], CodecConfig(dim=16, patch=(4, 2, 2)), OperatorConfig(width=16, depth=1, heads=2))
    with torch.no_grad():
        for weight in sim.operator.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    u, volumes = wave(table).numpy() + 1, cloud(table).cloud.volumes
    frames = sim.rollout(u, 4, dt=0.1, at=table)
    totals = np.einsum("btpc,p->bt", frames.astype(np.float64), volumes) / volumes.sum()
    assert np.allclose(totals, totals[:, :1], atol=1e-5)
    assert np.allclose(totals[:, 0], (u[..., 0] * volumes).sum(1) / volumes.sum(), atol=1e-5)


def test_places_that_do_not_fit_the_state_are_refused() -> None:
    table, sim = DRAW.uniform(0, 1, (50, 2)), simulator(16)
    with pytest.raises(ConfigError, match="has 50 values, and at=… says where 40 points lie"):
        sim.rollout(wave(table), 1, dt=0.1, at=table[:40])
    with pytest.raises(ConfigError, match="where values lie at points, at=… says where these are"):
        sim.rollout(wave(table)[0, :, 0], 1, dt=0.1)
    assert math.isfinite(float(sim.rollout(wave(table), 1, dt=0.1, at=table + 3).sum()))  # it wraps
