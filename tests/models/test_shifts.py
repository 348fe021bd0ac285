"""Steps averaged over moved copies of a state: what they know of the places of patches, and where there are any."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.models.config import SimulatorConfig
from ups.models.shifts import moves_of
from ups.physics import TASKS
from ups.tensors import Window, numbers_of
from ups.types import ConfigError


def moving(name: str, shifts: int, context: int, cells: int) -> Simulator:
    """A simulator that changes states, though it has learnt nothing."""
    task = TASKS[name]
    codec = CodecConfig(dim=4**task.ndim * len(task.channels))  # all that tokens can say is in their frame
    operator = OperatorConfig(width=16, depth=1, heads=2, context=context)
    config = SimulatorConfig(shifts=shifts, guard=False)
    sim = build([task], codec, operator, config, {name: (cells,) * task.ndim}).eval()
    generator = torch.Generator().manual_seed(0)
    for p in sim.operator.parameters():
        p.data += 0.2 * torch.randn(p.shape, generator=generator)
    return sim


def window(name: str, context: int, cells: int) -> Window:
    task = TASKS[name]
    shape = (2, context, *(cells,) * task.ndim, len(task.channels))
    frames = 1 + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    params = torch.ones(2, len(numbers_of(task)))
    none = torch.empty(2, *(cells,) * task.ndim, 0)
    return Window(task, frames, frames, none, params, torch.full((2,), 0.1), task.periodic, (1.0,) * task.ndim)


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


def test_states_are_moved_by_parts_of_a_patch_along_axes_that_wrap_and_nowhere_else() -> None:
    burgers, gas = TASKS["burgers1d"], TASKS["cfd2d"]
    assert moves_of(burgers, 4, (True,), 4) == ((0,), (1,), (2,), (3,))
    assert moves_of(burgers, 4, (True,), 2) == ((0,), (2,))
    assert moves_of(burgers, 4, (True,), 9) == ((0,), (1,), (2,), (3,)), "no more than a patch has cells"
    assert moves_of(gas, 4, (True, False), 2) == ((0, 0), (2, 0))
    assert moves_of(burgers, 4, (True,), 1) == moves_of(burgers, 4, (False,), 4) == ()
    assert moves_of(TASKS["darcy2d"], 4, (True, True), 4) == (), "what is given has its places"
    with pytest.raises(ConfigError, match="must be at least 1"):
        SimulatorConfig(shifts=0)
