"""Rollouts of any network obey the laws of their task, step after step, each sample alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from small_simulators import awaken
from torch import Tensor

from ups.models import CodecConfig, OperatorConfig, Simulator, SimulatorConfig, build
from ups.models.stepping import Stepping
from ups.physics import EQUATIONS, TASKS
from ups.physics.constraints import Law, Within
from ups.physics.laws import broken, laws_of
from ups.physics.random import Draw
from ups.physics.ranges import InitialRange
from ups.tensors import LatentState, Window, numeric_params
from ups.types import ConfigError, Field, Grid, TaskSpec

CELLS = {1: 32, 2: 16, 3: 4}
LAWFUL = [name for name, task in TASKS.items() if not task.steady and laws_of(task, task.periodic)]
CHANNEL = TaskSpec(
    name="channel",
    title="A flow between walls",
    fields=(Field.vector("velocity", "vx", "vy"), Field.scalar("dye")),
    bounds=((0.0, 2.0), (0.0, 1.0)),
    periodic=(True, False),
    resolution=8,
    end=1.0,
    frames=11,
    conserved=("dye",),
    positive=("dye",),
    divergence_free=("velocity",),
)


def restless(task: TaskSpec, grid: tuple[int, ...], size: float = 0.02, **config: object) -> Simulator:
    """A simulator that has learnt nothing and changes its state by about `size` in every step."""
    small = OperatorConfig(width=16, depth=1, heads=2, modes=4)
    sim = build([task], CodecConfig(width=8), small, SimulatorConfig(**config), {task.name: grid})  # type: ignore[arg-type]
    awaken(sim.operator)
    with torch.no_grad():
        sim.operator.head.weight *= size
        sim.operator.head.bias *= size
    return sim.eval()


def states(name: str) -> tuple[Tensor, Tensor, Grid]:
    """Three initial states of an equation, what drives them, and their box."""
    equation = EQUATIONS[name]()
    ndim = equation.task.ndim
    grid = Grid((CELLS[ndim],) * ndim, equation.task.periodic, equation.task.bounds)
    draw = Draw(3, range(3), dtype=torch.float32)
    return equation.initial(draw, grid), equation.inputs(draw, grid), grid


def window(task: TaskSpec, state: Tensor, inputs: Tensor | None = None) -> Window:
    return Window(
        task=task,
        context=state.unsqueeze(1),
        targets=state[:, None][:, :0],
        inputs=state.new_zeros(*state.shape[:-1], 0) if inputs is None else inputs,
        params=torch.full((len(state), len(numeric_params(task))), 0.5),
        dt=torch.full((len(state),), 0.1),
        grid=Grid(tuple(state.shape[1:-1]), task.periodic, task.bounds),
    )


def simulated(sim: Simulator, given: Window, steps: int) -> Tensor:
    """The state a rollout starts from and its frames, `(B, 1 + steps, *S, C)`."""
    with torch.no_grad():
        return torch.cat((given.context[:, -1:], sim.simulate(given, steps)), 1)


def check(task: TaskSpec, out: Tensor, grid: Grid) -> None:
    assert bool(out.isfinite().all())
    for law in laws_of(task, task.periodic):
        exact = isinstance(law, Within | InitialRange)
        assert float(law.residual(out, grid).max()) <= (0.0 if exact else 3e-6), law.says


@pytest.mark.parametrize("name", LAWFUL)
def test_every_law_of_every_equation_holds_to_round_off_whatever_the_network_does(name: str) -> None:
    state, inputs, grid = states(name)
    sim, given = restless(TASKS[name], grid.shape), window(TASKS[name], state, inputs)
    check(TASKS[name], simulated(sim, given, 40), grid)
    sim.config = SimulatorConfig(guard=False)
    free = simulated(sim, given, 40)
    signs_alone = all(isinstance(law, Within) for law in laws_of(TASKS[name], TASKS[name].periodic))
    laws = laws_of(TASKS[name], TASKS[name].periodic)
    assert signs_alone or max(float(law.residual(free, grid).max()) for law in laws) > 1e-4


@pytest.mark.parametrize(
    ("name", "steps"),
    [("advection1d", 25), ("reacdiff1d", 25), pytest.param("advection1d", 1000, marks=pytest.mark.slow)],
)
def test_an_operator_that_grows_by_its_own_size_stays_in_the_range_it_starts_from(name: str, steps: int) -> None:
    """At points too, which are values between cells."""
    state, inputs, grid = states(name)
    measured = dataclasses.replace(TASKS[name].dynamics, changes_when_uniform=False)  # by the sample, not by the task
    task = dataclasses.replace(TASKS[name], dynamics=measured)
    sim = build(
        [task],
        CodecConfig(width=8),
        OperatorConfig(width=16, depth=1, heads=2, step_scale="sample"),
        shapes={name: grid.shape},
    ).eval()
    awaken(sim.operator)
    given = window(task, state, inputs)
    low, high = (float(x) for x in torch.aminmax(state))
    check(task, out := simulated(sim, given, steps), grid)
    with torch.no_grad():
        points = sim.simulate(given, steps, points=torch.linspace(0.01, 0.99, 50).unsqueeze(-1))
    for values in (out, points):
        assert float(values.max()) < max(high, 1.0) + 0.5
        assert float(values.min()) > low - 0.5
    sim.config = SimulatorConfig(guard=("mass",) if name == "advection1d" else ("u",))
    free = simulated(sim, given, steps)
    assert not bool(free.isfinite().all()) or float(free.abs().max()) > 10 * float(state.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWFUL)
def test_no_law_drifts_over_a_thousand_steps(name: str) -> None:
    state, inputs, grid = states(name)
    sim = restless(TASKS[name], grid.shape)
    check(TASKS[name], simulated(sim, window(TASKS[name], state, inputs), 1000), grid)


@pytest.mark.slow
def test_no_total_drifts_over_a_thousand_steps_of_a_gas() -> None:
    """Mass, momentum and energy by hand, as any script would add them up."""
    state, _, grid = states("cfd1d")
    out = simulated(restless(TASKS["cfd1d"], grid.shape), window(TASKS["cfd1d"], state), 1000).double()
    density, pressure, velocity = out.unbind(-1)
    assert float(out[..., :2].min()) >= 0
    sound = (5 / 3 * pressure[:, :1] / density[:, :1]).sqrt()
    totals = (density, density * velocity, pressure * 1.5 + 0.5 * density * velocity**2)
    for total, size in zip(totals, (density, density * (velocity.abs() + sound), totals[2]), strict=True):
        drift = (total.mean(-1) - total[:, :1].mean(-1)).abs() / size[:, :1].mean(-1)
        assert float(drift.max()) < 1e-6
    assert float((out[:, -1] - out[:, 0]).abs().max()) > 0.05


def test_walls_and_signs_hold_in_a_box_that_wraps_along_one_axis_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    grid = Grid((16, 8), CHANNEL.periodic, CHANNEL.bounds)
    state = torch.rand(2, 16, 8, 3, generator=generator)
    state = laws_of(CHANNEL, CHANNEL.periodic)[0].project(state.unsqueeze(1), state, grid).squeeze(1)
    out = simulated(restless(CHANNEL, (16, 8), 0.05), window(CHANNEL, state), 60)
    check(CHANNEL, out, grid)
    assert float(out[..., 2].min()) == 0.0  # something had to be lifted


def test_the_repaired_frame_is_the_one_that_goes_on_and_a_lawful_one_leaves_the_tokens_as_they_are() -> None:
    state, _, grid = states("burgers1d")
    task, small = TASKS["burgers1d"], OperatorConfig(width=16, depth=1, heads=2)
    sim = build([task], CodecConfig(dim=32, blocks=0), small, shapes={"burgers1d": grid.shape}).eval()
    steps = Stepping(sim, window(task, state))
    with torch.no_grad():
        z = steps.start()
        lawful, _ = steps.step(z, 0)
        assert torch.allclose(lawful, z, atol=1e-6)
        sim.operator.head.bias += 0.3
        after, frame = steps.step(z, 0)
        read, unrepaired = (
            sim.codec.decode(LatentState(tokens, Grid((32,), (True,))), task)
            for tokens in (after[:, -1], sim.operator(z, steps.condition(0)))
        )
    assert torch.allclose(read, frame, atol=1e-4)
    assert not torch.allclose(unrepaired, frame, atol=1e-2)


def test_a_sample_is_repaired_the_same_in_any_company() -> None:
    state, inputs, grid = states("cfd2d")
    sim, given = restless(TASKS["cfd2d"], grid.shape), window(TASKS["cfd2d"], state, inputs)
    together, alone = simulated(sim, given, 10), simulated(sim, given.rows(1, 2), 10)
    assert torch.allclose(together[1], alone[0], rtol=1e-4, atol=1e-4)
    spoilt = dataclasses.replace(given, context=given.context * torch.tensor([1.0, 1.0, 30.0]).view(3, 1, 1, 1, 1))
    assert torch.allclose(simulated(sim, spoilt, 10)[:2], together[:2], rtol=1e-4, atol=1e-4)


def test_gradients_flow_through_steps_that_are_repaired() -> None:
    state, inputs, grid = states("cfd1d")
    sim = restless(TASKS["cfd1d"], grid.shape)
    sim.simulate(window(TASKS["cfd1d"], state, inputs), 3)[:, -1].square().mean().backward()
    gradient = sim.operator.head.weight.grad
    assert gradient is not None
    assert bool(gradient.isfinite().all())
    assert float(gradient.abs().sum()) > 0


def test_a_guard_is_chosen_by_the_names_of_laws(tmp_path: Path) -> None:
    state, inputs, grid = states("cfd2d")
    task = TASKS["cfd2d"]
    sim = restless(task, grid.shape, 0.1, guard=("mass", "momentum"))
    out = simulated(sim, window(task, state, inputs), 20)
    residuals = {law.name: float(law.residual(out, grid).max()) for law in laws_of(task, task.periodic)}
    assert max(residuals[name] for name in ("mass", "momentum x", "momentum y")) < 3e-6
    assert residuals["energy"] > 1e-3
    assert Simulator.load(sim.save(tmp_path)).config.guard == ("mass", "momentum")
    with pytest.raises(ConfigError, match=r"names 'masse'.*cfd2d.*mass, conserved, density, positive, momentum x"):
        restless(task, grid.shape, guard=("masse",))
    with pytest.raises(ConfigError, match=r"no laws"):
        restless(TASKS["reacdiff2d"], (8, 8), guard=("mass",))


def test_each_task_uses_those_of_the_named_laws_that_it_has() -> None:
    tasks, grids = [TASKS["cfd1d"], TASKS["burgers1d"]], {"cfd1d": (32,), "burgers1d": (32,)}
    small = OperatorConfig(width=16, depth=1, heads=2)
    sim = build(tasks, CodecConfig(dim=32), small, SimulatorConfig(guard=("energy", "mass")), grids)
    laws = {t.name: [law.name for law in Stepping(sim, window(t, states(t.name)[0])).laws] for t in tasks}
    assert laws == {"cfd1d": ["mass", "energy"], "burgers1d": ["mass"]}


class Cautious(Law):
    """A law of one's own: no value is larger than a hundredth of the largest at the start."""

    kind = name = "cautious"
    any_boundary, around_masks, of_change = True, False, True
    says = "no value grows"

    def residual(self, u: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return (u.flatten(1).abs().amax(1) / u[:, 0].flatten(1).abs().amax(1) - 0.01).clamp_min(0)

    def penalty(self, u: Tensor, reference: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def restore(self, u: Tensor, aim: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        bound = 0.01 * aim.flatten(1).abs().amax(1).reshape(-1, *(1,) * (u.ndim - 1))
        return u.clamp(-bound, bound)

    def at_points(self) -> Law:
        return self


def test_a_law_of_ones_own_is_kept_at_points_and_says_itself_where_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    task, law = TASKS["advection1d"], Cautious()
    monkeypatch.setattr(EQUATIONS["advection1d"], "laws", lambda _: (law,))
    assert laws_of(task, (True,)) == laws_of(task, (False,)) == (law,)
    for change in ({"mask": "mask"}, {"steady": True}):
        assert laws_of(dataclasses.replace(task, **change), (True,)) == ()  # type: ignore[arg-type]
    state, _, grid = states("advection1d")
    points = torch.linspace(0.01, 0.99, 50).unsqueeze(-1)
    bound = 0.01 * float(state.abs().amax())
    with torch.no_grad():
        held, free = (
            restless(task, grid.shape, guard=guard).simulate(window(task, state), 2, points=points)
            for guard in (True, False)
        )
    assert float(held.abs().max()) <= bound < float(free.abs().max())


def test_what_breaks_laws_more_is_scored_worse_sample_by_sample() -> None:
    state, _, grid = states("cfd1d")
    laws = laws_of(TASKS["cfd1d"], (True,))
    candidates = torch.stack([state[0] * (1 + 0.1 * i) for i in range(4)]).unsqueeze(1)
    scores = broken(candidates, laws, state[:1].expand(4, -1, -1), grid)
    assert scores[0] < 1e-12
    assert bool((scores.diff() > 0).all())
