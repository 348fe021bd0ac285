"""Diffusion-reaction and diffusion-sorption against formulas and independent solvers."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import erf
from torch import Tensor

from ups.physics.method_of_lines import RK45
from ups.physics.random import Draw
from ups.physics.reaction import (
    DiffSorp1D,
    Graded,
    ReacDiff1D,
    ReacDiff2D,
    Sorption,
    fitzhugh_nagumo,
    no_flux_laplacian,
)
from ups.physics.solver import solve
from ups.physics.stiff import Rodas4
from ups.types import Grid

LINE = Grid((64,), (False,), ((0.0, 1.0),))


@pytest.mark.parametrize("scheme", ReacDiff1D.schemes)
def test_reacdiff1d_without_waves_is_the_logistic_curve(scheme: str) -> None:
    equation = ReacDiff1D(nu=2.0, rho=5.0)
    grid = equation.grid(32)
    u0 = torch.tensor([0.01, 0.3, 1.0], dtype=torch.float64).reshape(3, 1, 1).expand(3, 32, 1)
    got = solve(equation.stepper(scheme, grid, u0), u0, equation.times())
    growth = torch.exp(5 * torch.tensor(equation.times(), dtype=torch.float64)).reshape(1, -1, 1, 1)
    truth = u0[:, None] * growth / (1 + u0[:, None] * (growth - 1))
    assert float((got - truth).abs().max()) < 1e-8


def test_reacdiff1d_carries_the_fisher_wave_at_its_speed() -> None:
    equation = ReacDiff1D(nu=2e-4, rho=8.0)
    grid = equation.grid(512)
    x = torch.tensor(grid.coordinates[0])
    scale, speed = math.sqrt(8.0 / 2e-4), 5 / math.sqrt(6) * math.sqrt(8.0 * 2e-4)

    def wave(t: float) -> Tensor:
        """Two fronts that run away from the middle of the box; they have not met on its other side."""
        return (1 + torch.exp(scale * ((x - 0.5).abs() - 0.15 - speed * t) / math.sqrt(6))) ** -2

    u0 = wave(0.0).reshape(1, -1, 1)
    got = solve(equation.stepper("accurate", grid, u0), u0, [0.0, 1.0])[0, 1, :, 0]
    near = ((x - 0.5).abs() > 0.1) & ((x - 0.5).abs() < 0.4)  # the two fronts disturb one another by e^{-27}
    assert float((got - wave(1.0))[near].abs().max()) < 1e-6
    assert float(wave(1.0)[near].min()) < 0.1  # the front itself is in the window


@pytest.mark.parametrize(("nu", "rho"), [(0.5, 1.0), (0.5, 10.0), (10.0, 1.0), (0.01, 10.0)])
def test_reacdiff1d_time_error_is_below_1e_8(nu: float, rho: float) -> None:
    equation = ReacDiff1D(nu=nu, rho=rho)
    grid = equation.grid(256)
    u0 = equation.initial(Draw(1, range(8)), grid)
    stepper = equation.stepper("accurate", grid, u0)
    fine = dataclasses.replace(stepper, step=stepper.step / 3, first=stepper.first / 4, pieces=3 * stepper.pieces)
    times = equation.times()[:11]
    assert float((solve(stepper, u0, times) - solve(fine, u0, times)).abs().max()) < 1e-8


def test_graded_steps_are_of_fourth_order() -> None:
    equation = ReacDiff1D(nu=0.5, rho=10.0)
    grid = equation.grid(128)
    u0 = equation.initial(Draw(1, range(4)), grid)
    base = equation.stepper("accurate", grid, u0)
    steppers = [dataclasses.replace(base, step=0.02 / p, pieces=p) for p in (4, 8, 16, 64)]
    *found, truth = (solve(s, u0, [0.0, 0.1])[:, 1] for s in steppers)
    errors = [float((u - truth).abs().max()) for u in found]
    assert isinstance(base, Graded)
    assert math.log2(errors[1] / errors[2]) > 3.5, errors


def literal_pdebench(u: np.ndarray, nu: float, rho: float, end: float) -> np.ndarray:
    """The explicit scheme itself: exact logistic step, central diffusion, midpoint, Courant number 0.25."""
    dx = 1 / u.shape[-1]
    count = math.ceil(end / (0.25 * 0.5 * dx * dx / nu))
    dt = end / count

    def update(base: np.ndarray, at: np.ndarray, h: float) -> np.ndarray:
        curvature = np.roll(at, 1, -1) - 2 * at + np.roll(at, -1, -1)
        grown = base / (base + (1 - base) * math.exp(-rho * h))
        return grown + h * nu / dx**2 * curvature

    for _ in range(count):
        u = update(u, update(u, u, dt / 2), dt)
    return u


def test_reacdiff1d_pdebench_is_the_literal_explicit_scheme() -> None:
    equation = ReacDiff1D(nu=0.5, rho=1.0)
    grid = equation.grid(256)
    u0 = equation.initial(Draw(3, range(4)), equation.points("pdebench", grid))
    got = solve(equation.stepper("pdebench", grid, u0), u0, [0.0, 0.02])[:, 1, :, 0]
    assert np.abs(got.numpy() - literal_pdebench(u0[..., 0].numpy(), 0.5, 1.0, 0.02)).max() < 1e-6


@pytest.mark.parametrize("scheme", ReacDiff1D.schemes)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reacdiff1d_stays_between_zero_and_one(scheme: str, dtype: torch.dtype) -> None:
    equation = ReacDiff1D(nu=0.5, rho=10.0)
    grid = equation.grid(128)
    got = equation.simulate(Draw(0, range(16), dtype=dtype), grid, equation.times()[:21], scheme)
    assert got.dtype == dtype
    assert got.shape == (16, 21, 128, 1)
    assert float(got.max()) <= 1 + 1e-5
    assert all(float(law.residual(got, grid).max()) == 0 for law in equation.laws())


def scipy_sorption(u0: float, times: list[float], dx: float, faces: bool) -> np.ndarray:
    """Written once more, from the equation, with scipy's implicit solver."""
    n = round(1 / dx)

    def rate(_: float, u: np.ndarray) -> np.ndarray:
        if faces:
            left = 2 - u[0]
            right = u[-1] * (5e-4 / dx - 0.5) / (5e-4 / dx + 0.5)
        else:
            left, right = 1.0, 5e-4 * (u[-2] - u[-1]) / dx
        padded = np.concatenate([[left], u, [right]])
        retardation = 1 + (1 - 0.29) / 0.29 * 2880 * 3.5e-4 * 0.874 * (np.abs(u) + 1e-6) ** (0.874 - 1)
        return 5e-4 * np.diff(padded, 2) / dx**2 / retardation

    found = solve_ivp(rate, (0, times[-1]), np.full(n, u0), "LSODA", times, rtol=1e-10, atol=1e-12, lband=1, uband=1)
    return np.asarray(found.y.T)


@pytest.mark.parametrize(("scheme", "tolerance"), [("accurate", 1e-7), ("pdebench", 1e-6)])
def test_diffsorp1d_agrees_with_an_independent_solver(scheme: str, tolerance: float) -> None:
    equation = DiffSorp1D()
    u0 = torch.tensor([0.0, 0.05, 0.2], dtype=torch.float64).reshape(3, 1, 1).expand(3, 64, 1)
    times = [0.0, 5.0, 50.0, 500.0]
    got = solve(equation.stepper(scheme, LINE, u0), u0, times)
    for sample, level in zip(got[..., 0].numpy(), (0.0, 0.05, 0.2), strict=True):
        truth = scipy_sorption(level, times, 1 / 64, faces=scheme == "accurate")
        assert np.abs(sample - truth).max() < tolerance


def test_diffsorp1d_without_sorption_is_the_heat_equation() -> None:
    grid = Grid((256,), (False,), ((0.0, 1.0),))
    cells = Sorption(grid, faces=True, capacity=0.0)
    u0 = torch.full((1, 256, 1), 0.1, dtype=torch.float64)
    got = solve(Rodas4(cells.rate, cells.jacobian, 1e-8, 1e-9), u0, [0.0, 10.0])[0, 1, :, 0].numpy()
    x = grid.coordinates[0]
    truth = 1 - 0.9 * erf(x / (2 * math.sqrt(5e-4 * 10)))
    far = x < 0.5  # the right end has not been felt there
    assert np.abs(got - truth)[far].max() < 1e-4


def test_diffsorp1d_steady_state_is_a_straight_line() -> None:
    """u_xx = 0 with u(0) = 1 and u(1) = −D u′: u = 1 − x/(1 + D), for any sorption."""
    cells = Sorption(LINE, faces=True)
    u0 = torch.full((1, 64, 1), 0.1, dtype=torch.float64)
    got = solve(Rodas4(cells.rate, cells.jacobian, 1e-8, 1e-9), u0, [0.0, 1e6])[0, 1, :, 0].numpy()
    np.testing.assert_allclose(got, 1 - LINE.coordinates[0] / (1 + 5e-4), atol=1e-6)


@pytest.mark.parametrize("scheme", DiffSorp1D.schemes)
def test_diffsorp1d_front_is_positive_and_monotone_and_only_moves_forward(scheme: str) -> None:
    equation = DiffSorp1D()
    u0 = torch.full((1, 64, 1), 0.0, dtype=torch.float64)
    got = solve(equation.stepper(scheme, LINE, u0), u0, equation.times()[:11])
    assert all(float(law.residual(got, LINE).max()) < 1e-6 for law in equation.laws())
    assert float(got[0, 1:, :, 0].diff(dim=-1).max()) < 1e-6
    assert float(got[0, :, :40, 0].diff(dim=0).min()) > -1e-6


def test_sorption_jacobian_is_the_derivative_of_the_rate() -> None:
    for faces in (True, False):
        cells = Sorption(Grid((6,), (False,), ((0.0, 1.0),)), faces=faces)
        u = torch.linspace(0.9, 0.1, 6, dtype=torch.float64).reshape(1, 6, 1)
        step = 1e-6 * torch.eye(6, dtype=torch.float64).unsqueeze(-1)
        dense = ((cells.rate(u + step) - cells.rate(u - step)) / 2e-6)[..., 0].T
        low, main, high = (diagonal[0] for diagonal in cells.jacobian(u))
        got = torch.diag(main) + torch.diag(low[1:], -1) + torch.diag(high[:-1], 1)
        torch.testing.assert_close(got, dense, rtol=1e-6, atol=1e-9)


def scipy_fitzhugh_nagumo(w: np.ndarray, dx: float) -> np.ndarray:
    padded = np.pad(w, ((1, 1), (1, 1), (0, 0)), mode="edge")
    laplacian = (padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2] - 4 * w) / dx**2
    u, v = w[..., 0], w[..., 1]
    return np.stack([1e-3 * laplacian[..., 0] + u - u**3 - 5e-3 - v, 5e-3 * laplacian[..., 1] + u - v], -1)


def test_reacdiff2d_pdebench_takes_scipys_steps() -> None:
    equation = ReacDiff2D()
    grid = equation.grid(16)
    u0 = equation.initial(Draw(5, range(2)), grid)
    times = equation.times()
    got = solve(equation.stepper("pdebench", grid, u0), u0, times)
    for sample, start in zip(got, u0, strict=True):
        truth = solve_ivp(
            lambda _, y: scipy_fitzhugh_nagumo(y.reshape(16, 16, 2), 2 / 16).ravel(),
            (0, 5.0),
            start.numpy().ravel(),
            t_eval=times,
        )
        assert np.abs(sample.numpy().reshape(len(times), -1) - truth.y.T).max() < 1e-10


def test_reacdiff2d_accurate_agrees_with_an_independent_solver() -> None:
    equation = ReacDiff2D()
    grid = equation.grid(16)
    u0 = equation.initial(Draw(5, range(1)), grid)
    got = solve(equation.stepper("accurate", grid, u0), u0, [0.0, 0.5, 5.0])
    truth = solve_ivp(
        lambda _, y: scipy_fitzhugh_nagumo(y.reshape(16, 16, 2), 2 / 16).ravel(),
        (0, 5.0),
        u0[0].numpy().ravel(),
        method="DOP853",
        t_eval=[0.0, 0.5, 5.0],
        rtol=1e-12,
        atol=1e-13,
    )
    assert np.abs(got[0].numpy().reshape(3, -1) - truth.y.T).max() < 1e-8


def test_reacdiff2d_diffusion_alone_loses_nothing_through_the_walls() -> None:
    u0 = torch.randn(2, 12, 9, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = solve(RK45(lambda u: no_flux_laplacian(u[..., 0], (0.1, 0.2)).unsqueeze(-1), 0.5), u0, [0.0, 0.1, 0.5])
    drift = (got - got[:, :1]).mean((2, 3)).abs().max()
    assert float(drift) < 1e-14
    assert float(got[:, -1].var()) < 0.1 * float(got[:, 0].var())


def test_reacdiff2d_commutes_with_transposition_and_rotation() -> None:
    w = torch.randn(2, 10, 10, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rate = fitzhugh_nagumo(w, (0.2, 0.2))
    torch.testing.assert_close(fitzhugh_nagumo(w.transpose(1, 2), (0.2, 0.2)), rate.transpose(1, 2))
    torch.testing.assert_close(fitzhugh_nagumo(w.rot90(1, (1, 2)), (0.2, 0.2)), rate.rot90(1, (1, 2)))


def test_reacdiff2d_starts_from_white_noise() -> None:
    equation = ReacDiff2D()
    noise = equation.initial(Draw(0, range(8)), equation.grid(64))
    assert noise.shape == (8, 64, 64, 2)
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    assert abs(float((noise[:, 1:] * noise[:, :-1]).mean())) < 0.02
    assert abs(float((noise[..., 0] * noise[..., 1]).mean())) < 0.02
