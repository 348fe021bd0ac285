"""What `linear` looks at is decided by sizes alone, and stays within its share of the training's seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grids import grid_of
from ups.physics import TASKS
from ups.run.judging.rival_plan import RivalPlan
from ups.tensors import Window


@pytest.mark.parametrize("name", ["burgers1d", "cfd1d", "swe2d", "cfd2d", "cfd3d"])
@pytest.mark.parametrize("seconds", [20.0, 120.0, 1800.0])
def test_more_seconds_buy_more_context_and_no_plan_costs_more_than_it_may(name: str, seconds: float) -> None:
    task = TASKS[name]
    cells = {1: 1024, 2: 64**2, 3: 16**3}[task.ndim]
    plan, larger = (RivalPlan.of(task, cells, 10, 20, 30, s) for s in (seconds, 10 * seconds))
    assert plan.seconds <= max(1.0, 0.05 * seconds) or plan.judged == 8, "as few as say anything"
    assert plan == RivalPlan.of(task, cells, 10, 20, 30, seconds)
    assert (larger.context, larger.judged) >= (plan.context, plan.judged)
    assert (larger.context, larger.judged) == (10, 30) or seconds < 1000 or task.ndim > 1


def test_judged_trajectories_lie_evenly_among_all_and_are_the_same_whatever_the_batches() -> None:
    values = torch.arange(30.0)[:, None, None, None].expand(30, 3, 8, 1)
    inputs = torch.zeros(30, 8, 0)
    ids = tuple(map(str, range(30)))
    facts = (torch.zeros(30, 1), torch.ones(30), grid_of(inputs, (True,)), ids)
    whole = Window(TASKS["burgers1d"], values[:, :1], values[:, 1:], inputs, *facts)
    few = RivalPlan(context=1, judged=8, seconds=1.0)
    names = [[i for window in few.of_all(whole.split(size), 30) for i in window.ids] for size in (30, 7, 1)]
    assert names[0] == names[1] == names[2] == ["0", "4", "8", "12", "17", "21", "25", "29"]
    every = replace(few, judged=30)
    assert [i for window in every.of_all(whole.split(7), 30) for i in window.ids] == [*ids]
