"""Incompressible flow against the Taylor–Green vortex, Kolmogorov flow, conservation and symmetry."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ups.physics.incompressible import Incompressible2D
from ups.physics.random import Draw
from ups.physics.solver import initial_states, solve
from ups.types import Grid


def mesh(grid: Grid) -> tuple[Tensor, Tensor]:
    x, y = torch.meshgrid(*(torch.as_tensor(axis) for axis in grid.coordinates), indexing="ij")
    return x, y


def random_case(equation: Incompressible2D, grid: Grid, samples: int = 1) -> tuple[Tensor, Tensor]:
    draw = Draw(0, range(samples))
    return initial_states(equation, draw, grid), equation.inputs(draw, grid)


def test_taylor_green_vortices_decay_and_drift_with_the_mean_flow_exactly() -> None:
    equation = Incompressible2D(nu=0.02)
    grid = equation.grid(32)
    x, y = mesh(grid)
    k, drift = 2 * math.pi, (0.3, -0.2)

    def exact(t: float) -> Tensor:
        decay = math.exp(-2 * equation.nu * k**2 * t)
        a, b = k * (x - drift[0] * t), k * (y - drift[1] * t)
        u = drift[0] + decay * torch.cos(a) * torch.sin(b)
        v = drift[1] - decay * torch.sin(a) * torch.cos(b)
        return torch.stack([u, v, torch.ones_like(u)], -1).unsqueeze(0)

    frames = solve(equation.stepper("accurate", grid, x), exact(0.0), [0.0, 0.25, 0.5])
    for i, t in enumerate((0.0, 0.25, 0.5)):
        assert (frames[:, i] - exact(t)).abs().max() < 1e-8


def test_kolmogorov_forcing_spins_up_to_the_laminar_flow_and_its_mean_drives_the_mean() -> None:
    equation = Incompressible2D(nu=0.05)
    grid = equation.grid(32)
    x, y = mesh(grid)
    k = 4 * math.pi
    force = torch.stack([torch.sin(k * y), torch.full_like(x, 0.25)], -1).unsqueeze(0)
    start = torch.zeros(1, 32, 32, 3, dtype=torch.float64)
    frames = solve(equation.forced(grid, force * torch.tensor([1.0, 0.0])), start, [0.0, 0.4])
    rate = equation.nu * k**2
    laminar = torch.sin(k * y) / rate
    torch.testing.assert_close(frames[0, 1, ..., 0], laminar * (1 - math.exp(-rate * 0.4)), rtol=0, atol=1e-10)
    assert frames[0, 1, ..., 1].abs().max() < 1e-10
    start[0, ..., 0] = laminar
    steady = solve(equation.forced(grid, force * torch.tensor([1.0, 0.0])), start, [0.0, 0.4])
    torch.testing.assert_close(steady[0, 1], start[0], rtol=0, atol=1e-10)
    pushed = solve(equation.forced(grid, force), start, [0.0, 0.4])
    assert pushed[0, 1, ..., 1].mean().item() == pytest.approx(0.1, abs=1e-10)


def test_tracer_is_carried_and_spread_by_a_uniform_flow_exactly() -> None:
    equation = Incompressible2D(nu=0.1)
    grid = equation.grid(32)
    x, y = mesh(grid)
    k, t = 2 * math.pi, 0.3
    u0 = torch.stack([torch.full_like(x, 0.5), torch.full_like(x, 0.25), 1 + torch.sin(k * (x + 2 * y))], -1)
    got = solve(equation.stepper("accurate", grid, x), u0.unsqueeze(0), [0.0, t])[0, 1, ..., 2]
    want = 1 + math.exp(-equation.kappa * 5 * k**2 * t) * torch.sin(k * (x - 0.5 * t + 2 * (y - 0.25 * t)))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-7)


def test_random_flows_have_no_divergence_and_keep_their_tracer() -> None:
    equation = Incompressible2D()
    grid = equation.grid(48)
    frames = equation.simulate(Draw(0, range(2)), grid, [0.0, 0.02, 0.04], "accurate")
    residuals = {law.name: law.residual(frames, grid).max().item() for law in equation.laws()}
    assert residuals == pytest.approx({"particles": 0.0, "velocity": 0.0}, abs=1e-13)
    speed = frames[..., :2].norm(dim=-1)
    assert 0.3 < speed.max() < 1.1
    assert frames[..., 2].min() > -0.01


def test_steps_converge_with_the_fourth_power() -> None:
    equation = Incompressible2D(nu=0.1)
    grid = equation.grid(32)
    u0, force = random_case(equation, grid)
    u0[..., :2] *= 4
    stepper = equation.forced(grid, force)
    steps = (0.02, 0.01, 0.005)
    runs = [
        solve(replace(stepper, inner=replace(stepper.inner, step=h)), u0, [0.0, 0.2])[:, -1] for h in (*steps, 0.00125)
    ]
    errors = [(run - runs[-1]).abs().max().item() for run in runs[:-1]]
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(4.0, abs=0.4)
    assert errors[-1] < 1e-5


def test_transposing_the_plane_transposes_the_flow() -> None:
    equation = Incompressible2D(nu=0.05)
    grid = equation.grid(32)
    u0, force = random_case(equation, grid)
    swap = torch.tensor([1, 0, 2])
    plain = solve(equation.forced(grid, force), u0, [0.0, 0.05])[:, -1]
    flipped = solve(
        equation.forced(grid, force.transpose(1, 2)[..., swap[:2]]), u0.transpose(1, 2)[..., swap], [0.0, 0.05]
    )[:, -1]
    torch.testing.assert_close(flipped.transpose(1, 2)[..., swap], plain, rtol=0, atol=1e-12)


def test_a_stored_grid_coarser_than_the_solving_one_loses_nothing_it_can_hold() -> None:
    equation = Incompressible2D(nu=0.05)
    fine, coarse = equation.grid(96), equation.grid(32)
    draw = Draw(4, [1])
    u0, force = initial_states(equation, draw, fine), equation.inputs(draw, fine)
    whole = solve(equation.forced(fine, force), u0, [0.0, 0.05])[:, -1]
    part = solve(equation.forced(coarse, force[:, 1::3, 1::3]), u0[:, 1::3, 1::3], [0.0, 0.05])[:, -1]
    torch.testing.assert_close(part, whole[:, 1::3, 1::3], rtol=0, atol=1e-5)


def test_forces_have_no_mean_and_a_size_of_at_most_one() -> None:
    equation = Incompressible2D()
    forces = equation.inputs(Draw(9, range(7)), equation.grid(32))
    assert forces.mean((1, 2)).abs().max() < 1e-15
    assert forces.norm(dim=-1).amax((1, 2)).max() <= 1.0
