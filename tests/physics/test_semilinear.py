"""Semilinear equations in one, two and three dimensions, and random states for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from ups.physics.initial import random_waves
from ups.physics.random import Draw
from ups.physics.semilinear import Semilinear
from ups.physics.solver import solve
from ups.types import Field, Grid, Storage, TaskSpec


@dataclass(frozen=True)
class Decay(Semilinear):
    """u_t = a Δu + u v, v_t = b Δv + 0 with a = 0.01, b = 0.02: two channels, two symbols, any box."""

    task: ClassVar[TaskSpec] = TaskSpec(
        name="decay",
        title="Decay",
        fields=(Field.scalar("u"), Field.scalar("v")),
        bounds=((0.0, 1.0),),
        periodic=(True,),
        resolution=16,
        end=1.0,
        frames=2,
        storage=Storage(kind="fields", pattern="decay.hdf5", datasets=("u", "v")),
    )

    @property
    def highest(self) -> float:
        return 40.0

    @property
    def step(self) -> float:
        return 0.02

    def symbol(self, k: Tensor) -> Tensor:
        return -k.square().sum(0).unsqueeze(-1) * torch.tensor([0.01, 0.02], dtype=k.dtype)

    def nonlinear(self, u: Tensor) -> Tensor:
        product = u.prod(-1)
        return torch.stack([product, torch.zeros_like(product)], dim=-1)

    def initial(self, draw: Draw, grid: Grid) -> Tensor:
        return random_waves(draw, grid, channels=2)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("cells", [6, 15])
def test_each_channel_has_its_symbol_and_values_are_those_at_the_stored_points(ndim: int, cells: int) -> None:
    grid = Grid((cells,) * ndim, (True,) * ndim, ((0.0, 1.0),) * ndim)
    x = torch.as_tensor(grid.coordinates[0]).reshape(-1, *([1] * (ndim - 1))).expand(grid.shape)
    wave = torch.cos(2 * math.pi * x)
    # v is uniform, so u grows by e^{vt} while its wave decays; v keeps its value.
    u0 = torch.stack([wave, torch.full_like(wave, 0.3)], dim=-1).unsqueeze(0)
    stepper = Decay().stepper("accurate", grid, u0)
    frames = solve(stepper, u0, [0.0, 0.2])[0, 1]
    assert all(fine % cells == 0 and fine >= 1.5 * 40 / math.pi for fine in stepper.inner.grid.shape)
    growth = math.exp(0.2 * (0.3 - 0.01 * (2 * math.pi) ** 2))
    torch.testing.assert_close(frames[..., 0], growth * wave, rtol=0, atol=1e-8)
    torch.testing.assert_close(frames[..., 1], u0[0, ..., 1], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("ndim", "cells"), [(1, 33), (2, 12), (3, 9)])
def test_random_waves_are_one_state_on_every_grid_and_as_large_as_asked(ndim: int, cells: int) -> None:
    coarse, fine = (Grid((n,) * ndim, (True,) * ndim, ((-1.0, 1.0),) * ndim) for n in (cells, 3 * cells))
    u, v = (random_waves(Draw(0, range(4)), grid, amplitude=0.7, channels=2) for grid in (coarse, fine))
    assert u.shape == (4, *coarse.shape, 2)
    torch.testing.assert_close(v[(slice(None), *[slice(1, None, 3)] * ndim)], u, rtol=0, atol=1e-12)
    assert 0.5 < float(v.abs().max()) < 0.75
    assert float(v.flatten(1, -2).mean(1).abs().max()) < 1e-12
