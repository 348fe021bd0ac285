"""Kuramoto–Sivashinsky and Korteweg–de Vries against linear theory, exact solitons and conservation laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ups.physics.dispersive import KortewegDeVries1D, KuramotoSivashinsky1D
from ups.physics.padded import Padded, resize_spectrum
from ups.physics.random import Draw
from ups.physics.solver import Equation, initial_states, solve
from ups.types import Grid, PhysicsError


def stepper(equation: Equation, grid: Grid, step: float | None = None) -> Padded:
    found = equation.stepper("accurate", grid, torch.zeros(1, dtype=torch.float64))
    assert isinstance(found, Padded)
    return found if step is None else replace(found, inner=replace(found.inner, step=step))


def fine(grid: Grid) -> Tensor:
    return torch.as_tensor(grid.coordinates[0])


def derivative(u: Tensor, length: float, order: int) -> Tensor:
    """Spectral derivative along the last axis."""
    n = u.shape[-1]
    k = 2 * math.pi / length * torch.arange(n // 2 + 1, dtype=torch.float64)
    k[-1] = 0
    return torch.fft.irfft((1j * k) ** order * torch.fft.rfft(u), n=n)


def measured_order(equation: Equation, u0: Tensor, grid: Grid, end: float, steps: tuple[float, ...]) -> float:
    exact = solve(stepper(equation, grid, steps[-1] / 4), u0, [0.0, end])
    errors = [(solve(stepper(equation, grid, h), u0, [0.0, end]) - exact)[:, -1].abs().max().item() for h in steps]
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


def two_solitons(x: Tensor, t: float, k1: float, k2: float, x1: float, x2: float, delta: float) -> Tensor:
    """The exact two-soliton solution, 2δ² (log F)_xx with F of Hirota, for u_t + 6uu_x + δ²u_xxx = 0."""
    a = ((k1 - k2) / (k1 + k2)) ** 2
    e1 = torch.exp(-2 * k1 * (x - x1 - 4 * delta**2 * k1**2 * t))
    e2 = torch.exp(-2 * k2 * (x - x2 - 4 * delta**2 * k2**2 * t))
    f = 1 + e1 + e2 + a * e1 * e2
    fx = -2 * (k1 * e1 + k2 * e2 + (k1 + k2) * a * e1 * e2)
    fxx = 4 * (k1**2 * e1 + k2**2 * e2 + (k1 + k2) ** 2 * a * e1 * e2)
    return 2 * delta**2 * (fxx / f - (fx / f) ** 2)


@pytest.mark.parametrize(("mode", "nu"), [(3, 1.0), (7, 1.0), (12, 1.0), (5, 4.0)])
def test_ks_tiny_modes_grow_at_their_linear_rate(mode: int, nu: float) -> None:
    equation = KuramotoSivashinsky1D(nu=nu)
    grid = equation.grid(128)
    k = 2 * math.pi * mode / 64
    u0 = (1e-9 * torch.sin(k * fine(grid))).view(1, -1, 1)
    end = 2.0
    frames = solve(stepper(equation, grid), u0, [0.0, end])
    rate = math.log((frames[0, 1].abs().max() / frames[0, 0].abs().max()).item()) / end
    assert rate == pytest.approx(k**2 - nu * k**4, abs=1e-6)


def test_ks_keeps_the_mean_to_round_off_and_stays_on_a_bounded_attractor() -> None:
    equation = KuramotoSivashinsky1D()
    grid = equation.grid(128)
    frames = equation.simulate(Draw(0, range(4)), grid, [5.0 * i for i in range(11)], "accurate")
    assert frames[:, 4:].abs().max() < 4.0
    assert (frames[:, 6:].square().mean((2, 3)) > 0.5).all()
    assert all(law.residual(frames, grid).max() < 1e-14 for law in equation.laws())


def test_ks_frames_obey_the_energy_budget() -> None:
    equation = KuramotoSivashinsky1D(nu=0.8)
    grid = equation.grid(256)
    times = [12.0 + 0.01 * i for i in range(5)]
    u = equation.simulate(Draw(1, range(2)), grid, [0.0, *times], "accurate")[:, 1:, :, 0]
    energy = 0.5 * u.square().mean(-1)
    rate = (energy[:, 0] - 8 * energy[:, 1] + 8 * energy[:, 3] - energy[:, 4]) / (12 * 0.01)
    ux, uxx = derivative(u[:, 2], 64.0, 1), derivative(u[:, 2], 64.0, 2)
    budget = (ux.square() - 0.8 * uxx.square()).mean(-1)
    torch.testing.assert_close(rate, budget, rtol=1e-5, atol=1e-7)


def test_ks_converges_with_the_fourth_power_of_the_step() -> None:
    equation = KuramotoSivashinsky1D()
    grid = equation.grid(128)
    u0 = initial_states(equation, Draw(2, range(1)), grid)
    # Above h = 0.02 the stiff modes hold the order of any four-stage exponential scheme near 3.
    assert measured_order(equation, u0, grid, 1.0, (0.0125, 0.00625, 0.003125)) == pytest.approx(4.0, abs=0.25)


def test_ks_solution_does_not_depend_on_the_stored_grid() -> None:
    equation = KuramotoSivashinsky1D(nu=0.5)
    times = [0.0, 10.0]
    fine = equation.simulate(Draw(3, range(2)), equation.grid(384), times, "accurate")
    coarse = equation.simulate(Draw(3, range(2)), equation.grid(128), times, "accurate")
    torch.testing.assert_close(coarse[:, 1], fine[:, 1, 1::3], rtol=0, atol=2e-4)


def test_kdv_soliton_travels_unchanged_at_its_speed() -> None:
    delta, kappa, centre, end = 1.0, 0.7, 16.0, 12.0
    equation = KortewegDeVries1D(delta=delta)
    grid = equation.grid(256)

    def soliton(t: float) -> Tensor:
        return 2 * delta**2 * kappa**2 / torch.cosh(kappa * (fine(grid) - centre - 4 * delta**2 * kappa**2 * t)) ** 2

    frames = solve(stepper(equation, grid), soliton(0.0).view(1, -1, 1), [0.0, end])
    assert (frames[0, -1, :, 0] - soliton(end)).abs().max() < 1e-6


def test_kdv_solitons_overtake_as_the_exact_two_soliton_solution() -> None:
    delta = 1.2
    equation = KortewegDeVries1D(delta=delta)
    grid = equation.grid(256)
    shape = {"k1": 0.7, "k2": 0.45, "x1": 18.0, "x2": 24.0, "delta": delta}
    u0 = two_solitons(fine(grid), 0.0, **shape).view(1, -1, 1)
    frames = solve(stepper(equation, grid), u0, [0.0, 4.0, 9.0])[0, :, :, 0]
    for frame, t in zip(frames, (0.0, 4.0, 9.0), strict=True):
        assert (frame - two_solitons(fine(grid), t, **shape)).abs().max() < 1e-6
    # The taller one, behind at first, is ahead at last.
    assert fine(grid)[frames[0].argmax()] < 24.0
    assert fine(grid)[frames[-1].argmax()] > 24.0 + 4 * delta**2 * 0.45**2 * 9.0


def test_kdv_conserves_mass_momentum_and_energy() -> None:
    equation = KortewegDeVries1D(delta=0.9)
    grid = equation.grid(256)
    frames = equation.simulate(Draw(0, range(6)), grid, [0.0, 2.0, 6.0, 10.0], "accurate")
    u = frames[..., 0]
    energy = (u**3 - 0.5 * 0.9**2 * derivative(u, 64.0, 1) ** 2).mean(-1)
    drift = (energy - energy[:, :1]).abs().amax(1) / (u**3).abs().mean(-1).amax(1)
    assert drift.max() < 1e-8
    assert {law.name: float(law.residual(frames, grid).max()) for law in equation.laws()} == pytest.approx(
        {"mean": 0.0, "energy": 0.0}, abs=1e-9
    )


def test_kdv_converges_with_the_fourth_power_of_the_step() -> None:
    equation = KortewegDeVries1D()
    grid = equation.grid(128)
    u0 = (1.0 / torch.cosh(0.5**0.5 * (fine(grid) - 32)) ** 2).view(1, -1, 1)
    assert measured_order(equation, u0, grid, 1.0, (0.02, 0.01, 0.005)) == pytest.approx(4.0, abs=0.3)


def test_kdv_draws_both_solitons_and_waves_within_their_bounds() -> None:
    equation = KortewegDeVries1D()
    u0 = initial_states(equation, Draw(0, range(64)), equation.grid(256))[..., 0]
    waves = u0.mean(1).abs() < 1e-12
    assert 16 < int(waves.sum()) < 48
    assert (u0[~waves] > 0).all()
    assert u0.abs().max() <= 1.1


@pytest.mark.parametrize(("shape", "to"), [((16,), (40,)), ((9, 16), (24, 20)), ((24, 20), (9, 16))])
def test_resized_spectra_hold_the_same_trigonometric_polynomial(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    def field(sizes: tuple[int, ...]) -> Tensor:
        angles = torch.meshgrid(*(2 * math.pi * torch.arange(n, dtype=torch.float64) / n for n in sizes), indexing="ij")
        return (1 + torch.cos(3 * angles[0] + 2 * angles[-1] + 0.4) + torch.sin(2 * angles[0] - angles[-1])).view(
            1, *sizes, 1
        )

    axes = tuple(range(1, 1 + len(shape)))
    got = torch.fft.irfftn(resize_spectrum(torch.fft.rfftn(field(shape), dim=axes), shape, to), s=to, dim=axes)
    torch.testing.assert_close(got, field(to))


def test_unknown_schemes_and_impossible_parameters_are_refused_in_one_sentence() -> None:
    equation = KuramotoSivashinsky1D()
    with pytest.raises(PhysicsError, match="ks1d has no scheme 'pdebench'"):
        equation.simulate(Draw(0, [0]), equation.grid(32), [0.0], "pdebench")
    with pytest.raises(PhysicsError, match="delta is -1, but must be above 0"):
        KortewegDeVries1D(delta=-1.0)
