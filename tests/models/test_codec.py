"""Codec: nothing is lost, points are as good as cells, and other grids mean the same field."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from small_simulators import GRIDS, awaken, frames, simulator

from grids import grid_of
from rounding import needs_alike
from ups.models import Codec, CodecConfig
from ups.models.codec import PIECES
from ups.models.grids import sub_cells
from ups.models.points import interpolate
from ups.physics import TASKS
from ups.tensors import LatentState
from ups.types import ConfigError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def waves(n: int, count: int = 8) -> torch.Tensor:
    """Smooth periodic fields `(count, n, 1)` known at any resolution."""
    x = (torch.arange(n) + 0.5) / n
    k = torch.arange(1, count + 1).unsqueeze(1)
    return (torch.sin(2 * math.pi * (k % 3 + 1) * x + k) + 0.5 * torch.cos(2 * math.pi * (k % 4) * x)).unsqueeze(-1)


@pytest.mark.parametrize("name", GRIDS)
def test_an_untrained_codec_already_gives_every_cell_back(name: str) -> None:
    codec = simulator(name).codec
    x = frames(name)[:, 0]
    codec.fit_statistics(name, x.flatten(0, -2).mean(0) + 1, 3 * x.flatten(0, -2).std(0))
    state = codec.encode(x, name, grid_of(x, TASKS[name].periodic))
    assert state.z.shape == (2, *codec.tokens(name), 64)
    assert (codec.decode(state, name) - x).abs().max() < 1e-4


@pytest.mark.parametrize("halo", [0, 3])
def test_a_token_sees_its_patch_and_so_many_cells_around_it(halo: int) -> None:
    codec = Codec(CodecConfig(dim=4, halo=halo, blocks=0), [TASKS["burgers1d"]], {"burgers1d": (32,)})
    awaken(codec.encoder)
    x = torch.randn(1, 32, 1)
    other = x.clone()
    other[:, 16] += 1
    grid = grid_of(x, (True,))
    gap = codec.encode(other, "burgers1d", grid).z - codec.encode(x, "burgers1d", grid).z
    changed = gap.abs().amax(-1)[0]
    assert changed.nonzero().flatten().tolist() == ([4] if halo == 0 else [3, 4])


@pytest.mark.parametrize("cells", [(30, 21), (17, 16)])
@pytest.mark.parametrize("periodic", [(True, True), (False, False), (True, False)])
def test_a_grid_that_patches_do_not_divide_is_given_back_too(
    cells: tuple[int, int], periodic: tuple[bool, bool]
) -> None:
    codec = Codec(CodecConfig(dim=64), [TASKS["cfd2d"]], {"cfd2d": cells})
    x = torch.randn(2, *cells, 4, generator=torch.Generator().manual_seed(0))
    state = codec.encode(x, "cfd2d", grid_of(x, periodic))
    assert state.z.shape == (2, *codec.tokens("cfd2d"), 64)
    assert (codec.decode(state, "cfd2d") - x).abs().max() < 1e-4


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("cpu", marks=needs_alike),
        pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu]),
    ],
)
@pytest.mark.parametrize("name", GRIDS)
def test_a_frame_is_encoded_to_the_same_bits_in_any_company(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = simulator(name).codec.requires_grad_(False)
    awaken(codec)
    codec.to(kind)
    x = torch.randn(37, *GRIDS[name], len(TASKS[name].channels), device=kind)
    periodic = TASKS[name].periodic
    whole = codec.encode_alike(x, name, grid_of(x, periodic))
    assert torch.allclose(whole, codec.encode(x, name, grid_of(x, periodic)).z, atol=1e-4)
    for size in (1, 3, 36):
        assert torch.equal(torch.cat([codec.encode_alike(p, name, grid_of(p, periodic)) for p in x.split(size)]), whole)
    monkeypatch.setitem(PIECES, kind, 5 * math.prod(codec.tokens(name)))  # pieces of five frames, the last not full
    assert torch.allclose(codec.encode_alike(x, name, grid_of(x, periodic)), whole, atol=1e-4)


def test_encoding_commutes_with_shifts_of_a_periodic_box_by_whole_patches() -> None:
    codec = simulator("cfd2d").codec
    awaken(codec)
    x = frames("cfd2d")[:, 0]
    z = codec.encode(x, "cfd2d", grid_of(x, (True, True))).z
    moved = codec.encode(x.roll((8, -4), (1, 2)), "cfd2d", grid_of(x.roll((8, -4), (1, 2)), (True, True))).z
    assert torch.allclose(moved, z.roll((2, -1), (1, 2)), atol=1e-4)


def test_a_codec_with_fewer_numbers_than_cells_learns_smooth_fields_in_seconds() -> None:
    torch.manual_seed(0)
    codec = Codec(CodecConfig(dim=6, patch=(8, 4, 2), width=16), [TASKS["burgers1d"]], {"burgers1d": (64,)})
    x = waves(64)
    optimizer = torch.optim.Adam(codec.parameters(), lr=1e-2)
    for step in range(250):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 250)
        out = codec.decode(codec.encode(x, "burgers1d", grid_of(x, (True,))), "burgers1d")
        loss = (out - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (out - x).norm() / x.norm() < 1e-2


def test_a_field_at_twice_the_resolution_has_the_same_tokens_and_is_given_back_at_its_own() -> None:
    codec = simulator("burgers1d").codec
    coarse = codec.encode(waves(32), "burgers1d", grid_of(waves(32), (True,)))
    fine = codec.encode(waves(64), "burgers1d", grid_of(waves(64), (True,)))
    assert torch.allclose(coarse.z, fine.z, atol=1e-5)
    assert (codec.decode(fine, "burgers1d", (64,)) - waves(64)).abs().max() < 1e-4


@pytest.mark.parametrize("periodic", [(True,), (False,), (True, True), (True, False)])
def test_points_are_as_good_as_cells_after_seconds_of_training(periodic: tuple[bool, ...]) -> None:
    """Sums of waves, known everywhere, through a codec that cannot hold them all."""
    ndim, n = len(periodic), 64 if len(periodic) == 1 else 24
    task = dataclasses.replace(TASKS["burgers1d"], bounds=((0.0, 1.0),) * ndim, periodic=periodic)
    torch.manual_seed(0)
    codec = Codec(CodecConfig(dim=6 * ndim, patch=(8, 4, 2), width=16), [task], {"burgers1d": (n,) * ndim})
    turns = torch.tensor([2 * math.pi if wraps else math.pi for wraps in periodic])
    k, phase = torch.randint(-3, 4, (16, 4, ndim)) * turns, torch.rand(16, 4, 1) * 6

    def field(points: torch.Tensor) -> torch.Tensor:
        return torch.cos(torch.einsum("bmk,bpk->bmp", k, points) + phase).sum(1).unsqueeze(-1)

    centres = torch.as_tensor(sub_cells((n,) * ndim) + 0.5, dtype=torch.float32).expand(16, -1, -1)
    x = field(centres).reshape(16, *(n,) * ndim, 1)
    optimizer = torch.optim.Adam(codec.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        (codec.decode(codec.encode(x, task, grid_of(x, periodic)), task) - x).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        state, points = codec.encode(x, task, grid_of(x, periodic)), torch.rand(16, 400, ndim)
        decoded = codec.decode(state, task)
        cells = (decoded - x).square().mean().sqrt()
        between = (interpolate(decoded, points, periodic) - field(points)).square().mean().sqrt()
    assert 1e-3 < cells < 0.5
    assert between < 1.2 * cells


def test_gradients_reach_every_parameter_of_the_codec() -> None:
    codec = simulator("burgers1d", "reacdiff2d").codec
    awaken(codec)
    total = torch.zeros(())
    for name in ("burgers1d", "reacdiff2d"):
        x = frames(name)[:, 0]
        total = total + codec.decode(codec.encode(x, name, grid_of(x, TASKS[name].periodic)), name).square().mean()
    total.backward()
    dead = [n for n, p in codec.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert dead == []


def test_a_grid_that_does_not_fit_and_a_task_unknown_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 8 cells"):
        Codec(CodecConfig(), [TASKS["burgers1d"]], {"burgers1d": (7,)})
    codec = simulator("burgers1d").codec
    with pytest.raises(ConfigError, match="not trained on 'ks1d'"):
        codec.encode(torch.zeros(1, 32, 1), "ks1d", grid_of(torch.zeros(1, 32, 1), (True,)))
    with pytest.raises(ConfigError, match="channels u"):
        codec.encode(torch.zeros(1, 32, 2), "burgers1d", grid_of(torch.zeros(1, 32, 2), (True,)))


@pytest.mark.parametrize(("value", "rounding"), [(0.0, 0.0), (3.5, 0.0), (1e9, 0.5), (-2e-13, 0.0)])
def test_a_channel_that_never_varies_is_that_number_whatever_tokens_say(value: float, rounding: float) -> None:
    codec = simulator("burgers1d").codec
    codec.fit_statistics("burgers1d", torch.tensor([value]), torch.tensor([rounding]))
    state = codec.encode(torch.full((1, 32, 1), value), "burgers1d", grid_of(torch.full((1, 32, 1), value), (True,)))
    assert isinstance(state, LatentState)
    assert torch.isfinite(state.z).all()
    moved = dataclasses.replace(state, z=state.z + torch.randn(state.z.shape))
    assert torch.equal(codec.decode(moved, "burgers1d"), torch.full((1, 32, 1), value))


@pytest.mark.parametrize("unit", [1e-15, 1e-12, 1.0, 1e12])
def test_the_unit_of_a_field_is_a_factor_of_its_statistics_and_nothing_else(unit: float) -> None:
    codec, x = simulator("burgers1d").codec, waves(32)
    encoded = []
    for size in (1.0, unit):
        codec.fit_statistics("burgers1d", x.mean((0, 1)) * size, x.std((0, 1)) * size)
        encoded.append(codec.encode(x * size, "burgers1d", grid_of(x * size, (True,))))
    assert torch.allclose(encoded[0].z, encoded[1].z, atol=1e-5)
    assert torch.allclose(codec.decode(encoded[1], "burgers1d") / unit, x, atol=1e-4)


@pytest.mark.parametrize("name", ["heat.2", "keys", "forward"])
def test_a_task_whose_name_torch_has_a_use_for_is_refused_with_a_sentence(name: str) -> None:
    task = dataclasses.replace(TASKS["burgers1d"], name=name)
    with pytest.raises(ConfigError, match=f"'{name}' cannot be the name of a task"):
        Codec(CodecConfig(), [task], {name: (32,)})
