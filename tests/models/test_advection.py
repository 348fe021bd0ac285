"""Advection: states are carried as far as parameters and time say, also between the values that it was fitted to."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from small_simulators import awaken
from torch import Tensor

from grids import grid_of, wrapping
from ups.engine.optim import decays
from ups.models import CodecConfig, LatentOperator, OperatorConfig, Simulator, build
from ups.models.advection import Advection, moved
from ups.models.config import SimulatorConfig
from ups.models.stepping import Stepping
from ups.physics import TASKS
from ups.tensors import Condition, LatentState, Window, numeric_params
from ups.types import ConfigError, Dynamics, Grid, Param

SPEEDS = torch.tensor([[0.2], [0.5], [0.8], [1.0]])  # of advection, each a sample's
STEP = 0.05


def waves(count: int, tokens: int, way: Tensor, seed: int = 0) -> Tensor:
    """Sums of waves on [0, 1), moved by `way (count,)`: `(count, tokens, 2)`, as a formula says them."""
    draw = torch.Generator().manual_seed(seed)
    x = (torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens
    at = 2 * torch.pi * (x[None] - way.double()[:, None])
    sizes, phases = torch.rand(2, 2, count, 6, 1, generator=draw, dtype=torch.float64)
    k = torch.arange(1, 7)[:, None]
    fields = (sizes * torch.sin(k * at[None, :, None] + 2 * torch.pi * phases)).sum(2)
    return fields.movedim(0, -1).float()


@pytest.mark.parametrize("tokens", [16, 17])
def test_states_move_as_their_formula_says(tokens: int) -> None:
    way = torch.tensor([0.0, 0.3, -0.77, 2.05])
    found = moved(waves(4, tokens, torch.zeros(4)), way[:, None].expand(4, 3), Grid((tokens,), (True,)))
    assert torch.allclose(found, waves(4, tokens, way), atol=2e-5)


def test_a_move_by_whole_tokens_is_a_roll_of_the_axes_that_wrap() -> None:
    z = torch.randn(2, 8, 6, 3, generator=torch.Generator().manual_seed(0))
    way = torch.tensor([[2 / 8, 1 / 6, 0.5]]).expand(2, 3)
    for periodic, axes in (((True, True), (1, 2)), ((True, False), (1,)), ((False, False), ())):
        wanted = z.roll([{1: 2, 2: 1}[axis] for axis in axes], axes) if axes else z
        assert torch.allclose(moved(z, way, Grid((8, 6), periodic)), wanted, atol=1e-6)


def test_speeds_of_two_parameters_are_found_in_what_they_carry() -> None:
    params, dt = 4 * torch.rand(12, 2, generator=torch.Generator().manual_seed(1)) - 2, torch.full((12, 1), 0.1)
    truth = torch.tensor([[1.05, -0.5, 0.0], [-0.35, 0.8, 0.0]])
    before = torch.randn(12, 16, 12, 4, generator=torch.Generator().manual_seed(2))
    for axis in (1, 2):  # smooth, as states are
        before = torch.stack([(3 - abs(i)) * before.roll(i, axis) for i in range(-2, 3)]).sum(0)
    space = Grid((16, 12), (True, True))
    frames = torch.stack((before, moved(before, 0.1 * params @ truth, space)), 1)
    drift = Advection.fitted(params, dt, frames, space.periodic)
    assert torch.allclose(drift.way(torch.eye(2), torch.ones(2)), truth, atol=2e-3)
    still = Advection.fitted(params, dt, frames, (False, False))
    assert not still.speeds.any(), "nothing is carried where nothing wraps"


def fitted() -> LatentOperator:
    """An untrained operator that was shown advection at some speeds."""
    task = TASKS["advection1d"]
    operator = LatentOperator(OperatorConfig(width=16, depth=1, heads=2, context=2), 2, [task])
    frames = torch.stack([waves(4, 32, i * STEP * SPEEDS[:, 0]) for i in range(4)], 1)
    shown = (frames, asked(SPEEDS), torch.full((4, 3), STEP))
    left = operator.increments(*shown, operator.fit_drift(*shown))
    assert left.abs().max() < 1e-3 * frames.abs().max()
    return operator


def asked(beta: Tensor, dt: float = STEP, box: tuple[float, ...] | None = None) -> Condition:
    grid = Grid((32,), (True,), () if box is None else ((0.0, box[0]),))
    return Condition(beta, torch.full((len(beta),), dt), grid, "advection1d")


@pytest.mark.parametrize(("dt", "box"), [(STEP, None), (0.4 * STEP, None), (STEP, (2.0,))])
def test_an_operator_carries_waves_at_speeds_between_those_that_it_was_shown(
    dt: float, box: tuple[float, ...] | None
) -> None:
    """Also over shorter steps, and in a box of another length, of which the same way is another part."""
    beta = torch.tensor([[0.33], [0.61], [0.95]])
    way = beta[:, 0] * dt / (1.0 if box is None else box[0])
    z = torch.stack((waves(3, 32, -way), waves(3, 32, torch.zeros(3))), 1)
    truth = waves(3, 32, way)
    with torch.no_grad():
        found = fitted()(z, asked(beta, dt, box))
    assert (found - truth).norm() < 2e-3 * truth.norm()
    assert (z[:, 1] - truth).norm() > 0.1 * truth.norm(), "no change is far from it"


def test_speeds_are_trained_further() -> None:
    operator = fitted()
    with torch.no_grad():
        operator.drift["advection1d"].speeds.add_(0.01)
    z = torch.stack([waves(4, 32, i * STEP * SPEEDS[:, 0]) for i in range(3)], 1)
    before = (operator(z[:, :2], asked(SPEEDS)) - z[:, 2]).square().mean()
    (slope,) = torch.autograd.grad(before, [operator.drift["advection1d"].speeds])
    assert slope[0, 0] > 0
    assert math.isfinite(slope.abs().max())
    assert not slope[0, 1:].any(), "other axes carry nothing"


def test_steps_of_uneven_length_in_a_box_of_another_one_are_carried_as_far_as_each_takes() -> None:
    """Speeds are those of the task's own box, wherever and however often they were looked at."""
    operator = LatentOperator(OperatorConfig(width=16, depth=1, heads=2), 2, [TASKS["advection1d"]])
    dt = STEP * torch.tensor([[1.0, 0.5, 2.0], [0.5, 0.5, 1.0], [2.0, 1.0, 1.0], [1.0, 2.0, 0.5]])
    times = torch.cat((torch.zeros(4, 1), dt.cumsum(1)), 1)
    frames = torch.stack([waves(4, 32, t * SPEEDS[:, 0] / 2) for t in times.unbind(1)], 1)
    shown = (frames, asked(SPEEDS, box=(2.0,)), dt)
    left = operator.increments(*shown, operator.fit_drift(*shown))
    assert left.abs().max() < 1e-3 * frames.abs().max()
    way = operator.drift["advection1d"].way(torch.ones(1, 1), torch.ones(1))
    assert torch.allclose(way, torch.tensor([[1.0, 0.0, 0.0]]), atol=1e-4)


@pytest.mark.parametrize("boxes", [0.9, 1.9])
def test_speeds_that_carry_farther_than_half_a_box_are_told_by_parameters_that_differ(boxes: float) -> None:
    beta = torch.linspace(0.2, 1.0, 12).unsqueeze(1)
    frames = torch.stack((waves(12, 32, torch.zeros(12)), waves(12, 32, boxes * beta[:, 0])), 1)
    drift = Advection.fitted(beta, torch.full((12, 1), STEP), frames, (True,))
    assert torch.allclose(drift.way(torch.ones(1, 1), torch.full((1,), STEP))[0, 0], torch.tensor(boxes), atol=1e-4)


def test_what_looks_the_same_everywhere_is_not_carried() -> None:
    drift = Advection.fitted(SPEEDS, torch.full((4, 1), STEP), torch.ones(4, 2, 16, 2), (True,))
    assert not drift.speeds.any()


def test_speeds_do_not_decay() -> None:
    assert not decays(fitted())["drift.advection1d.speeds"]


def test_a_word_carries_nothing() -> None:
    word = Param("kind", "dry", "", choices=("dry", "wet"), encoded=True)
    with pytest.raises(ConfigError, match="advection1d: `advected_by` names 'kind', but it has beta"):
        carrier("kind", parameters=(*TASKS["advection1d"].parameters, word))


def test_what_no_parameter_can_carry_is_refused() -> None:
    for name, fact in (("advection1d", "it has beta"), ("darcy2d", "nothing can move it")):
        task = dataclasses.replace(TASKS[name], dynamics=Dynamics(advected_by=("wind",)))
        with pytest.raises(ConfigError, match=f"{name}: `advected_by` names 'wind', but {fact}"):
            LatentOperator(OperatorConfig(width=16, depth=1, heads=2), 8, [task])


def test_what_is_carried_does_not_hear_how_fast() -> None:
    """After the move a network gives the same whatever the speed; other parameters it hears, and between walls, where
    nothing is moved, the speed too."""
    task = dataclasses.replace(TASKS["reacdiff1d"], dynamics=Dynamics(advected_by=("rho",)))
    conditioner = LatentOperator(OperatorConfig(width=16, depth=1, heads=2), 8, [task]).conditioner
    names = numeric_params(task)
    params = torch.full((1, len(names)), 0.5)

    def heard(name: str, wraps: bool = True) -> bool:
        other = params.clone()
        other[0, names.index(name)] = 2.0
        grid = Grid((32,), (wraps,))
        said = [conditioner(Condition(p, torch.full((1,), STEP), grid, "reacdiff1d")) for p in (params, other)]
        return not torch.equal(*said)

    assert (heard("rho"), heard("nu")) == (False, True)
    assert heard("rho", wraps=False), "between walls nothing is carried, and all is told"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_that_rounds_products_carries_cells_as_exactly_as_a_processor() -> None:
    simulator = carrier("beta").requires_grad_(False)
    z, beta = torch.randn(4, 1, 16, 8, generator=torch.Generator().manual_seed(0)), SPEEDS + 0.07
    wanted = simulator.operator(z, asked(beta))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        condition = Condition(beta.cuda(), torch.full((4,), STEP).cuda(), Grid((32,), (True,)), "advection1d")
        found = simulator.cuda().operator(z.cuda(), condition)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert torch.allclose(found.cpu(), wanted, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_states_are_carried_inside_a_graph_as_on_a_processor() -> None:
    operator = fitted().requires_grad_(False)
    z, beta = torch.stack([waves(4, 32, i * STEP * SPEEDS[:, 0]) for i in range(2)], 1), SPEEDS + 0.07
    wanted = operator(z, asked(beta))
    operator.cuda()
    dt, grid = torch.full((4,), STEP).cuda(), Grid((32,), (True,))
    static, condition = z.cuda(), Condition(beta.cuda(), dt, grid, "advection1d")
    with torch.no_grad():
        for _ in range(3):
            operator(static, condition)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = operator(static, condition)
    static.add_(1.0)
    graph.replay()
    assert torch.allclose(found.cpu(), wanted + 1.0, atol=2e-5)


def steep(way: Tensor, cells: int = 64) -> Tensor:
    """Waves as fine as two and a half cells, moved by `way (B,)`: `(B, cells, 1)`, as a formula says them."""
    x = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells - way.double()[:, None]
    fine = torch.stack([torch.sin(2 * torch.pi * k * x + k) / k for k in (1, 2, 9, 17, 25)])
    return fine.sum(0).unsqueeze(-1).float()


def carrier(*by: str, context: int = 1, **facts: Any) -> Simulator:
    """An untrained simulator of 64 cells in 16 tokens, shown advection, which some parameters move."""
    codec, operator = CodecConfig(dim=8, patch=(4, 4, 2)), OperatorConfig(width=16, depth=1, heads=2, context=context)
    task = dataclasses.replace(TASKS["advection1d"], dynamics=Dynamics(advected_by=by), **facts)
    found = build([task], codec, operator, shapes={"advection1d": (64,)})
    frames = torch.stack([steep(i * STEP * SPEEDS[:, 0]) for i in range(3)], 1)
    z = found.codec.encode(frames.flatten(0, 1), "advection1d", grid_of(frames.flatten(0, 1), (True,))).z
    found.operator.fit_drift(torch.unflatten(z, 0, (4, 3)), asked(SPEEDS), torch.full((4, 2), STEP))
    return found


def missed(simulator: Simulator) -> float:
    """By how much a step at speeds between misses waves that are finer than tokens, beside their size."""
    beta = torch.tensor([[0.33], [0.61], [0.95]])
    z = simulator.codec.encode(steep(torch.zeros(3)), "advection1d", grid_of(steep(torch.zeros(3)), (True,)))
    with torch.no_grad():
        ahead = simulator.operator(z.z.unsqueeze(1), asked(beta))
        found = simulator.codec.decode(dataclasses.replace(z, z=ahead), "advection1d")
    truth = steep(STEP * beta[:, 0])
    return ((found - truth).norm() / truth.norm()).item()


def test_waves_finer_than_tokens_are_carried_by_cells() -> None:
    """Tokens of four cells hold 8 waves each way; those with 9, 17 and 25 they send elsewhere."""
    assert missed(carrier("beta")) < 1e-3


def test_what_tokens_say_besides_their_cells_is_carried_by_tokens() -> None:
    """A token of eight numbers has four that no cell of its patch sets; a whole token's way moves them too."""
    simulator = carrier("beta")
    with torch.no_grad():
        simulator.operator.drift["advection1d"].speeds.fill_(0.0)[0, 0] = 1.0  # a sixteenth of the box: one token
        z = torch.randn(2, 1, 16, 8, generator=torch.Generator().manual_seed(0))
        drift = simulator.operator.drift["advection1d"]
        beta = torch.full((2, 1), float(drift.size[0]))
        found = simulator.operator(z, asked(beta, dt=float(drift.span)))
    assert torch.allclose(found, z[:, 0].roll(1, 1), atol=1e-5)


def test_tokens_that_hold_less_than_their_patches_are_carried_themselves() -> None:
    codec, operator = CodecConfig(dim=2, patch=(4, 4, 2)), OperatorConfig(width=16, depth=1, heads=2)
    found = build([TASKS["advection1d"]], codec, operator, shapes={"advection1d": (64,)})
    assert found.codec.patch_of("advection1d") is None
    assert found.operator(torch.randn(4, 1, 16, 2), asked(SPEEDS)).shape == (4, 16, 2)


def test_cells_are_those_of_the_codec_that_a_simulator_has_now() -> None:
    """Where networks are sharded, one that has been trained is replaced by what its pieces were gathered to."""
    simulator, config = carrier("beta"), CodecConfig(dim=8, patch=(4, 4, 2))
    other = build([TASKS["advection1d"]], config, shapes={"advection1d": (64,)}, seed=1).codec
    assert not torch.equal(
        other.encoder.enter["advection1d"].weight, simulator.codec.encoder.enter["advection1d"].weight
    )
    simulator.replace("codec", other)
    assert missed(simulator) < 1e-3


def test_a_network_is_told_the_part_of_a_token_that_is_left_of_a_way_and_nothing_of_whole_ones() -> None:
    drift = Advection(1, 5)
    torch.nn.init.normal_(drift.embed)
    space = Grid((16, 8), (True, False))
    ways = torch.tensor([[0.0, 0.0, 0.0], [3 / 16, 0.4, 0.0], [3.25 / 16, 0.0, 0.0], [-0.75 / 16, 0.7, 0.0]])
    with torch.no_grad():
        told = drift.condition(ways, space)
    assert torch.allclose(told[:2], torch.zeros(2, 5), atol=1e-4), "whole tokens, and an axis between walls"
    assert torch.allclose(told[2], told[3], atol=1e-4), "a quarter beyond three tokens is three quarters short of none"
    assert told[2].abs().max() > 0.1


def looking_back(dt: float = STEP, box: tuple[float, ...] = (1.0,)) -> tuple[Simulator, Window]:
    """A simulator that looks back on three frames and changes them by 1e-4 of what they are, and three of `steep`."""
    simulator = carrier("beta", context=3).eval()
    speeds = simulator.operator.drift["advection1d"].speeds.clone()
    awaken(simulator.operator)
    simulator.operator.drift["advection1d"].speeds.data.copy_(speeds)
    simulator.operator.fit_increments("advection1d", 1e-4)
    simulator.config = SimulatorConfig(guard=False)
    beta = torch.tensor([[0.33], [0.61], [0.95]])
    frames = torch.stack([steep(i * dt * beta[:, 0] / box[0]) for i in range(-2, 6)], 1)
    none = torch.empty(3, 64, 0)
    given = Window(
        TASKS["advection1d"],
        frames[:, :3],
        frames[:, 3:],
        none,
        beta,
        torch.full((3,), dt),
        grid_of(none, (True,), box),
    )
    return simulator, given


@pytest.mark.parametrize(("dt", "box"), [(STEP, (1.0,)), (0.4 * STEP, (1.0,)), (STEP, (2.0,))])
@pytest.mark.parametrize("count", [1, 2])
def test_frames_that_are_missing_were_where_a_state_was_carried_from(
    dt: float, box: tuple[float, ...], count: int
) -> None:
    simulator, given = looking_back(dt, box)
    few = dataclasses.replace(given, context=given.context[:, -count:])
    with torch.no_grad():
        truth, found = (simulator.encode_context(w.context, Condition.of(w)) for w in (given, few))
        assert torch.equal(found[:, -count:], truth[:, -count:])
        frames = simulator.codec.decode(LatentState(found.flatten(0, 1), Grid((32,), (True,))), "advection1d")
        assert torch.allclose(frames.reshape(given.context.shape), given.context, atol=2e-3)
        misses = [(simulator.simulate(w, 5) - given.targets).norm() / given.targets.norm() for w in (given, few)]
    assert misses[1] < 1.2 * misses[0] < 5e-3


def test_of_steps_of_uneven_length_the_first_says_where_missing_frames_were() -> None:
    simulator, given = looking_back()
    alone = dataclasses.replace(given, context=given.context[:, -1:])
    uneven = dataclasses.replace(alone, dt=STEP * torch.tensor([1.0, 0.5, 2.0]).expand(3, 3))
    found = [Stepping(simulator, w).start() for w in (alone, uneven)]
    assert torch.equal(*found)


def test_where_nothing_wraps_and_where_nothing_is_carried_the_first_frame_stands_for_those_before_it() -> None:
    simulator, given = looking_back()
    walled = wrapping(dataclasses.replace(given, context=given.context[:, -1:]), False)
    other = carrier(context=3)
    for sim, window in ((simulator, walled), (other, wrapping(walled, True))):
        z = sim.codec.encode(window.state, "advection1d", window.grid).z.unsqueeze(1)
        assert torch.equal(sim.encode_context(window.context, Condition.of(window)), torch.cat((z, z, z), 1))
    five = torch.cat([z + i for i in range(5)], 1)
    assert torch.equal(simulator.pad_context(five, Condition.of(given)), five[:, 2:]), "of more the last count"
