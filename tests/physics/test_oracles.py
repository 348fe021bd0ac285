"""Our solvers against solvers of other people: exponax, PyClaw, and scipy's integrators on systems written here."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from ups.physics.compressible import Compressible1D
from ups.physics.dispersive import KortewegDeVries1D, KuramotoSivashinsky1D
from ups.physics.incompressible import Incompressible2D
from ups.physics.random import Draw
from ups.physics.reaction import ReacDiff1D
from ups.physics.shallow import ShallowWater2D
from ups.physics.solver import Equation, solve
from ups.physics.transport import Burgers1D
from ups.types import Grid

pytestmark = pytest.mark.oracle
Array = NDArray[Any]


def ours(equation: Equation, n: int, u0: Array, times: list[float]) -> Array:
    """`(B, T, N)` by the accurate scheme, in double precision, from `(B, N)`."""
    grid, start = equation.grid(n), torch.as_tensor(u0)[..., None]
    return solve(equation.stepper("accurate", grid, start), start, times)[..., 0].numpy()


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


def waves(n: int, samples: int, modes: int, amplitude: float) -> Array:
    """`(samples, n)` smooth random states at the cell centres."""
    rng = np.random.default_rng(7)
    x = 2 * math.pi * (np.arange(n) + 0.5) / n
    size = rng.uniform(-1, 1, (samples, modes, 1)) * amplitude / math.sqrt(modes)
    phase = rng.uniform(0, 2 * math.pi, (samples, modes, 1))
    return np.asarray((size * np.sin(np.arange(1, modes + 1)[:, None] * x + phase)).sum(1))


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
    u0 = waves(n, 3, 3, 1.0)
    peer = exponax.stepper.Burgers(1, 1.0, n, step, diffusivity=nu / math.pi, conservative=True, order=4)
    want = theirs(peer, u0, round(0.1 / step), 10)
    found = ours(Burgers1D(nu=nu), n, u0, [0.1 * i for i in range(11)])
    assert gap(found, want) < 1e-6


@pytest.mark.parametrize("nu", [1.0, 0.5])
def test_kuramoto_sivashinsky_agrees_with_exponax_until_chaos_parts_them(nu: float) -> None:
    exponax, n, step = exponax_double(), 256, 0.005
    u0 = waves(n, 3, 6, 2.0)
    peer = exponax.stepper.KuramotoSivashinskyConservative(1, 64.0, n, step, fourth_order_scale=nu, order=4)
    want = theirs(peer, u0, round(1.0 / step), 20)
    found = ours(KuramotoSivashinsky1D(nu=nu), n, u0, [1.0 * i for i in range(21)])
    assert gap(found[:, :11], want[:, :11]) < 1e-5
    assert gap(found, want) < 1e-3


def test_korteweg_de_vries_agrees_with_exponax_at_vanishing_step() -> None:
    """exponax keeps only the real part of the coefficients of ETDRK4, which is right for decaying modes alone: on waves
    it is of first order in its step (0.7 % off at 1/800). Its results at 1/100 … 1/800, extrapolated to 0, are not."""
    exponax, n = exponax_double(), 256
    u0 = waves(n, 2, 4, 0.3)
    table: list[list[Array]] = []
    for level in range(4):
        step = 0.01 / 2**level
        peer = exponax.stepper.KortewegDeVries(
            1, 64.0, n, step, convection_scale=6.0, dispersivity=1.0, hyper_diffusivity=0.0, conservative=True, order=4
        )
        row = [theirs(peer, u0, round(1 / step), 5)]
        for order in range(1, level + 1):
            row.append(row[-1] + (row[-1] - table[-1][order - 1]) / (2**order - 1))
        table.append(row)
    found = ours(KortewegDeVries1D(delta=1.0), n, u0, [1.0 * i for i in range(6)])
    assert gap(found, table[-1][-1]) < 1e-5


def integrated(rate: Callable[[float, Array], Array], u0: Array, times: Array, method: str = "DOP853") -> Array:
    done = solve_ivp(rate, (times[0], times[-1]), u0.ravel(), method, times, rtol=1e-11, atol=1e-12)
    assert done.success, done.message
    return np.asarray(done.y.T.reshape(len(times), *u0.shape))


def test_burgers_agrees_with_scipy() -> None:
    n, times = 128, np.linspace(0, 0.5, 6)
    ik, u0 = symbol(n, 1.0), waves(n, 1, 2, 0.7)[0]

    def rate(_: float, u: Array) -> Array:
        return np.fft.irfft(-0.5 * ik * np.fft.rfft(u * u) + 0.3 / math.pi * ik**2 * np.fft.rfft(u), n)

    assert gap(ours(Burgers1D(nu=0.3), n, u0[None], times.tolist())[0], integrated(rate, u0, times)) < 1e-8


def test_kuramoto_sivashinsky_agrees_with_scipy() -> None:
    n, times = 128, np.linspace(0, 5, 6)
    ik, u0 = symbol(n, 64.0), waves(n, 1, 4, 1.0)[0]

    def rate(_: float, u: Array) -> Array:
        return np.fft.irfft(-0.5 * ik * np.fft.rfft(u * u) - (ik**2 + ik**4) * np.fft.rfft(u), n)

    found = ours(KuramotoSivashinsky1D(nu=1.0), n, u0[None], times.tolist())[0]
    assert gap(found, integrated(rate, u0, times, "Radau")) < 1e-7


def test_korteweg_de_vries_agrees_with_scipy() -> None:
    n, times = 256, np.linspace(0, 5, 6)
    ik, u0 = symbol(n, 64.0), waves(n, 1, 4, 0.3)[0]

    def rate(_: float, u: Array) -> Array:
        return np.fft.irfft(-3 * ik * np.fft.rfft(u * u) - ik**3 * np.fft.rfft(u), n)

    found = ours(KortewegDeVries1D(delta=1.0), n, u0[None], times.tolist())[0]
    assert gap(found, integrated(rate, u0, times)) < 1e-9


@pytest.mark.parametrize(("nu", "rho"), [(0.5, 10.0), (0.01, 5.0)])
def test_fisher_waves_of_pdebench_are_the_semi_discrete_system(nu: float, rho: float) -> None:
    n, times = 64, np.linspace(0, 0.2, 5)
    u0 = 0.5 + 0.4 * waves(n, 1, 3, 1.0)[0] / np.abs(waves(n, 1, 3, 1.0)[0]).max()

    def rate(_: float, u: Array) -> Array:
        return nu * n**2 * (np.roll(u, 1) - 2 * u + np.roll(u, -1)) + rho * u * (1 - u)

    equation = ReacDiff1D(nu=nu, rho=rho)
    start = torch.as_tensor(u0).view(1, n, 1)
    found = solve(equation.stepper("pdebench", equation.grid(n), start), start, times.tolist())[0, ..., 0].numpy()
    want = integrated(rate, u0, times, "Radau")
    assert gap(found, want) < 1e-7


def test_incompressible_flow_agrees_with_scipy_in_velocity_and_pressure() -> None:
    """Velocity form with a projected pressure, which shares nothing with the vorticity form of the solver."""
    n, nu, times = 32, 0.05, np.linspace(0, 0.3, 4)
    equation = Incompressible2D(nu=nu)
    grid, draw = equation.grid(n), Draw(3, range(1))
    k = 2 * math.pi * np.fft.fftfreq(n, 1 / n)
    k[n // 2] = 0
    kx, ky = np.meshgrid(k, k, indexing="ij")
    square = np.where(kx**2 + ky**2 > 0, kx**2 + ky**2, 1.0)
    force = equation.inputs(draw, grid)[0].numpy()
    u0 = equation.initial(draw, grid)[0].numpy()

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

    found = equation.simulate(draw, grid, times.tolist(), "accurate")[0].numpy()
    want = integrated(rate, u0, times)
    assert gap(found[..., :2], want[..., :2]) < 1e-5


def clawpack() -> tuple[ModuleType, ModuleType]:
    """(pyclaw, riemann), or skip."""
    reason = "PyClaw is not installed; `pip install clawpack` builds it with gfortran, meson-python and ninja"
    riemann = pytest.importorskip("clawpack.riemann", reason=reason)
    return pytest.importorskip("clawpack.pyclaw", reason=reason), riemann


def wave_propagation(solver: Any, grid: Grid, q0: Array, data: dict[str, float], times: list[float]) -> Array:
    """Conserved frames `(T, C, *S)` by PyClaw: wave propagation with Roe's solver and the MC limiter, open ends."""
    pyclaw, _ = clawpack()
    solver.limiters, solver.all_bcs, solver.max_steps = pyclaw.limiters.tvd.MC, pyclaw.BC.extrap, 100_000
    lower, upper = zip(*grid.bounds, strict=True)
    box = pyclaw.Grid.along(list(lower), list(upper), list(grid.shape))
    state = pyclaw.State(box, len(q0))
    state.problem_data.update(data)
    state.q[:] = q0
    solution = pyclaw.Solution(state, box)
    solver.setup(solution)
    solver.dt = 0.1 * min(grid.spacing)
    frames = [q0]
    for t in times[1:]:
        solver.evolve_to_time(solution, t)
        frames.append(solution.state.q.copy())
    return np.stack(frames)


def test_round_dam_agrees_with_pyclaw() -> None:
    """Both finite-volume results are 1 % from the radial solution at 128², and a third of that from one another."""
    pyclaw, riemann = clawpack()
    equation, draw, times = ShallowWater2D(), Draw(5, range(1)), [0.0, 0.25, 0.5, 1.0]

    def rms(a: Array, b: Array) -> float:
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    errors = []
    for n in (64, 128):
        grid = equation.grid(n)
        ours_, exact = (
            equation.simulate(draw, grid, times, s)[0, ..., 0].double().numpy() for s in ("pdebench", "accurate")
        )
        solver = pyclaw.ClawSolver2D(riemann.shallow_roe_with_efix_2D)
        solver.dimensional_split, solver.cfl_max, solver.cfl_desired = True, 0.5, 0.45
        start = np.stack([ours_[0], 0 * ours_[0], 0 * ours_[0]])
        peer = wave_propagation(solver, grid, start, {"grav": 1.0}, times)[:, 0]
        errors.append(
            [max(rms(a[i], b[i]) for i in (1, 2, 3)) for a, b in ((ours_, peer), (ours_, exact), (peer, exact))]
        )
    (near, _, _), (apart, off, peer_off) = errors
    assert apart < min(near, 5e-3)
    assert off < 1.3 * peer_off
    assert max(off, peer_off) < 1.3e-2


def test_sod_tube_agrees_with_pyclaw() -> None:
    pyclaw, riemann = clawpack()
    n, gamma, end = 400, 5 / 3, 0.2
    grid = Grid((n,), (False,), ((-0.5, 0.5),))
    left = grid.coordinates[0] < 0
    density, pressure = np.where(left, 1.0, 0.125), np.where(left, 1.0, 0.1)
    start = torch.as_tensor(np.stack([density, pressure, 0 * density], -1))[None]
    equation = Compressible1D(eta=0.0, zeta=0.0, boundary="trans")
    found = solve(equation.stepper("pdebench", grid, start), start, [0.0, end])[0, -1].numpy()
    solver = pyclaw.ClawSolver1D(riemann.euler_with_efix_1D)
    solver.cfl_max, solver.cfl_desired = 0.5, 0.4
    q0 = np.stack([density, 0 * density, pressure / (gamma - 1)])
    q = wave_propagation(solver, grid, q0, {"gamma": gamma}, [0.0, end])[-1]
    want = np.stack([q[0], (gamma - 1) * (q[2] - q[1] ** 2 / (2 * q[0])), q[1] / q[0]], -1)
    assert (np.abs(found - want).mean(0) < [1e-3, 1e-3, 2e-3]).all()
