"""Initial gas states: functions of the coordinates alone, with the statistics their descriptions promise."""

import math

import pytest
import torch

from ups.physics.compressible import Compressible1D, Compressible2D, Compressible3D
from ups.physics.divergence import DivergenceFree
from ups.physics.random import Draw
from ups.physics.solver import initial_states

G = 5 / 3


@pytest.mark.parametrize("kind", [Compressible1D, Compressible2D, Compressible3D])
@pytest.mark.parametrize("init", ["Rand", "Shock", "Turb"])
def test_initial_state_is_a_function_of_the_coordinates(kind, init):
    if init not in next(p.choices for p in kind.parameters() if p.name == "init"):
        return
    boundary = "trans" if init == "Shock" else "periodic"
    equation, n = kind(init=init, boundary=boundary), {1: 33, 2: 10, 3: 6}[kind.task.ndim]
    coarse = initial_states(equation, Draw(0, [3]), equation.grid(n))
    fine = initial_states(equation, Draw(0, [3, 8]), equation.grid(3 * n))
    every_third = (0, *([slice(1, None, 3)] * kind.task.ndim))
    torch.testing.assert_close(fine[every_third], coarse[0], rtol=1e-10, atol=1e-10)


def test_random_gas_has_the_asked_mach_number_and_contrast():
    equation = Compressible2D(mach=0.3)
    u = initial_states(equation, Draw(0, range(40)), equation.grid(64))
    density, pressure, speed = u[..., 0], u[..., 1], u[..., 2:].square().sum(-1).sqrt()
    base = density.flatten(1).median(1).values, pressure.flatten(1).median(1).values
    mach = speed.mean((1, 2)) / (G * base[1] / base[0]).sqrt()
    assert mach.sub(0.3).abs().max() < 0.02
    assert (density / base[0].view(-1, 1, 1) - 1).abs().max() < 0.25
    assert density.min() > 0.05
    assert density.max() < 12.1
    flat = (density - base[0].view(-1, 1, 1)).abs().lt(1e-9).flatten(1).double().mean(1) > 0.5
    assert 10 <= flat.sum() <= 30


def test_turbulence_starts_divergence_free_with_mean_speed_one():
    for kind, n in ((Compressible2D, 32), (Compressible3D, 16)):
        equation = kind(init="Turb", mach=0.5)
        grid = equation.grid(n)
        u = initial_states(equation, Draw(0, range(3)), grid)
        law = DivergenceFree("velocity", tuple(range(2, 2 + grid.ndim)))
        assert law.residual(u.unsqueeze(1), grid).max() < 1e-12
        assert u[..., 2:].square().sum(-1).sqrt().flatten(1).mean(1).sub(1).abs().max() < 0.01
        assert (u[..., 0] == 1).all()
        torch.testing.assert_close(u[..., 1], torch.full_like(u[..., 1], 1 / (G * 0.25)))


def test_shock_tubes_jump_once_in_the_middle_half_and_end_at_two_fifths():
    equation = Compressible1D(init="Shock", boundary="trans")
    grid = equation.grid(200)
    u = initial_states(equation, Draw(0, range(50)), grid)
    jumps = u.diff(dim=1) != 0
    assert (jumps.sum(1) == 1).all()
    place = torch.as_tensor(grid.coordinates[0])[jumps.double().argmax(1)]
    assert place.abs().max() <= 0.51
    for channel, (low, high) in enumerate([(1, 10), (10, 100), (math.exp(-0.5), math.exp(0.5))]):
        assert u[..., channel].min() >= low
        assert u[..., channel].max() <= high
    assert len(equation.times()) == 81
    assert equation.times()[-1] == pytest.approx(0.4)


def test_random_line_has_density_and_pressure_in_their_ranges():
    u = initial_states(Compressible1D(), Draw(0, range(100)), Compressible1D().grid(128))
    assert 1 <= u[..., 0].min() < 1.5
    assert 14 < u[..., 0].max() <= 20
    assert 10 <= u[..., 1].min() < 15
    assert 140 < u[..., 1].max() <= 200
    assert 0.5 < u[..., 2].std() < 1.1
