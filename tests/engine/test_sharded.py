"""The laws of the sharded strategy, on real ranks: the same bits as data parallel, also after any failure."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from grids import grid_of
from ranks import join_group, run_ranks, values
from ups.engine.memory import MemoryCount
from ups.engine.ranks import fsdp_internals, sharded
from ups.engine.ranks.control import Control, DesyncError, PeerFailed, Word
from ups.engine.ranks.gradient_norm import norm_of, square_sums
from ups.engine.ranks.gradient_order import fix_gradient_order
from ups.engine.ranks.sharded import Sharded
from ups.types import ConfigError, Grid

STEPS, SAMPLES, WIDTH, CLIP = 3, 8, 8, 0.1
OOM = torch.OutOfMemoryError


# The how-manieth passing of a place in one attempt is the one that fails.
PASSING = {"forward": 2, "backward": 2, "late backward": 5, "recompute": 2}


@dataclass
class Faults:
    """Where this rank runs out of memory: place → the attempts (counted over the run) at which it does."""

    plan: dict[str, set[int]] = field(default_factory=dict)
    attempt: int = 0
    passed: dict[str, int] = field(default_factory=dict)

    def fire(self, place: str) -> None:
        self.passed[place] = self.passed.get(place, 0) + 1
        if self.attempt in self.plan.get(place, ()) and self.passed[place] == PASSING.get(place, 1):
            raise OOM(f"injected: {place}")

    def next(self) -> None:
        self.attempt, self.passed = self.attempt + 1, {}


FAULTS = Faults()


def hooked(x: Tensor) -> Tensor:
    def fire(grad: Tensor) -> None:  # noqa: ARG001
        FAULTS.fire("backward")
        FAULTS.fire("late backward")

    if x.requires_grad:
        x.register_hook(fire)
    return x


class Block(nn.Module):
    """Attention between tokens, then an MLP; it can fail in the middle of its forward and of its backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        # A bias of the keys would have no gradient but noise, and AdamW makes full steps of noise.
        self.qkv, self.leave = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width + 1), nn.GELU(), nn.Linear(2 * width + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + hooked(self.leave(nn.functional.scaled_dot_product_attention(q, k, v)))
        FAULTS.fire("recompute" if torch._C._current_graph_task_id() != -1 else "forward")
        return x + self.mlp(x)


class Toy(nn.Module):
    """Blocks between a way in and one head per task; an odd number of rows somewhere, and one with a single row."""

    entries = ("other",)

    def __init__(self, depth: int = 3, width: int = WIDTH) -> None:
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.heads = nn.ModuleDict({"a": nn.Linear(width, 1), "b": nn.Linear(width, 5)})
        self.register_buffer("scale", torch.full((1,), 0.5))

    def shard_units(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x)
        for block in self.blocks:
            y = block(y)
        return self.heads["a"](y) * self.scale

    def other(self, x: Tensor) -> Tensor:
        return self.forward(x).square()


def toy() -> nn.Module:
    torch.manual_seed(3)
    return Toy()


def batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 + step)
    return torch.randn(SAMPLES, 4, 3, generator=draw), torch.randn(SAMPLES, 4, 1, generator=draw)


def toy_loss(module: nn.Module, step: int, rows: slice) -> Tensor:
    x, y = batch(step)
    return (module(x[rows]) - y[rows]).square().mean()


def autocast_loss(module: nn.Module, step: int, rows: slice) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return toy_loss(module, step, rows)


def unrolled_loss(module: nn.Module, step: int, rows: slice) -> Tensor:
    """The module is run three times before one backward, the last time through another entry."""
    x, y = batch(step)
    once = module(x[rows]) + x[rows]
    return (module(once) - y[rows]).square().mean() + module.other(once + once.square()).mean()


def operator(core: Literal["transformer", "unet"] = "transformer") -> nn.Module:
    from ups.models import LatentOperator, OperatorConfig
    from ups.physics import EQUATIONS
    from ups.types import UNKNOWN

    torch.manual_seed(5)
    tasks = [replace(EQUATIONS[name]().task, dynamics=UNKNOWN) for name in ("burgers1d", "advection1d")]
    made = LatentOperator(OperatorConfig(core=core, width=16, depth=2, heads=2, modes=4, levels=1), 8, tasks)
    nn.init.normal_(made.head.weight, std=0.1)  # at its zero start no block has a gradient
    return made


def operator_loss(module: nn.Module, step: int, rows: slice) -> Tensor:
    from ups.tensors import Condition

    draw = torch.Generator().manual_seed(100 + step)
    z, y = torch.randn(SAMPLES, 1, 16, 8, generator=draw), torch.randn(SAMPLES, 16, 8, generator=draw)
    nu, grid = torch.full((SAMPLES, 1), 0.3)[rows], Grid((32,), (True,))
    condition = Condition(nu, torch.ones(SAMPLES)[rows], grid, "burgers1d")
    found = module(z[rows], condition)
    return (module(found.unsqueeze(1), condition) - y[rows]).square().mean()


def operator_in_bf16(module: nn.Module, step: int, rows: slice) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return operator_loss(module, step, rows)


def codec() -> nn.Module:
    from ups.models import Codec, CodecConfig
    from ups.physics import EQUATIONS
    from ups.types import UNKNOWN

    torch.manual_seed(5)
    tasks = [replace(EQUATIONS[name]().task, dynamics=UNKNOWN) for name in ("burgers1d", "advection1d")]
    return Codec(CodecConfig(dim=8, width=8), tasks, {task.name: (32,) for task in tasks})


def codec_loss(module: Any, step: int, rows: slice) -> Tensor:
    """Through its entries, whose results are no tensors."""
    draw = torch.Generator().manual_seed(100 + step)
    x = torch.randn(SAMPLES, 32, 1, generator=draw)[rows]
    state = module.encode(x, "burgers1d", grid_of(x, (True,)))
    return (module.decode(state, "burgers1d") - 2 * x).square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, int, slice], Tensor]]] = {
    "toy": (toy, toy_loss),
    "unrolled": (toy, unrolled_loss),
    "autocast": (toy, autocast_loss),
    "operator": (operator, operator_loss),
    "unet": (functools.partial(operator, "unet"), operator_loss),
    "codec": (codec, codec_loss),
}


class Flat:
    """Data parallel by hand: one all-reduce of all gradients after backward."""

    def __init__(self, module: nn.Module, world: int) -> None:
        self.parameters, self.world = dict[str, Tensor](module.named_parameters()), world

    def begin(self, last: bool) -> None: ...

    def pack(self) -> None: ...

    def reduce(self) -> None:
        touched = [p for p in self.parameters.values() if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in touched])
        if self.world > 1:
            dist.all_reduce(flat)
        flat.div_(self.world)
        for p, part in zip(touched, flat.split([p.numel() for p in touched]), strict=True):
            p.grad = part.view(p.shape)

    def norm(self, gradients: dict[str, Tensor]) -> Tensor:
        return norm_of(square_sums(list(gradients.values()), self.world))

    def full(self, _: str, local: Tensor) -> Tensor:
        return local.detach()


@functools.cache
def control() -> Control:
    if not dist.is_initialized():
        join_group()
    world = dist.get_world_size()
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=60)) if world > 1 else None
    return Control(group, dist.get_rank(), world)


def attempt(c: Control, backward: Callable[[], float], step: int) -> tuple[float, bool]:
    """One try of a step, as the trainer does it."""
    loss, word = 0.0, Word(step=step)
    try:
        loss = backward()
    except PeerFailed:
        word = Word(ok=False, step=step)
    except (OOM, MemoryError):
        word = Word(ok=False, kind=1, step=step)
    FAULTS.next()
    return loss, all(w.ok for w in c.finish(word))


@dataclass
class End:
    """What a run came to: the losses by step, the whole weights, the gradient norms, and tries that failed."""

    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    retries: int = 0


def train(parallel: Any, c: Control, module: nn.Module, loss: Any, micro: int = 1, steps: int = STEPS) -> End:
    rows = SAMPLES // c.world // micro
    parts = [slice(first, first + rows) for first in range(c.rank * rows * micro, (c.rank + 1) * rows * micro, rows)]
    optimizer = torch.optim.AdamW(parallel.parameters.values(), lr=1e-2, foreach=True)
    end, FAULTS.attempt, FAULTS.passed = End(), 0, {}

    def backward(step: int) -> float:
        total = 0.0
        for i, part in enumerate(parts):
            parallel.begin(last=i == len(parts) - 1)
            value = loss(module, step, part) / len(parts)
            value.backward()
            total += value.item()
        return total

    for step in range(steps):
        optimizer.zero_grad()
        while True:
            value, ok = attempt(c, functools.partial(backward, step), step)
            if ok:
                break
            parallel.recover()
            end.retries += 1
        parallel.pack()
        parallel.reduce()
        gradients = {name: p.grad for name, p in parallel.parameters.items() if p.grad is not None}
        norm = parallel.norm(gradients)
        torch._foreach_mul_(list(gradients.values()), (CLIP / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
        end.losses.append(sum(c.gather(value)) / c.world)
        end.norms.append(float(norm))
    end.weights = {name: parallel.full(name, p).clone() for name, p in parallel.parameters.items()}
    return end


def sharded_run(
    case: str,
    micro: int = 1,
    recompute: bool = False,
    shape: tuple[int, ...] = (),
    device: str = "cpu",
    steps: int = STEPS,
    **options: Any,
) -> End:
    c = control()
    make, loss = CASES[case]
    module = make()
    if recompute:
        for unit in module.shard_units():  # type: ignore[operator]
            unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)
    parallel = Sharded(module, mesh_of(device, shape or (c.world,)), c, **options)
    return train(parallel, c, module, loss, micro, steps)


@functools.cache
def mesh_of(device: str, shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device, shape, mesh_dim_names=("replica", "shard")[-len(shape) :])


@contextlib.contextmanager
def gathers() -> Iterator[dict[str, set[torch.dtype]]]:
    """As what the weights of each part are gathered inside."""
    kind, seen = fsdp_internals.GatedAllGather, dict[str, set[torch.dtype]]()
    launch = kind.__call__

    def noticed(self: Any, output_tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.setdefault(self.name, set()).add(output_tensor.dtype)
        return launch(self, output_tensor, *args, **kwargs)

    kind.__call__ = noticed  # type: ignore[method-assign]
    yield seen
    kind.__call__ = launch  # type: ignore[method-assign]


def rounded_runs() -> tuple[dict[str, End], dict[str, set[torch.dtype]]]:
    """The operator gathered as fp32 and bf16, a toy in two microbatches, and recomputed by ranks that fail."""
    CASES["in bf16"] = (operator, operator_in_bf16)
    ends = {"fp32": sharded_run("in bf16", steps=2)}
    with gathers() as seen:
        ends["bf16"] = sharded_run("in bf16", steps=2, gather="bf16")
    ends["toy"] = sharded_run("autocast", 2, gather="bf16")
    with allocations():
        FAULTS.plan = {0: {"late backward": {1}, "allocate reduce": {3}}, 1: {"allocate gather": {4}}}[dist.get_rank()]
        ends["mended"] = sharded_run("autocast", 2, recompute=True, gather="bf16")
        FAULTS.plan = {}
    return ends, seen


@functools.cache
def rounded() -> list[tuple[dict[str, End], dict[str, set[torch.dtype]]]]:
    return values(run_ranks(rounded_runs, 2))


def test_blocks_gathered_as_bf16_train_as_those_of_fp32_up_to_rounding_and_keep_fp32() -> None:
    for ends, seen in rounded():
        exact, end = ends["fp32"], ends["bf16"]
        assert end.losses == pytest.approx(exact.losses, rel=2e-3)
        assert end.norms == pytest.approx(exact.norms, rel=2e-2)
        assert not same(end, exact)
        assert seen.pop("the rest") == {torch.float32}
        assert list(seen.values()) == [{torch.bfloat16}] * 2, "both blocks"
        for name, weight in end.weights.items():
            assert weight.dtype == torch.float32
            rounded_too = torch.equal(weight, weight.bfloat16().float())
            assert not rounded_too or name == "conditioner.box", "which is zero, for no box was given"


def test_failures_are_mended_to_the_same_bits_where_blocks_are_gathered_as_bf16_and_recomputed() -> None:
    for ends, _ in rounded():
        assert ends["mended"].retries == 3
        assert same(ends["mended"], ends["toy"])


def judged() -> tuple[Tensor, Tensor, dict[str, Tensor], list[bool]]:
    """What blocks gathered as bf16 answer outside of autocast, before a backward that is still to come."""
    c, (x, _), found = control(), batch(0), []
    for between in (False, True):
        module = toy()
        parallel = Sharded(module, mesh_of("cpu", (c.world,)), c, gather="bf16")
        parallel.begin(last=True)
        loss = autocast_loss(module, 0, slice(0, 4))
        if between:
            with torch.no_grad():
                plain = module(x)
                with torch.autocast("cpu", torch.bfloat16):
                    mixed = module(x)
        loss.backward()
        parallel.reduce()
        found.append({name: p.grad for name, p in parallel.parameters.items() if p.grad is not None})
    return plain, mixed, found[0], [torch.equal(g, found[1][name]) for name, g in found[0].items()]


def test_without_autocast_the_weights_that_are_kept_are_judged_and_no_gradient_changes() -> None:
    x, _ = batch(0)
    with torch.no_grad():
        expected = toy()(x)
    for plain, mixed, gradients, unchanged in values(run_ranks(judged, 2)):
        assert torch.allclose(plain, expected, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(mixed.float(), expected, rtol=1e-4, atol=1e-5)
        assert gradients
        assert all(g.dtype == torch.float32 for g in gradients.values())
        assert all(unchanged)


def flat_run(case: str, micro: int = 1, steps: int = STEPS) -> End:
    c = control()
    make, loss = CASES[case]
    module = make()
    fix_gradient_order(module, module.shard_units())
    return train(Flat(module, c.world), c, module, loss, micro, steps)


def same(one: End, two: End) -> bool:
    weights = all(torch.equal(w, two.weights[name]) for name, w in one.weights.items())
    return weights and one.weights.keys() == two.weights.keys() and (one.losses, one.norms) == (two.losses, two.norms)


def gap(one: End, two: End) -> float:
    return max(float((w - two.weights[name]).abs().max()) for name, w in one.weights.items())


# The last of two microbatches is what a single one is; what comes before it, only the two have.
WAYS = [("toy", 1), *((case, 2) for case in CASES)]


def both_ways() -> dict[tuple[str, int], tuple[End, End]]:
    """Two steps each: the second begins with weights, and with moments of AdamW, that the first has changed."""
    return {way: (sharded_run(*way, steps=2), flat_run(*way, steps=2)) for way in WAYS}


@pytest.fixture(scope="module")
def cut_and_flat() -> list[dict[tuple[str, int], tuple[End, End]]]:
    return values(run_ranks(both_ways, 2))


@pytest.mark.parametrize(("case", "micro"), WAYS)
def test_two_ranks_give_the_bits_of_data_parallel(
    cut_and_flat: list[dict[tuple[str, int], tuple[End, End]]], case: str, micro: int
) -> None:
    for cut, flat in (ends[case, micro] for ends in cut_and_flat):
        assert same(cut, flat)
        assert len(set(flat.norms)) == 2
        assert max(flat.norms) > CLIP, "clipping did something"


OPTIONS: dict[str, dict[str, Any]] = {
    "pieces on the host": {"offload": True},
    "recomputed": {"recompute": True},
    "probation": {"gate": "probation"},
    "no votes": {"gate": "off"},
}


@pytest.mark.parametrize("world", [1, 4])
def test_any_number_of_ranks_gives_the_same_training(world: int) -> None:
    (alone,) = values(run_ranks(flat_run, 1, "toy"))
    ends = values(run_ranks(sharded_run, world, "toy"))
    assert all(same(end, ends[0]) for end in ends), "all ranks see the same"
    assert gap(ends[0], alone) <= 1e-6
    assert ends[0].losses == pytest.approx(alone.losses, rel=1e-6)
    assert ends[0].norms == pytest.approx(alone.norms, rel=1e-6)


def every_option() -> dict[str, End]:
    return {name: sharded_run("toy", 2, steps=2, **options) for name, options in {"plain": {}, **OPTIONS}.items()}


def test_no_option_changes_a_bit() -> None:
    for ends in values(run_ranks(every_option, 2)):
        assert [name for name, end in ends.items() if not same(end, ends["plain"])] == []


# By name: on which rank, at which attempt (counted over the run, retries included), where; and how it is run.
Plan = dict[int, dict[str, set[int]]]
# A step each, and a retry that succeeds before the next: the buffer of a reduction in the first step of all, a forward,
# a backward, the buffer of a gather, both ranks at different places, both at the same, and a retry that fails, twice.
IN_TURN: Plan = {
    0: {"backward": {4, 12}, "allocate gather": {6}, "forward": {8, 10}},
    1: {"allocate reduce": {0, 14}, "forward": {2, 10, 13}, "backward": {8}},
}
FAULTY: dict[str, tuple[Plan, dict[str, Any]]] = {
    "one after the other": (IN_TURN, {"steps": 7}),
    "recompute": ({1: {"recompute": {1}}}, {"recompute": True}),
    "second microbatch": ({0: {"late backward": {1, 3}}}, {"micro": 2}),
    "second microbatch in bf16": ({1: {"late backward": {1, 3}}}, {"case": "autocast", "micro": 2}),
    "pieces on the host": ({1: {"backward": {1}, "forward": {3}}}, {"offload": True}),
    "unrolled": ({1: {"late backward": {1}, "forward": {3}}}, {"case": "unrolled"}),
    "the real operator": ({0: {"allocate reduce": {1}}, 1: {"allocate gather": {3}}}, {"case": "operator"}),
}


BY_HAND = ("one after the other", "recompute", "second microbatch")


@contextlib.contextmanager
def allocations() -> Iterator[None]:
    """Buffers of collectives fail as the plan says."""
    kinds = {"allocate gather": fsdp_internals.GatedAllGather, "allocate reduce": fsdp_internals.GatedReduceScatter}
    before = {place: kind.allocate for place, kind in kinds.items()}

    def failing(place: str) -> Callable[..., Tensor]:
        def allocate(self: Any, *args: Any, **kwargs: Any) -> Tensor:
            if self.name.endswith(".1"):
                FAULTS.fire(place)
            return before[place](self, *args, **kwargs)

        return allocate

    for place, kind in kinds.items():
        kind.allocate = failing(place)  # type: ignore[method-assign]
    yield
    for place, kind in kinds.items():
        kind.allocate = before[place]  # type: ignore[method-assign]


def every_fault(by_hand: bool) -> dict[str, tuple[End, End]]:
    """Each faulty run beside the run without its faults; `by_hand`: as on a torch that cannot reset itself."""
    if by_hand and hasattr(FSDPModule, "reset_iter_state"):
        del FSDPModule.reset_iter_state
    ends, clean = {}, dict[str, End]()
    with allocations():
        for name, (plan, settings) in FAULTY.items():
            if by_hand and name not in BY_HAND:
                continue
            options = {"case": "toy", **settings}
            if str(options) not in clean:
                FAULTS.plan = {}
                clean[str(options)] = sharded_run(**options)
            FAULTS.plan = plan.get(dist.get_rank(), {})
            ends[name] = sharded_run(**options), clean[str(options)]
    return ends


@functools.cache
def faulty(by_hand: bool) -> list[dict[str, tuple[End, End]]]:
    return values(run_ranks(every_fault, 2, by_hand))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        *(pytest.param(name, False, id=name) for name in FAULTY),
        *(pytest.param(name, True, id=f"{name}, reset by hand", marks=pytest.mark.slow) for name in BY_HAND),
    ],
)
def test_out_of_memory_anywhere_is_recovered_to_the_same_bits(name: str, by_hand: bool) -> None:
    plan = FAULTY[name][0]
    tries = {n for places in plan.values() for attempts in places.values() for n in attempts}
    for ends in faulty(by_hand):
        end, clean = ends[name]
        assert end.retries == len(tries)
        assert clean.retries == 0
        assert same(end, clean)


def four() -> tuple[End, End, End]:
    plain, clean = sharded_run("toy", 2, steps=2), sharded_run("toy", 2, shape=(2, 2), steps=2)
    rank = dist.get_rank()
    FAULTS.plan = {1: {"backward": {0}}, 3: {"forward": {1}}, 2: {"backward": {3}}, 0: {"forward": {3}}}[rank]
    return sharded_run("toy", 2, shape=(2, 2), steps=2), clean, plain


def test_replicas_of_a_sharded_module_train_as_one_and_recover_to_the_same_bits() -> None:
    for faulty, clean, plain in values(run_ranks(four, 4)):
        assert gap(clean, plain) <= 1e-6
        assert clean.losses == pytest.approx(plain.losses, rel=1e-6)
        assert faulty.retries == 3
        assert same(faulty, clean)


def uneven(how: str) -> str:
    """One rank does what the others do not; the sentence that names it."""
    c = control()

    def work() -> None:
        module = Toy(width=WIDTH + c.rank) if how == "another width" else toy()
        Sharded(module, init_device_mesh("cpu", (c.world,)), c).begin(last=True)
        if how == "skipped block" and c.rank == 1:
            module.blocks = module.blocks[:1]
        for _ in range(2 if how == "one more batch" and c.rank == 0 else 1):
            toy_loss(module, 0, slice(0, 4)).backward()
        c.finish(Word())

    with pytest.raises(DesyncError) as differ:
        work()
    return str(differ.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("one more batch", ("rank 0 at 'all-gather of the rest", "rank 1 at 'the end of step 0'")),
        ("skipped block", ("rank 0 at 'all-gather of blocks.1", "rank 1 at 'all-gather of blocks.0")),
        ("another width", ("rank 0 at 'broadcast of enter.weight (24 numbers)', rank 1",)),
    ],
)
def test_uneven_ranks_are_named_before_anything_hangs(how: str, said: tuple[str, ...]) -> None:
    for sentence in values(run_ranks(uneven, 2, how)):
        assert all(part in sentence for part in said), sentence


def from_meta(offload: bool) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    c = control()
    if c.rank == 0:
        module: nn.Module = toy()
        module.scale.fill_(0.25)
    else:
        with torch.device("meta"):
            module = Toy()
    parallel = Sharded(module, init_device_mesh("cpu", (c.world,)), c, offload=offload)
    weights = {name: parallel.full(name, p) for name, p in parallel.parameters.items()}
    toy_loss(module, 0, slice(0, 4)).backward()
    return weights, {"scale": module.scale}, list(module.state_dict())


@pytest.mark.parametrize(
    ("world", "offload"), [(2, False), (2, True), pytest.param(4, False, marks=pytest.mark.slow), (1, False)]
)
def test_a_module_on_meta_gets_the_first_ranks_weights_and_buffers(world: int, offload: bool) -> None:
    expected = toy().state_dict()
    for weights, buffers, names in values(run_ranks(from_meta, world, offload)):
        assert all(torch.equal(w, expected[name]) for name, w in weights.items())
        assert buffers["scale"] == 0.25
        assert names == list(expected), "no prefix reaches a name"


class Held(MemoryCount):
    """Counts what takes memory: no tensor on `meta`, and of a DTensor only the piece."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the piece
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _enter(self, storage: Any) -> None:
        if storage.device.type != "meta":
            super()._enter(storage)


def held_while_built() -> tuple[int, int, int]:
    """Bytes this rank held at most while a module was made and cut; those of all of it, and of its largest tensor."""
    c = control()
    with Held("cpu") as held:
        with torch.device("meta") if c.rank else contextlib.nullcontext():
            module = Toy(depth=4, width=64)
        Sharded(module, mesh_of("cpu", (c.world,)), c)
    sizes = [p.numel() * p.element_size() for p in module.parameters()]
    return held.peak, sum(sizes), max(sizes)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_only_the_first_rank_ever_holds_the_module_whole(world: int) -> None:
    (first, whole, largest), *others = values(run_ranks(held_while_built, world))
    assert whole > 10 * largest, "one tensor more or less is seen"
    few = 2 * largest  # the one that is given out, and the one before it while the group lets go of it
    assert whole <= first < 1.02 * (whole + whole / world + few)
    for peak, _, _ in others:
        assert whole / world <= peak < 1.02 * (whole / world + few)


def pieces() -> tuple[list[float], list[tuple[int, ...]]]:
    """Change the pieces in place between forwards without gradient; then give them to DCP's view."""
    c = control()
    module = toy()
    parallel = Sharded(module, init_device_mesh("cpu", (c.world,)), c)
    x, _ = batch(0)
    found = []
    with torch.no_grad():
        for factor in (1.0, 0.0, 0.5):
            for p, whole in zip(parallel.parameters.values(), toy().parameters(), strict=True):
                p.copy_(whole.chunk(c.world)[c.rank] * factor if len(whole.chunk(c.world)) > c.rank else p)
            found.append(float(module(x).double().sum()))
        shapes = []
        for name, p in parallel.parameters.items():
            seen = parallel.whole(name, torch.ones_like(p))
            assert isinstance(seen, DTensor)
            shapes.append(tuple(seen.shape))
    return found, shapes


def test_changing_the_pieces_in_place_changes_what_forward_sees() -> None:
    module, (x, _), expected = toy(), batch(0), []
    with torch.no_grad():
        for factor in (1.0, 0.0, 0.5):
            for p, whole in zip(module.parameters(), toy().parameters(), strict=True):
                p.copy_(whole * factor)
            expected.append(float(module(x).double().sum()))
    for found, shapes in values(run_ranks(pieces, 2)):
        assert found == pytest.approx(expected, rel=1e-6)
        assert shapes == [tuple(p.shape) for p in toy().parameters()]


def refused() -> list[str]:
    c, sentences = control(), []
    wave, number = nn.Linear(2, 2), nn.Linear(2, 2)
    wave.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    number.gain = nn.Parameter(torch.zeros(()))
    mesh = init_device_mesh("cpu", (c.world,))
    for module, shape in ((wave, mesh), (number, mesh), (nn.Linear(2, 2), init_device_mesh("cpu", (c.world, 1)))):
        with pytest.raises(ConfigError) as error:
            Sharded(module, shape, c)
        sentences.append(str(error.value))
    c.gather(None)  # the first rank holds the store that the other may still be connecting through
    return sentences


def test_what_cannot_be_cut_is_refused_with_a_sentence() -> None:
    for complex_, number, flat in values(run_ranks(refused, 2)):
        assert "'weight', which is complex; use strategy ddp" in complex_
        assert "'gain', which is a single number" in number
        assert "(2, 1) ranks has nothing to shard over" in flat


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_norm_is_that_of_all_numbers_however_they_are_cut(count: int) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(shape) for shape in ((5, 3), (1, 7), (16,), (2, 2, 2))]
    rows = [
        square_sums([torch.cat([*g.chunk(count), *[g[:0]] * 4][rank : rank + 1]).clone() for g in gradients], 1)[0]
        for rank in range(count)
    ]
    whole = norm_of(square_sums(gradients, count))
    assert torch.equal(whole, norm_of(torch.stack(rows)))
    assert float(whole) == pytest.approx(float(torch.cat([g.flatten() for g in gradients]).norm()), rel=1e-6)


def probation() -> list[bool]:
    """Whether each of some steps is voted on: two microbatches a step, a recovery."""
    c = control()
    parallel = Sharded(toy(), init_device_mesh("cpu", (1,)), c, gate="probation")
    seen = []
    for step in range(3 * sharded.PROBATION):
        for last in (False, True):
            parallel.begin(last)
        seen.append(parallel.gated)
        if step == sharded.PROBATION + 1:
            parallel.recover()
    return seen


def test_probation_votes_in_the_first_steps_after_a_start_and_after_a_recovery() -> None:
    (seen,) = values(run_ranks(probation, 1))
    n = sharded.PROBATION
    voted = [True] * (n - 1) + [False] * 3 + [True] * (n - 1)
    assert seen == [*voted, *[False] * (3 * n - len(voted))]


def big_toy() -> nn.Module:
    torch.manual_seed(3)
    return Toy(depth=4, width=512)


def big_loss(module: nn.Module, step: int, rows: slice) -> Tensor:
    draw = torch.Generator().manual_seed(100 + step)
    x = torch.randn(SAMPLES, 2048, 3, generator=draw)[rows].cuda()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # its backward adds in one order
        return module(x).square().mean()


def limited_loss(module: nn.Module, step: int, rows: slice) -> Tensor:
    """On one rank and at some attempts there is less memory than before."""
    torch.cuda.empty_cache()
    share = LIMITS.get(FAULTS.attempt, 1.0) if dist.get_rank() == 1 else 1.0
    torch.cuda.set_per_process_memory_fraction(share)
    return big_loss(module, step, rows)


LIMITS: dict[int, float] = {}
CASES_ON_GPU = {"big": (big_toy, big_loss), "limited": (big_toy, limited_loss)}


def capped() -> tuple[End, End, list[float]]:
    """Two ranks share the device; one is refused memory by the real allocator: in forward, in backward, in both."""
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    CASES.update(CASES_ON_GPU)
    clean = sharded_run("big", recompute=True, device="cuda", steps=5)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    module = big_toy().cuda()
    for unit in module.shard_units():  # type: ignore[operator]
        unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)
    rest = torch.cuda.memory_reserved()
    loss = big_loss(module, 0, slice(0, SAMPLES // 2))
    forward = torch.cuda.max_memory_reserved()
    loss.backward()
    backward = torch.cuda.max_memory_reserved()
    del module, loss
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    in_forward, in_backward = (rest + forward) / 2 / total, (forward + backward) / 2 / total
    LIMITS.update({1: in_forward, 3: in_backward, 4: in_forward, 6: in_backward})
    before = torch.cuda.memory_allocated()
    end = sharded_run("limited", recompute=True, device="cuda", steps=5)
    torch.cuda.set_per_process_memory_fraction(1.0)
    left = torch.cuda.memory_allocated() - before
    return end, clean, [left / 2**20, rest / 2**20, forward / 2**20, backward / 2**20]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")
def test_memory_refused_by_the_real_allocator_is_recovered_to_the_same_bits() -> None:
    for end, clean, megabytes in values(run_ranks(capped, 2, env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})):
        assert end.retries == 4, megabytes
        assert same(end, clean)
        assert megabytes[0] < 96, "nothing of the failed attempts is left on the device"


def trained_on_the_gpu(offload: bool) -> tuple[dict[str, Tensor], End, End, int]:
    """Weights cut straight from the host's memory, and a training from there beside one from a module on the GPU."""
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    c = control()
    mesh = mesh_of("cuda", (c.world,))
    module = big_toy() if c.rank == 0 else None
    if module is None:
        with torch.device("meta"):
            module = Toy(depth=4, width=512)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    parallel = Sharded(module, mesh, c, offload=offload)
    taken = torch.cuda.max_memory_allocated() - before
    begun = {name: parallel.full(name, p).cpu() for name, p in parallel.parameters.items()}
    first = train(parallel, c, module, big_loss)
    module = big_toy().cuda()
    second = train(Sharded(module, mesh, c, offload=offload), c, module, big_loss)
    return begun, first, second, taken


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")
@pytest.mark.parametrize("offload", [False, True])
def test_a_module_that_never_was_on_the_gpu_is_cut_onto_it_and_trains_as_one_that_was(offload: bool) -> None:
    whole = big_toy().state_dict()
    size = sum(t.numel() * t.element_size() for t in whole.values())
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for begun, first, second, taken in values(run_ranks(trained_on_the_gpu, 2, offload, env=env)):
        assert all(torch.equal(w, whole[name]) for name, w in begun.items())
        assert same(first, second)
        assert taken < 0.8 * size, "never all of it on the device"


def big_in_bf16(module: nn.Module, step: int, rows: slice) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return big_loss(module, step, rows)


def operator_on_the_gpu(core: Literal["transformer", "unet"], module: nn.Module, step: int, rows: slice) -> Tensor:
    from ups.tensors import Condition

    draw = torch.Generator().manual_seed(100 + step)
    z, y = (torch.randn(SAMPLES, *shape, 8, generator=draw)[rows].cuda() for shape in ((1, 16), (16,)))
    dt, nu = torch.ones(SAMPLES)[rows].cuda(), torch.full((SAMPLES, 1), 0.3)[rows].cuda()
    with torch.autocast("cuda", torch.bfloat16):
        return (module(z, Condition(nu, dt, Grid((32,), (core == "unet",)), "burgers1d")) - y).square().mean()


def rounded_on_the_gpu() -> tuple[dict[str, tuple[End, End]], End, list[int]]:
    """By name gathered as fp32 and as bf16; the first one as bf16 with a rank that fails; what both of it took."""
    torch.cuda.set_device(0)
    CASES["big"] = (big_toy, big_in_bf16)
    for core in ("transformer", "unet"):
        CASES[core] = functools.partial(operator, core), functools.partial(operator_on_the_gpu, core)
    names = ("transformer", "unet")  # kernels of our own, of which not every one adds up in one order
    ends = {name: (sharded_run(name, device="cuda"), sharded_run(name, device="cuda", gather="bf16")) for name in names}
    torch.use_deterministic_algorithms(True)
    both, taken = [], []
    sharded_run("big", device="cuda", steps=1)  # what libraries take once and keep
    for gather in ("fp32", "bf16"):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        both.append(sharded_run("big", device="cuda", gather=gather))
        taken.append(torch.cuda.max_memory_allocated() - before)
    with allocations():
        FAULTS.plan = {0: {"backward": {1}}, 1: {"allocate reduce": {3}}}[dist.get_rank()]
        mended = sharded_run("big", device="cuda", gather="bf16")
    return {**ends, "big": (both[0], both[1])}, mended, taken


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here")
def test_on_a_gpu_blocks_gathered_as_bf16_train_as_those_of_fp32_in_less_memory() -> None:
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for ends, mended, taken in values(run_ranks(rounded_on_the_gpu, 2, env=env)):
        for name, (exact, end) in ends.items():
            assert end.losses[0] == pytest.approx(exact.losses[0], rel=1e-2), name
            assert end.losses == pytest.approx(exact.losses, rel=5e-2), name
            assert not same(end, exact), name
            assert all(weight.dtype == torch.float32 for weight in end.weights.values()), name
        assert mended.retries == 2
        assert same(mended, ends["big"][1])
        assert taken[1] < taken[0]
