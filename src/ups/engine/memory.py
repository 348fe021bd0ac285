"""Counts the memory, FLOPs and traffic of a training step on fake tensors, without computing it."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ups.engine.graph import LEAD
from ups.engine.learner import precision
from ups.engine.optim import matrices, trained
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.engine.units import recompute, units_of
from ups.graphs import tensors_of
from ups.tensors import Losses, Window

GRAIN = {"cpu": 64, "cuda": 512}  # an allocation is a whole number of so many bytes


def rounded(nbytes: int, device: str) -> int:
    """What an allocation of `nbytes` takes."""
    grain = GRAIN[device]
    return -(-nbytes // grain) * grain


def bytes_of(tensors: Iterable[Tensor], device: str) -> int:
    """What tensors take that share no memory."""
    return sum(rounded(t.numel() * t.element_size(), device) for t in tensors)


# Attention on a CPU, which torch's own counter does not know: by the shapes of query, key and value, after that of the
# gradient in the backward.
ATTENTION: dict[Any, tuple[Callable[..., int], int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}


def _flops(operation: Any, args: Any, kwargs: Any, out: Any) -> int:
    if operation in ATTENTION:
        formula, shapes = ATTENTION[operation]
        return int(formula(*(tensor.shape for tensor in args[:shapes])))
    count = flop_registry.get(operation)
    return int(count(*args, **kwargs, out_val=out)) if count else 0


class MemoryCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages made inside it for as long as they live, real or fake; knows the peak.

    Storages that were there before do not count. `moved` adds up what every operation reads and writes, views apart,
    `operations` how many there were, and `flops` those of matrix products, convolutions and attention. What a kernel
    takes for itself and gives back is not seen.
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.live = self.peak = self.moved = self.operations = self.flops = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing here is ever compiled, and to keep the compiler away torch imports it first, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # a fake tensor's device is asked for in every line of a model
            return getattr(args[0], "fake_device", None) or func(*args)
        given = list(_tensors((*args, *kwargs.values()) if kwargs else args))
        for tensor in given:  # what is read and was not made here was there before
            self._known.add(tensor.untyped_storage())
        out = func(*args, **(kwargs or {}))
        made = list(_tensors((out,)))
        for tensor in made:
            self._enter(tensor.untyped_storage())
        if not func.is_view:
            self.moved += sum(t.numel() * t.element_size() for t in (*given, *made))
            self.operations += 1
            self.flops += _flops(func._overloadpacket, args, kwargs or {}, out)
        return out

    def _enter(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size, key = rounded(storage.nbytes(), self.device), id(storage)

        def left(_: object) -> None:
            self.live -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, left)
        self.live += size
        self.peak = max(self.peak, self.live)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results; lists nest no deeper than one level."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, Tensor))


@contextmanager
def fake(device: str) -> Iterator[FakeTensorMode]:
    """Inside, every new tensor has a shape, a type and a device, and no numbers; nothing is computed."""
    with FakeTensorMode() as mode, torch.device(device):
        yield mode


@dataclass(frozen=True)
class CodeCost:
    """What a piece of code costs: bytes beyond those that were there before, and how much there is to do."""

    peak: int  # bytes at the peak, gradients included
    saved: int  # bytes kept for the backward pass when it begins
    flops: int  # floating-point operations of matrix products, convolutions and attention; a multiply-add is two
    moved: int  # bytes read and written
    operations: int


def training_work(
    loss: Callable[[Window], Losses], window: Window, device: str, config: TrainConfig, microbatch: int | None = None
) -> CodeCost:
    """Forward and backward over a window, a microbatch at a time, as the loop does them. Leaves gradients behind."""
    parts = window.split(min(microbatch or len(window), len(window)))
    few = list(itertools.islice(parts, 2))  # later ones find gradients there as the second does
    saved = 0
    with MemoryCount(device) as memory:
        for part in few:
            before = memory.live
            with precision(config, device):
                terms = loss(part)
            total = functools.reduce(torch.add, (value.float() for value in terms.values()))
            del terms
            saved = max(saved, memory.live - before)
            total.backward()  # type: ignore[no-untyped-call]
            del total
    share = len(window) / sum(len(part) for part in few)
    counts = (round(share * n) for n in (memory.flops, memory.moved, memory.operations))
    return CodeCost(memory.peak, saved, *counts)


def forward_work(run: Callable[[], object], device: str) -> CodeCost:
    """Anything without gradients."""
    with torch.no_grad(), MemoryCount(device) as memory:
        result = run()
        del result
    return CodeCost(memory.peak, 0, memory.flops, memory.moved, memory.operations)


def grown(one: CodeCost, two: CodeCost, samples: int) -> CodeCost:
    """What `samples` cost by what `one` sample does and `two`: each further one as much as the second."""

    def line(name: str) -> int:
        first, second = getattr(one, name), getattr(two, name)
        return int(first + (samples - 1) * (second - first))

    saved = line("saved")
    return CodeCost(max(line("peak"), saved), saved, line("flops"), line("moved"), two.operations)


@dataclass(frozen=True)
class StandingMemory:
    """Bytes that stay for a whole stage, and those its optimizer takes for a moment after the backward pass."""

    weights: int
    gradients: int
    moments: int
    average: int
    best: int
    reduced: int  # the buffer in which replicas add up their gradients
    step: int

    @property
    def without_gradients(self) -> int:
        """What stays between steps; gradients are made by each step and dropped by the next."""
        return self.weights + self.moments + self.average + self.best + self.reduced


def held_memory(
    module: nn.Module, present: nn.Module, config: TrainConfig, device: str, ranks: DistConfig
) -> StandingMemory:
    """The memory that a stage holds throughout: it trains `module`, a part of what is `present` on the device."""
    learnt = trained(module)
    others = {id(t): t for t in (*present.parameters(), *present.buffers())}
    shards = (ranks.shard or ranks.world) if ranks.strategy == "fsdp" else 1
    whole = bytes_of(learnt.values(), device)
    fixed = bytes_of((t for key, t in others.items() if key not in {id(p) for p in learnt.values()}), device)
    muon = matrices(module) if config.optimizer == "muon" else []
    wave = [p for p in learnt.values() if p.is_complex()]
    of_muon = bytes_of(muon, device)
    counters = rounded(4, device) * (len(learnt) - len(muon))
    # Those that cannot skip a step by themselves are copied, state and all, and mixed back one by one.
    largest = max((rounded(p.numel() * p.element_size(), device) for p in wave), default=0)
    copied = 3 * bytes_of(wave, device) + 4 * largest
    # Muon stacks the matrices of one shape: gradients, momentum, both over their norms, turned once more, and the two
    # squares on the shorter side that this takes. On a GPU all but the first two are half as large.
    sides = {p.shape: 5 if device == "cuda" else 4 + 2 * min(p.shape) / max(p.shape) for p in muon}
    stacks = [many * bytes_of([p for p in muon if p.shape == shape], device) for shape, many in sides.items()]
    changed = whole if device == "cuda" else 0  # the average's update, all weights at once
    # A sharded module is gathered block by block: of the largest two as weights, one as gradients, one to be summed.
    units = units_of(module) if shards > 1 else []
    parts = 2.5 if ranks.rounds(config.precision) else 4  # all but the last are half as large as bf16
    gathered = round(parts * max((bytes_of(unit.parameters(), device) for unit in units), default=0))
    mine = whole // shards
    return StandingMemory(
        weights=fixed + mine + gathered,
        gradients=mine,
        moments=(2 * whole - of_muon) // shards + counters,
        average=mine,
        best=mine,
        reduced=whole if ranks.world > 1 and shards == 1 else 0,
        step=round(max(copied, changed, *stacks)) // shards,
    )


def batches_memory(windows: Sequence[Window], config: TrainConfig, device: str, captured: bool) -> int:
    """The windows on the device at once: the one in use, those built ahead, and on a GPU those whose step is not over
    and the static inputs of one graph per task."""
    sizes = [bytes_of(tensors_of(window).values(), device) for window in windows]
    count = config.prefetch + 1 + (LEAD if device == "cuda" else 0)
    return count * max(sizes) + (sum(sizes) if captured else 0)


def captures(config: TrainConfig, device: str, ranks: DistConfig) -> bool:
    """Whether steps are replayed as CUDA graphs."""
    able = ranks.strategy == "ddp" and config.activations == "keep"
    return device == "cuda" and config.graph is not False and able


@contextmanager
def gathered(module: nn.Module, config: TrainConfig, ranks: DistConfig) -> Iterator[None]:
    """A context in which the blocks of `module` have bfloat16 weights, as a gather rounds them, if the config wants it.
    Their gradients are summed in float32 and dropped at the end."""
    blocks = units_of(module) if ranks.rounds(config.precision) else []
    full = {p: p.data for block in blocks for p in block.parameters() if p.dtype == torch.float32}
    sums: dict[Tensor, Tensor] = {}

    def add(p: Tensor) -> None:
        assert p.grad is not None
        sums[p] = sums[p] + p.grad if p in sums else p.grad.float()
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(add) for p in full if p.requires_grad]  # type: ignore[no-untyped-call]
    for p, data in full.items():
        p.data = data.bfloat16()
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for p, data in full.items():
            p.data = data


@contextmanager
def recomputed(module: nn.Module, config: TrainConfig) -> Iterator[None]:
    """Inside, the blocks of `module` forget their activations and compute them again, if the config wants it so."""
    undo = [recompute(unit) for unit in units_of(module)] if config.activations == "recompute" else []
    try:
        yield
    finally:
        for back in undo:
            back()
