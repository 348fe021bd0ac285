"""Coefficients fitted to exact solutions are the true ones, and injected faults are found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from ups.physics import EQUATIONS
from ups.physics.balances import BALANCES, UNFITTABLE
from ups.physics.fit import Fitted, contradicts, fit
from ups.physics.random import Draw
from ups.types import Array, Grid, PhysicsError, Trajectory


def trajectory(task: str, values: Array, times: Array, grid: Grid, inputs: Array | None = None) -> Trajectory:
    given = np.zeros((*grid.shape, 0)) if inputs is None else inputs
    return Trajectory("0000", EQUATIONS[task].spec(), values.astype(np.float32), grid, times, {}, given)


def line(task: str, solution: Callable[[Array, float], Array], n: int, times: Array) -> Trajectory:
    """A 1D trajectory of `solution(x, t)` `(N,)` or `(N, C)` on the task's box."""
    grid = Grid((n,), (True,), EQUATIONS[task].task.bounds)
    values = np.stack([solution(grid.coordinates[0], t) for t in times])
    return trajectory(task, values if values.ndim == 3 else values[..., None], times, grid)


def plane(task: str, solution: Callable[[Array, Array, float], Array], n: int, times: Array) -> Trajectory:
    grid = Grid((n, n), (True, True), EQUATIONS[task].task.bounds)
    x, y = np.meshgrid(*grid.coordinates, indexing="ij")
    return trajectory(task, np.stack([solution(x, y, t) for t in times]), times, grid)


def simulated(task: str, n: int, scheme: str, times: list[float], samples: int = 2, **params: Any) -> list[Trajectory]:
    equation = EQUATIONS[task](**params)
    grid, draw = equation.grid(n), Draw(0, range(samples))
    frames = equation.simulate(draw, grid, times, scheme).numpy()
    inputs = equation.inputs(draw, grid).numpy()
    return [trajectory(task, u, np.array(times), grid, f) for u, f in zip(frames, inputs, strict=True)]


def values_of(found: list[Fitted]) -> dict[str, float]:
    return {f.name: f.value for f in found}


def contradicted(found: list[Fitted]) -> set[str]:
    return {f.name for f in found if contradicts(f)}


def slowed(sample: Trajectory, factor: float) -> Trajectory:
    return dataclasses.replace(sample, times=np.asarray(sample.times) * factor)


def stretched(sample: Trajectory, factor: float) -> Trajectory:
    """The same values on a box claimed to be `factor` times as long."""
    bounds = tuple((lo * factor, hi * factor) for lo, hi in sample.grid.bounds)
    return dataclasses.replace(sample, grid=Grid(sample.grid.shape, sample.grid.periodic, bounds))


def shift(beta: float) -> Trajectory:
    def u(x: Array, t: float) -> Array:
        s = 2 * math.pi * (x - beta * t)
        return 0.3 + np.sin(s + 0.2) + 0.5 * np.sin(3 * s) + 0.2 * np.cos(8 * s)

    return line("advection1d", u, 512, np.linspace(0, 2, 201))


def cole_hopf(nu: float, n: int = 512) -> Trajectory:
    """Burgers with diffusion D = ν/π through φ_t = D φ_xx, u = −2D φ_x/φ, from u = sin 2πx + ½ sin(4πx + 1)."""
    d, fine = nu / math.pi, 4096
    x = (np.arange(fine) + 0.5) / fine
    k = 2 * math.pi * np.arange(fine // 2 + 1)
    primitive = -np.cos(2 * math.pi * x) / (2 * math.pi) - 0.5 * np.cos(4 * math.pi * x + 1) / (4 * math.pi)
    start = np.fft.rfft(np.exp(-(primitive - primitive.min()) / (2 * d)))

    def u(_: Array, t: float) -> Array:
        hat = start * np.exp(-d * k**2 * t)
        hat[-1] = 0
        centre = np.exp(1j * k * 0.5 * (1 / n - 1 / fine))  # from the fine cells' centres to the coarse ones'
        phi, slope = (np.fft.irfft(h * centre)[:: fine // n] for h in (hat, 1j * k * hat))
        return -2 * d * slope / phi

    return line("burgers1d", u, n, np.linspace(0, 2, 201))


def fisher_wave(nu: float, rho: float) -> Trajectory:
    """The exact front of Ablowitz and Zeppetella."""
    return line(
        "reacdiff1d",
        lambda x, t: (1 + np.exp(math.sqrt(rho / (6 * nu)) * (x - 0.3) - 5 / 6 * rho * t)) ** -2.0,
        256,
        np.linspace(0, 1, 101),
    )


@pytest.mark.parametrize("beta", [0.1, 1.0, 4.0, -2.0, 7.0])
def test_advection_gives_its_velocity_within_a_percent(beta: float) -> None:
    (found,) = fit("advection1d", [shift(beta)], {"beta": beta})
    assert found.value == pytest.approx(beta, rel=0.01)
    assert found.residual < 0.02
    assert not contradicts(found)


def test_a_doubled_time_axis_and_a_wrong_box_are_found() -> None:
    claims = {"beta": 0.4}
    assert contradicted(fit("advection1d", [slowed(shift(0.4), 2.0)], claims)) == {"beta"}
    assert contradicted(fit("advection1d", [slowed(shift(0.4), 1 / 1.5)], claims)) == {"beta"}
    assert contradicted(fit("advection1d", [stretched(shift(0.4), 2.0)], claims)) == {"beta"}


@pytest.mark.parametrize("nu", [0.04, 0.2, 1.0])
def test_burgers_gives_flux_and_diffusion_within_a_percent(nu: float) -> None:
    found = fit("burgers1d", [cole_hopf(nu)], {"nu": nu})
    assert values_of(found) == pytest.approx({"flux": 1.0, "diffusion": nu / math.pi}, rel=0.01)
    assert not contradicted(found)


def test_burgers_faults_in_flux_time_box_and_viscosity_are_found() -> None:
    truth, claims = cole_hopf(0.04), {"nu": 0.04}
    # Half of a solution of u_t + (u²/2)_x = D u_xx solves v_t + (v²)_x = D v_xx: the flux without its half.
    halved = dataclasses.replace(truth, values=truth.values / 2)
    found = fit("burgers1d", [halved], claims)
    assert values_of(found) == pytest.approx({"flux": 2.0, "diffusion": 0.04 / math.pi}, rel=0.01)
    assert contradicted(found) == {"flux"}
    assert contradicted(fit("burgers1d", [slowed(truth, 2.0)], claims)) == {"flux", "diffusion"}
    assert contradicted(fit("burgers1d", [stretched(truth, 2.0)], claims)) == {"flux", "diffusion"}
    assert contradicted(fit("burgers1d", [truth], {"nu": 0.06})) == {"diffusion"}
    assert contradicted(fit("burgers1d", [truth], {"nu": 0.04 * math.pi})) == {"diffusion"}


def test_a_bare_shock_gives_the_flux_and_no_false_viscosity() -> None:
    def moving_step(x: Array, t: float) -> Array:
        dx = x[1] - x[0]
        return np.clip((0.25 + 0.5 * t - x) / dx + 0.5, 0, 1)  # cell averages of a step of speed ½

    found = fit("burgers1d", [line("burgers1d", moving_step, 1024, np.linspace(0, 1, 101))], {"nu": 1e-6})
    assert values_of(found)["flux"] == pytest.approx(1.0, rel=0.01)
    assert not contradicted(found)


@pytest.mark.parametrize(("nu", "rho"), [(0.5, 1.0), (0.5, 10.0), (2.0, 5.0)])
def test_diffusion_reaction_gives_both_coefficients(nu: float, rho: float) -> None:
    truth = fisher_wave(nu, rho)
    found = fit("reacdiff1d", [truth], {"nu": nu, "rho": rho})
    assert values_of(found) == pytest.approx({"nu": nu, "rho": rho}, rel=0.02)
    assert not contradicted(found)
    assert contradicted(fit("reacdiff1d", [slowed(truth, 2.0)], {"nu": nu, "rho": rho})) >= {"rho"}


def test_sorption_gives_its_diffusion() -> None:
    n, d = 64, 5e-4

    def rate(_: float, u: Array) -> Array:
        ghosts = np.concatenate([[2 - u[0]], u, [u[-1]]])
        retardation = 1 + 0.71 / 0.29 * 2880 * 3.5e-4 * 0.874 * (u + 1e-6) ** (0.874 - 1)
        return d * np.diff(ghosts, 2) * n**2 / retardation

    times = np.linspace(0, 500, 101)
    values = solve_ivp(rate, (0, 500), np.full(n, 0.1), method="LSODA", t_eval=times, rtol=1e-8, atol=1e-10).y.T
    sample = trajectory("diffsorp1d", values[..., None], times, Grid((n,), (False,), ((0.0, 1.0),)))
    assert values_of(fit("diffsorp1d", [sample], {})) == pytest.approx({"D": d}, rel=0.02)
    assert contradicted(fit("diffsorp1d", [slowed(sample, 1.5)], {})) == {"D"}


def test_fitzhugh_nagumo_gives_all_its_coefficients() -> None:
    n = 32
    grid = Grid((n, n), (False, False), ((-1.0, 1.0), (-1.0, 1.0)))
    start = np.random.default_rng(0).standard_normal((2, 6, 6))
    x = np.cos(np.pi * np.arange(6)[:, None] * (grid.coordinates[0] + 1) / 2)
    u0 = np.einsum("cij,ix,jy->cxy", start / 3, x, x)

    def rate(_: float, flat: Array) -> Array:
        u, v = flat.reshape(2, n, n)
        du, dv = (
            np.diff(np.pad(f, ((1, 1), (0, 0)), "edge"), 2, axis=0) + np.diff(np.pad(f, ((0, 0), (1, 1)), "edge"), 2)
            for f in (u, v)
        )
        h = (n / 2) ** 2
        return np.stack([1e-3 * du * h + u - u**3 - 5e-3 - v, 5e-3 * dv * h + u - v]).ravel()

    times = np.linspace(0, 5, 101)
    values = solve_ivp(rate, (0, 5), u0.ravel(), t_eval=times, rtol=1e-7, atol=1e-9).y.T.reshape(101, 2, n, n)
    sample = trajectory("reacdiff2d", np.moveaxis(values, 1, -1), times, grid)
    found = fit("reacdiff2d", [sample], {})
    want = {"Du": 1e-3, "reaction": 1.0, "k": 5e-3, "Dv": 5e-3, "relaxation": 1.0}
    assert values_of(found) == pytest.approx(want, rel=0.05)
    assert not contradicted(found)
    assert contradicted(fit("reacdiff2d", [slowed(sample, 1.5)], {})) >= {"Du", "reaction", "Dv", "relaxation"}


def test_a_shear_wave_gives_the_viscosity_of_a_gas() -> None:
    eta, drift = 0.05, 0.3

    def flow(x: Array, y: Array, t: float) -> Array:
        k, s = 2 * math.pi, x + 2 * y - 3 * drift * t
        wave = np.exp(-eta * 5 * k**2 * t) * np.sin(k * s)
        one = np.ones_like(x)
        return np.stack([2 * one, 10 * one, drift + 2 * wave, drift - wave], -1)

    sample = plane("cfd2d", flow, 64, np.linspace(0, 1, 21))
    found = fit("cfd2d", [sample], {"eta": eta, "zeta": 0.01, "mach": 0.1})
    values = values_of(found)
    assert (values["momentum flux"], values["eta"]) == pytest.approx((1.0, eta), rel=0.02)
    assert not contradicted(found)
    assert contradicted(fit("cfd2d", [sample], {"eta": 0.1, "zeta": 0.01, "mach": 0.1})) == {"eta"}
    assert "eta" in contradicted(fit("cfd2d", [slowed(sample, 2.0)], {"eta": eta, "zeta": 0.01, "mach": 0.1}))


def test_an_entropy_wave_gives_the_mass_flux_and_leaves_the_viscosity_open() -> None:
    def gas(x: Array, t: float) -> Array:
        density = 2 + np.sin(math.pi * (x - 0.8 * t)) + 0.3 * np.cos(3 * math.pi * (x - 0.8 * t))
        return np.stack([density, np.full_like(x, 20.0), np.full_like(x, 0.8)], -1)

    sample = line("cfd1d", gas, 256, np.linspace(0, 1, 101))
    found = fit("cfd1d", [sample], {"eta": 1e-8, "zeta": 1e-8})
    assert values_of(found)["mass flux"] == pytest.approx(1.0, rel=0.01)
    assert found[-1].name == "viscosity"
    assert found[-1].error > 1e3
    assert not contradicted(found)
    assert contradicted(fit("cfd1d", [slowed(sample, 2.0)], {"eta": 1e-8, "zeta": 1e-8})) >= {"mass flux"}


def test_incompressible_flow_gives_viscosity_flux_and_force() -> None:
    samples = simulated("nsincom2d", 32, "accurate", [0.02 * i for i in range(24)], nu=0.05)
    found = fit("nsincom2d", samples, {"nu": 0.05})
    assert values_of(found) == pytest.approx({"flux": 1.0, "nu": 0.05, "force": 1.0}, rel=0.02)
    assert not contradicted(found)
    assert contradicted(fit("nsincom2d", samples, {"nu": 0.1})) == {"nu"}
    doubled = [dataclasses.replace(s, inputs=2 * s.inputs) for s in samples]
    assert contradicted(fit("nsincom2d", doubled, {"nu": 0.05})) == {"force"}


def test_kuramoto_sivashinsky_gives_all_three_coefficients() -> None:
    samples = simulated("ks1d", 128, "accurate", [0.5 * i for i in range(51)], nu=0.8)
    found = fit("ks1d", samples, {"nu": 0.8})
    assert values_of(found) == pytest.approx({"flux": 1.0, "growth": 1.0, "nu": 0.8}, rel=0.01)
    assert contradicted(fit("ks1d", samples, {"nu": 1.2})) == {"nu"}


def test_kdv_solitons_give_flux_and_dispersion() -> None:
    def soliton(x: Array, t: float) -> Array:
        heights = ((0.5, 20.0), (0.3, 40.0))
        return np.asarray(sum(2 * k**2 / np.cosh(k * (x - x0 - 4 * k**2 * t)) ** 2 for k, x0 in heights))

    sample = line("kdv1d", soliton, 256, np.linspace(0, 4, 41))
    found = fit("kdv1d", [sample], {"delta": 1.0})
    assert values_of(found) == pytest.approx({"flux": 6.0, "dispersion": 1.0}, rel=0.02)
    assert contradicted(fit("kdv1d", [slowed(sample, 2.0)], {"delta": 1.0})) == {"flux", "dispersion"}
    assert contradicted(fit("kdv1d", [sample], {"delta": 1.5})) == {"dispersion"}


def test_layered_darcy_gives_its_force() -> None:
    n, beta = 64, 2.0
    grid = Grid((n, n), (False, False), ((0.0, 1.0), (0.0, 1.0)))
    x = grid.coordinates[0]
    a = np.where(x < 0.5, 1.0, 0.1)
    # a u_x = −β (x − 0.4) everywhere, u continuous at the interface.
    left, right = -beta * (x - 0.4) ** 2 / 2, -beta * (x - 0.4) ** 2 / 0.2
    u = np.where(x < 0.5, left, right + beta * 0.01 * (1 / 0.2 - 1 / 2))
    spread = np.broadcast_to(u[:, None], (n, n))
    sample = trajectory("darcy2d", spread[None, ..., None], np.zeros(1), grid, np.repeat(a[:, None], n, 1)[..., None])
    assert values_of(fit("darcy2d", [sample], {"beta": beta})) == pytest.approx({"beta": beta}, rel=0.01)
    assert contradicted(fit("darcy2d", [sample], {"beta": 3.0})) == {"beta"}


@pytest.mark.parametrize(("task", "params"), [("advection1d", {"beta": 1.0}), ("burgers1d", {"nu": 0.004})])
def test_honest_files_of_the_pdebench_scheme_are_never_accused(task: str, params: dict[str, float]) -> None:
    samples = simulated(task, 256, "pdebench", [0.01 * i for i in range(101)], samples=3, **params)
    assert not contradicted(fit(task, samples, params))
    assert contradicted(fit(task, [slowed(s, 2.0) for s in samples], params)) >= {
        "beta" if "beta" in params else "flux"
    }


@pytest.mark.parametrize("nu", [5.0, 10.0])
def test_a_diffusion_that_is_over_within_a_frame_is_never_accused(nu: float) -> None:
    samples = simulated("reacdiff1d", 128, "accurate", [0.01 * i for i in range(51)], samples=4, nu=nu, rho=10.0)
    found = fit("reacdiff1d", samples, {"nu": nu, "rho": 10.0})
    assert values_of(found)["rho"] == pytest.approx(10.0, rel=0.01)
    assert not contradicted(found)
    assert "rho" in contradicted(fit("reacdiff1d", [slowed(s, 2.0) for s in samples], {"nu": nu, "rho": 10.0}))


def test_frames_that_hold_nothing_give_infinite_errors_and_no_accusation() -> None:
    sample = line("advection1d", lambda x, t: np.full_like(x, 0.7 + 0 * t), 64, np.linspace(0, 1, 20))
    (found,) = fit("advection1d", [sample], {"beta": 1.0})
    assert found.error == math.inf
    assert not contradicts(found)


@pytest.mark.parametrize("frames", [1, 2, 8])
def test_too_few_frames_give_nan_with_infinite_errors_and_no_accusation(frames: int) -> None:
    sample = line("burgers1d", lambda x, t: np.sin(2 * math.pi * (x - t)), 64, 0.01 * np.arange(frames))
    for found in fit("burgers1d", [sample], {"nu": 0.01}):
        assert math.isnan(found.value)
        assert found.error == math.inf
        assert math.isnan(found.residual)
        assert not contradicts(found)


def test_a_short_trajectory_beside_a_long_one_takes_nothing_away() -> None:
    whole = shift(1.0)
    short = dataclasses.replace(whole, values=whole.values[:4], times=whole.times[:4])
    assert fit("advection1d", [short, whole], {"beta": 1.0}) == fit("advection1d", [whole], {"beta": 1.0})


def test_residual_is_what_the_claimed_coefficients_leave_over() -> None:
    (true,) = fit("advection1d", [shift(1.0)], {"beta": 1.0})
    (false,) = fit("advection1d", [shift(1.0)], {"beta": 1.25})
    assert true.residual < 2e-3
    assert false.value == true.value
    # u_t = −u_x, so that u_t + 1.25 u_x leaves a quarter of the rate.
    assert false.residual == pytest.approx(0.25, rel=0.01)
    flux, diffusion = fit("burgers1d", [cole_hopf(0.2)], {"nu": 0.2})
    assert flux.residual == diffusion.residual < 0.02


def test_sound_that_crosses_half_the_box_between_two_frames_is_no_contradiction() -> None:
    """Faint sound, c dt = 0.48: waves along the axes seem to crawl backwards, those across them forwards."""
    c, k, rng = 9.6, 2 * math.pi, np.random.default_rng(1)
    ways = [(a, b) for a in range(-2, 3) for b in range(-2, 3) if a * a + b * b in (4, 5)]
    waves = [(a, b, *rng.uniform(0, 6, 2)) for a, b in ways]

    def gas(x: Array, y: Array, t: float) -> Array:
        density, vx, vy = np.ones_like(x), np.zeros_like(x), np.zeros_like(x)
        for a, b, phase, size in waves:
            m = math.hypot(a, b)
            wave = 1e-4 * size * np.sin(k * (a * x + b * y - m * c * t) + phase)
            density, vx, vy = density + wave, vx + c * a / m * wave, vy + c * b / m * wave
        return np.stack([density, 0.6 * c**2 + c**2 * (density - 1), vx, vy], -1)

    sample = plane("cfd2d", gas, 32, np.linspace(0, 1, 21))
    assert not contradicted(fit("cfd2d", [sample], {"eta": 1e-8, "zeta": 1e-8, "mach": 0.1}))


def test_an_equation_without_a_balance_claims_nothing() -> None:
    assert set(BALANCES) | set(UNFITTABLE) <= set(EQUATIONS)
    assert fit("swe2d", [], {}) == []
    assert fit("heat9d", [], {}) == []
    with pytest.raises(PhysicsError, match="need the parameter beta"):
        fit("advection1d", [], {})
