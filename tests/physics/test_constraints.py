"""Each law reads zero on lawful fields, reads a planted violation as what it is, and repairs it by the least change."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from ups.physics import TASKS
from ups.physics.constraints import Conserved, HeldFaces, Law, Positive, Within
from ups.physics.dispersive import stretched
from ups.physics.divergence import DivergenceFree
from ups.physics.laws import guarding, laws_of, repaired
from ups.types import Grid

MASS = Conserved("mass", lambda u: u[..., 0], channel=0)
FLOW = DivergenceFree("velocity", channels=(0, 1))


def box(*shape: int, length: float = 1.0) -> Grid:
    return Grid(shape, (True,) * len(shape), ((0.0, length),) * len(shape))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def balanced(u: Tensor, space: tuple[int, ...], mean: float) -> Tensor:
    """The same field with the given mean over space in every frame."""
    return u - u.mean(space, keepdim=True) + mean


def helmholtz(grid: Grid) -> tuple[Tensor, Tensor]:
    """(curl ψ, ∇φ) `(X, Y, 2)` of ψ = sin 2kx cos ky + cos 3ky / 3, φ = cos kx sin 3ky + sin 2kx / 2, and a drift."""
    k = 2 * math.pi / grid.lengths[0]
    axes = [k * torch.as_tensor(c, dtype=torch.float64) for c in grid.coordinates]
    x, y = torch.meshgrid(axes[0], axes[1], indexing="ij")
    psi_x, psi_y = 2 * k * torch.cos(2 * x) * torch.cos(y), -k * torch.sin(2 * x) * torch.sin(y) - k * torch.sin(3 * y)
    phi_x = -k * torch.sin(x) * torch.sin(3 * y) + k * torch.cos(2 * x)
    phi_y = 3 * k * torch.cos(x) * torch.cos(3 * y)
    return torch.stack([psi_y + 0.7, -psi_x - 0.2], -1), torch.stack([phi_x, phi_y], -1)


@pytest.mark.parametrize("shape", [(32,), (12, 10), (6, 5, 4)])
def test_a_constant_integral_has_no_residual_whatever_the_field_does(shape: tuple[int, ...]) -> None:
    space = tuple(range(2, 2 + len(shape)))
    u = balanced(noise(3, 5, *shape, 2), space, 0.3)
    assert MASS.residual(u, box(*shape)).max() < 1e-15


def test_drift_is_measured_exactly_and_for_each_sample_alone() -> None:
    u = 2.0 + 0 * noise(3, 4, 16, 1)
    u[1, 2] += 0.25  # one frame of one sample
    u[2] += torch.tensor([0.0, 0.1, 0.3, 0.5]).view(4, 1, 1)
    # relative to the largest mean of |u| over the frames: 0.25 / 2.25 and 0.5 / 2.5
    assert MASS.residual(u, box(16)).tolist() == pytest.approx([0.0, 0.25 / 2.25, 0.2], rel=1e-12)


def test_drift_of_a_density_that_cancels_is_measured_against_its_scale() -> None:
    u = torch.zeros(1, 2, 8, 2, dtype=torch.float64)
    u[..., 0] = 4.0
    u[0, 1, :, 1] = 1e-3
    law = Conserved("momentum", lambda v: v[..., 0] * v[..., 1], channel=1, scale=lambda v: v[..., 0] * 5.0)
    assert law.residual(u, box(8)).item() == pytest.approx(4e-3 / 20, rel=1e-12)


def test_a_field_of_nothing_keeps_its_integral() -> None:
    assert MASS.residual(torch.zeros(2, 3, 8, 1), box(8)).tolist() == [0.0, 0.0]


def test_sampling_explains_the_drift_of_a_spike_between_cells_and_nothing_of_a_smooth_drift() -> None:
    x = torch.arange(64, dtype=torch.float64) / 64
    smooth = torch.stack([torch.sin(2 * math.pi * (x - c)) + 2 + c for c in (0.0, 0.3)]).view(1, 2, 64, 1)
    spike = torch.stack([torch.exp(-(((x - c) * 150) ** 2)) for c in (0.5, 0.5 + 0.5 / 64)]).view(1, 2, 64, 1)
    assert MASS.residual(smooth, box(64)).item() == pytest.approx(0.3 / 2.3, rel=1e-12)
    assert MASS.sampling_error(smooth, box(64)).item() < 1e-12
    assert MASS.residual(spike, box(64)).item() > 0.05
    assert MASS.sampling_error(spike, box(64)) >= MASS.residual(spike, box(64))


@pytest.mark.parametrize("shape", [(32,), (12, 10)])
def test_restoring_an_integral_is_the_nearest_repair_and_done_once(shape: tuple[int, ...]) -> None:
    grid, space = box(*shape), tuple(range(2, 2 + len(shape)))
    u, reference = noise(2, 4, *shape, 2), noise(2, *shape, 2, seed=1)
    fixed = MASS.project(u, reference, grid)
    want = reference[..., 0].flatten(1).mean(1)
    assert torch.allclose(fixed[..., 0].mean(space), want[:, None].expand(2, 4), atol=1e-14)
    assert torch.equal(fixed[..., 1], u[..., 1])
    assert torch.allclose(MASS.project(fixed, reference, grid), fixed, atol=1e-15)
    # nearest: the change is at right angles to every other way along the lawful fields
    along = balanced(noise(2, 4, *shape, seed=2), space, 0.0)
    assert ((fixed - u)[..., 0] * along).sum((1, *space)).abs().max() < 1e-12


def test_a_negative_value_is_measured_against_the_largest_and_lifted_to_the_floor() -> None:
    u = noise(2, 3, 8, 2).abs() + 0.5
    u[0, 1, 3, 0], u[0, 0, 0, 0] = -0.2, 8.0
    law, grid = Positive("density", 0), box(8)
    assert law.residual(u, grid).tolist() == pytest.approx([0.2 / 8.0, 0.0], rel=1e-12)
    fixed = law.project(u, u[:, 0], grid)
    assert law.residual(fixed, grid).tolist() == [0.0, 0.0]
    changed = (fixed != u).nonzero().tolist()
    assert changed == [[0, 1, 3, 0]]
    assert fixed[0, 1, 3, 0] == 0.0
    assert torch.equal(law.project(fixed, u[:, 0], grid), fixed)


def test_a_floor_above_zero_is_kept_likewise() -> None:
    u = torch.tensor([0.1, 0.3, 2.0]).view(1, 1, 3, 1)
    law = Positive("height", 0, low=0.25)
    assert law.residual(u, box(3)).item() == pytest.approx(0.15 / 2.0, rel=1e-6)
    assert law.project(u, u[:, 0], box(3)).flatten().tolist() == pytest.approx([0.25, 0.3, 2.0])


def test_both_ends_of_an_interval_are_measured_and_kept() -> None:
    u = torch.tensor([[-1.5, 0.2, 1.0], [-1.0, 0.5, 4.0], [-1.0, 0.0, 1.0]]).view(3, 1, 3, 1)
    law = Within("u", 0, -1.0, 1.0)
    assert law.residual(u, box(3)).tolist() == pytest.approx([0.5 / 1.5, 3.0 / 4.0, 0.0])
    fixed = law.project(u, u[:, 0], box(3))
    assert fixed.flatten().tolist() == pytest.approx([-1.0, 0.2, 1.0, -1.0, 0.5, 1.0, -1.0, 0.0, 1.0])
    assert law.residual(fixed, box(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        (Positive("density", 0), "density is never below 0"),
        (Within("load", 0, high=2.5), "load is never above 2.5"),
        (Within("u", 0, -1.0, 1.0), "u stays between -1 and 1"),
    ],
)
def test_an_interval_says_which_ends_it_has(law: Within, sentence: str) -> None:
    assert law.says == sentence


def test_the_laws_of_a_task_follow_its_equation_its_parameters_and_its_boundary() -> None:
    gas = TASKS["cfd2d"]
    names = ["mass", "density", "momentum x", "momentum y", "energy", "pressure"]
    assert [law.name for law in laws_of(gas, (True, True))] == names
    assert [law.name for law in laws_of(gas, (False, False))] == ["density", "pressure"]
    assert [law.name for law in laws_of(gas, (True, True), {"boundary": "trans"})] == ["density", "pressure"]
    own = dataclasses.replace(gas, name="mine", equation="", conserved=("density", "energy"), positive=("pressure",))
    assert [law.says for law in laws_of(own, (True, True))] == ["density is conserved", "pressure is never below 0"]
    both = dataclasses.replace(own, positive=("density", "pressure"))
    assert [law.name for law in laws_of(both, (True, True))] == ["density total", "density", "pressure"], "each its own"
    assert len(guarding(both, (True, True), ("density",))) == 2


@pytest.mark.parametrize(("n", "length"), [(16, 1.0), (15, 2.5)])
def test_projection_is_the_helmholtz_decomposition(n: int, length: float) -> None:
    grid = box(n, n, length=length)
    curl, gradient = helmholtz(grid)
    u = torch.cat([curl + gradient, torch.full((n, n, 1), 3.0, dtype=torch.float64)], -1)[None, None]
    fixed = FLOW.project(u, u[:, 0], grid)
    assert torch.allclose(fixed[0, 0, ..., :2], curl, atol=1e-12 * float(gradient.abs().max()))
    assert torch.equal(fixed[..., 2], u[..., 2])


def test_divergence_is_measured_exactly() -> None:
    grid = box(16, 16)
    curl, gradient = helmholtz(grid)
    k = 2 * math.pi
    # |∇(∇φ)|² and |∇(curl ψ)|² by hand: the mean of |m k|⁴ |amplitude|² over the modes, 1/4 or 1/2 for each product.
    stretch = k**4 * ((1 + 9) ** 2 / 4 + 16 / 4 / 2)
    shear = k**4 * ((4 + 1) ** 2 / 4 + 81 / 9 / 2)
    u = torch.stack([curl, gradient, curl + 0.1 * gradient])[:, None]
    want = [0.0, 1.0, math.sqrt(0.01 * stretch / (shear + 0.01 * stretch))]
    assert FLOW.residual(u, grid).tolist() == pytest.approx(want, rel=1e-9, abs=1e-13)


def test_projecting_twice_changes_nothing_and_the_first_time_is_the_nearest() -> None:
    grid = box(12, 12)
    u, other = noise(2, 3, 12, 12, 2), noise(2, 3, 12, 12, 2, seed=1)
    fixed = FLOW.project(u, u[:, 0], grid)
    assert FLOW.residual(fixed, grid).max() < 1e-13
    assert torch.allclose(FLOW.project(fixed, u[:, 0], grid), fixed, atol=1e-13)
    lawful = FLOW.project(other, u[:, 0], grid)
    assert ((fixed - u) * lawful).sum((1, 2, 3, 4)).abs().max() < 1e-11


def test_a_flow_in_space_is_freed_of_its_divergence() -> None:
    grid = box(8, 8, 6)
    law = DivergenceFree("velocity", channels=(0, 1, 2))
    u = noise(1, 2, 8, 8, 6, 3)
    assert law.residual(u, grid).item() > 0.1
    assert law.residual(law.project(u, u[:, 0], grid), grid).item() < 1e-13


@pytest.mark.parametrize("law", [MASS, FLOW, Within("u", 0, -0.5, 0.5)], ids=lambda law: law.name)
def test_gradients_flow_through_a_repair(law: Law) -> None:
    u = noise(2, 3, 8, 8, 2).requires_grad_()
    law.project(u, noise(2, 8, 8, 2, seed=1), box(8, 8)).square().sum().backward()
    assert u.grad is not None
    assert float(u.grad.abs().sum()) > 0


def test_positivity_of_what_is_conserved_is_restored_without_a_change_of_its_mean() -> None:
    u = noise(3, 2, 16, 1) + 0.7
    law = Positive("height", 0, keeps_total=True)
    fixed = law.project(u, u[:, 0], box(16))
    assert float(u.min()) < 0
    assert float(fixed.min()) == 0
    assert torch.allclose(fixed.mean(2), u.mean(2), atol=1e-14)
    assert torch.allclose(law.project(fixed, u[:, 0], box(16)), fixed, atol=1e-15)
    both = Within("share", 0, 0.0, 1.0, keeps_total=True)
    inside = both.project(0.5 * u, u[:, 0], box(16))
    assert float(inside.min()) >= 0
    assert float(inside.max()) <= 1
    assert torch.allclose(inside.mean(2), 0.5 * u.mean(2), atol=1e-14)


def gas(seed: int = 0) -> Tensor:
    """Lawful states `(3, 12, 10, 4)` of a gas in motion."""
    u = noise(3, 12, 10, 4, seed=seed)
    return torch.cat((u[..., :2].abs() + 0.3, u[..., 2:] + 0.5), -1)


def test_all_laws_of_a_gas_hold_at_once_after_one_pass_and_a_second_changes_nothing() -> None:
    grid, reference = box(12, 10), gas()
    laws = laws_of(TASKS["cfd2d"], (True, True))
    slow, fast = gas(1) - 0.4, gas(2) * torch.tensor([1.0, 1.0, 40.0, 40.0])  # more motion than there is energy
    for wild in (slow, fast):
        fixed = repaired(wild, laws, reference, grid)
        both = torch.stack((reference, fixed), 1)
        assert max(float(law.residual(both, grid).max()) for law in laws) < 1e-13
        assert torch.allclose(repaired(fixed, laws, reference, grid), fixed, atol=1e-12)
        alone = repaired(wild[1:2], laws, reference[1:2], grid)
        assert torch.allclose(alone, fixed[1:2], atol=1e-13)
    assert torch.allclose(repaired(reference, laws, reference, grid), reference, atol=1e-13)
    assert float(fixed[..., 1].mean()) > 0


def test_a_square_integral_is_restored_around_the_mean() -> None:
    laws = laws_of(TASKS["kdv1d"], (True,))
    u, reference, grid = noise(3, 32, 1) - 0.2, noise(3, 32, 1, seed=1) + 0.3, box(32)
    fixed = repaired(u, laws, reference, grid)
    assert max(float(law.residual(torch.stack((reference, fixed), 1), grid).max()) for law in laws) < 1e-14
    assert torch.allclose(repaired(reference, laws, reference, grid), reference, atol=1e-14)


def between_walls(n: int) -> tuple[Grid, Tensor, Tensor]:
    """A box that wraps along y alone, a flow (ψ_y, −ψ_x) through its walls and a gradient, `(1, 1, n, n, 2)` each."""
    grid = Grid((n, n), (False, True), ((0.0, 1.0), (0.0, 2.0)))
    x, y = torch.meshgrid(*(torch.as_tensor(c) for c in grid.coordinates), indexing="ij")
    k = math.pi
    flow = torch.stack((k * x.exp() * torch.cos(k * y) + 1.0, -x.exp() * torch.sin(k * y)), -1)
    gradient = torch.stack((2 * x + torch.sin(k * y), k * x * torch.cos(k * y)), -1)
    return grid, flow[None, None], gradient[None, None]


def test_between_walls_a_flow_without_divergence_stays_and_the_rest_is_removed() -> None:
    errors = []
    for n in (12, 24):
        grid, flow, gradient = between_walls(n)
        assert FLOW.residual(flow, grid) < FLOW.sampling_error(flow, grid)
        errors.append(float(FLOW.residual(flow, grid)))
        fixed = FLOW.project(flow + gradient, flow[:, 0], grid)
        assert FLOW.residual(flow + gradient, grid) > 0.1
        assert FLOW.residual(fixed, grid) < 1e-12
        assert torch.allclose(FLOW.project(fixed, flow[:, 0], grid), fixed, atol=1e-12)
        assert (FLOW.project(flow, flow[:, 0], grid) - flow).abs().max() < 10 * errors[-1] * flow.abs().max()
        still = torch.ones_like(flow) * torch.tensor([0.7, -0.2])
        assert torch.allclose(FLOW.project(still, flow[:, 0], grid), still, atol=1e-13)  # a wind through the walls
    assert errors[1] < errors[0] / 10  # fourth order


def test_the_outermost_cell_lies_between_the_wall_and_those_within() -> None:
    law, grid = HeldFaces("left end", 0, 1.0, ends=(0,)), box(6)
    u = torch.tensor([[0.9, 0.8, 0.7, 0, 0, 0], [1.3, 0.8, 0.7, 0, 0, 0], [0.5, 0.8, 0.7, 0, 0, 0]]).view(3, 1, 6, 1)
    assert law.residual(u, grid).tolist() == pytest.approx([0.0, 0.3 / 1.3, 0.2 / 0.8], rel=1e-6)
    fixed = law.project(u, u[:, 0], grid)
    assert fixed[:, 0, 0, 0].tolist() == pytest.approx([0.9, 1.0, 0.7])
    assert torch.equal(fixed[:, :, 1:], u[:, :, 1:])
    square = HeldFaces("walls", 0, 0.0, (0, 1))
    for cells in ((6, 6), (9, 16), (5, 8), (2, 3)):
        v = noise(64, 1, *cells, 1)
        fixed = square.project(v, v[:, 0], box(*cells))
        assert square.residual(fixed, box(*cells)).max() < 1e-15, "edges and the corners between them"
        assert torch.equal(square.project(fixed, v[:, 0], box(*cells)), fixed)


ENERGY = Conserved("energy", lambda u: u[..., 0].square(), repair=stretched(0))
PENALISED = (MASS, ENERGY, FLOW, Within("u", 0, -0.5, 0.5), HeldFaces("wall", 0, 3.0))


@pytest.mark.parametrize("law", PENALISED, ids=lambda law: law.name)
def test_a_step_along_the_gradient_of_a_penalty_reduces_the_residual(law: Law) -> None:
    grid, reference = box(8, 8), noise(3, 8, 8, 2, seed=1)
    u = (noise(3, 1, 8, 8, 2) + 0.4).requires_grad_()
    penalty = law.penalty(u, reference, grid)
    assert penalty.shape == (3,)
    (slope,) = torch.autograd.grad(penalty.sum(), u)
    rate = 0.1 * penalty.detach() / slope.square().flatten(1).sum(1)
    better = u.detach() - rate.view(3, 1, 1, 1, 1) * slope
    assert bool((law.penalty(better, reference, grid) < 0.95 * penalty).all())
    assert float(law.penalty(law.project(better, reference, grid), reference, grid).max()) < 1e-20
