"""LatentOperator: every core starts as persistence, obeys its symmetries and hears each condition."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from small_simulators import GRIDS, VARIANTS, awaken, condition, simulator
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from grids import boxed, wrapping
from ups.models import SIZES, Codec, CodecConfig, LatentOperator, OperatorConfig, SimulatorConfig, build
from ups.models.blocks import join, split
from ups.models.conditions import Conditioner, ParamScaling
from ups.models.layers import FourierMixing
from ups.physics import TASKS
from ups.tensors import Condition, LatentState
from ups.types import ConfigError, Dynamics, Field, Grid


def tokens(name: str, context: int = 1, batch: int = 2, seed: int = 0) -> Tensor:
    shape = simulator(name).codec.tokens(name)
    return torch.randn(batch, context, *shape, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_an_untrained_operator_predicts_no_change_in_any_dimension(core: str, mixing: str, name: str) -> None:
    operator = simulator(name, core=core, mixing=mixing, context=2).operator
    z = tokens(name, context=2)
    out = operator(z, condition(name))
    assert torch.equal(out, z[:, -1])
    awaken(operator)
    moved = operator(z, condition(name))
    assert moved.shape == z[:, -1].shape
    assert moved.isfinite().all()
    assert not torch.allclose(moved, z[:, -1])


@pytest.mark.parametrize("step_scale", ["auto", "task", "sample"])
def test_of_a_task_without_memory_the_last_frame_says_all(step_scale: str) -> None:
    """It takes no other, and steps like an operator with one frame of context; other tasks look back."""
    told = dataclasses.replace(TASKS["burgers1d"], dynamics=Dynamics(memoryless=True))
    tasks = [told, TASKS["advection1d"]]
    config = OperatorConfig(width=16, depth=1, heads=2, context=3, step_scale=step_scale)
    operator = LatentOperator(config, 8, tasks)
    awaken(operator)
    z = torch.randn(2, 3, 4, 8)
    assert [config.looks_back(task) for task in tasks] == [operator.looks_back(task.name) for task in tasks] == [1, 3]
    assert operator(z, condition("advection1d")).shape == operator(z[:, 2:], condition("burgers1d")).shape
    for name, taken in (("burgers1d", z), ("advection1d", z[:, 2:])):
        with pytest.raises(ConfigError, match=f"of context of {name}, not {taken.shape[1]}"):
            operator(taken, condition(name))
    one = LatentOperator(dataclasses.replace(config, context=1), 8, tasks)
    weights = operator.state_dict()
    weights["enter.weight"] = weights["enter.weight"][:, :8]
    one.load_state_dict({name: weights[name] for name in one.state_dict()})
    assert torch.allclose(one(z[:, 2:], condition("burgers1d")), operator(z[:, 2:], condition("burgers1d")), atol=1e-6)


def test_tasks_with_layers_of_their_own_begin_as_one_network_and_are_trained_apart() -> None:
    """The layers of one task are not touched by a step of another; all else is."""
    tasks = [TASKS["burgers1d"], TASKS["advection1d"]]
    config = OperatorConfig(width=16, depth=2, heads=2)
    built = []
    for per_task_layers in (False, True):
        torch.manual_seed(0)
        built.append(LatentOperator(dataclasses.replace(config, per_task_layers=per_task_layers), 8, tasks))
    shared, apart = built
    own = {name: re.sub(r"\.(burgers1d|advection1d)\.(weight|bias)$", r".\2", name) for name in apart.state_dict()}
    known = shared.state_dict()
    sources = {name: known[name if name in known else there] for name, there in own.items()}
    assert all(torch.equal(tensor, sources[name]) for name, tensor in apart.state_dict().items())
    awaken(shared)  # in place: the sources too
    apart.load_state_dict(sources)
    z = torch.randn(2, 1, 4, 8)
    for task in tasks:
        assert torch.equal(apart(z, condition(task.name)), shared(z, condition(task.name)))
    apart(z, condition("burgers1d")).square().sum().backward()
    moved = {name for name, p in apart.named_parameters() if p.grad is not None and name.startswith("core.")}
    still = {name for name, _ in apart.named_parameters() if name.startswith("core.")} - moved
    assert len(still) == 12
    assert all(".advection1d." in name for name in still)
    assert not any(".advection1d." in name for name in moved)


def test_a_task_that_changes_when_uniform_may_do_so_though_others_are_measured_by_the_sample() -> None:
    tasks = [TASKS["burgers1d"], TASKS["reacdiff1d"]]
    operator = LatentOperator(OperatorConfig(width=16, depth=1, heads=2, step_scale="sample"), 8, tasks)
    awaken(operator)
    uniform = torch.ones(2, 1, 4, 8)
    still, moves = (operator(uniform, condition(task.name)) - uniform[:, 0] for task in tasks)
    assert still.abs().max() < 0.01 * moves.abs().max()


def test_between_two_values_of_a_parameter_a_condition_hardly_bends() -> None:
    """How far the middle of trained neighbours lies from the line between them, over their distance, as drawn."""
    values = torch.logspace(-3, 0, 7)
    torch.manual_seed(0)
    conditioner = Conditioner(64, [TASKS["burgers1d"]])
    conditioner.range_of("burgers1d").fit(values[:1], values[-1:])
    middle = (values[1:] * values[:-1]).sqrt()
    given = torch.cat((values, middle)).unsqueeze(1)
    with torch.no_grad():
        found = conditioner(Condition(given, torch.full((13,), 0.1), Grid((32,), (True,)), "burgers1d"))
    left, right, between = found[:6], found[1:7], found[7:]
    assert float(((between - (left + right) / 2).norm(dim=1) / (left - right).norm(dim=1)).mean()) < 0.1


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_an_operator_commutes_with_shifts_of_a_periodic_box(core: str, mixing: str) -> None:
    """Any whole number of tokens; for windows, whole windows of the coarsest level (and its shift)."""
    windows = core == "unet"
    sim = simulator("cfd2d", core=core, mixing=mixing, shapes={"cfd2d": (32, 32)})
    awaken(sim.operator)
    z = torch.randn(2, 1, 8, 8, 64)
    shift = (4, 0) if windows else (3, 1)
    with torch.no_grad():
        out = sim.operator(z, condition("cfd2d"))
        moved = sim.operator(z.roll(shift, (2, 3)), condition("cfd2d"))
    assert (moved - out.roll(shift, (1, 2))).abs().max() < 1e-4 * out.abs().max()


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_walls_break_the_symmetry_that_a_ring_has(core: str, mixing: str) -> None:
    sim = simulator("burgers1d", core=core, mixing=mixing)
    awaken(sim.operator)
    z = tokens("burgers1d")
    walled = condition("burgers1d", periodic=(False,))
    out, moved = sim.operator(z, walled), sim.operator(z.roll(4, 2), walled)
    assert (moved - out.roll(4, 1)).abs().max() > 1e-3


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_each_condition_changes_the_prediction(core: str, mixing: str) -> None:
    sim = simulator("burgers1d", "advection1d", shapes={"advection1d": (32,)}, core=core, mixing=mixing)
    sim.operator.fit_ranges("burgers1d", torch.tensor([0.01]), torch.tensor([1.0]))
    awaken(sim.operator)
    z, base = tokens("burgers1d"), condition("burgers1d")
    out = sim.operator(z, base)
    changes = {
        "params": dataclasses.replace(base, params=base.params * 0.1),
        "dt": dataclasses.replace(base, dt=base.dt * 2),
        "periodic": wrapping(base, False),
        "task": dataclasses.replace(base, task="advection1d"),
    }
    for name, changed in changes.items():
        assert (sim.operator(z, changed) - out).abs().max() > 1e-4, name


@pytest.mark.parametrize(("low", "high"), [(1e-3, 1.0), (0.0, 1.0), (-1.0, 0.5)])
def test_the_unit_of_a_parameter_changes_nothing(low: float, high: float) -> None:
    ends = torch.tensor([low, high, (low + high) / 3]).unsqueeze(1)
    heard = []
    for unit in (1.0, 1e-16):
        measured = ParamScaling(1)
        measured.fit(ends[0] * unit, ends[1] * unit)
        heard.append(measured(ends * unit))
    assert torch.allclose(heard[0][:2].squeeze(1), torch.tensor([-1.0, 1.0]), atol=1e-4)
    assert torch.allclose(heard[0], heard[1], atol=1e-4)


def test_another_box_is_heard_and_the_task_s_own_box_changes_nothing() -> None:
    sim = simulator("reacdiff2d")
    z, base = tokens("reacdiff2d"), condition("reacdiff2d")
    own = tuple(hi - lo for lo, hi in TASKS["reacdiff2d"].bounds)
    wide = (2 * own[0], own[1])
    awaken(sim.operator)
    out = sim.operator(z, base)
    assert torch.equal(sim.operator(z, boxed(base, *own)), out)
    assert (sim.operator(z, boxed(base, *wide)) - out).abs().max() > 1e-4
    with torch.no_grad():
        sim.operator.conditioner.box.zero_()  # as before training
    out = sim.operator(z, base)
    assert torch.equal(sim.operator(z, boxed(base, *wide)), out)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_inputs_drive_the_operator_in_any_dimension_and_on_any_grid(ndim: int) -> None:
    named = {1: "burgers1d", 2: "darcy2d", 3: "cfd3d"}[ndim]
    task = dataclasses.replace(TASKS[named], inputs=(Field.vector("force", "a", "b"),))
    sim = build([task], CodecConfig(dim=64), OperatorConfig(width=32, depth=1, heads=2), shapes={named: (16,) * ndim})
    sim.operator.fit_inputs(named, torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    awaken(sim.operator)
    z = torch.randn(2, 1, *sim.codec.tokens(named), 64)
    field = torch.randn(2, *(16,) * ndim, 2)
    asked = dataclasses.replace(condition(named), inputs=field)
    out = sim.operator(z, asked)
    other = field.clone()
    other[1] += 1
    moved = sim.operator(z, dataclasses.replace(asked, inputs=other))
    assert torch.allclose(moved[0], out[0], atol=1e-5)
    assert not torch.allclose(moved[1], out[1], atol=1e-4)
    flat = dataclasses.replace(asked, inputs=torch.full((2, *(16,) * ndim, 2), 3.0))
    fine = dataclasses.replace(asked, inputs=torch.full((2, *(32,) * ndim, 2), 3.0))
    assert torch.allclose(sim.operator(z, flat), sim.operator(z, fine), atol=1e-4)
    with pytest.raises(ConfigError, match=r"driven by the inputs a, b.*given nothing"):
        sim.operator(z, dataclasses.replace(asked, inputs=None))
    with pytest.raises(ConfigError, match="give inputs"):
        sim.operator(z, dataclasses.replace(asked, inputs=field[..., :1]))


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_the_units_of_sharding_are_apart_run_in_forward_and_hold_most_of_the_weights(core: str, mixing: str) -> None:
    sim = simulator("darcy2d", core=core, mixing=mixing, shapes={"darcy2d": (16, 16)})
    field, called = torch.randn(2, 16, 16, 1), set[int]()
    asked = dataclasses.replace(condition("darcy2d"), inputs=field)
    modules: list[Codec | LatentOperator] = [sim.codec, sim.operator]
    for module in modules:
        units = module.shard_units()
        owned = [id(p) for unit in units for p in unit.parameters()]
        assert len(owned) == len(set(owned)), "no parameter lies in two units"
        assert set(owned) < {id(p) for p in module.parameters()}, "and some are left for the root"
        assert all(callable(getattr(module, name)) for name in module.entries)
        for unit in units:
            unit.register_forward_hook(lambda unit, *_: called.add(id(unit)))
    state = sim.codec.encode(field, "darcy2d", asked.grid)
    sim.codec.decode(LatentState(sim.operator(state.z.unsqueeze(1), asked), asked.grid), "darcy2d")
    assert called == {id(unit) for module in modules for unit in module.shard_units()}
    weights = sum(p.numel() for unit in sim.operator.shard_units() for p in unit.parameters())
    assert weights > 0.5 * sum(p.numel() for p in sim.operator.parameters())
    assert sim.codec.entries == ("encode", "moved", "decode")


def test_the_condition_is_heard_per_sample() -> None:
    sim = simulator("burgers1d")
    sim.operator.fit_ranges("burgers1d", torch.tensor([0.01]), torch.tensor([1.0]))
    awaken(sim.operator)
    z, base = tokens("burgers1d"), condition("burgers1d")
    out = sim.operator(z, base)
    other = sim.operator(z, dataclasses.replace(base, params=torch.tensor([[0.5], [0.05]])))
    assert torch.allclose(other[0], out[0], atol=1e-6)
    assert not torch.allclose(other[1], out[1], atol=1e-4)


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_gradients_reach_every_parameter_of_the_operator(core: str, mixing: str) -> None:
    names = ("burgers1d", "darcy2d")
    sim = simulator(*names, shapes={"darcy2d": (16, 16)}, core=core, mixing=mixing, modes=3)
    sim.operator.fit_ranges("burgers1d", torch.tensor([0.01]), torch.tensor([1.0]))
    awaken(sim.operator)
    total = torch.zeros(())
    for name in names:
        ndim = TASKS[name].ndim
        asked = dataclasses.replace(boxed(condition(name), *(2.0,) * ndim), inputs=torch.randn(2, *(16,) * ndim, 1))
        total = total + sim.operator(torch.randn(2, 1, *(4,) * ndim, 64), asked).square().mean()
    total.backward()
    dead = [n for n, p in sim.operator.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert dead == []


@pytest.mark.parametrize(("core", "mixing"), [("unet", "attention"), ("unet", "fourier"), ("transformer", "fourier")])
@pytest.mark.parametrize(("name", "sizes"), [("burgers1d", (64, 128, 256)), ("reacdiff2d", (16, 32, 64))])
def test_the_cost_of_windows_and_waves_is_linear_in_tokens(
    core: str, mixing: str, name: str, sizes: tuple[int, ...]
) -> None:
    operator = simulator(name, core=core, mixing=mixing, windows=(8, 4, 2)).operator
    ndim = TASKS[name].ndim
    costs = []
    for n in sizes:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            operator(torch.zeros(1, 1, *(n,) * ndim, 64), condition(name, batch=1))
        costs.append(counter.get_total_flops())
    exponent = np.polyfit(np.log([n**ndim for n in sizes]), np.log(costs), 1)[0]
    assert exponent <= 1.1


@pytest.mark.parametrize("shape", [(5,), (6,), (2,), (3, 8), (7, 5)])
@pytest.mark.parametrize("mixing", ["attention", "fourier"])
def test_a_grid_too_small_for_the_u_uses_fewer_levels(shape: tuple[int, ...], mixing: str) -> None:
    name = "burgers1d" if len(shape) == 1 else "reacdiff2d"
    operator = simulator(name, core="unet", mixing=mixing, levels=3).operator
    awaken(operator)
    out = operator(torch.randn(2, 1, *shape, 64), condition(name))
    assert out.shape == (2, *shape, 64)
    assert out.isfinite().all()


def test_windows_are_cut_at_walls_and_wrap_around_rings() -> None:
    """A change in the first token reaches the last one in a ring, through shifted windows, and not across walls."""
    from ups.models.blocks import BlockShape, WindowAttention

    torch.manual_seed(0)
    shape = BlockShape(16, 2, 16, 2.0, 3, "token")
    layer = WindowAttention(shape, (4, 4, 2), shifted=True)
    x = torch.randn(1, 16, 16)
    changed = x.clone()
    changed[:, 0] += 1
    for periodic, reached in ((True, {14, 15, 0, 1}), (False, {0, 1})):
        space = Grid((16,), (periodic,))
        gap = (layer(changed, space) - layer(x, space)).abs().amax((0, 2))
        assert set(torch.nonzero(gap > 1e-6).flatten().tolist()) == reached


@pytest.mark.parametrize("window", [(4,), (2, 4), (2, 2, 4)])
def test_windows_put_back_together_are_the_grid(window: tuple[int, ...]) -> None:
    space = Grid(tuple(2 * w for w in window), (True,) * len(window))
    x = torch.randn(2, *space.shape, 3)
    assert torch.equal(join(split(x, window), window, space), x)


def test_fourier_mixing_with_unit_matrices_keeps_the_waves_it_holds_and_drops_the_others() -> None:
    layer = FourierMixing(4, 2, modes=4)
    with torch.no_grad():
        layer.real.copy_(torch.eye(2).expand_as(layer.real))
        layer.imaginary.zero_()
        layer.gain.fill_(1.0)
    at = (torch.arange(32) + 0.5) / 32
    for periodic, turns in ((True, 2), (False, 1)):
        low, high = (torch.cos(torch.pi * turns * k * at).reshape(1, 32, 1).expand(1, 32, 4) for k in (3, 5))
        out = layer(low + high, Grid((32,), (periodic,)))
        assert torch.allclose(out, low, atol=1e-5)


def test_weights_follow_from_the_seed_alone() -> None:
    first = simulator("burgers1d", seed=3).state_dict()
    torch.rand(7)
    before = torch.get_rng_state()
    again = simulator("burgers1d", seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(
        first["operator.enter.weight"], simulator("burgers1d", seed=4).state_dict()["operator.enter.weight"]
    )


def test_sizes_grow_and_the_largest_has_a_hundred_million_parameters() -> None:
    counts = []
    for name in SIZES:
        with torch.device("meta"):
            operator = LatentOperator(OperatorConfig(size=name, mixing="attention"), 64, [TASKS["burgers1d"]])  # type: ignore[arg-type]
        counts.append(sum(p.numel() for p in operator.parameters()))
    assert counts == sorted(counts)
    assert counts[-1] >= 100e6


def test_increments_are_written_in_the_size_they_have_in_training() -> None:
    operator = simulator("burgers1d").operator
    awaken(operator)
    z, asked = tokens("burgers1d"), condition("burgers1d")
    change = operator(z, asked) - z[:, -1]
    operator.fit_increments("burgers1d", 0.01)
    assert torch.allclose(operator(z, asked) - z[:, -1], 0.01 * change, atol=1e-5)


@pytest.mark.parametrize("context", [1, 3])
def test_with_a_gauge_of_the_sample_changes_shrink_with_what_is_left_of_a_state(context: int) -> None:
    z, mean = tokens("burgers1d", context), torch.randn(2, 1, 1, 64, generator=torch.Generator().manual_seed(5))
    changes: dict[str, list[float]] = {}
    for step_scale in ("task", "sample"):
        operator = simulator("burgers1d", context=context, step_scale=step_scale).operator
        awaken(operator)
        for left in (1.0, 1e-2):
            state = mean + left * z
            change = operator(state, condition("burgers1d")) - state[:, -1]
            changes.setdefault(step_scale, []).append(float(change.square().mean().sqrt()))
    assert changes["sample"][1] < 3e-2 * changes["sample"][0]
    assert changes["task"][1] > 0.3 * changes["task"][0]


def test_a_state_at_rest_hardly_moves_and_has_a_gradient() -> None:
    operator = simulator("burgers1d", context=2, step_scale="sample").operator
    awaken(operator)
    z = torch.ones(2, 2, *simulator("burgers1d").codec.tokens("burgers1d"), 64, requires_grad=True)
    change = operator(z, condition("burgers1d")) - z[:, -1]
    change.sum().backward()
    assert float(change.detach().abs().max()) < 1e-1
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_a_gauge_changes_no_other_weight_and_nothing_of_a_steady_task() -> None:
    sims = [simulator("darcy2d", "burgers1d", step_scale=g, shapes={"darcy2d": (16, 16)}) for g in ("task", "sample")]
    plain, scaled = (sim.operator.state_dict() for sim in sims)
    assert scaled.keys() - plain.keys() == {"step_scale.uneven.weight", "step_scale.embed.weight"}
    assert all(torch.equal(scaled[name], value) for name, value in plain.items())
    for sim in sims:
        awaken(sim.operator)
    assert sims[0].operator.head.weight.equal(sims[1].operator.head.weight)
    inputs = torch.rand(2, 16, 16, 1, generator=torch.Generator().manual_seed(0))
    z, driven = torch.zeros(2, 1, 4, 4, 64), dataclasses.replace(condition("darcy2d"), inputs=inputs)
    assert torch.equal(*(sim.operator(z, driven) for sim in sims))
    moving = tokens("burgers1d")
    assert not torch.equal(*(sim.operator(moving, condition("burgers1d")) for sim in sims))


def test_a_config_that_cannot_be_built_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="odd kernel"):
        OperatorConfig(kernel=4)
    with pytest.raises(ConfigError, match="multiple of twice"):
        OperatorConfig(width=30)
    with pytest.raises(ConfigError, match="2 frames of context"):
        simulator("burgers1d", context=2).operator(tokens("burgers1d"), condition("burgers1d"))


def test_tables_made_in_inference_mode_or_for_shapes_alone_still_serve_training() -> None:
    sim = simulator("reacdiff2d", core="unet", mixing="attention", shapes={"reacdiff2d": (40, 24)})
    z, asked = torch.randn(2, 1, 10, 6, 64), condition("reacdiff2d")
    with FakeTensorMode(allow_non_fake_inputs=True):
        sim.codec.decode(LatentState(sim.operator(z, asked), asked.grid), "reacdiff2d")
    with torch.inference_mode():
        sim.codec.decode(LatentState(sim.operator(z, asked), asked.grid), "reacdiff2d")
    out = sim.codec.decode(LatentState(sim.operator(z, asked), asked.grid), "reacdiff2d")
    out.square().mean().backward()
    assert sim.operator.head.weight.grad is not None


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_an_operator_runs_under_bfloat16_autocast_close_to_float32(core: str, mixing: str) -> None:
    sim = simulator("reacdiff2d", core=core, mixing=mixing)
    awaken(sim.operator)
    z, asked = tokens("reacdiff2d"), condition("reacdiff2d")
    exact = sim.operator(z, asked)
    with torch.autocast("cpu", torch.bfloat16):
        rough = sim.operator(z, asked)
    assert rough.dtype == torch.float32
    assert (rough - exact).norm() / exact.norm() < 0.05


@pytest.mark.slow  # a compiler takes seconds a variant; the test below compiles one always
@pytest.mark.parametrize(("core", "mixing"), [("transformer", "fourier"), ("unet", "attention")])
def test_a_compiler_sees_the_operator_as_one_graph(core: str, mixing: str) -> None:
    sim = simulator("reacdiff2d", core=core, mixing=mixing)
    awaken(sim.operator)
    z, asked = tokens("reacdiff2d"), condition("reacdiff2d")
    compiled = torch.compile(sim.operator, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(compiled(z, asked), sim.operator(z, asked))


def test_a_compiler_sees_inputs_and_another_box_in_the_same_graph() -> None:
    sim = simulator("darcy2d", shapes={"darcy2d": (16, 16)})
    awaken(sim.operator)
    asked = dataclasses.replace(boxed(condition("darcy2d"), 1.0, 3.0), inputs=torch.randn(2, 16, 16, 1))
    z = torch.randn(2, 1, 4, 4, 64)
    compiled = torch.compile(sim.operator, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(compiled(z, asked), sim.operator(z, asked))


@pytest.mark.parametrize(("core", "mixing"), VARIANTS)
def test_a_grid_that_patches_do_not_divide_is_simulated_on_its_own(core: str, mixing: str) -> None:
    """Tokens of an odd number along an axis, inputs padded like frames, and persistence before training."""
    task = dataclasses.replace(TASKS["nsincom2d"], periodic=(True, False))
    small = OperatorConfig(width=32, depth=2, heads=4, levels=1, windows=(4, 2, 2), core=core, mixing=mixing)  # type: ignore[arg-type]
    sim = build([task], CodecConfig(dim=64, width=16), small, shapes={task.name: (18, 27)}).eval()
    u = torch.randn(2, 18, 27, 3, generator=torch.Generator().manual_seed(0))
    force = torch.randn(2, 18, 27, 2, generator=torch.Generator().manual_seed(1))
    params = {p.name: p.default for p in task.parameters if not p.choices}
    sim.config = SimulatorConfig(guard=False)
    assert (sim.rollout(u, 2, params, inputs=force) - u.unsqueeze(1)).abs().max() < 1e-4
    awaken(sim)
    assert sim.rollout(u, 2, params, inputs=force).shape == (2, 2, 18, 27, 3)
    assert sim.rollout(u, 2, params, inputs=force, points=[[0.3, 0.99], [0.1, 0.2]]).shape == (2, 2, 2, 3)
