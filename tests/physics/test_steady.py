"""Steady systems: the residual is that of the assembled matrix, and iterations end where each sample converges."""

import pytest
import torch
from torch import Tensor

from ups.physics import EQUATIONS
from ups.physics.elliptic import Darcy2D, Poisson2D
from ups.physics.random import Draw
from ups.physics.steady import SteadySystem
from ups.types import Grid, PhysicsError

BOX = Grid((32, 32), (False, False), ((0.0, 1.0), (0.0, 1.0)))


def system(samples: int = 3, beta: float = 2.0) -> tuple[SteadySystem, Tensor]:
    """A Darcy system and its solution."""
    a = Darcy2D().inputs(Draw(0, range(samples)), BOX)
    made = Darcy2D.steady_system({"beta": torch.full((samples,), beta)}, a, BOX)
    return made, made.solution(1e-12)


def test_the_residual_is_one_at_zero_and_that_of_the_equation_elsewhere() -> None:
    made, u = system()
    assert float(made.residual(u).max()) < 1e-11
    torch.testing.assert_close(made.residual(torch.zeros_like(u)), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(made.residual(1.25 * u), torch.full((3,), 0.25, dtype=torch.float64))


def test_each_sample_stops_at_its_own_tolerance_whoever_is_beside_it() -> None:
    made, u = system()
    noise = torch.randn(u.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = u + u.std() * noise * torch.tensor([0.0, 1e-6, 1e-2]).reshape(3, 1, 1, 1)
    got = made.refined(start, 1e-6)
    assert float(got.after.max()) <= 1e-6
    torch.testing.assert_close(got.after, made.residual(got.values))
    torch.testing.assert_close(got.before, made.residual(start))
    first, second, third = got.iterations.tolist()
    assert first == 0
    assert 0 < second < third
    assert torch.equal(got.values[0], start[0])
    alone = Darcy2D.steady_system({"beta": torch.full((1,), 2.0)}, Darcy2D().inputs(Draw(0, [1]), BOX), BOX)
    one = alone.refined(start[1:2], 1e-6)
    assert one.iterations.tolist() == [second]
    torch.testing.assert_close(one.values[0], got.values[1], rtol=1e-9, atol=1e-12)


def test_a_good_start_saves_iterations_and_a_budget_is_kept() -> None:
    made, u = system()
    near = made.refined(u * 1.001, 1e-6)
    far = made.refined(torch.zeros_like(u), 1e-6)
    assert bool((near.iterations < far.iterations).all())
    few = made.refined(torch.zeros_like(u), 1e-6, most=5)
    assert few.iterations.tolist() == [5, 5, 5]
    assert bool((few.after > 1e-6).all())


def test_samples_have_their_own_force() -> None:
    a = Darcy2D().inputs(Draw(0, [4, 4]), BOX)
    one, three = Darcy2D.steady_system({"beta": torch.tensor([1.0, 3.0])}, a, BOX).solution(1e-10)
    torch.testing.assert_close(3 * one, three, rtol=1e-8, atol=1e-10)


def test_no_force_is_no_solution_whatever_the_start() -> None:
    nothing = torch.zeros(2, 32, 32, 1, dtype=torch.float64)
    got = Poisson2D.steady_system({}, nothing, BOX).refined(nothing + 1, 1e-6)
    assert float(got.values.abs().max()) == 0
    assert got.iterations.tolist() == [0, 0]


def test_what_cannot_be_solved_is_refused_in_a_sentence() -> None:
    made, u = system(1)
    with pytest.raises(PhysicsError, match="not finite"):
        made.refined(u * torch.nan, 1e-6)
    with pytest.raises(PhysicsError, match="permeability must be finite and positive"):
        Darcy2D.steady_system({"beta": torch.ones(1)}, u - 1, BOX)
    with pytest.raises(PhysicsError, match="force must be finite"):
        Poisson2D.steady_system({}, u / 0, BOX)
    with pytest.raises(PhysicsError, match="burgers1d has no steady states"):
        EQUATIONS["burgers1d"].steady_system({}, u, BOX)
