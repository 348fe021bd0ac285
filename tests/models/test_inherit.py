"""A simulator that goes on from another behaves as it did on the tasks both know, whatever tasks were added."""

from __future__ import annotations

import dataclasses
import math
import warnings

import pytest
import torch
from small_simulators import window

from grids import grid_of
from ups.models import CodecConfig, OperatorConfig, Simulator, SimulatorConfig, build
from ups.models.inherit import inherit
from ups.physics import TASKS
from ups.tensors import Condition
from ups.types import UNKNOWN, ConfigError, Field, Grid, Param, TaskSpec

GRIDS = {"burgers1d": (32,), "reacdiff2d": (16, 16), "darcy2d": (16, 16), "advection1d": (32,)}


def simulator(
    *names: str,
    seed: int = 0,
    width: int = 16,
    shapes: dict[str, tuple[int, ...]] = GRIDS,
    memoryless: tuple[str, ...] = (),
    per_task_layers: bool = False,
) -> Simulator:
    operator = OperatorConfig(width=width, depth=1, heads=2, per_task_layers=per_task_layers)
    told = dataclasses.replace(UNKNOWN, memoryless=True)
    tasks = [dataclasses.replace(TASKS[n], dynamics=told) if n in memoryless else TASKS[n] for n in names]
    return build(tasks, CodecConfig(dim=16), operator, shapes={n: shapes[n] for n in names}, seed=seed).eval()


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
    grid = Grid(GRIDS[name], task.periodic)
    condition = Condition(torch.full((2, numbers), 0.3), torch.full((2,), 0.1), grid, name)
    return sim.simulate(window(frames, condition), 3)


@pytest.mark.parametrize("per_task_layers", [(False, False), (False, True), (True, True)])
def test_tasks_that_are_added_change_no_bit_of_those_known(per_task_layers: tuple[bool, bool]) -> None:
    """Nor does it that what they shared becomes their own."""
    old = shaken(simulator("reacdiff2d", "burgers1d", per_task_layers=per_task_layers[0]))
    new = simulator("advection1d", "burgers1d", "darcy2d", "reacdiff2d", seed=9, per_task_layers=per_task_layers[1])
    fresh = inherit(new, old)
    for name in ("burgers1d", "reacdiff2d"):
        assert torch.equal(forecast(new, name), forecast(old, name))
    assert fresh
    assert all("darcy2d" in name or "advection1d" in name for name in fresh)
    if per_task_layers[1]:  # a new task begins with what the others have, or with their mean
        layers, before = (sim.operator.core.blocks[0].leave for sim in (new, old))
        kin = [before["reacdiff2d"].weight, before["burgers1d"].weight] if per_task_layers[0] else [before.weight]
        assert torch.equal(layers["darcy2d"].weight, torch.stack(kin).mean(0))
    ours, theirs = new.ranges()["burgers1d"], old.ranges()["burgers1d"]
    assert ours["nu"] == theirs["nu"]
    assert ours["dt"] == (pytest.approx(0.01), theirs["dt"][1])  # its own steps, and those it knew


def test_a_field_that_never_varied_may_vary_in_further_data() -> None:
    old, new = simulator("reacdiff2d"), simulator("reacdiff2d", seed=9)
    old.codec.fit_statistics("reacdiff2d", torch.tensor([2.0, 5.0]), torch.tensor([0.5, 0.0]))
    new.codec.fit_statistics("reacdiff2d", torch.tensor([3.0, 7.0]), torch.tensor([0.1, 0.2]))
    inherit(new, old)
    learnt = new.codec.statistics_of("reacdiff2d")
    assert torch.equal(learnt.mean, torch.tensor([2.0, 7.0]))
    assert torch.equal(learnt.std, torch.tensor([0.5, 0.2]))


def test_a_task_left_out_is_forgotten_and_the_rest_stays() -> None:
    old = shaken(simulator("reacdiff2d", "burgers1d"))
    new = simulator("burgers1d", seed=9)
    assert inherit(new, old) == []
    assert torch.equal(forecast(new, "burgers1d"), forecast(old, "burgers1d"))


def test_another_network_or_number_of_axes_is_refused_with_the_key_to_change() -> None:
    old = simulator("burgers1d")
    with pytest.raises(ConfigError, match=r"model\.operator\.width is 32, but .* has 16; set it to 16"):
        inherit(simulator("burgers1d", width=32), old)
    with pytest.raises(ConfigError, match=r"`memoryless` is True, but False in .*; say `memoryless: False` of the"):
        inherit(simulator("burgers1d", memoryless=("burgers1d",)), old)
    with pytest.raises(ConfigError, match=r"per_task_layers is False, but .* has True; set it to True"):
        inherit(old, simulator("burgers1d", per_task_layers=True))
    both = simulator("burgers1d", "advection1d", memoryless=("advection1d",))
    inherit(both, old)  # of a new task it may be said
    inherit(simulator("burgers1d", memoryless=()), both)  # and of one that is left out it need not be
    plane = dataclasses.replace(TASKS["reacdiff2d"], name="burgers1d")
    with pytest.raises(ConfigError, match="has 2 axes, but 1 in the simulator to start from"):
        inherit(build([plane], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2)), old)


def test_what_carries_a_task_stays_what_it_was_and_the_sentence_can_be_put_into_a_config() -> None:
    def carried(*by: str) -> Simulator:
        task = dataclasses.replace(TASKS["reacdiff1d"], dynamics=dataclasses.replace(UNKNOWN, advected_by=by))
        operator = OperatorConfig(width=16, depth=1, heads=2)
        return build([task], CodecConfig(dim=16), operator, shapes={"reacdiff1d": (32,)}).eval()

    old, remedy = shaken(carried("nu", "rho")), r"say `advected_by: \['nu', 'rho'\]` of the task\."
    for fewer in (carried("nu"), carried()):
        with pytest.raises(ConfigError, match=remedy):
            inherit(fewer, old)
    with pytest.raises(ConfigError, match=r"say `advected_by: \[\]` of the task\."):
        inherit(carried("nu"), carried())
    other = carried("rho", "nu")
    inherit(other, old)
    speeds = [simulator.operator.drift["reacdiff1d"].speeds for simulator in (other, old)]
    assert torch.equal(speeds[0], speeds[1].flip(0)), "by name, in whatever order"


def test_another_grid_and_step_go_on_from_the_same_weights() -> None:
    old = shaken(simulator("burgers1d"))
    new = simulator("burgers1d", seed=9, shapes={"burgers1d": (62,)})
    assert inherit(new, old) == []
    x = (torch.arange(62) + 0.5) / 62
    smooth = torch.sin(2 * math.pi * x).reshape(1, 62, 1)
    for sim in (new, old):
        sim.fit_dt("burgers1d", 0.01, 0.01)
    assert new.codec.tokens("burgers1d") == (16,)
    assert new.rollout(smooth, 1, {"nu": 1.2}).isfinite().all()


NOW = ("heat", "activator", "inhibitor")


def changed() -> TaskSpec:
    """`reacdiff2d` with a field, an input and a parameter more, and the fields in another order."""
    more = (*TASKS["reacdiff2d"].parameters, Param("warmth", 0.5, "another one"))
    fields = tuple(Field.scalar(name) for name in NOW)
    return dataclasses.replace(TASKS["reacdiff2d"], fields=fields, inputs=(Field.scalar("light"),), parameters=more)


def test_what_a_task_has_more_is_not_heard_at_first_and_learns() -> None:
    old, task = shaken(simulator("reacdiff2d")), changed()
    operator = OperatorConfig(width=16, depth=1, heads=2)
    new = build([task], CodecConfig(dim=16), operator, shapes={task.name: (16, 16)}, seed=9).eval()
    fresh = inherit(new, old)
    assert "codec.encoder.enter.reacdiff2d.weight" in fresh
    assert "operator.conditioner.leave.weight" not in fresh
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(2, 16, 16, 3, generator=generator)
    light = torch.randn(2, 16, 16, 1, generator=generator)
    known = {p.name: 1.2 for p in TASKS["reacdiff2d"].parameters if not p.choices}
    new.config = old.config = SimulatorConfig(guard=False)
    with warnings.catch_warnings(action="ignore"):
        ours = new.rollout(frames, 3, {**known, "warmth": 0.7}, dt=1.0, inputs=light)
        theirs = old.rollout(frames[..., 1:], 3, known, dt=1.0)
    assert torch.allclose(ours[..., 1:], theirs, atol=1e-5 * float(theirs.abs().max()))
    back = new.codec.decode(new.codec.encode(frames, task, grid_of(frames, task.periodic)), task)
    (back - frames).square().mean().backward()
    weight = new.codec.get_parameter("encoder.enter.reacdiff2d.weight")
    assert weight.grad is not None
    assert all(float(piece.abs().sum()) > 0 for piece in weight.grad.chunk(3, 1))


def test_fields_and_inputs_in_another_order_are_predicted_as_before() -> None:
    driven = dataclasses.replace(TASKS["reacdiff2d"], inputs=(Field.scalar("light"), Field.scalar("shade")))
    turned = dataclasses.replace(driven, fields=tuple(map(Field.scalar, driven.channels[::-1])))
    turned = dataclasses.replace(turned, inputs=driven.inputs[::-1])
    old, new = (
        build([task], CodecConfig(dim=16), OperatorConfig(width=16, depth=1, heads=2), shapes=GRIDS, seed=seed).eval()
        for seed, task in enumerate((driven, turned))
    )
    assert inherit(new, shaken(old)) == []
    frames, given = (torch.randn(2, 16, 16, 2, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    known = {p.name: 1.2 for p in driven.parameters if not p.choices}
    with warnings.catch_warnings(action="ignore"):
        theirs = old.rollout(frames, 3, known, dt=1.0, inputs=given)
        ours = new.rollout(frames.flip(-1), 3, known, dt=1.0, inputs=given.flip(-1))
    assert torch.allclose(ours.flip(-1), theirs, atol=1e-5 * float(theirs.abs().max()))
    assert not torch.allclose(ours, theirs, atol=1e-2)
