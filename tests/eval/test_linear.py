"""The linear baseline: exact where the physics is linear and local, and absent where there are no steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grids import grid_of
from ups.eval.baselines import BASELINES
from ups.eval.linear import LinearBaseline, neighbours
from ups.eval.nrmse import LOST
from ups.physics import TASKS
from ups.tensors import Window
from ups.types import Field, TaskSpec


def heat(task: TaskSpec, samples: int, frames: int, given: int = 0) -> Window:
    """Heat about a mean of 100 on eight cells an axis that wrap, explicit in time."""
    values = [100 + torch.randn(samples, *(8,) * task.ndim, generator=torch.Generator().manual_seed(samples))]
    for _ in range(frames - 1):
        u = values[-1]
        bent = [u.roll(1, axis) + u.roll(-1, axis) - 2 * u for axis in range(1, task.ndim + 1)]
        values.append(u + 0.1 * torch.stack(bent).sum(0))
    every = torch.stack(values, 1).unsqueeze(-1)
    inputs, facts = torch.ones(*every[:, 0].shape[:-1], given), (torch.zeros(samples, 1), torch.full((samples,), 0.1))
    return Window(task, every[:, :1], every[:, 1:], inputs, *facts, grid_of(inputs, (True,) * task.ndim))


@pytest.mark.parametrize("name", ["burgers1d", "swe2d"])
def test_what_is_linear_and_local_is_foretold_exactly_also_beside_a_large_mean(name: str) -> None:
    task, test = TASKS[name], heat(TASKS[name], 3, 9)
    model = BASELINES["linear"].untrained(task, 1, 0, 0)
    model.fit([heat(task, 6, 5), heat(task, 4, 5)])
    with torch.no_grad():
        off = model.predict(test, 8) - test.targets
    assert off.abs().max() < 1e-3 * test.targets.std()


def test_a_field_that_is_zero_throughout_is_compared_with_its_usual_size() -> None:
    task = TASKS["burgers1d"]
    model, trained = LinearBaseline(task, 1), heat(task, 6, 5)
    model.fit([trained])
    assert model.usual.item() == pytest.approx(trained.context.std().item(), rel=0.5)
    still = replace(trained, context=torch.zeros_like(trained.context), targets=torch.zeros_like(trained.targets))
    model.modes = None  # six trajectories are few
    with torch.no_grad():
        model.weight.zero_()
        model.weight[-1] = 1.0  # a rate of 1: an error of 0.1, 0.2, 0.3, 0.4 after each step of 0.1
        (errors,) = model.evaluate(still).values()
        model.weight[-1] = torch.nan
        (lost,) = model.evaluate(still).values()
    assert errors.tolist() == pytest.approx([0.25 / model.usual.item()] * 6, rel=1e-5)
    assert lost.tolist() == [LOST] * 6


def test_cells_that_do_not_count_are_not_fitted_to() -> None:
    task = replace(TASKS["burgers1d"], inputs=(Field.scalar("wet"),), mask="wet")
    good, bad = (heat(task, 6, 5, given=1) for _ in range(2))
    for window in (good, bad):
        window.inputs[:, 4] = 0
    bad.targets[:, :, 4] *= torch.rand(6, 4, 1)  # near by it is seen, as what stands there
    models = [LinearBaseline(task, 1) for _ in range(2)]
    drawn = [
        model._drawn(w, 2**13, torch.Generator().manual_seed(0)) for model, w in zip(models, (good, bad), strict=True)
    ]
    assert torch.equal(drawn[0][:, -1], drawn[1][:, -1]), "the rates of change of the others are what they were"


def test_neighbours_wrap_where_an_axis_does() -> None:
    assert neighbours((9,), (True,))[0].tolist()[:5] == [0, 8, 1, 7, 2]
    assert neighbours((9,), (False,))[0].tolist()[:5] == [0, 0, 1, 0, 2]
    assert neighbours((3, 4), (True, False)).shape == (12, 13)


def test_of_steady_states_there_is_no_linear_model() -> None:
    assert not BASELINES["linear"].applies(TASKS["darcy2d"])
    assert BASELINES["linear"].applies(TASKS["burgers1d"])
    assert BASELINES["fno"].applies(TASKS["darcy2d"])


def travelling(samples: int, seed: int) -> Window:
    """Three waves on 64 cells, each at a speed of its own so fast that no cell around says where it comes from."""
    rng, x = torch.Generator().manual_seed(seed), 2 * torch.pi * torch.arange(64) / 64
    size, phase = (torch.rand(samples, 3, 1, 1, generator=rng) for _ in range(2))
    k, turn = torch.tensor([1.0, 2, 3])[:, None, None], torch.tensor([1.0, 2.5, 0.7])[:, None, None]
    time = torch.arange(12.0)[:, None]
    values = (size * torch.cos(k * x - turn * time + 6 * phase)).sum(1)[..., None] + 5
    inputs, facts = torch.zeros(samples, 64, 0), (torch.zeros(samples, 1), torch.full((samples,), 0.1))
    return Window(TASKS["burgers1d"], values[:, :2], values[:, 2:], inputs, *facts, grid_of(inputs, (True,)))


def test_of_few_trajectories_a_linear_rule_for_modes_is_taken_where_validation_says_so() -> None:
    model, test = LinearBaseline(TASKS["burgers1d"], 2), travelling(3, 2)
    model.fit([travelling(8, 0)], [travelling(2, 1)])
    assert model.modes is not None, "no rule for neighbours holds for waves of three speeds"
    assert (model.predict(test, 10) - test.targets).abs().max() < 1e-3
    finer = replace(test, context=test.context.repeat_interleave(2, 2), inputs=torch.zeros(3, 128, 0))
    assert model.predict(finer, 3).shape == (3, 3, 128, 1), "of another grid the rule for neighbours is left"
    local = LinearBaseline(TASKS["burgers1d"], 1)
    local.fit([heat(TASKS["burgers1d"], 2, 5)], [heat(TASKS["burgers1d"], 4, 9)])
    assert local.modes is None, "two trajectories do not hold all modes of heat"
