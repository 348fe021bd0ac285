"""RK45 takes scipy's steps; RODAS and the linear relaxation have their orders and their truths."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from ups.physics.method_of_lines import RK45
from ups.physics.solver import solve
from ups.physics.stiff import LinearRelaxation, Rodas4, Tridiagonal, phi_coefficients
from ups.types import PhysicsError


def van_der_pol(u: Tensor) -> Tensor:
    x, y = u[..., 0], u[..., 1]
    return torch.stack([y, 2 * (1 - x * x) * y - x], -1)


STARTS = torch.tensor([[[2.0, 0.0]], [[0.1, 0.3]], [[-3.0, 1.0]], [[0.0, 0.0]]], dtype=torch.float64)


@pytest.mark.parametrize(("rtol", "atol"), [(1e-3, 1e-6), (1e-8, 1e-10)])
@pytest.mark.parametrize("times", [np.linspace(0, 10, 41), np.array([0, 3.3, 10.0]), np.linspace(0, 10, 401)])
def test_rk45_takes_scipys_steps_for_every_sample(times: np.ndarray, rtol: float, atol: float) -> None:
    got = solve(RK45(van_der_pol, 10.0, rtol, atol), STARTS, times.tolist())
    for sample, start in zip(got, STARTS, strict=True):
        truth = solve_ivp(
            lambda _, y: van_der_pol(torch.tensor(y)[None])[0].numpy(),
            (0, 10),
            start[0].numpy(),
            method="RK45",
            t_eval=times,
            rtol=rtol,
            atol=atol,
        )
        np.testing.assert_allclose(sample[:, 0].numpy(), truth.y.T, rtol=0, atol=1e-9)


def test_rk45_evaluates_exactly_as_often_as_scipy() -> None:
    calls = [0, 0]

    def counted(u: Tensor) -> Tensor:
        calls[0] += 1
        return van_der_pol(u)

    def counted_scipy(_: float, y: np.ndarray) -> np.ndarray:
        calls[1] += 1
        return van_der_pol(torch.tensor(y)[None])[0].numpy()

    solve(RK45(counted, 10.0), STARTS[:1], [0.0, 5.0, 10.0])
    solve_ivp(counted_scipy, (0, 10), STARTS[0, 0].numpy(), method="RK45")
    assert calls[0] == calls[1]


def test_rk45_sample_does_not_depend_on_its_batch() -> None:
    times = [0.0, 0.5, 1.0, 7.0]
    together = solve(RK45(van_der_pol, 7.0), STARTS, times)
    for i in range(len(STARTS)):
        torch.testing.assert_close(solve(RK45(van_der_pol, 7.0), STARTS[i : i + 1], times)[0], together[i])


def test_rk45_keeps_the_dtype_of_its_state() -> None:
    got = solve(RK45(van_der_pol, 2.0), STARTS.float(), [0.0, 1.0, 2.0])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), solve(RK45(van_der_pol, 2.0), STARTS, [0.0, 1.0, 2.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", ["rk45", "rodas"])
def test_a_solution_that_blows_up_is_reported_in_a_sentence(method: str) -> None:
    def jacobian(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.zeros_like(u[..., 0]), 2 * u[..., 0], torch.zeros_like(u[..., 0])

    stepper = RK45(torch.square, 2.0) if method == "rk45" else Rodas4(torch.square, jacobian, 1e-6, 1e-8)
    with pytest.raises(PhysicsError, match="sample 0"):
        solve(stepper, torch.ones(2, 1, 1, dtype=torch.float64), [0.0, 2.0])


def logistic(u: Tensor) -> Tensor:
    return u * (1 - u)


def logistic_jacobian(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    zero = torch.zeros_like(u[..., 0])
    return zero, 1 - 2 * u[..., 0], zero


def test_rodas_is_of_fourth_order() -> None:
    method = Rodas4(logistic, logistic_jacobian, 1e-6, 1e-8)
    start = torch.tensor([[[0.1], [0.3]]], dtype=torch.float64)
    errors = []
    for count in (8, 16, 32):
        u, f = start, logistic(start)
        for _ in range(count):
            u, f, _ = method.attempt(u, f, torch.tensor([4.0 / count], dtype=torch.float64))
        exact = start * math.exp(4) / (1 + start * (math.exp(4) - 1))
        errors.append(float((u - exact).abs().max()))
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert min(orders) > 3.8, (errors, orders)


def stiff_heat(n: int) -> tuple[object, object]:
    weight = float(n * n)

    def rate(u: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(u, (0, 0, 1, 1))
        return weight * (padded[:, 2:] - 2 * u + padded[:, :-2]) + logistic(u)

    def jacobian(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        side = torch.full_like(u[..., 0], weight)
        return side, 1 - 2 * u[..., 0] - 2 * weight, side

    return rate, jacobian


@pytest.mark.parametrize("tolerance", [1e-5, 1e-8])
def test_rodas_error_stays_below_its_tolerance_on_a_stiff_problem(tolerance: float) -> None:
    rate, jacobian = stiff_heat(64)
    start = torch.tensor([0.2, 1.0], dtype=torch.float64).reshape(2, 1, 1).expand(2, 64, 1)
    got = solve(Rodas4(rate, jacobian, tolerance, tolerance), start, [0.0, 0.01, 0.1])
    for sample, u0 in zip(got, start, strict=True):
        truth = solve_ivp(
            lambda _, y: rate(torch.tensor(y)[None, :, None])[0, :, 0].numpy(),
            (0, 0.1),
            u0[:, 0].numpy(),
            method="LSODA",
            t_eval=[0, 0.01, 0.1],
            rtol=1e-11,
            atol=1e-12,
            lband=1,
            uband=1,
        )
        assert np.abs(sample[..., 0].numpy() - truth.y.T).max() < tolerance


@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_tridiagonal_solves_what_a_dense_solver_solves(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    low, high, right = (torch.rand(3, n, generator=generator, dtype=torch.float64) for _ in range(3))
    main = 2.1 + torch.rand(3, n, generator=generator, dtype=torch.float64)
    dense = torch.diag_embed(main) + torch.diag_embed(low[:, 1:], -1) + torch.diag_embed(high[:, :-1], 1)
    torch.testing.assert_close(
        Tridiagonal(low, main, high).solve(right), torch.linalg.solve(dense, right), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("extent", [0.01, 3.0, 1e3, 3e5])
def test_chebyshev_coefficients_sum_to_phi(extent: float) -> None:
    x = np.linspace(extent * 1e-6, extent, 500)
    got = np.polynomial.chebyshev.chebval(1 - 2 * x / extent, phi_coefficients(extent))
    np.testing.assert_allclose(got, -np.expm1(-x) / x, rtol=0, atol=1e-13 + 1e-15 * extent)


def test_linear_relaxation_is_the_matrix_exponential() -> None:
    n = 12
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    matrix = root @ root.T
    radius = float(torch.linalg.eigvalsh(matrix)[-1]) * 1.01
    start = torch.randn(3, n, generator=generator, dtype=torch.float64)
    got = solve(LinearRelaxation(lambda u: u @ matrix, 0.7, radius), start, [0.0, 0.3, 5.0])
    steady = torch.linalg.solve(matrix, torch.full((n,), 0.7, dtype=torch.float64))
    for i, t in ((1, 0.3), (2, 5.0)):
        truth = steady + (start - steady) @ torch.linalg.matrix_exp(-t * matrix)
        torch.testing.assert_close(got[:, i], truth, rtol=0, atol=1e-10)
