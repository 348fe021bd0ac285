"""Values between cells: exact for what a grid resolves, polynomials up to the wall, and nothing drawn from holes."""

from __future__ import annotations

import math

import pytest
import torch

from ups.models import points as module
from ups.models.points import Holes, cells_at, interpolate


def centres(n: int) -> torch.Tensor:
    return (torch.arange(n).double() + 0.5) / n


@pytest.mark.parametrize("n", [9, 16])
def test_waves_are_exact_on_periodic_axes(n: int) -> None:
    def wave(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 1 + torch.sin(2 * math.pi * (3 * x - 2 * y) + 0.4)

    x, y = torch.meshgrid(centres(n), centres(12), indexing="ij")
    at = torch.rand(1, 50, 2, generator=torch.Generator().manual_seed(0)).double()
    got = interpolate(wave(x, y)[None, ..., None], at, (True, True))
    assert torch.allclose(got[0, :, 0], wave(*at[0].unbind(-1)), atol=1e-6)
    local = interpolate(wave(x, y)[None, ..., None], at, (True, True), local=True)
    assert (local - got).abs().mean() < 0.1


def test_polynomials_are_exact_up_to_the_walls_and_of_higher_degree_between_them() -> None:
    at = torch.linspace(0, 1, 101).double().reshape(1, -1, 1)
    for degree, inside in ((3, slice(None)), (5, slice(25, 76))):
        values = centres(12) ** degree
        got = interpolate(values.reshape(1, 12, 1), at, (False,))[0, :, 0]
        assert torch.allclose(got[inside], at[0, inside, 0] ** degree, atol=1e-12)
    few = interpolate(centres(3).reshape(1, 3, 1) ** 2, at, (False,))[0, :, 0]
    assert torch.allclose(few, at[0, :, 0] ** 2, atol=1e-12)


def test_many_points_are_read_in_parts_to_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    x, at = torch.randn(2, 8, 8, 8, 3), torch.rand(2, 40, 3)
    whole = interpolate(x, at, (True, False, True))
    monkeypatch.setattr(module, "AT_ONCE", 5000)
    assert torch.allclose(interpolate(x, at, (True, False, True)), whole, atol=1e-5)
    assert whole.shape == (2, 40, 3)


def test_holes_hold_the_nearest_value_and_points_know_whether_they_lie_in_one() -> None:
    mask = torch.ones(2, 6, 4, dtype=torch.bool)
    mask[0, 2:4] = False
    x = torch.arange(6.0).reshape(1, 6, 1, 1).expand(2, 6, 4, 1)
    full = Holes(mask).filled(x)
    assert full[0, :, 0, 0].tolist() == [0, 1, 1, 4, 4, 5]
    assert torch.equal(full[1], x[1])
    at = torch.tensor([[0.0, 0.0], [0.5, 0.1], [0.99, 1.0]])
    walls = (False,) * at.shape[-1]
    assert cells_at(mask, at, walls).tolist() == [[True, False, True], [True, True, True]]
    assert torch.equal(cells_at(mask, at + 1, (True,) * at.shape[-1]), cells_at(mask, at, walls)), "once around"
