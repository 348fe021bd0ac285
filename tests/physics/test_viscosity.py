"""Viscosity against an independent spectral solver, and the laws its stages keep: momentum, energy, decay."""

import math

import numpy as np
import torch

from ups.physics.compressible import Compressible2D, conserved, primitive
from ups.physics.solver import solve
from ups.physics.viscosity import Viscosity
from ups.types import Grid

G = 5 / 3


def spectral_reference(u0, eta, zeta, t, steps):
    """Independent: primitive variables, Fourier derivatives, classical Runge–Kutta, numpy; unit square."""
    n = u0.shape[0]
    m = np.fft.fftfreq(n, 1 / n) * (np.abs(np.fft.fftfreq(n, 1 / n)) < n / 3)

    def d(f, axis):
        shape = (-1, 1) if axis == 0 else (1, -1)
        return np.fft.ifft(2j * np.pi * m.reshape(shape) * np.fft.fft(f, axis=axis), axis=axis).real

    def rate(q):
        r, p, v = q[0], q[1], q[2:]
        grad = [[d(v[i], a) for i in (0, 1)] for a in (0, 1)]  # grad[a][i] = ∂_a v_i
        div = grad[0][0] + grad[1][1]
        stress = [
            [r * (eta * (grad[a][i] + grad[i][a]) + (a == i) * (zeta - 2 * eta / 3) * div) for i in (0, 1)]
            for a in (0, 1)
        ]
        heat = sum(stress[a][i] * grad[a][i] for a in (0, 1) for i in (0, 1))
        flow = [
            -sum(v[a] * grad[a][i] for a in (0, 1)) + (sum(d(stress[a][i], a) for a in (0, 1)) - d(p, i)) / r
            for i in (0, 1)
        ]
        mass = -d(r * v[0], 0) - d(r * v[1], 1)
        return np.stack([mass, -v[0] * d(p, 0) - v[1] * d(p, 1) - G * p * div + (G - 1) * heat, *flow])

    q, h = np.moveaxis(u0, -1, 0).copy(), t / steps
    for _ in range(steps):
        k1 = rate(q)
        k2 = rate(q + h / 2 * k1)
        k3 = rate(q + h / 2 * k2)
        q = q + h / 6 * (k1 + 2 * k2 + 2 * k3 + rate(q + h * k3))
    return np.moveaxis(q, 0, -1)


def test_viscous_flow_in_two_dimensions_agrees_with_an_independent_spectral_solver():
    eta, zeta, t = 0.05, 0.08, 0.06

    def smooth(n):
        x, y = np.meshgrid(*[(np.arange(n) + 0.5) / n] * 2, indexing="ij")
        s, c = np.sin(2 * np.pi * (x + y)), np.cos(2 * np.pi * (x - 2 * y))
        return np.stack([2 + 0.6 * s, 1 + 0.2 * c, 0.6 * c + 0.2 * s, 0.8 * np.sin(2 * np.pi * x)], axis=-1)

    def error(n):
        grid = Grid((n, n), (True, True), ((0.0, 1.0),) * 2)
        u0 = torch.as_tensor(smooth(n))[None]
        frames = solve(Compressible2D(eta=eta, zeta=zeta).stepper("pdebench", grid, u0), u0, [0.0, t])
        return np.abs(frames[0, -1].numpy() - spectral_reference(smooth(n), eta, zeta, t, 200)).mean((0, 1))

    coarse, fine = error(24), error(48)
    assert (fine < 3.2e-3).all()
    assert np.log2(coarse / fine).min() > 1.8


def test_viscous_stages_lose_no_momentum_and_turn_lost_motion_into_heat():
    rng = np.random.default_rng(0)
    grid = Grid((12, 12), (True, True), ((0.0, 1.0),) * 2)
    viscosity = Viscosity(grid, 0.1, 0.2, step_hint=0.05)
    q = torch.as_tensor(
        np.concatenate([10 ** rng.uniform(-1.5, 1.5, (2, 2, 12, 12)), rng.normal(size=(2, 2, 12, 12))], 1)
    )
    w = conserved(q)
    kinetic = [(w[:, 2:].square().sum(1) / (2 * w[:, 0])).sum((1, 2))]
    for _ in range(40):
        old, w = w, w + viscosity.change(w, torch.full((2,), viscosity.limit, dtype=torch.float64))
        torch.testing.assert_close(w.sum((2, 3)), old.sum((2, 3)), rtol=1e-12, atol=1e-10)
        kinetic.append((w[:, 2:].square().sum(1) / (2 * w[:, 0])).sum((1, 2)))
    assert viscosity.stages >= 5
    assert (torch.stack(kinetic).diff(dim=0) <= 0).all()
    assert (kinetic[-1] < 0.5 * kinetic[0]).all()


def test_viscous_stages_are_second_order_in_time():
    grid = Grid((32,), (True,), ((0.0, 1.0),))
    decay = 4 * 0.1 * (4 / 3 + 1) * math.sin(math.pi / 32) ** 2 * 32**2
    ripple = 1e-3 * torch.as_tensor(np.sin(2 * np.pi * grid.coordinates[0]))
    wave = torch.stack([torch.ones(32), torch.ones(32), ripple])[None]

    def error(steps):
        w, t = conserved(wave), 0.1
        viscosity = Viscosity(grid, 0.1, 0.1, step_hint=t / 2)
        for _ in range(steps):
            w = w + viscosity.change(w, torch.tensor([t / steps], dtype=torch.float64))
        return (primitive(w)[0, 2] - math.exp(-decay * t) * wave[0, 2]).abs().max().item()

    assert error(2) / error(4) > 3.4
