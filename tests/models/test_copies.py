"""Steps averaged over moved and mirrored copies of a state: what they know of places and directions of the grid."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from grids import grid_of
from ups.models import CodecConfig, OperatorConfig, Simulator, build, copies
from ups.models.config import SimulatorConfig
from ups.models.copies import copies_of, moves_of
from ups.physics import TASKS
from ups.physics.symmetries import turns_of
from ups.tensors import Condition, LatentState, Window, numeric_params
from ups.types import ConfigError, Field, Grid, Symmetry

SYMMETRIES: tuple[Symmetry, ...] = ("off", "train", "rollout", "both")


def moving(name: str, shifts: int, context: int, cells: int, symmetry: Symmetry = "off") -> Simulator:
    """A simulator that changes states, though it has learnt nothing."""
    task = TASKS[name]
    codec = CodecConfig(
        dim=(2 if task.ndim == 3 else 4) ** task.ndim * len(task.channels) + 8
    )  # more than a patch holds
    operator = OperatorConfig(width=16, depth=1, heads=2, context=context)
    config = SimulatorConfig(shift_average=shifts, symmetry=symmetry, guard=False)
    sim = build([task], codec, operator, config, {name: (cells,) * task.ndim}).eval()
    generator = torch.Generator().manual_seed(0)
    for p in sim.operator.parameters():
        p.data += 0.2 * torch.randn(p.shape, generator=generator)
    return sim


def window(name: str, context: int, cells: int) -> Window:
    task = TASKS[name]
    shape = (2, context, *(cells,) * task.ndim, len(task.channels))
    frames = 1 + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    params = torch.ones(2, len(numeric_params(task)))
    none = torch.empty(2, *(cells,) * task.ndim, 0)
    return Window(
        task, frames, frames, none, params, torch.full((2,), 0.1), grid_of(none, task.periodic, (1.0,) * task.ndim)
    )


@pytest.mark.parametrize(("name", "context", "cells"), [("burgers1d", 1, 16), ("advection1d", 3, 24), ("cfd2d", 2, 8)])
def test_a_step_averaged_over_all_parts_of_a_patch_knows_no_places(name: str, context: int, cells: int) -> None:
    given, axes = window(name, context, cells), tuple(range(2, 2 + TASKS[name].ndim))
    aside = dataclasses.replace(given, context=given.context.roll([1] * len(axes), axes))
    gaps = {}
    for shifts in (1, 4):
        sim = moving(name, shifts, context, cells)
        with torch.no_grad():
            there, here = sim.simulate(aside, 3), sim.simulate(given, 3)
        assert (here - given.context[:, -1:]).abs().max() > 1e-2, "something happens"
        gaps[shifts] = float((there.roll([-1] * len(axes), axes) - here).abs().max() / here.abs().max())
    assert gaps[4] < 1e-4 < gaps[1] / 10


@pytest.mark.parametrize(("name", "cells"), [("burgers1d", 16), ("cfd2d", 8), ("reacdiff2d", 8)])
def test_a_step_averaged_over_all_images_knows_no_directions(name: str, cells: int) -> None:
    given = window(name, 2, cells)
    moves = turns_of(given.task, given.grid)
    assert moves is not None
    chosen = moves.choices[-1]  # mirrored along all axes, and x and y exchanged
    image = dataclasses.replace(given, context=moves.there(given.context, chosen, 2))
    gaps = {}
    for symmetry in SYMMETRIES:
        sim = moving(name, 1, 2, cells, symmetry)
        with torch.no_grad():
            there, here = sim.simulate(image, 3), sim.simulate(given, 3)
        gaps[symmetry] = float((moves.back(there, chosen, 2) - here).abs().max() / here.abs().max())
    assert max(gaps["rollout"], gaps["both"]) < 1e-4 < gaps["off"] / 10
    assert gaps["train"] == gaps["off"]


@pytest.mark.parametrize(("name", "cells", "shifts"), [("burgers1d", 16, 3), ("cfd2d", 8, 4), ("cfd3d", 4, 2)])
def test_images_of_a_state_are_answered_alike_however_its_copies_are_moved(name: str, cells: int, shifts: int) -> None:
    """Also where a mirror makes other moves of the moves: of three of four in 1D, of a diagonal in 2D."""
    given, sim = window(name, 1, cells), moving(name, shifts, 1, cells, "rollout")
    moves = turns_of(given.task, given.grid)
    assert moves is not None
    with torch.no_grad():
        here = sim.simulate(given, 3)
        for chosen in [row for row in moves.choices if sum(row) == 1]:
            there = sim.simulate(dataclasses.replace(given, context=moves.there(given.context, chosen, 2)), 3)
            assert (moves.back(there, chosen, 2) - here).abs().max() < 1e-5 * here.abs().max()
    assert (here - given.context).abs().max() > 1e-2, "something happens"


def test_in_1d_moves_and_images_together_know_neither_places_nor_directions() -> None:
    given, sim = window("burgers1d", 2, 16), moving("burgers1d", 4, 2, 16, "rollout")
    with torch.no_grad():
        here = sim.simulate(given, 3)
        for cells in (1, 2, 3, 7):
            aside = sim.simulate(dataclasses.replace(given, context=given.context.roll(cells, 2)), 3)
            assert (aside.roll(-cells, 2) - here).abs().max() < 1e-5 * here.abs().max()
        mirrored = sim.simulate(dataclasses.replace(given, context=-given.context.flip(2)), 3)
    assert (-mirrored.flip(2) - here).abs().max() < 1e-5 * here.abs().max()


def test_cells_that_are_not_square_are_not_exchanged_though_their_tokens_are() -> None:
    task = TASKS["cfd2d"]
    for grid, count in (((32, 32), 8), ((30, 32), 4)):
        config = SimulatorConfig(symmetry="rollout", guard=False)
        sim = build([task], CodecConfig(dim=64), OperatorConfig(width=16, depth=1, heads=2), config, {"cfd2d": grid})
        assert sim.codec.tokens(task) == (8, 8)
        numbers = torch.ones(1, len(numeric_params(task)))
        condition = Condition(numbers, torch.ones(1), Grid(grid, task.periodic), task.name)
        assert len(copies_of(sim, task, condition)) == count
        frames = torch.rand(1, 1, *grid, 4) + 1
        none = torch.empty(1, *grid, 0)
        given = Window(task, frames, frames, none, condition.params, condition.dt, condition.grid)
        with torch.no_grad():
            assert sim.eval().simulate(given, 1).shape == (1, 1, *grid, 4)


def test_copies_that_do_not_fit_together_are_stepped_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, given = moving("cfd2d", 4, 2, 8, "rollout"), window("cfd2d", 2, 8)
    assert len(copies_of(sim, TASKS["cfd2d"], Condition.of(given))) == 4 * 8
    answers, stepped = [], list[int]()
    sim.operator.register_forward_pre_hook(lambda _, args: stepped.append(len(args[0])))
    for cells, most in ((2**21, 2 * 32), (3 * 2 * 64, 2 * 3), (1, 2)):
        monkeypatch.setattr(copies, "CELLS", cells)
        stepped.clear()
        with torch.no_grad():
            answers.append(sim.simulate(given, 2))
        assert max(stepped) == most
    assert torch.allclose(answers[0], answers[1], atol=1e-5)
    assert torch.allclose(answers[0], answers[2], atol=1e-5)


def test_states_are_moved_by_parts_of_a_patch_along_axes_that_wrap_and_nowhere_else() -> None:
    assert moves_of(4, (True,), 4) == [(0,), (1,), (2,), (3,)]
    assert moves_of(4, (True,), 2) == [(0,), (2,)]
    assert moves_of(4, (True,), 9) == [(0,), (1,), (2,), (3,)], "no more than a patch has cells"
    assert moves_of(4, (True, False), 2) == [(0, 0), (2, 0)]
    assert moves_of(4, (True,), 1) == moves_of(4, (False,), 4) == [(0,)]
    with pytest.raises(ConfigError, match="must be at least 1"):
        SimulatorConfig(shift_average=0)


def test_what_is_given_has_its_places_and_what_has_a_direction_no_images() -> None:
    sim = moving("advection1d", 1, 1, 16, "rollout")
    given = window("advection1d", 1, 16)
    assert len(copies_of(sim, TASKS["advection1d"], Condition.of(given))) == 1
    sim.config = SimulatorConfig(shift_average=4, symmetry="both")
    assert len(copies_of(sim, TASKS["advection1d"], Condition.of(given))) == 4
    for place in ({"inputs": (Field.scalar("force"),)}, {"steady": True}):
        placed = dataclasses.replace(TASKS["advection1d"], **place)
        assert len(copies_of(sim, placed, Condition.of(given))) == 1, place


def test_each_task_has_its_own_symmetry_and_a_word_that_is_none_is_refused() -> None:
    given, sim = window("burgers1d", 1, 16), moving("burgers1d", 1, 1, 16)
    for symmetry, count in (({"burgers1d": "rollout"}, 2), ({"burgers1d": "train"}, 1), ({"cfd1d": "both"}, 1)):
        sim.config = SimulatorConfig(symmetry=symmetry)  # type: ignore[arg-type]
        assert len(copies_of(sim, TASKS["burgers1d"], Condition.of(given))) == count, symmetry
    with pytest.raises(ConfigError, match=r"no simulator\.symmetry 'bth'; did you mean 'both'"):
        SimulatorConfig(symmetry="bth")  # type: ignore[arg-type]


def test_tokens_of_a_mean_say_that_mean_though_their_codec_has_learnt() -> None:
    """A codec with an error of its own would add it in each step, were the mean only encoded."""
    sim, given = moving("burgers1d", 2, 1, 16), window("burgers1d", 1, 16)
    generator = torch.Generator().manual_seed(2)
    for p in sim.codec.parameters():
        p.data += 1e-3 * torch.randn(p.shape, generator=generator)
    task, condition = given.task, Condition.of(given)
    with torch.no_grad():
        z = sim.codec.encode(given.state, task, given.grid).z.unsqueeze(1)
        lost = sim.codec.decode(LatentState(z[:, 0], given.grid), task) - given.state
        mean = sim.codec.decode(LatentState(sim.operator(z, condition), given.grid), task)
        alike = [copies.Copy((0,))] * 2
        after = copies.averaged(sim.codec, sim.operator, alike, z, condition, task)
        said = sim.codec.decode(LatentState(after, given.grid), task)
    assert (said - mean).abs().max() < 0.1 * lost.abs().max()
    assert lost.abs().max() > 1e-3
