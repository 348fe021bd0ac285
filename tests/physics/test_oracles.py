"""Our solvers against solvers of other people: exponax, PyClaw, and scipy's integrators on systems written here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from ups.physics.dispersive import KortewegDeVries1D, KuramotoSivashinsky1D
from ups.physics.incompressible import Incompressible2D
from ups.physics.random import Draw
from ups.physics.reaction import ReacDiff1D
from ups.physics.solver import Equation, solve
from ups.physics.transport import Burgers1D

pytestmark = pytest.mark.oracle
Array = NDArray[Any]


def ours(equation: Equation, n: int, u0: Array, times: list[float]) -> Array:
    """`(B, T, N)` by the accurate scheme, in double precision, from `(B, N)`."""
    domain, start = equation.domain(n), torch.as_tensor(u0)[..., None]
    return solve(equation.stepper("accurate", domain, start), start, times)[..., 0].numpy()


def theirs(stepper: Any, u0: Array, steps: int, frames: int) -> Array:
    """`(B, T, N)` by an exponax stepper, `steps` of them per frame, in double precision."""
    import exponax
    import jax

    rollout = exponax.rollout(exponax.RepeatedStepper(stepper, steps), frames, include_init=True)
    return np.asarray(jax.vmap(rollout)(jax.numpy.asarray(u0[:, None, :])))[:, :, 0]


def exponax_double() -> Any:
    """exponax in double precision, or skip."""
    exponax = pytest.importorskip("exponax", reason="exponax is not installed; the bench extra brings it")
    import jax

    jax.config.update("jax_enable_x64", True)
    return exponax


def waves(n: int, length: float, samples: int, modes: int, amplitude: float) -> Array:
    """`(samples, n)` smooth random states at the cell centres."""
    rng = np.random.default_rng(7)
    x = 2 * math.pi * (np.arange(n) + 0.5) / n
    size = rng.uniform(-1, 1, (samples, modes, 1)) * amplitude / math.sqrt(modes)
    phase = rng.uniform(0, 2 * math.pi, (samples, modes, 1))
    return np.asarray((size * np.sin(np.arange(1, modes + 1)[:, None] * x + phase)).sum(1) + 0 * length)


def gap(a: Array, b: Array) -> float:
    """The largest difference, as a part of the largest value."""
    return float(np.abs(a - b).max() / np.abs(b).max())


def symbol(n: int, length: float) -> Array:
    """i k of the real transform, 0 for the Nyquist mode."""
    k = 2 * math.pi / length * np.arange(n // 2 + 1)
    k[-1] = 0
    return 1j * k


def test_burgers_agrees_with_exponax() -> None:
    exponax, nu, n, step = exponax_double(), 0.02, 1024, 2e-4
    u0 = waves(n, 1.0, 3, 3, 1.0)
    peer = exponax.stepper.Burgers(1, 1.0, n, step, diffusivity=nu / math.pi, conservative=True, order=4)
    want = theirs(peer, u0, round(0.1 / step), 10)
    found = ours(Burgers1D(nu=nu), n, u0, [0.1 * i for i in range(11)])
    print("burgers", gap(found, want))
    assert gap(found, want) < 1e-6


@pytest.mark.parametrize("nu", [1.0, 0.5])
def test_kuramoto_sivashinsky_agrees_with_exponax_until_chaos_parts_them(nu: float) -> None:
    exponax, n, step = exponax_double(), 256, 0.005
    u0 = waves(n, 64.0, 3, 6, 2.0)
    peer = exponax.stepper.KuramotoSivashinskyConservative(1, 64.0, n, step, fourth_order_scale=nu, order=4)
    want = theirs(peer, u0, round(1.0 / step), 20)
    found = ours(KuramotoSivashinsky1D(nu=nu), n, u0, [1.0 * i for i in range(21)])
    print("ks", nu, gap(found[:, :11], want[:, :11]), gap(found, want))
    assert gap(found[:, :11], want[:, :11]) < 1e-5
    assert gap(found, want) < 1e-3


def test_korteweg_de_vries_agrees_with_exponax() -> None:
    exponax, n, step = exponax_double(), 512, 0.002
    u0 = waves(n, 64.0, 3, 5, 0.5)
    peer = exponax.stepper.KortewegDeVries(
        1, 64.0, n, step, convection_scale=6.0, dispersivity=1.0, hyper_diffusivity=0.0, conservative=True, order=4
    )
    want = theirs(peer, u0, round(1.0 / step), 20)
    found = ours(KortewegDeVries1D(delta=1.0), n, u0, [1.0 * i for i in range(21)])
    print("kdv", gap(found, want))
    assert gap(found, want) < 1e-6


def integrated(rate: Callable[[float, Array], Array], u0: Array, times: Array, method: str = "DOP853") -> Array:
    done = solve_ivp(rate, (times[0], times[-1]), u0.ravel(), method, times, rtol=1e-11, atol=1e-12)
    assert done.success, done.message
    return np.asarray(done.y.T.reshape(len(times), *u0.shape))


def test_burgers_and_dispersive_waves_agree_with_scipy() -> None:
    """Collocation in space, and scipy's implicit Radau or explicit DOP853 in time."""
    n, times = 128, np.linspace(0, 0.5, 6)
    ik, u0 = symbol(n, 1.0), waves(n, 1.0, 1, 2, 0.7)[0]

    def burgers(_: float, u: Array) -> Array:
        return np.fft.irfft(-0.5 * ik * np.fft.rfft(u * u) + 0.3 / math.pi * ik**2 * np.fft.rfft(u), n)

    found = ours(Burgers1D(nu=0.3), n, u0[None], times.tolist())[0]
    print("burgers scipy", gap(found, integrated(burgers, u0, times)))
    assert gap(found, integrated(burgers, u0, times)) < 1e-7

    kn, kdn = symbol(n, 64.0), waves(n, 64.0, 1, 4, 1.0)[0]

    def flame(_: float, u: Array) -> Array:
        return np.fft.irfft(-0.5 * kn * np.fft.rfft(u * u) - (kn**2 + kn**4) * np.fft.rfft(u), n)

    times = np.linspace(0, 5, 6)
    found = ours(KuramotoSivashinsky1D(nu=1.0), n, kdn[None], times.tolist())[0]
    want = integrated(flame, kdn, times, "Radau")
    print("ks scipy", gap(found, want))
    assert gap(found, want) < 1e-6

    def soliton(_: float, u: Array) -> Array:
        return np.fft.irfft(-3 * kn * np.fft.rfft(u * u) - kn**3 * np.fft.rfft(u), n)

    found = ours(KortewegDeVries1D(delta=1.0), n, 0.3 * kdn[None], times.tolist())[0]
    want = integrated(soliton, 0.3 * kdn, times)
    print("kdv scipy", gap(found, want))
    assert gap(found, want) < 1e-6


@pytest.mark.parametrize(("nu", "rho"), [(0.5, 10.0), (0.01, 5.0)])
def test_fisher_waves_of_pdebench_are_the_semi_discrete_system(nu: float, rho: float) -> None:
    n, times = 64, np.linspace(0, 0.2, 5)
    u0 = 0.5 + 0.4 * waves(n, 1.0, 1, 3, 1.0)[0] / np.abs(waves(n, 1.0, 1, 3, 1.0)[0]).max()

    def rate(_: float, u: Array) -> Array:
        return nu * n**2 * (np.roll(u, 1) - 2 * u + np.roll(u, -1)) + rho * u * (1 - u)

    equation = ReacDiff1D(nu=nu, rho=rho)
    start = torch.as_tensor(u0).view(1, n, 1)
    found = solve(equation.stepper("pdebench", equation.domain(n), start), start, times.tolist())[0, ..., 0].numpy()
    want = integrated(rate, u0, times, "Radau")
    print("fisher", gap(found, want))
    assert gap(found, want) < 1e-7


def test_incompressible_flow_agrees_with_scipy_in_velocity_and_pressure() -> None:
    """Velocity form with a projected pressure, which shares nothing with the vorticity form of the solver."""
    n, nu, times = 32, 0.05, np.linspace(0, 0.3, 4)
    equation = Incompressible2D(nu=nu)
    domain, draw = equation.domain(n), Draw(3, range(1))
    k = 2 * math.pi * np.fft.fftfreq(n, 1 / n)
    k[n // 2] = 0
    kx, ky = np.meshgrid(k, k, indexing="ij")
    square = np.where(kx**2 + ky**2 > 0, kx**2 + ky**2, 1.0)
    force = equation.inputs(draw, domain)[0].numpy()
    u0 = equation.initial(draw, domain)[0].numpy()

    def d(f: Array, wave: Array) -> Array:
        return np.asarray(np.fft.ifft2(1j * wave * np.fft.fft2(f)).real)

    def rate(_: float, flat: Array) -> Array:
        u, v, c = np.moveaxis(flat.reshape(n, n, 3), -1, 0)
        out = []
        for f, damping, push in ((u, nu, force[..., 0]), (v, nu, force[..., 1]), (c, nu / 10, np.zeros((n, n)))):
            carried = u * d(f, kx) + v * d(f, ky)
            out.append(push - carried + damping * (d(d(f, kx), kx) + d(d(f, ky), ky)))
        hats = [np.fft.fft2(f) for f in out[:2]]
        pressure = (kx * hats[0] + ky * hats[1]) / square
        flow = [np.fft.ifft2(hat - wave * pressure).real for hat, wave in zip(hats, (kx, ky), strict=True)]
        return np.stack([*flow, out[2]], -1).ravel()

    found = equation.simulate(draw, domain, times.tolist(), "accurate")[0].numpy()
    want = integrated(rate, u0, times)
    print("ns scipy", gap(found[..., :2], want[..., :2]), gap(found, want))
    assert gap(found[..., :2], want[..., :2]) < 1e-5
