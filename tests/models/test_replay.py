"""On a GPU steps are replayed: the answers are those of ordinary steps, whatever changes between two rollouts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_simulators import awaken

from ups.models import CodecConfig, OperatorConfig, Simulator, assemble
from ups.models.config import ResidualConfig
from ups.models.ensembles import Draws
from ups.models.residual import ResidualFlow
from ups.models.simulator import CORE
from ups.models.stepping import Stepping
from ups.physics import TASKS
from ups.tensors import Window, numeric_params
from ups.types import Grid

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here"),
]
KINDS = {**CORE, "residual": ResidualFlow}
NET: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "modes": 4}
CONFIGS = {"codec": CodecConfig(dim=8), "operator": OperatorConfig(**NET), "residual": ResidualConfig(**NET)}
TASKS_TRIED = ["burgers1d", "cfd1d", "cfd2d", "nsincom2d", "reacdiff2d"]


def simulator(name: str, draws: bool = False) -> Simulator:
    task = TASKS[name]
    names = ("codec", "operator", "residual")[: 2 + draws]
    sim = assemble([task], {n: CONFIGS[n] for n in names}, shapes={name: (16,) * task.ndim}, kinds=KINDS)
    awaken(sim)
    return sim.cuda().eval()


def window(sim: Simulator, seed: int, samples: int = 3) -> Window:
    (task,) = sim.tasks
    grid = (16,) * task.ndim
    one = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(*shape, generator=one).cuda()

    return Window(
        task,
        draw(samples, sim.context, *grid, len(task.channels)),
        draw(samples, 0, *grid, len(task.channels)),
        draw(samples, *grid, len(task.given)),
        draw(samples, len(numeric_params(task))).abs(),
        0.01 * draw(samples),
        Grid(grid, task.periodic, ((0.0, 1.0),) * task.ndim),
    )


@pytest.fixture(autouse=True)
def _at_rest() -> Iterator[None]:
    with torch.no_grad():
        yield


def check(sim: Simulator, given: Window, steps: int, points: torch.Tensor | None = None, draw: Any = None) -> None:
    replayed = sim.simulate(given, steps, points, draw)
    ordinary = Stepping(sim, given, points).frames(steps, draw)
    assert replayed.isfinite().all()
    assert torch.equal(replayed, ordinary), (replayed - ordinary).abs().max()


@pytest.mark.parametrize("name", TASKS_TRIED)
def test_replayed_frames_are_those_of_ordinary_steps_to_the_bit(name: str) -> None:
    sim = simulator(name)
    for seed in (0, 1):  # the second time with other numbers in the memory of the first
        check(sim, window(sim, seed), 5 + seed)
    assert len(sim.replays.captured) == 1
    assert not sim.replays.refused
    check(sim, window(sim, 2, samples=2), 5)
    assert len(sim.replays.captured) == 2, "another batch is another graph"


def test_draws_points_and_steps_of_several_lengths_are_replayed_too() -> None:
    sim = simulator("cfd2d", draws=True)
    given = window(sim, 0)
    check(sim, given, 6, draw=Draws(3, [0]))
    check(sim, given, 6, draw=Draws(4, [7], lasting=0.3))
    for seed in (0, 1):
        check(sim, given, 4, points=torch.rand(5, 2, generator=torch.Generator().manual_seed(seed)).cuda())
    for factor in (1.0, 2.0):
        steps = factor * torch.tensor([0.01, 0.02, 0.03, 0.04]).cuda().expand(len(given), 4)
        check(sim, dataclasses.replace(given, dt=steps), 4)
    assert len(sim.replays.captured) == 3
    assert not sim.replays.refused


def test_frames_that_are_missing_are_carried_back_inside_the_graph() -> None:
    """By the speeds and the time of each rollout, not those of the one that was captured."""
    task, operator = TASKS["advection1d"], OperatorConfig(**NET, context=3)
    sim = assemble([task], {"codec": CodecConfig(dim=8), "operator": operator}, shapes={task.name: (16,)})
    awaken(sim)
    sim.cuda().eval()
    for seed in (0, 1):
        given = window(sim, seed)
        check(sim, dataclasses.replace(given, context=given.context[:, -1:]), 5)
    assert len(sim.replays.captured) == 1
    assert not sim.replays.refused


def test_weights_laws_and_parts_that_change_change_what_is_replayed() -> None:
    sim = simulator("cfd2d", draws=True)
    given = window(sim, 0)
    check(sim, given, 4)
    for parameter in sim.parameters():
        parameter.mul_(0.9)
    check(sim, given, 4)
    sim.config = dataclasses.replace(sim.config, guard=False)
    check(sim, given, 4)
    sim.idle = frozenset({"residual"})
    check(sim, given, 4)
    sim.operator.load_state_dict(simulator("cfd2d").operator.state_dict(), assign=True)
    check(sim, given, 4)
    twin = copy.deepcopy(sim)
    assert not twin.replays.captured
    check(twin, given, 4)


def test_what_is_asked_once_and_briefly_is_not_captured_and_gradients_flow() -> None:
    sim = simulator("burgers1d")
    given = window(sim, 0)
    sim.simulate(given, 1)
    assert not sim.replays.captured
    with torch.enable_grad():
        sim.simulate(given, 6).sum().backward()
    assert not sim.replays.captured
    assert sim.operator.head.weight.grad is not None


def test_a_step_that_the_host_takes_part_in_runs_as_ever() -> None:
    sim = simulator("burgers1d", draws=True)
    part = sim.parts["residual"]
    refine = part.refine_tokens
    part.refine_tokens = lambda z, *rest: refine(z, *rest) * float(z.isfinite().all())  # type: ignore[method-assign]
    given = window(sim, 0)
    for _ in range(2):
        check(sim, given, 5)
    assert len(sim.replays.refused) == 1
    assert not sim.replays.captured
    del part.refine_tokens
    check(simulator("burgers1d"), given, 5)
