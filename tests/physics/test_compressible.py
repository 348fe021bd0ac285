"""Compressible Navier–Stokes against exact Riemann solutions, linear waves and an isentropic vortex."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from ups.physics.compressible import Compressible1D, Compressible2D, Compressible3D, conserved
from ups.physics.random import Draw
from ups.physics.solver import initial_states, solve
from ups.types import Grid

G = 5 / 3
INVISCID = {"eta": 0.0, "zeta": 0.0}


def line(n, low=0.0, high=1.0, periodic=True):
    return Grid((n,), (periodic,), ((low, high),))


def run(equation, grid, u0, times):
    return solve(equation.stepper("pdebench", grid, u0), u0, times)


def state(*channels):
    """`(1, *S, C)` from arrays or numbers."""
    return torch.as_tensor(np.stack(np.broadcast_arrays(*channels), axis=-1))[None].clone()


def exact_riemann(left, right, xi):
    """Density, pressure, velocity at x/t = xi, by the iteration of Toro's chapter 4, for the ideal gas Γ = 5/3."""

    def wave(p, r, pk):
        if p > pk:
            return (p - pk) * math.sqrt(2 / ((G + 1) * r) / (p + (G - 1) / (G + 1) * pk))
        return 2 * math.sqrt(G * pk / r) / (G - 1) * ((p / pk) ** ((G - 1) / (2 * G)) - 1)

    (rl, pl, ul), (rr, pr, ur) = left, right
    p = brentq(lambda p: wave(p, rl, pl) + wave(p, rr, pr) + ur - ul, 1e-12, 1e6, xtol=1e-14)
    u = 0.5 * (ul + ur) + 0.5 * (wave(p, rr, pr) - wave(p, rl, pl))

    def side(r, pk, uk, s, xi):  # s = −1: left of the contact; the right side is its mirror image
        c, v = math.sqrt(G * pk / r), s * uk
        if p > pk:
            speed = v + c * math.sqrt((G + 1) / (2 * G) * p / pk + (G - 1) / (2 * G))
            ratio = (G - 1) / (G + 1)
            star = r * (p / pk + ratio) / (ratio * p / pk + 1)
            return np.where(s * xi > speed, [[r], [pk], [uk]], [[star], [p], [u]])
        star, cs = r * (p / pk) ** (1 / G), c * (p / pk) ** ((G - 1) / (2 * G))
        fan = np.clip(2 / (G + 1) + (G - 1) / (G + 1) / c * (s * xi - v) * 1.0, 0, None)
        inner = np.stack([r * fan ** (2 / (G - 1)), pk * fan ** (2 * G / (G - 1)), s * (s * xi - c * fan)])
        outside, inside = s * xi > v + c, s * xi < s * u + cs
        return np.where(outside, [[r], [pk], [uk]], np.where(inside, [[star], [p], [u]], inner))

    return np.where(xi < u, side(rl, pl, ul, -1, xi), side(rr, pr, ur, 1, xi))


def riemann_error(left, right, n, t):
    """(mean |density error|, mean |pressure error|, frames) of a Riemann problem on (−½, ½)."""
    grid = line(n, -0.5, 0.5, periodic=False)
    x = grid.coordinates[0]
    u0 = state(*(np.where(x < 0, a, b) for a, b in zip(left, right, strict=True)))
    frames = run(Compressible1D(**INVISCID, boundary="trans"), grid, u0, [0.0, t])
    error = np.abs(frames[0, -1].numpy().T - exact_riemann(left, right, x / t)).mean(1)
    return error[0], error[1], frames


def test_exact_riemann_solution_satisfies_the_jump_conditions():
    q = exact_riemann((1, 1, 0), (0.125, 0.1, 0), np.array([-5.0, 0.8, 0.9, 5.0]))
    w = conserved(torch.as_tensor(q.T)).numpy()[[2, 3]]
    flux = np.stack([w[:, 2], (w[:, 1] + q.T[2:, 1]) * q.T[2:, 2], w[:, 2] * q.T[2:, 2] + q.T[2:, 1]], axis=-1)
    speed = (flux[0] - flux[1]) / (w[0] - w[1])
    assert q[1, 1] == pytest.approx(q[1, 2])
    assert np.ptp(speed) < 1e-9


def test_sod_tube_converges_to_the_exact_solution_at_first_order():
    errors = [riemann_error((1, 1, 0), (0.125, 0.1, 0), n, 0.2)[0] for n in (100, 400)]
    assert errors[-1] < 1.7e-3
    assert math.log2(errors[0] / errors[-1]) / 2 > 0.8


@pytest.mark.slow
def test_sod_tube_at_1024_cells():
    density, pressure, _ = riemann_error((1, 1, 0), (0.125, 0.1, 0), 1024, 0.2)
    assert density < 8e-4
    assert pressure < 6e-4


def test_two_rarefactions_that_nearly_leave_a_vacuum_stay_positive():
    density, pressure, frames = riemann_error((1, 0.4, -2), (1, 0.4, 2), 200, 0.12)
    assert frames[..., :2].min() > 1e-4
    assert density < 5e-3
    assert pressure < 1.2e-3


def test_shock_of_pressure_ratio_1e5_is_where_it_should_be():
    density, _, frames = riemann_error((1, 1000, 0), (1, 0.01, 0), 400, 0.008)
    assert torch.isfinite(frames).all()
    assert frames[..., :2].min() > 0
    assert density < 0.025


def test_density_wave_converges_at_second_order():
    def error(n):
        grid = line(n)
        x = grid.coordinates[0]
        # Cell averages of 1 + 0.2 sin 2πx differ from centre values by this factor, at second order.
        wave = np.sin(2 * np.pi * x) * np.sinc(1 / n)
        frames = run(Compressible1D(**INVISCID), grid, state(1 + 0.2 * wave, 1.0, 1.0), [0.0, 0.25])
        shifted = np.sin(2 * np.pi * (x - 0.25)) * np.sinc(1 / n)
        return np.abs(frames[0, -1, :, 0].numpy() - 1 - 0.2 * shifted).mean()

    coarse, fine = error(32), error(128)
    assert math.log2(coarse / fine) / 2 > 1.8
    assert fine < 2e-4


def vortex(x, y, t, speed):
    """Isentropic vortex in a box of side 10, carried along x: an exact solution of the inviscid equations."""
    dx, dy = (x - speed * t + 5) % 10 - 5, y
    swirl = 2.0 / (2 * np.pi) * np.exp(0.5 * (1 - dx**2 - dy**2))
    heat = 1 - (G - 1) / (2 * G) * swirl**2
    return heat ** (1 / (G - 1)), heat ** (G / (G - 1)), speed - swirl * dy, swirl * dx


def test_isentropic_vortex_converges_at_second_order():
    def error(n):
        grid = Grid((n, n), (True, True), ((-5.0, 5.0),) * 2)
        x, y = np.meshgrid(*grid.coordinates, indexing="ij")
        frames = run(Compressible2D(**INVISCID), grid, state(*vortex(x, y, 0, 1.0)), [0.0, 1.0])
        return np.abs(frames[0, -1].numpy() - np.stack(vortex(x, y, 1.0, 1.0), -1)).mean()

    coarse, fine = error(32), error(64)
    assert math.log2(coarse / fine) > 1.6
    assert fine < 1e-3


@pytest.mark.parametrize("viscosity", [0.0, 0.05])
@pytest.mark.parametrize("kind", [Compressible1D, Compressible2D, Compressible3D])
def test_mass_momentum_and_energy_are_conserved_to_round_off(kind, viscosity):
    equation = kind(eta=viscosity, zeta=viscosity)
    grid = equation.grid({1: 64, 2: 24, 3: 8}[kind.task.ndim])
    u0 = initial_states(equation, Draw(3, range(3)), grid)
    frames = run(equation, grid, u0, [0.0, 0.02, 0.04])
    assert (frames[:, -1] - frames[:, 0]).abs().max() > 1e-3
    found = {law.name: law.residual(frames, grid).max().item() for law in equation.laws()}
    assert len(found) == 4 + kind.task.ndim
    assert max(found.values()) < 1e-13


def test_momentum_law_sees_a_drift():
    equation = Compressible2D()
    grid = equation.grid(16)
    frames = initial_states(equation, Draw(0, range(2)), grid).unsqueeze(1).repeat(1, 2, 1, 1, 1)
    frames[1, 1, ..., 3] += 0.1
    found = {law.name: law.residual(frames, grid) for law in equation.laws()}
    assert found["momentum y"][0] < 1e-15
    assert found["momentum y"][1] > 1e-3
    assert found["momentum x"].max() < 1e-15


def test_reflected_states_give_reflected_solutions():
    equation = Compressible1D(eta=0.01, zeta=0.01)
    grid = equation.grid(64)
    u0 = initial_states(equation, Draw(1, range(2)), grid)
    sign = torch.tensor([1.0, 1.0, -1.0])
    frames = run(equation, grid, torch.cat([u0, sign * u0.flip(1)]), [0.0, 0.1])[:, -1]
    torch.testing.assert_close(frames[2:], sign * frames[:2].flip(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("boundary", ["periodic", "trans"])
def test_exchanging_the_axes_exchanges_the_solution(boundary):
    equation = Compressible2D(eta=0.02, zeta=0.03, mach=1.0, boundary=boundary)
    grid = equation.grid(24)
    u0 = initial_states(equation, Draw(1, [0]), grid)
    swapped = u0.transpose(1, 2)[..., [0, 1, 3, 2]]
    frames = run(equation, grid, torch.cat([u0, swapped]), [0.0, 0.05])[:, -1]
    torch.testing.assert_close(frames[1], frames[0].transpose(0, 1)[..., [0, 1, 3, 2]], rtol=1e-11, atol=1e-11)


def test_solution_seen_from_a_moving_frame_is_the_same():
    equation, grid = Compressible1D(eta=0.01, zeta=0.01), line(128)
    x = grid.coordinates[0]
    rest = state(1 + 0.1 * np.sin(2 * np.pi * x), 1 + 0.1 * np.cos(2 * np.pi * x), 0.1 * np.sin(2 * np.pi * x))
    moving = rest + torch.tensor([0.0, 0.0, 1.0])
    frames = run(equation, grid, torch.cat([rest, moving]), [0.0, 0.25])[:, -1]
    back = frames[1].roll(-32, 0) - torch.tensor([0.0, 0.0, 1.0])
    assert (back - frames[0]).abs().mean() < 2e-4


@pytest.mark.parametrize(("viscosity", "tolerance"), [(0.0, 1e-12), (0.02, 5e-4)])  # viscous steps differ in length
def test_planar_flow_is_the_same_in_one_two_and_three_dimensions(viscosity, tolerance):
    wave = np.sin(2 * np.pi * line(16).coordinates[0])
    profile = (1 + 0.2 * wave, 1 + 0.1 * wave, 0.3 * wave)
    fluid = {"eta": viscosity, "zeta": viscosity}
    one = run(Compressible1D(**fluid), line(16), state(*profile), [0.0, 0.1])
    for kind, axes in ((Compressible2D, 1), (Compressible3D, 2)):
        grid = Grid((16, *(4,) * axes), (True,) * (1 + axes), ((0.0, 1.0), *((0.0, 0.25),) * axes))
        u0 = state(*(c.reshape(-1, *(1,) * axes) + np.zeros(grid.shape) for c in profile), *[0.0] * axes)
        many = run(kind(**fluid), grid, u0, [0.0, 0.1])[0, -1]
        assert many[..., 3:].abs().max() < 1e-14
        assert (many[(slice(None), *(1,) * axes)][..., :3] - one[0, -1]).abs().max() < tolerance


def test_shear_wave_decays_at_the_rate_of_the_shear_viscosity():
    eta, grid = 0.02, Grid((64, 8), (True, True), ((0.0, 1.0), (0.0, 0.125)))
    wave = 1e-3 * np.sin(2 * np.pi * grid.coordinates[0])[:, None] + np.zeros(grid.shape)
    frames = run(Compressible2D(eta=eta, zeta=0.3), grid, state(1.0, 1.0, 0.0, wave), [0.0, 0.5])
    ratio = (frames[0, -1, ..., 3].numpy() * wave).sum() / (wave**2).sum()
    assert ratio == pytest.approx(math.exp(-eta * (2 * np.pi) ** 2 * 0.5), rel=3e-3)


def test_sound_wave_decays_at_the_rate_of_the_longitudinal_viscosity():
    eta, zeta, grid, k = 0.02, 0.01, line(128), 2 * np.pi
    damping, c = 0.5 * (4 / 3 * eta + zeta) * k**2, math.sqrt(G)
    omega = math.sqrt((c * k) ** 2 - damping**2)
    t = 2 * math.pi / omega
    wave = 1e-4 * np.sin(k * grid.coordinates[0])
    frames = run(Compressible1D(eta=eta, zeta=zeta), grid, state(1.0, 1.0, wave), [0.0, t])
    ratio = (frames[0, -1, :, 2].numpy() * wave).sum() / (wave**2).sum()
    assert ratio == pytest.approx(math.exp(-damping * t), rel=1e-2)


def test_uniform_flow_stays_uniform_exactly():
    for kind in (Compressible1D, Compressible2D, Compressible3D):
        equation = kind(boundary="trans")
        grid = equation.grid(8)
        u0 = torch.tensor([1.3, 0.7, 0.4, -0.3, 0.2])[: 2 + grid.ndim].double().expand(1, *grid.shape, -1)
        frames = run(equation, grid, u0.contiguous(), [0.0, 0.05])
        assert (frames[:, -1] - frames[:, -1].flatten(0, -2)[0]).abs().max() == 0
        assert (frames - u0.unsqueeze(1)).abs().max() < 1e-14


def test_pulse_leaves_through_the_outgoing_boundary():
    grid = line(100, periodic=False)
    bump = 1e-2 * np.exp(-(((grid.coordinates[0] - 0.5) / 0.05) ** 2))
    frames = run(Compressible1D(**INVISCID, boundary="trans"), grid, state(1.0, 1 + bump, 0.0), [0.0, 0.2, 0.8])
    strength = (frames[0, ..., 1] - 1).abs().amax(1)
    assert strength[1] > 4e-3
    assert strength[2] < 5e-5


def test_single_precision_follows_double():
    equation = Compressible2D(mach=0.5)
    grid = equation.grid(24)
    double = equation.simulate(Draw(2, [0, 1]), grid, [0.0, 0.05], "pdebench")
    single = equation.simulate(Draw(2, [0, 1], dtype=torch.float32), grid, [0.0, 0.05], "pdebench")
    assert single.dtype == torch.float32
    scale = double.abs().amax((1, 2, 3), keepdim=True)
    assert ((single - double).abs() / scale).max() < 2e-5


@pytest.mark.parametrize(
    "equation",
    [
        Compressible1D(boundary="trans"),
        pytest.param(Compressible2D(eta=0.1, zeta=0.1), marks=pytest.mark.slow),
        pytest.param(Compressible3D(), marks=pytest.mark.slow),
    ],
)
def test_a_step_is_one_graph_without_a_look_at_the_data(equation):
    grid = equation.grid(8)
    u0 = initial_states(equation, Draw(0, range(2)), grid)
    stepper = equation.stepper("pdebench", grid, u0)
    left = torch.full((2,), 1.0, dtype=torch.float64)
    whole = torch.compile(stepper.step, backend="eager", fullgraph=True)  # a graph break raises
    torch.testing.assert_close(whole(stepper.start(u0), left), stepper.step(stepper.start(u0), left))


def test_accurate_scheme_conserves_and_is_closer_to_a_finer_solution():
    equation, times = Compressible1D(eta=0.01, zeta=0.01), [0.0, 0.05]
    grid, draw = equation.grid(32), Draw(11, [0])
    best = equation.coarsen(
        run(equation, grid.refined(16), initial_states(equation, draw, grid.refined(16)), times), 16
    )
    accurate = equation.simulate(draw, grid, times, "accurate")
    plain = run(equation, grid, initial_states(equation, draw, grid), times)
    assert accurate.shape == plain.shape
    assert max(law.residual(accurate, grid).max() for law in equation.laws()) < 1e-13
    assert (accurate - best)[:, -1].abs().mean() < 0.3 * (plain - best)[:, -1].abs().mean()
