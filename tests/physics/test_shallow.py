"""Shallow water against Stoker's dam break, the radial solution, and the symmetries of a round dam."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from ups.physics.finite_volume import FiniteVolume, flux_sum
from ups.physics.random import Draw
from ups.physics.riemann import roe_shallow
from ups.physics.shallow import (
    FRONT_SPEED,
    RadialDam,
    ShallowWater2D,
    disc_in_cells,
    radial_solver,
    wave_limit,
)
from ups.physics.solver import solve
from ups.types import Grid, PhysicsError


def square(n):
    return Grid((n, n), (False, False), ((-2.5, 2.5),) * 2)


def stoker(high, low, xi):
    """Height at x/t = xi of a planar dam break onto a wet bed, g = 1 (Stoker 1957), and the speed of the bore."""

    def mismatch(h):
        return 2 * (math.sqrt(high) - math.sqrt(h)) - (h - low) * math.sqrt(0.5 * (1 / h + 1 / low))

    h = brentq(mismatch, low, high, xtol=1e-14)
    u = 2 * (math.sqrt(high) - math.sqrt(h))
    bore = h * u / (h - low)
    fan = np.clip((2 * math.sqrt(high) - xi) / 3, math.sqrt(h), math.sqrt(high)) ** 2
    return np.where(xi < bore, fan, low), bore


def dam_break_error(high, low, n, t):
    grid = Grid((n,), (False,), ((-1.0, 1.0),))
    x = grid.coordinates[0]
    w = torch.as_tensor(np.stack([np.where(x < 0, high, low), 0 * x]))[None]
    solver = FiniteVolume(grid, flux_sum(grid, roe_shallow), wave_limit(grid.spacing), cfl=0.45)
    h = solver.advance(w, 0.0, t)[0, 0].numpy()
    return np.abs(h - stoker(high, low, x / t)[0]).mean(), h


def test_planar_dam_break_converges_to_stokers_solution():
    errors = [dam_break_error(2.0, 1.0, n, 0.4)[0] for n in (100, 200, 400)]
    assert errors[-1] < 1.6e-3
    assert math.log2(errors[0] / errors[-1]) / 2 > 0.8


def test_dam_break_through_the_critical_speed_has_no_expansion_shock():
    error, h = dam_break_error(2.0, 0.05, 200, 0.3)
    assert h.min() > 0
    assert np.abs(np.diff(h[60:110])).max() < 0.05
    assert error < 8e-3


def test_roe_flux_of_equal_states_is_the_flux_and_of_one_shock_is_exact():
    h, u, v = 1.3, 0.4, -0.7
    w = torch.tensor([h, h * u, h * v], dtype=torch.float64).view(1, 3, 1)
    expected = torch.tensor([h * u, h * u * u + h * h / 2, h * u * v], dtype=torch.float64)
    torch.testing.assert_close(roe_shallow(w, w, 0)[0, :, 0], expected)
    # A bore that stands still: h u is the same on both sides, and so is h u² + h²/2.
    hl, hr = 1.0, 2.0
    flow = math.sqrt(0.5 * hl * hr * (hl + hr))
    left, right = (torch.tensor([k, flow], dtype=torch.float64).view(1, 2, 1) for k in (hl, hr))
    exact = torch.tensor([flow, flow**2 / hl + hl**2 / 2], dtype=torch.float64)
    torch.testing.assert_close(roe_shallow(left, right, 0)[0, :, 0], exact)


def test_bore_does_not_reach_the_wall():
    _, bore = stoker(2.0, 1.0, np.zeros(1))
    assert bore < FRONT_SPEED
    assert 0.7 + FRONT_SPEED * 1.0 < 2.5


def test_lake_at_rest_stays_at_rest_exactly():
    equation, grid = ShallowWater2D(), square(16)
    lake = torch.full((1, 16, 16, 1), 1.7, dtype=torch.float64)
    assert (solve(equation.stepper("pdebench", grid, lake), lake, [0.0, 0.5]) == 1.7).all()
    rings = radial_solver(torch.linspace(0, 1, 65, dtype=torch.float64), 1 / 64)
    w = torch.stack([torch.full((64,), 1.7, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)])[None]
    assert torch.equal(rings.advance(w, 0.0, 0.5), w)


def test_disc_area_is_shared_among_cells_exactly():
    grid = square(20)
    radii = np.array([0.05, 0.3, 0.7, 2.4])
    area = disc_in_cells(grid, radii).sum((0, 1)) * 0.25**2
    np.testing.assert_allclose(area, np.pi * radii**2, rtol=1e-13)
    fine = grid.refined(40)
    inside = np.hypot(*np.meshgrid(*fine.coordinates, indexing="ij")) <= 0.7
    counted = inside.reshape(20, 40, 20, 40).mean((1, 3))
    assert np.abs(disc_in_cells(grid, radii)[..., 2] - counted).max() < 2e-2


def test_two_dimensional_flow_approaches_the_radial_solution():
    def error(n):
        equation, grid = ShallowWater2D(), square(n)
        frames = [equation.simulate(Draw(1, [0]), grid, [0.0, 0.5], s)[0, -1] for s in ("pdebench", "accurate")]
        return (frames[0] - frames[1]).abs().mean().item()

    coarse, fine = error(32), error(64)
    assert fine < 6e-3
    assert coarse / fine > 1.6


def test_radial_solution_has_converged():
    grid = square(16)
    radius = torch.tensor([0.5], dtype=torch.float64)
    u0 = torch.ones(1, 16, 16, 1, dtype=torch.float64)
    coarse = solve(RadialDam(grid, radius), u0, [0.0, 0.6])[:, -1]
    fine = solve(RadialDam(square(32), radius), torch.ones(1, 32, 32, 1).double(), [0.0, 0.6])[:, -1]
    fine = fine.unflatten(2, (16, 2)).mean(3).unflatten(1, (16, 2)).mean(2)
    assert (coarse - fine).abs().max() < 4e-3
    assert (coarse - fine).abs().mean() < 2e-4


@pytest.mark.parametrize("scheme", ["pdebench", "accurate"])
def test_round_dam_keeps_its_symmetry_its_mass_and_its_sign(scheme):
    equation, grid = ShallowWater2D(), square(24)
    frames = equation.simulate(Draw(0, range(3)), grid, [0.0, 0.3, 0.6, 1.0], scheme)
    for image in (frames.flip(2), frames.flip(3), frames.transpose(2, 3)):
        torch.testing.assert_close(frames, image, rtol=1e-11, atol=1e-11)
    found = {law.name: law.residual(frames, grid).max() for law in equation.laws()}
    assert found["mass"] < (1e-6 if scheme == "pdebench" else 1e-13)  # on coarse cells a trace of the wave has left
    assert found["height"] == 0
    assert frames.min() > 0.3


def test_dam_is_two_inside_and_one_outside_its_radius():
    equation = ShallowWater2D()
    draw = Draw(0, range(200))
    u = equation.initial(draw, square(128))
    radius = equation.radius(draw)
    assert set(u.unique().tolist()) == {1.0, 2.0}
    assert 0.3 < radius.min() < 0.32
    assert 0.68 < radius.max() < 0.7
    measured = ((u - 1).mean((1, 2, 3)) * 25 / math.pi).sqrt()
    assert (measured - radius).abs().max() < 0.01


def test_accurate_scheme_refuses_times_after_the_wall():
    with pytest.raises(PhysicsError, match="bore"):
        ShallowWater2D().simulate(Draw(0, [0]), square(16), [0.0, 2.0], "accurate")
