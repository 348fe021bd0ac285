"""Mirror images and turns: samples again where an equation knows no direction, and all of them can be undone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grids import boxed
from ups.physics import EQUATIONS, TASKS
from ups.physics.elliptic import Darcy2D
from ups.physics.random import Draw
from ups.physics.solver import solve
from ups.physics.symmetries import Turns, images, images_undone, turned, turns_of
from ups.tensors import Window
from ups.types import Field, Grid

DARCY, WAVE = TASKS["darcy2d"], TASKS["advection1d"]


def window(batch: int, cells: int = 8) -> Window:
    """Media, and their true solutions."""
    grid, draw = Grid((cells, cells), DARCY.periodic, DARCY.bounds), Draw(0, range(batch))
    solution = Darcy2D().simulate(draw, grid, [0.0], "accurate")
    media, params = Darcy2D().inputs(draw, grid), torch.ones(batch, 1)
    return Window(DARCY, 0 * solution, solution, media, params, torch.ones(batch), grid)


def test_a_turned_sample_is_a_sample_again_and_all_eight_come_up() -> None:
    torch.manual_seed(0)
    one = window(1, cells=16)
    many = Window.join([one] * 64)
    other = turned(many)
    grid = Grid((16, 16), DARCY.periodic, DARCY.bounds)
    system = Darcy2D.steady_system({"beta": torch.ones(64)}, other.inputs, grid)
    assert float(system.residual(other.targets[:, 0]).max()) < 1e-9
    assert len({tuple(values.flatten().tolist()) for values in other.inputs}) == 8
    assert torch.equal(other.targets.flatten(1).sort()[0], many.targets.flatten(1).sort()[0])


def test_what_has_a_direction_is_not_turned_and_unlike_axes_are_not_exchanged() -> None:
    torch.manual_seed(0)
    wave = replace(window(2), task=WAVE)
    assert turned(wave) is wave
    foreign = replace(window(2), task=replace(DARCY, equation=""))
    assert turned(foreign) is foreign
    long = window(64)
    assert turned(boxed(long, 1.0, 2.0)).inputs.shape == long.inputs.shape
    wide = replace(
        long,
        grid=long.grid._replace(shape=(8, 4)),
        inputs=long.inputs[:, :, :4],
        targets=long.targets[:, :, :, :4],
        context=long.context[..., :4, :],
    )
    assert turned(wide).targets.shape == wide.targets.shape


def turns(given: Window) -> Turns:
    moves = turns_of(given.task, given.grid)
    assert moves is not None
    return moves


def test_all_images_are_there_and_can_be_undone() -> None:
    given = window(3)
    all_images = images(given, turns(given))
    assert len(all_images) == 8 * 3
    assert torch.equal(all_images.inputs[:3], given.inputs)
    assert len({tuple(values.flatten().tolist()) for values in all_images.inputs[::3]}) == 8
    back = images_undone(all_images.targets, turns(given))
    assert back.shape == (8, *given.targets.shape)
    assert all(torch.equal(image, given.targets) for image in back)
    oblong = boxed(given, 1.0, 2.0)
    assert len(images(oblong, turns(oblong))) == 4 * 3


def test_cells_picked_between_walls_are_exchanged_and_mirrored_across_axes_that_wrap_alone() -> None:
    given = window(3)
    picked = replace(given, grid=given.grid._replace(corner=(-1 / 32, -1 / 32)))
    both = images(picked, turns(picked))
    assert len(both) == 2 * 3
    assert torch.equal(both.inputs[3:], given.inputs.transpose(1, 2))
    assert all(torch.equal(image, given.targets) for image in images_undone(both.targets, turns(picked)))
    assert turns_of(DARCY, boxed(picked, 1.0, 2.0).grid._replace(corner=(-1 / 32, -1 / 32))) is None
    gas, corner = TASKS["cfd2d"], (-1 / 32, -1 / 32)
    for periodic, moves in (((True, True), (0, 1, 2)), ((True, False), (0,)), ((False, False), (2,))):
        assert turns(replace(given, task=gas, grid=Grid((8, 8), periodic, gas.bounds, corner))).moves == moves
    assert turns(replace(given, grid=given.grid._replace(corner=(0.0, -1 / 32)))).moves == (0,)


def test_foreign_data_of_an_equation_turn_like_it_whatever_their_channels_are_called() -> None:
    task = replace(TASKS["burgers1d"], name="mine", fields=(Field.scalar("speed"),))
    moves = turns_of(task, Grid((4,), (True,)))
    assert moves is not None
    assert torch.equal(
        moves.there(torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]), (True,), 1).flatten(), -torch.tensor([4.0, 3, 2, 1])
    )


@pytest.mark.parametrize("name", [name for name, kind in EQUATIONS.items() if kind.isotropic and not kind.task.steady])
def test_the_future_of_an_image_is_the_image_of_the_future(name: str) -> None:
    """By the solver of every equation that says that it knows no direction."""
    equation, task = EQUATIONS[name](), TASKS[name]
    grid = Grid((16 if task.ndim < 3 else 6,) * task.ndim, task.periodic, task.bounds)
    start = equation.initial(Draw(0, range(1), dtype=torch.float64), grid)
    times = [0.0, min(0.02 * task.end, 0.2)]
    moves = turns_of(task, grid)
    assert moves is not None

    def future(state: torch.Tensor) -> torch.Tensor:
        return solve(equation.stepper(equation.schemes[0], grid, state), state, times)[:, -1]

    there = future(start)
    assert (there - start).abs().max() > 1e-4, "something happens"
    for chosen in moves.choices[1:]:
        image = moves.there(start, chosen, 1)
        assert not torch.equal(image, start) or name == "swe2d", "a round dam is its own image"
        gap = (moves.back(future(image), chosen, 1) - there).abs().max()
        assert gap < 1e-6 * there.abs().max(), chosen
