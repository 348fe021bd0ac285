"""Darcy and Poisson against manufactured solutions, a sparse direct solver, and the laws of diffusion."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from ups.physics.elliptic import (
    Darcy2D,
    FiveCell,
    Poisson2D,
    diffusion_system,
    inverse_laplacian,
    inverse_sine_transform,
    sine_transform,
)
from ups.physics.random import Draw
from ups.physics.solver import initial_states, solve
from ups.types import Grid, PhysicsError


def box(n: int, m: int | None = None) -> Grid:
    return Grid((n, m or n), (False, False), ((0.0, 1.0), (0.0, 1.0)))


def steady_pressure(a: Tensor, force: Tensor, grid: Grid) -> Tensor:
    return diffusion_system(a, force, grid).solution(1e-10)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 33])
def test_sine_transform_is_its_sum_and_has_its_inverse(n: int) -> None:
    u = torch.randn(3, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    i, k = torch.arange(n, dtype=torch.float64) + 0.5, torch.arange(1, n + 1, dtype=torch.float64)
    torch.testing.assert_close(sine_transform(u), u @ torch.sin(math.pi / n * i[:, None] * k), rtol=0, atol=1e-12)
    torch.testing.assert_close(inverse_sine_transform(sine_transform(u)), u, rtol=0, atol=1e-13)


def test_preconditioner_inverts_the_laplacian_exactly() -> None:
    grid = box(12, 7)
    u = torch.randn(2, 12, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    laplacian = FiveCell(torch.ones_like(u), grid, harmonic=True)
    torch.testing.assert_close(inverse_laplacian(grid, u.device)(laplacian(u)), u, rtol=0, atol=1e-12)


def test_manufactured_poisson_converges_with_second_order() -> None:
    errors = []
    for n in (16, 32, 64):
        grid = box(n)
        x = torch.tensor(grid.coordinates[0])
        truth = torch.sin(math.pi * x)[:, None] * torch.sin(2 * math.pi * x)
        force = (5 * math.pi**2 * truth).reshape(1, n, n, 1)
        got = steady_pressure(torch.ones_like(force), force, grid)
        errors.append(float((got[0, ..., 0] - truth).abs().max()))
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert min(orders) > 1.9, (errors, orders)


def direct(a: np.ndarray, beta: float) -> np.ndarray:
    """The five-point system assembled entry by entry and solved directly."""
    n, m = a.shape
    dx = (1 / n, 1 / m)
    matrix = scipy.sparse.lil_matrix((n * m, n * m))
    for i in range(n):
        for j in range(m):
            for axis, (p, q) in enumerate(((1, 0), (0, 1))):
                for sign in (-1, 1):
                    k, h = i + sign * p, j + sign * q
                    inside = 0 <= k < n and 0 <= h < m
                    face = 2 / (1 / a[i, j] + 1 / a[k, h]) if inside else 2 * a[i, j]
                    matrix[i * m + j, i * m + j] += face / dx[axis] ** 2
                    if inside:
                        matrix[i * m + j, k * m + h] -= face / dx[axis] ** 2
    return scipy.sparse.linalg.spsolve(matrix.tocsr(), np.full(n * m, beta)).reshape(n, m)


def test_steady_pressure_is_that_of_a_sparse_direct_solver() -> None:
    grid = box(16, 12)
    a = torch.rand(3, 16, 12, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.9 + 0.1
    got = steady_pressure(a, torch.full_like(a, 2.0), grid)
    for sample, medium in zip(got, a, strict=True):
        np.testing.assert_allclose(sample[..., 0].numpy(), direct(medium[..., 0].numpy(), 2.0), rtol=1e-8)


@pytest.fixture(scope="module")
def media() -> Tensor:
    return Darcy2D().inputs(Draw(0, range(6)), box(32))


def test_permeability_is_one_where_the_bells_exceed_their_mean(media: Tensor) -> None:
    assert set(media.unique().tolist()) == {0.1, 1.0}
    share = (media == 1).double().mean((1, 2, 3))
    assert float(share.min()) > 0.1
    assert float(share.max()) < 0.9
    alone = Darcy2D().inputs(Draw(0, [4]), box(32))
    assert torch.equal(alone[0], media[4])
    assert torch.equal(Darcy2D().inputs(Draw(0, range(6), dtype=torch.float32), box(32)) == 1, media == 1)


def test_pressure_is_positive_and_what_is_fed_in_flows_out(media: Tensor) -> None:
    u = steady_pressure(media, torch.full_like(media, 3.0), box(32))[..., 0]
    a = media[..., 0]
    assert float(u.min()) > 0
    edges = sum((a * u).select(axis, side).sum(1) for axis in (1, 2) for side in (0, -1))  # a · 2u/dx · dx
    assert float((2 * edges - 3.0).abs().max()) < 1e-9


def test_pressure_commutes_with_transposition_and_is_linear_in_beta(media: Tensor) -> None:
    one = torch.ones_like(media)
    u = steady_pressure(media, one, box(32))
    torch.testing.assert_close(
        steady_pressure(media.transpose(1, 2), one, box(32)), u.transpose(1, 2), rtol=1e-8, atol=1e-10
    )
    torch.testing.assert_close(steady_pressure(media, 50 * one, box(32)), 50 * u, rtol=1e-8, atol=1e-9)


def test_relaxation_is_what_explicit_steps_give() -> None:
    equation, grid, draw = Darcy2D(beta=1.0), box(16), Draw(0, range(2))
    a = equation.inputs(draw, grid)
    start = initial_states(equation, draw, grid)
    got = equation.simulate(draw, grid, [0.0], "pdebench")[:, 0, ..., 0].numpy()
    u, medium = start[..., 0].numpy(), np.pad(a[..., 0].numpy(), ((0, 0), (1, 1), (1, 1)), mode="edge")
    count = 3000
    dt, fx, fy = 1.75 / count, (medium[:, 1:] + medium[:, :-1]) / 2, (medium[:, :, 1:] + medium[:, :, :-1]) / 2

    def rate(u: np.ndarray) -> np.ndarray:
        p = np.pad(u, ((0, 0), (1, 1), (1, 1)))
        x = np.diff(fx[:, :, 1:-1] * np.diff(p[:, :, 1:-1], axis=1), axis=1)
        return (x + np.diff(fy[:, 1:-1] * np.diff(p[:, 1:-1], axis=2), axis=2)) * 256 + 1.0

    for _ in range(count):
        u = u + dt * rate(u + dt / 2 * rate(u))
    assert np.abs(got - u).max() < 1e-6


def test_relaxation_ends_in_the_steady_state() -> None:
    equation, grid, draw = Darcy2D(beta=1.0), box(16), Draw(0, range(2))
    a = equation.inputs(draw, grid)
    late = solve(equation.relaxation(a, grid), initial_states(equation, draw, grid), [0.0, 40.0])[:, 1, ..., 0]
    flow = FiveCell(a[..., 0], grid, harmonic=False)
    assert float((flow(late) - 1.0).abs().max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", Darcy2D.schemes)
def test_simulate_gives_one_positive_frame(scheme: str, dtype: torch.dtype) -> None:
    got = Darcy2D().simulate(Draw(0, range(3), dtype=dtype), box(16), [0.0], scheme)
    assert got.shape == (3, 1, 16, 16, 1)
    assert got.dtype == dtype
    assert float(got.min()) > 0


def test_start_of_the_relaxation_is_positive_and_within_its_range() -> None:
    start = Darcy2D().initial(Draw(0, range(32)), box(32))
    assert float(start.min()) > 0.08
    assert float(start.max()) < 12
    assert float(start.std((1, 2, 3)).min()) > 0


def test_an_unknown_scheme_and_a_stepper_without_medium_are_refused_in_a_sentence() -> None:
    with pytest.raises(PhysicsError, match="no scheme 'magic'"):
        Darcy2D().simulate(Draw(0, range(1)), box(8), [0.0], "magic")
    with pytest.raises(PhysicsError, match="own medium"):
        Darcy2D().stepper("pdebench", box(8), torch.empty(0))


def test_poisson_is_darcy_in_a_uniform_medium_and_solved_by_one_iteration() -> None:
    grid, draw = box(24), Draw(3, range(3))
    force = Poisson2D().inputs(draw, grid)
    u = Poisson2D().simulate(draw, grid, [0.0], "accurate")[:, 0]
    torch.testing.assert_close(u, steady_pressure(torch.ones_like(force), force, grid), rtol=0, atol=1e-13)
    system = Poisson2D.steady_system({}, force, grid)
    assert system.refined(torch.zeros_like(force), 1e-10).iterations.tolist() == [1, 1, 1]
    laplacian = direct(np.ones((24, 24)), 1.0)  # assembled by someone else, for one force
    one = Poisson2D.steady_system({}, torch.ones_like(force), grid).solution(1e-10)
    np.testing.assert_allclose(one[0, ..., 0].numpy(), laplacian, rtol=1e-9)


def test_the_force_of_poisson_is_one_field_at_every_resolution_of_order_one() -> None:
    force = Poisson2D().inputs(Draw(0, range(200)), box(16))
    assert float(force.square().mean().sqrt()) == pytest.approx(1.0, abs=0.1)
    assert float(force.mean((1, 2, 3)).std()) > 0.2
    coarse, fine = (Poisson2D().inputs(Draw(0, [5]), box(n))[0, ..., 0] for n in (16, 48))
    torch.testing.assert_close(fine[1::3, 1::3], coarse, rtol=0, atol=1e-12)  # its middle cells are at the same places
    with pytest.raises(PhysicsError, match="it has no time"):
        Poisson2D().stepper("accurate", box(8), torch.empty(0))
