"""Advection and Burgers against the shift, Cole–Hopf, conservation and measured orders of convergence."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.fft import fft, ifft
from torch import Tensor

from ups.physics.random import Draw
from ups.physics.shocks import ResolvedBurgers
from ups.physics.solver import initial_states, solve
from ups.physics.transport import Advection1D, Burgers1D
from ups.types import Grid


def relative(found: Tensor, truth: Tensor) -> Tensor:
    """Relative L2 error per sample of `(B, N, 1)`."""
    return (found - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)


def cole_hopf(u0: NDArray[np.float64], diffusivity: float, t: float) -> NDArray[np.float64]:
    """u(x, t) of u_t + u u_x = d u_xx on the periodic unit interval at the points of `u0`, in closed form (d ≥ 0.01).

    φ = exp(−∫(u0 − mean)/(2d)) solves the heat equation; u = mean − 2d φ_x / φ at x shifted by mean · t.
    """
    n = len(u0)
    k = 2 * np.pi * np.fft.fftfreq(n, 1 / n)
    mean = u0.mean()
    hat = fft(u0 - mean)
    hat[0] = 0.0
    potential = ifft(np.where(k != 0, hat / np.where(k != 0, 1j * k, 1), 0)).real
    phi = fft(np.exp(-potential / (2 * diffusivity))) * np.exp(-diffusivity * k**2 * t - 1j * k * mean * t)
    return mean - 2 * diffusivity * ifft(1j * k * phi).real / ifft(phi).real


def test_accurate_advection_is_the_initial_state_moved_by_beta_t() -> None:
    equation = Advection1D(beta=0.7)
    grid, draw = equation.grid(128), Draw(0, range(6))
    frames = equation.simulate(draw, grid, [0.0, 0.3, 1.1], "accurate")
    for i, t in enumerate((0.0, 0.3, 1.1)):
        moved = Grid.along(((grid.coordinates[0] - 0.7 * t) % 1.0,), (True,), grid.bounds)
        assert torch.allclose(frames[:, i], equation.initial(draw, moved), atol=1e-12)


def test_one_period_of_advection_gives_the_initial_state_back() -> None:
    equation = Advection1D(beta=-2.0)
    frames = equation.simulate(Draw(1, range(4)), equation.grid(64), [0.0, 0.5], "accurate")
    assert torch.allclose(frames[:, 1], frames[:, 0], atol=1e-12)


@pytest.mark.parametrize(("beta", "known"), [(0.1, 1.4e-3)])
def test_pdebench_advection_shows_the_known_error_of_its_scheme_at_t_2(beta: float, known: float) -> None:
    equation = Advection1D(beta=beta)
    grid, draw = equation.grid(1024), Draw(0, range(100))
    frames = equation.simulate(draw, grid, [0.0, 2.0], "pdebench")
    truth = solve(equation.stepper("accurate", grid, frames), frames[:, 0], [0.0, 2.0])
    assert float(relative(frames[:, 1], truth[:, 1]).mean()) == pytest.approx(known, rel=0.35)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "known"), [(0.4, 3.6e-3), (1.0, 6.6e-3), (4.0, 1.6e-2)])
def test_pdebench_advection_shows_the_known_error_at_high_speed(beta: float, known: float) -> None:
    test_pdebench_advection_shows_the_known_error_of_its_scheme_at_t_2(beta, known)


@pytest.mark.parametrize("scheme", ["pdebench", "accurate"])
@pytest.mark.parametrize("nu", [0.05, 0.1, 1.0])
def test_burgers_is_cole_hopf(scheme: str, nu: float) -> None:
    equation = Burgers1D(nu=nu)
    resolution = 512 if scheme == "accurate" else 64
    grid = equation.grid(resolution)
    x = torch.as_tensor(grid.coordinates[0])
    u0 = (0.3 + torch.sin(2 * math.pi * x) + 0.5 * torch.cos(4 * math.pi * x + 1)).reshape(1, -1, 1)
    times = [0.0, 0.05, 0.3]
    found = solve(equation.stepper(scheme, grid, u0), u0, times)
    fine = (np.arange(4096) + 0.5 * 4096 / resolution) / 4096
    start = 0.3 + np.sin(2 * np.pi * fine) + 0.5 * np.cos(4 * np.pi * fine + 1)
    for i, t in enumerate(times):
        truth = torch.as_tensor(cole_hopf(start, nu / math.pi, t)[:: 4096 // resolution]).reshape(1, -1, 1)
        assert float(relative(found[:, i], truth)) < (1e-6 if scheme == "accurate" else 2e-2)


def test_resolved_shocks_have_the_same_bits_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    equation, found = Burgers1D(nu=0.02), []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(equation.simulate(Draw(0, range(12)), equation.grid(64), [0.0, 0.02, 0.04], "accurate"))
    assert torch.equal(*found)


def test_coarse_accurate_burgers_holds_point_values_of_the_resolved_solution() -> None:
    equation = Burgers1D(nu=0.05)
    draw, times = Draw(2, range(3)), [0.0, 0.2]
    coarse = equation.simulate(draw, equation.grid(60), times, "accurate")
    fine = equation.simulate(draw, equation.grid(60 * 5), times, "accurate")
    assert equation.refinement("accurate", equation.grid(60)) == 3
    assert float(relative(coarse[:, 1], fine[:, 1, 2::5]).max()) < 1e-6


def test_pdebench_burgers_converges_at_second_order() -> None:
    equation, errors = Burgers1D(nu=0.3), []
    for n in (32, 64, 128):
        grid = equation.grid(n)
        u0 = torch.sin(2 * math.pi * torch.as_tensor(grid.coordinates[0])).reshape(1, -1, 1)
        found = solve(equation.stepper("pdebench", grid, u0), u0, [0.0, 0.1])[:, 1]
        fine = np.sin(2 * np.pi * (np.arange(2048) + 0.5 * 2048 / n) / 2048)
        truth = torch.as_tensor(cole_hopf(fine, 0.3 / math.pi, 0.1)[:: 2048 // n]).reshape(1, -1, 1)
        errors.append(float(relative(found, truth)))
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert min(orders) > 1.7, orders


def explicit_burgers(u0: Tensor, nu: float, dx: float, interval: float) -> Tensor:
    """PDEBench's own steps of `(B, 1, N)`: limited slopes, Roe's flux, explicit central diffusion, midpoint rule."""

    def tendency(u: Tensor) -> Tensor:
        padded = torch.cat([u[..., -2:], u, u[..., :2]], dim=2)
        back, ahead = padded.diff()[..., :-1], padded.diff()[..., 1:]
        smaller = torch.minimum(torch.minimum(back.abs(), ahead.abs()), 0.25 * (back + ahead).abs())
        half = torch.where(back * ahead > 0, smaller * back.sign(), torch.zeros_like(back))
        left, right = padded[..., 1:-2] + half[..., :-1], padded[..., 2:-1] - half[..., 1:]
        flux = 0.25 * (left**2 + right**2) - 0.25 * (left + right).abs() * (right - left)
        flux = flux - nu / math.pi / dx * padded.diff()[..., 1:-1]
        return -flux.diff() / dx

    u, left = u0, torch.full((len(u0), 1, 1), interval, dtype=u0.dtype)
    while bool((left > 0).any()):
        longest = torch.minimum(dx / u.abs().amax(2, keepdim=True), torch.tensor(0.5 * dx**2 * math.pi / nu))
        dt = torch.minimum(0.25 * longest, left)
        u, left = u + dt * tendency(u + 0.5 * dt * tendency(u)), left - dt
    return u


@pytest.mark.parametrize("nu", [0.01, 0.1, 1.0])
def test_exact_diffusion_leaves_the_error_of_the_explicit_scheme_as_it_is(nu: float) -> None:
    equation, draw, times = Burgers1D(nu=nu), Draw(0, range(6)), [0.0, 0.02, 0.06]
    grid = equation.grid(128)
    u0 = initial_states(equation, draw, grid)
    truth = equation.simulate(draw, grid, times, "accurate")
    found = solve(equation.stepper("pdebench", grid, u0), u0, times)
    first = explicit_burgers(u0.movedim(-1, 1), nu, grid.spacing[0], 0.02)
    explicit = torch.stack([first, explicit_burgers(first, nu, grid.spacing[0], 0.04)], dim=1).movedim(2, -1)
    error, known = (relative(u, truth[:, 1:]).mean() for u in (found[:, 1:], explicit))
    assert float(error) < 1.02 * float(known)
    assert float(relative(found[:, 1:], explicit).mean()) < 0.25 * float(known)


def test_no_viscosity_makes_burgers_slow() -> None:
    equation, began = Burgers1D(nu=4.0), time.process_time()
    frames = equation.simulate(Draw(0, range(8), dtype=torch.float32), equation.grid(128), equation.times(), "pdebench")
    assert time.process_time() - began < 100  # an explicit scheme would take three hundred thousand steps: minutes
    assert float((frames.mean(2) - frames[:, :1].mean(2)).abs().max()) < 1e-5
    assert float(frames[:, -1].std(1).max()) < 1e-5


def test_accurate_burgers_solves_each_sample_as_finely_as_its_shocks_need() -> None:
    equation = Burgers1D(nu=0.02)
    grid = equation.grid(64).refined(equation.refinement("accurate", equation.grid(64)))
    u0 = initial_states(equation, Draw(1, range(4)), grid)
    times = [0.0, 0.1, 0.3]
    found = solve(equation.stepper("accurate", grid, u0), u0, times)
    stepper = ResolvedBurgers(grid, equation.diffusivity, step=2.5e-4, pace=0.1)
    fine = solve(stepper, u0, times)
    assert float(relative(found[:, 1:], fine[:, 1:]).max()) < 2e-6
    weak = solve(equation.stepper("accurate", grid, u0), 0.01 * u0, times)
    assert bool(weak.isfinite().all())
    still = solve(equation.stepper("accurate", grid, u0), torch.full_like(u0, 0.3), times)
    assert torch.allclose(still, torch.full_like(still, 0.3))


def test_accurate_burgers_converges_at_fourth_order_in_time() -> None:
    equation = Burgers1D(nu=0.05)
    grid = equation.grid(256)
    u0 = torch.sin(2 * math.pi * torch.as_tensor(grid.coordinates[0])).reshape(1, -1, 1)

    def final(step: float) -> Tensor:
        stepper = equation.stepper("accurate", grid, u0)
        stepper.step, stepper.pace = step, math.inf  # type: ignore[attr-defined]
        return solve(stepper, u0, [0.0, 0.24])[:, 1]

    truth = final(0.24 / 3840)
    errors = [float(relative(final(0.24 / n), truth)) for n in (30, 60, 120)]
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert min(orders) > 3.5, (orders, errors)


def test_burgers_keeps_the_mirror_symmetry_of_its_equation() -> None:
    equation = Burgers1D(nu=0.1)
    grid = equation.grid(96)
    u0 = initial_states(equation, Draw(0, range(4)), grid)
    for scheme in equation.schemes:
        ahead = solve(equation.stepper(scheme, grid, u0), u0, [0.0, 0.1])
        mirrored = solve(equation.stepper(scheme, grid, u0), -u0.flip(1), [0.0, 0.1])
        assert torch.allclose(mirrored, -ahead.flip(2), atol=1e-12)


def test_burgers_never_leaves_the_range_of_its_initial_state() -> None:
    equation = Burgers1D(nu=0.02)
    frames = equation.simulate(Draw(3, range(8)), equation.grid(128), [0.0, 0.1, 0.3], "pdebench")
    low, high = frames[:, :1].amin((2, 3)), frames[:, :1].amax((2, 3))
    assert bool((frames.amin((2, 3)) >= low - 1e-9).all())
    assert bool((frames.amax((2, 3)) <= high + 1e-9).all())


def test_random_states_have_the_statistics_of_pdebench() -> None:
    equation = Burgers1D()
    u0 = equation.initial(Draw(0, range(4000)), equation.grid(256))
    assert float(u0.std()) == pytest.approx(0.79, abs=0.05)
    assert 2.5 < float(u0.abs().max()) < 4.0
    assert abs(float(u0.mean())) < 0.05
    windowed = (u0[:, 0, 0].abs() < 1e-6) & (u0[:, -1, 0].abs() < 1e-6)
    assert float(windowed.double().mean()) == pytest.approx(0.1, abs=0.02)
