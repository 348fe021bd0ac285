"""Grids: padding, patches, and resampling against functions whose values are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ups.models.grids import check_grid, cropped, pad_axis, padded, patches, resample, sub_cells, unpatch
from ups.types import ConfigError


def at(n: int) -> np.ndarray:
    return (np.arange(n) + 0.5) / n


def test_a_periodic_axis_is_padded_by_its_other_end_and_a_bounded_one_by_its_last_cell() -> None:
    x = torch.arange(4.0).reshape(1, 4, 1)
    assert pad_axis(x, 1, 1, 2, True).flatten().tolist() == [3, 0, 1, 2, 3, 0, 1]
    assert pad_axis(x, 1, 1, 2, False).flatten().tolist() == [0, 0, 1, 2, 3, 3, 3]


@pytest.mark.parametrize("shape", [(8,), (8, 4), (4, 8, 4)])
def test_patches_without_halo_put_back_together_are_the_grid(shape: tuple[int, ...]) -> None:
    x = torch.randn(2, *shape, 3)
    cut = patches(x, 2, 0, (True,) * len(shape))
    cells = cut.unflatten(-1, (3, 2 ** len(shape))).transpose(-1, -2)
    assert torch.equal(unpatch(cells, (2,) * len(shape)), x)
    assert sub_cells((2,) * len(shape)).shape == (2 ** len(shape), len(shape))


@pytest.mark.parametrize(("n", "m"), [(16, 32), (32, 16), (15, 40), (16, 24), (64, 17)])
def test_resampling_a_periodic_axis_is_exact_for_waves_both_grids_hold(n: int, m: int) -> None:
    def wave(x: np.ndarray) -> np.ndarray:
        return 1 + np.sin(2 * np.pi * 3 * x + 0.3) - 0.5 * np.cos(2 * np.pi * 7 * x)

    got = resample(torch.tensor(wave(at(n)), dtype=torch.float32).reshape(1, n, 1), (m,), (True,))
    assert np.abs(got.flatten().numpy() - wave(at(m))).max() < 2e-6


def test_refining_a_bounded_axis_is_exact_for_cubics_up_to_the_wall() -> None:
    def cubic(x: np.ndarray) -> np.ndarray:
        return 1 - 2 * x + 3 * x**2 - x**3

    got = resample(torch.tensor(cubic(at(12)), dtype=torch.float32).reshape(1, 12, 1), (30,), (False,))
    assert np.abs(got.flatten().numpy() - cubic(at(30))).max() < 2e-6


def test_coarsening_a_bounded_axis_keeps_the_integral() -> None:
    x = torch.randn(2, 24, 12, 1)
    got = resample(x, (16, 6), (False, False))
    assert torch.allclose(got.mean((1, 2)), x.mean((1, 2)), atol=1e-6)
    assert torch.allclose(
        got[0, 0, 0], (x[0, :2, :2] * torch.tensor([2 / 3, 1 / 3])[:, None, None]).sum(0).mean(0), atol=1e-6
    )


def test_a_grid_of_fewer_than_two_patches_is_refused_and_any_other_taken() -> None:
    check_grid((30,), 4, "burgers1d")
    with pytest.raises(ConfigError, match="choose a smaller codec patch, or at least 8 cells"):
        check_grid((16, 7), 4, "burgers1d")


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("n", [13, 14, 15, 16])
def test_what_is_padded_is_a_whole_number_of_patches_and_is_given_back(n: int, periodic: bool) -> None:
    x = torch.randn(2, n, n + 8, 1, generator=torch.Generator().manual_seed(0))
    wider = padded(x, 4, (periodic, not periodic))
    assert wider.shape == (2, 16, -(-(n + 8) // 4) * 4, 1)
    assert torch.allclose(cropped(wider, (n, n + 8), (periodic, not periodic)), x, atol=2e-6)
    if n == 16:
        assert wider is x


def test_a_padded_periodic_axis_still_wraps() -> None:
    wave = torch.tensor(np.sin(2 * np.pi * (at(13) - 0.1)), dtype=torch.float32).reshape(1, 13, 1)
    assert np.abs(padded(wave, 4, (True,)).flatten().numpy() - np.sin(2 * np.pi * (at(16) - 0.1))).max() < 1e-6
