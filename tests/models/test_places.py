"""Cells lie where they are: beside those of training, where every n-th was picked, and between them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_simulators import condition, simulator, window

from grids import grid_of, wrapping
from ups.data.reduction import Reduction
from ups.models import Simulator
from ups.models.config import SimulatorConfig
from ups.models.copies import copies_of
from ups.models.grids import resample
from ups.models.inherit import rebuilt
from ups.models.interleave import in_pieces, put_together, strides_of, taken_apart
from ups.models.trust import rollout_with_signs
from ups.types import Grid

FINE = 64  # of which every second cell is trained on: the grid of small simulators
HALF = -0.5 / FINE


def centres(n: int, corner: float = 0.0) -> torch.Tensor:
    return (torch.arange(n) + 0.5) / n + corner


def cubic(x: torch.Tensor) -> torch.Tensor:
    return (1 - 2 * x + 3 * x**2 - x**3).reshape(1, -1, 1)


@pytest.fixture
def picked() -> Simulator:
    """Of 1D diffusion–sorption, between walls; what was not trained predicts no change."""
    simulated = simulator("diffsorp1d", shapes={"diffsorp1d": (32,)})
    simulated.learn_corners({"diffsorp1d": (HALF,)})
    return simulated


def test_where_a_grid_begins_tells_picked_cells_from_whole_ones_and_from_another_box() -> None:
    whole, box = centres(8).numpy(), ((0.0, 1.0),)

    def grid(cells: np.ndarray) -> Grid:
        wide = float(cells[1] - cells[0])
        return Grid.along((cells,), (False,), ((float(cells[0]) - wide / 2, float(cells[-1]) + wide / 2),))

    assert grid(whole).corner_in(box) == (0,)
    assert grid(whole[::2]).corner_in(box) == pytest.approx((-0.5 / 8,))
    assert grid(whole[1::2]).corner_in(box) == pytest.approx((0.5 / 8,))
    for other in (grid(2 * whole), grid(whole + 5)):
        assert other.corner_in(box) == Reduction().corner(other, box) == (), "which lies elsewhere, or is longer"
        assert Reduction(space=2).corner(other, box) == pytest.approx((-0.5 / 8,)), "picked as in any box"


def test_cells_picked_of_picked_ones_begin_where_those_picked_at_once_do() -> None:
    def grid(cells: np.ndarray) -> Grid:
        wide = float(cells[1] - cells[0])
        return Grid.along((cells,), (False,), ((float(cells[0]) - wide / 2, float(cells[-1]) + wide / 2),))

    whole, box = centres(16).numpy(), ((0.0, 1.0),)
    at_once = grid(whole[::4]).corner_in(box)
    assert at_once == pytest.approx((-1.5 / 16,))
    for every in (1, 2, 4):
        assert Reduction(space=4 // every).corner(grid(whole[::every]), box) == pytest.approx(at_once)


@pytest.mark.parametrize("cells", [16, 32, 96])
def test_values_are_brought_to_where_the_cells_of_another_grid_are(cells: int) -> None:
    shift = 0.4 / 32
    got = resample(cubic(centres(32)), (cells,), (False,), (shift,))
    wanted, inside = cubic(centres(cells, shift)), centres(cells, shift) < 1
    assert (got - wanted)[:, inside].abs().max() < 2e-6
    assert (got - wanted).abs().max() < 2e-3, "beyond the last cell it goes on in a straight line"


def test_all_cells_are_encoded_as_those_of_them_that_training_picked(picked: Simulator) -> None:
    codec, frames = picked.codec, torch.randn(2, FINE, 1)
    every = codec.encode(frames, "diffsorp1d", grid_of(frames, (False,), corner=(0.0,))).z
    assert torch.equal(every, codec.encode(frames, "diffsorp1d", grid_of(frames, (False,))).z), "an array fills the box"
    for corner in ((HALF,), ()):  # as many cells as those of training are those
        picked = frames[:, ::2]
        grid = grid_of(picked, (False,), corner=corner)
        assert torch.allclose(codec.encode(picked, "diffsorp1d", grid).z, every, atol=1e-5)


def test_values_at_points_are_those_of_the_places_that_were_asked_for(picked: Simulator, tmp_path: Path) -> None:
    again = Simulator.load(picked.save(tmp_path / "s.safetensors"))
    for points in (torch.tensor([0.31, 0.5, 0.02]), torch.tensor([0.983])):
        for given in (cubic(centres(32, HALF)), cubic(centres(FINE))):
            there = again.rollout(given, 1, points=points)
            assert torch.allclose(torch.as_tensor(there).reshape(-1), cubic(points).reshape(-1), atol=2e-3)


@pytest.mark.parametrize("cells", [32, 48, 128])
def test_values_at_points_of_an_axis_that_wraps_are_where_they_are_on_any_grid(cells: int) -> None:
    simulated = simulator("burgers1d", shapes={"burgers1d": (32,)})
    simulated.learn_corners({"burgers1d": (-1.5 / 128,)})

    def wave(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(2 * torch.pi * 3 * x).reshape(1, -1, 1)

    points = torch.tensor([0.001, 0.3, 0.999])
    given = wave(centres(cells, -1.5 / 128 if cells == 32 else 0.0))
    there = torch.as_tensor(simulated.rollout(given, 1, {"nu": 1.0}, points=points))
    assert torch.allclose(there.reshape(-1), wave(points).reshape(-1), atol=1e-4)


def test_a_part_in_the_place_of_another_knows_where_the_grid_begins(picked: Simulator) -> None:
    picked.replace("codec", rebuilt(picked, "codec", picked.codec.state_dict()))
    assert picked.codec.corners == {"diffsorp1d": (HALF,)}
    assert picked.operator.inputs.corners == picked.codec.corners


def test_finer_grids_along_axes_that_wrap_are_simulated_as_the_picked_ones_that_lie_in_them() -> None:
    simulated = simulator("burgers1d", shapes={"burgers1d": (32,)})
    jumps = torch.where(centres(96) > 0.3, 1.0, -0.7).reshape(1, 1, 96, 1)
    fine = window(jumps, condition("burgers1d", 1))
    assert strides_of(fine, simulated.codec) is None, "of whole cells none lie between"
    simulated.learn_corners({"burgers1d": (-1 / 96,)})
    assert strides_of(fine, simulated.codec) == (3,)
    assert torch.allclose(simulated.simulate(fine, 1), jumps, atol=1e-5), "no change, and no wave beside a jump"


def test_points_and_estimates_of_errors_on_a_finer_grid_are_of_the_rollout_on_that_grid() -> None:
    simulated = simulator("burgers1d", shapes={"burgers1d": (32,)})
    simulated.learn_corners({"burgers1d": (-1 / 96,)})
    with torch.no_grad():  # off what it starts as, so that it moves
        for weight in simulated.operator.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    fine = window(torch.randn(2, 1, 96, 1), condition("burgers1d", 2))
    apart = taken_apart(fine, (3,))
    with torch.no_grad():
        frames = simulated.simulate(fine, 3)
        there = simulated.simulate(fine, 3, centres(96).unsqueeze(1))
        watched, signs = rollout_with_signs(simulated, fine, 3)
        each = [rollout_with_signs(simulated, piece, 3)[1] for piece in in_pieces(apart)]
    assert (frames[:, 0] - fine.state).abs().max() > 0.01
    assert torch.allclose(there, frames, atol=1e-5)
    assert torch.allclose(watched, frames, atol=1e-5)
    for step, parts in zip(signs, zip(*each, strict=True), strict=True):
        for name, sign in step.items():
            alone = torch.cat([part[name] for part in parts]).reshape(3, 2)
            assert torch.allclose(sign, alone.mean(0)), "the mean over the three grids"


def test_values_between_the_cells_of_a_finer_grid_keep_the_bounds_that_frames_keep() -> None:
    simulated = simulator("cfd1d", shapes={"cfd1d": (32,)})
    simulated.learn_corners({"cfd1d": (-1 / 96,)})
    density = torch.where((centres(96) > 0.4) & (centres(96) < 0.6), 1.0, 0.01)  # between its cells a wave overshoots
    gas = torch.stack((density, torch.zeros(96), torch.ones(96)), -1).expand(2, 1, 96, 3)
    fine = window(gas, condition("cfd1d", 2))
    with torch.no_grad():
        frames = simulated.simulate(fine, 2)
        between = simulated.simulate(fine, 2, centres(400).unsqueeze(1))
    assert frames[..., 0].min() >= 0
    assert between.shape == (2, 2, 400, 3)
    assert between[..., 0].min() >= 0


def test_the_copies_of_a_step_are_no_mirror_images_of_cells_picked_between_walls() -> None:
    simulated = simulator("reacdiff2d", shapes={"reacdiff2d": (8, 8)})
    simulated.config = SimulatorConfig(symmetry="rollout")
    task, walls = simulated.codec.task("reacdiff2d"), condition("reacdiff2d", 1)
    assert not any(walls.grid.periodic)
    assert len(copies_of(simulated, task, walls)) == 8, "whole cells have all images"
    simulated.learn_corners({"reacdiff2d": (-1 / 32, -1 / 32)})
    assert len(copies_of(simulated, task, walls)) == 2, "x and y may still be exchanged"
    wraps = wrapping(walls, True, True)
    assert len(copies_of(simulated, task, wraps)) == 8, "along axes that wrap they lie anywhere"


def test_grids_lie_in_one_another_along_axes_that_wrap_on_which_cells_were_picked_and_nowhere_else() -> None:
    simulated = simulator("cfd2d", shapes={"cfd2d": (8, 8)})
    cells, both = torch.randn(1, 1, 16, 16, 4), (-1 / 32, -1 / 32)

    def strides(corner: tuple[float, ...], *wraps: bool, frames: torch.Tensor = cells) -> tuple[int, ...] | None:
        simulated.learn_corners({"cfd2d": corner})
        return strides_of(window(frames, condition("cfd2d", 1, periodic=wraps)), simulated.codec)

    assert strides(both, True, True) == (2, 2)
    assert strides(both, True, False) == (2, 1), "between walls the place of a cell counts"
    assert strides((0.0, -1 / 32), True, True) == (1, 2), "of whole cells none lie between"
    assert strides(both, False, False) is None
    assert strides(both, True, True, frames=torch.randn(1, 1, 20, 16, 4)) == (1, 2), "20 cells are no grids of 8"


def test_grids_that_are_many_are_stepped_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = dataclasses.replace(condition("cfd2d"), inputs=torch.zeros(2, 16, 16, 0))
    apart = taken_apart(window(torch.randn(2, 1, 16, 16, 4), driven), (2, 2))
    assert [len(piece) for piece in in_pieces(apart)] == [8]
    monkeypatch.setattr("ups.models.interleave.CELLS", 3 * 64)
    pieces = list(in_pieces(apart))
    assert [len(piece) for piece in pieces] == [3, 3, 2]
    assert torch.equal(torch.cat([piece.context for piece in pieces]), apart.context)


def test_grids_that_lie_in_one_another_are_put_together_as_they_were_taken_apart() -> None:
    context, inputs = torch.randn(2, 3, 8, 6, 4), torch.randn(2, 8, 6, 2)
    driven = dataclasses.replace(condition("nsincom2d"), inputs=inputs)
    apart = taken_apart(window(context, driven), (4, 2))
    assert apart.context.shape == (16, 3, 2, 3, 4)
    assert torch.equal(apart.context[2:4], context[:, :, ::4, 1::2]), "the next grid of both samples"
    assert torch.equal(apart.inputs[2:4], inputs[:, ::4, 1::2])
    assert torch.equal(apart.params, torch.cat([driven.params] * 8))
    assert torch.equal(put_together(apart.context, (4, 2)), context)


def test_a_state_on_a_finer_grid_in_2d_is_answered_without_inputs() -> None:
    simulated = simulator("cfd2d", shapes={"cfd2d": (8, 8)})
    simulated.learn_corners({"cfd2d": (-1 / 32, -1 / 32)})
    state = np.random.default_rng(0).uniform(1.0, 2.0, (16, 16, 4)).astype(np.float32)
    params = {"mach": 1.0, "eta": 1.0, "zeta": 1.0}
    answer = simulated.rollout(state, steps=1, params=params)
    own = simulated.rollout(state[1::2, 1::2], steps=1, params=params)
    assert np.allclose(answer[..., 1::2, 1::2, :], own, atol=1e-6), "as the picked grid that it holds"


def test_inputs_on_another_grid_than_the_state_are_not_taken_apart_with_it() -> None:
    simulated = simulator("nsincom2d", shapes={"nsincom2d": (8, 8)})
    simulated.learn_corners({"nsincom2d": (-1 / 32, -1 / 32)})
    fine = window(torch.randn(1, 1, 16, 16, 3), condition("nsincom2d", 1))
    for cells, strides in ((16, (2, 2)), (8, None)):
        driven = dataclasses.replace(fine, inputs=torch.randn(1, cells, cells, 2))
        assert strides_of(driven, simulated.codec) == strides
