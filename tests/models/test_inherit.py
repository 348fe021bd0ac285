"""A simulator that goes on from another behaves as it did on the tasks both know, whatever tasks were added."""

from __future__ import annotations

import pytest
import torch
from small_simulators import window

from ups.models import CodecConfig, OperatorConfig, Simulator, build
from ups.models.inherit import inherit
from ups.physics import TASKS
from ups.tensors import Condition
from ups.types import ConfigError

GRIDS = {"burgers1d": (32,), "reacdiff2d": (16, 16), "darcy2d": (16, 16), "advection1d": (32,)}


def simulator(*names: str, seed: int = 0, width: int = 16, grids: dict[str, tuple[int, ...]] = GRIDS) -> Simulator:
    operator = OperatorConfig(width=width, depth=1, heads=2)
    tasks = [TASKS[name] for name in names]
    return build(tasks, CodecConfig(dim=16), operator, grids={n: grids[n] for n in names}, seed=seed).eval()


def shaken(sim: Simulator) -> Simulator:
    """As if trained: nothing is as it was built."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in sim.state_dict().items():
            positive = name.endswith(("std", "dt", "scale", "low", "high"))
            tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator) + (1.0 if positive else 0.0))
    return sim


@torch.no_grad()
def forecast(sim: Simulator, name: str) -> torch.Tensor:
    task = TASKS[name]
    frames = torch.randn(2, 1, *GRIDS[name], len(task.channels), generator=torch.Generator().manual_seed(1))
    numbers = sum(not p.choices for p in task.parameters)
    condition = Condition(torch.full((2, numbers), 0.3), torch.full((2,), 0.1), task.periodic, name)
    return sim.simulate(window(frames, condition), 3)


def test_tasks_that_are_added_change_no_bit_of_those_known() -> None:
    old = shaken(simulator("reacdiff2d", "burgers1d"))
    new = simulator("advection1d", "burgers1d", "darcy2d", "reacdiff2d", seed=9)
    fresh = inherit(new, old)
    for name in ("burgers1d", "reacdiff2d"):
        assert torch.equal(forecast(new, name), forecast(old, name))
    assert fresh
    assert all("darcy2d" in name or "advection1d" in name for name in fresh)
    assert new.ranges()["burgers1d"] == old.ranges()["burgers1d"]


def test_a_task_left_out_is_forgotten_and_the_rest_stays() -> None:
    old = shaken(simulator("reacdiff2d", "burgers1d"))
    new = simulator("burgers1d", seed=9)
    assert inherit(new, old) == []
    assert torch.equal(forecast(new, "burgers1d"), forecast(old, "burgers1d"))


def test_another_network_or_grid_is_refused_with_the_key_to_change() -> None:
    old = simulator("burgers1d")
    with pytest.raises(ConfigError, match=r"model\.operator\.width is 32, but .* has 16; set it to 16"):
        inherit(simulator("burgers1d", width=32), old)
    with pytest.raises(ConfigError, match="reduce the data to it"):
        inherit(simulator("burgers1d", grids={"burgers1d": (64,)}), old)
