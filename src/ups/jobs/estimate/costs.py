"""Counts what a run will cost on fake tensors: parameters, FLOPs, memory and disk."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ups.engine.memory import (
    CodeCost,
    batches_memory,
    bytes_of,
    captures,
    fake,
    forward_work,
    gathered,
    grown,
    held_memory,
    recomputed,
    training_work,
)
from ups.engine.stage import Learnable
from ups.eval.rollout import protocol
from ups.models import Simulator
from ups.run.check import check, new_simulator
from ups.run.config import RunConfig
from ups.run.data.outlines import Outline, shares_of
from ups.tensors import Window, one_thread

Counts = dict[Hashable, CodeCost]
KEPT = 2  # checkpoints of a stage on disk; a third while it is written
# What is held over what is given out, in blocks that fit nothing else: by torch on a GPU, by glibc on a CPU.
FRAGMENTS = {"cuda": 1.15, "cpu": 1.35}
# A workspace of cuBLAS, one per thread and stream: from Hopper on, and before.
WORKSPACES = (65 * 2**19, 65 * 2**17)
# Cells up to which a CPU takes a step of a sample or two sooner than it follows one on fake tensors, and the frames
# that a trajectory of so many cells may have.
QUICK, LONG = 2**15, 64


@dataclass(frozen=True)
class StageCost:
    """A stage: what it holds in memory at the peak, part by part, and how much there is to compute."""

    name: str
    part: str  # the network it trains
    batch: int
    batches: dict[str, int]  # of tasks that have another
    microbatch: int
    memory: dict[str, int]  # by part; the parts add up to the peak
    gradients: int  # of all trained weights; among the temporaries above
    validation: int  # bytes at the peak of a validation
    reserved: int  # what is taken from the GPU or by the process then, a graph's own pool included
    captured: bool  # as a CUDA graph
    work: CodeCost  # of a step, averaged over tasks
    checked: int  # bytes a validation takes beside what is there
    checking: CodeCost  # of one validation
    saved: int  # bytes of one checkpoint

    @property
    def peak(self) -> int:
        """Bytes given out at most."""
        return max(sum(self.memory.values()), self.validation)


@dataclass(frozen=True)
class Costs:
    """A run before its clock is known."""

    device: str  # kind
    parameters: dict[str, int]
    stages: tuple[StageCost, ...]
    evaluation: int  # bytes at the peak of the last evaluation
    judging: CodeCost
    disk: dict[str, int]
    resident: int  # bytes of data kept in host memory
    notes: tuple[str, ...] = field(default=())

    @property
    def needed(self) -> int:
        """Bytes of the device's memory at the peak of the whole run."""
        held = self.resident if self.device == "cpu" else 0
        return max(self.evaluation, *(s.reserved for s in self.stages)) + held

    def facts(self) -> dict[str, Any]:
        stages = {s.name: {**asdict(s), "peak": s.peak} for s in self.stages}
        return {**asdict(self), "stages": stages, "needed": self.needed}


def costs(
    config: RunConfig,
    device: str,
    microbatch: int | None = None,
    known: Costs | None = None,
    sets: Sequence[Outline] = (),
    rough: Counts | None = None,
) -> Costs:
    """What a run of a config takes.

    Args:
        config: Of the run.
        device: The kind of its device.
        microbatch: Replaces that of the config.
        known: The costs with another microbatch, from which is taken what does not depend on it.
        sets: The outlines of the data, of a config that has been checked.
        rough: Where counts of one sample and of two may stand for those of a batch, which is far sooner done and less
            than a tenth off: these counts, empty at first, for configs that differ in their batches alone.
    """
    sets = sets or check(config, asking=False)
    # Fake tensors on a GPU need a torch that could use one; without it the CPU's kernels stand for them.
    stand_in = device if device == "cpu" or torch.cuda.is_available() else "cpu"
    quick = (
        rough is not None
        and device == "cpu"
        and all(math.prod(data.shape) * max(LONG, data.frames) <= QUICK * LONG for data in sets)
    )
    with one_thread() if quick else fake(stand_in):
        place = CostPlace(config, device, stand_in, microbatch, known, rough)
        stages = tuple(_stage(name, place, new_simulator(config, sets), sets) for name in config.plan)
        spaces = place.workspaces(len(config.plan))
        if known is not None:
            return dataclasses.replace(known, stages=stages)
        simulator = new_simulator(config, sets).eval()
        given = config.evaluation.given_to(protocol(config.evaluation.protocol, config.context).context)
        rollout = lambda window: simulator.simulate(window, window.targets.shape[1])  # noqa: E731
        rollouts, judging = _together([_evaluated("", rollout, data, 32, given, place) for data in sets])
        weights = bytes_of((*simulator.parameters(), *simulator.buffers()), device)
        numbers = _counted(simulator)
        tokens = sum(math.prod(simulator.codec.tokens(data.task)) * data.stored for data in sets)
    evaluation = weights + rollouts + spaces
    disk = {
        "data": sum(data.disk for data in sets if data.made),
        "checkpoints": sum((KEPT + 1) * stage.saved for stage in stages),
        "artifact": weights,
        "tokens of all frames": 4 * simulator.codec.config.dim * tokens,
    }
    resident = sum(data.resident("train", "valid", "test") for data in sets)
    notes = () if stand_in == device else ("torch here knows no CUDA: the CPU's kernels stood for the GPU's.",)
    return Costs(device, numbers, stages, evaluation, judging, disk, resident, notes)


def _counted(simulator: Simulator) -> dict[str, int]:
    """Parameters in all, of each network, and of each of its parts."""
    counts = {"total": sum(p.numel() for p in simulator.parameters())}
    for name, network in simulator.parts.items():
        counts[name] = sum(p.numel() for p in network.parameters())
        parts = {f"{name}.{part}": sum(p.numel() for p in m.parameters()) for part, m in network.named_children()}
        own = sum(p.numel() for p in network.parameters(recurse=False))
        counts |= {part: count for part, count in parts.items() if count} | ({f"{name}.own": own} if own else {})
    return counts


def total(works: Sequence[CodeCost], share: float = 1.0) -> CodeCost:
    """The sum of several, times `share`; the peak is the highest."""
    sums = [round(share * sum(getattr(w, name) for w in works)) for name in ("flops", "moved", "operations")]
    return CodeCost(max(w.peak for w in works), max(w.saved for w in works), *sums)


@dataclass(frozen=True)
class CostPlace:
    """Where a run is to happen: on a device of this kind, whose kernels those of `stand_in` are taken for."""

    config: RunConfig
    device: str
    stand_in: str
    microbatch: int | None
    known: Costs | None
    counts: Counts | None  # of one sample and of two, where they may stand for those of more

    def trained(self, name: str, stage: Learnable, window: Window, microbatch: int) -> CodeCost:
        """What a step of a stage with a window takes; leaves no gradient behind."""
        train = self.config.stage(name).train

        def count(samples: int) -> CodeCost:
            with gathered(stage.module, train, self.config.dist):
                part = next(window.split(samples))
                work = training_work(stage.loss, part, self.stand_in, train, min(microbatch, samples))
            stage.module.zero_grad(set_to_none=True)
            return work

        if self.counts is None:
            return count(len(window))
        one, two = (self._once((name, window.task.name, n), functools.partial(count, n)) for n in (1, 2))
        return grown(one, two, len(window))

    def forward(
        self, name: str, ask: Callable[[Window], object], data: Outline, size: int, context: int, frames: int
    ) -> CodeCost:
        """What a validation of a stage with `size` samples takes, or, without a stage's name, a rollout."""

        def count(samples: int) -> CodeCost:
            window = data.window(samples, context, frames)
            return forward_work(lambda: ask(window), self.stand_in)

        if self.counts is None:
            return count(size)
        one = self._once((name, data.task.name, context, frames, "ahead"), lambda: count(1))
        return CodeCost(size * one.peak, 0, size * one.flops, size * one.moved, one.operations)

    def _once(self, key: Hashable, count: Callable[[], CodeCost]) -> CodeCost:
        assert self.counts is not None
        if key not in self.counts:
            self.counts[key] = count()
        return self.counts[key]

    def captured(self, stage: str) -> bool:
        return captures(self.config.stage(stage).train, self.device, self.config.dist)

    def workspaces(self, stages: int) -> int:
        """Bytes of cuBLAS after so many stages: two threads on the ordinary stream, two on the stream of each graph,
        one on that of replayed validations (where all stages have graphs, one that is never used makes up for it)."""
        if self.device != "cuda":
            return 0
        graphs = [self.captured(name) for name in self.config.plan[:stages]]
        old = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 9
        return WORKSPACES[old] * ((1 if all(graphs) else 3) + 2 * sum(graphs))


def _stage(name: str, place: CostPlace, simulator: Simulator, sets: Sequence[Outline]) -> StageCost:
    config, device = place.config, place.device
    settings = config.stage(name)
    stage = config.stages[name](simulator, settings)
    sets = [data for data in sets if stage.learns(data.task)]
    train, ranks = settings.train, config.dist
    windows = shares_of(config, name, sets)
    share = max(map(len, windows))
    size = min(place.microbatch or train.microbatch or share, share)
    with recomputed(stage.module, train):
        steps = [place.trained(name, stage, window, min(size, len(window))) for window in windows]
    held, work = held_memory(stage.module, simulator, train, device, ranks), total(steps, 1 / len(steps))
    captured = place.captured(name)
    batches = batches_memory(windows, train, device, captured)
    workspace = place.workspaces(config.plan.index(name) + 1)
    step = max(work.peak, held.gradients + held.step)
    memory = {
        "weights": held.weights,
        "optimizer moments": held.moments,
        "average and best copy": held.average + held.best,
        "activations": work.saved,
        "gradients and temporaries": max(0, step - work.saved) + held.reduced,
        "batches": batches,
        "CUDA workspaces": workspace,
    }
    simulator.eval()
    checked, checking = _checked(name, stage.evaluate, sets, place)
    # The averaged weights are swapped in, and a new best copy is made before the old one goes.
    validation = held.without_gradients + held.gradients + held.best + batches + workspace + checked
    reserved = max(sum(memory.values()), validation)
    if captured:  # a graph keeps its memory to itself, beside what a validation or another task's first steps take
        others = sorted(work.peak for work in steps)[-2:-1]
        # One rank alone keeps the gradients of each task's graph apart; several have one buffer for all.
        apart = held.gradients * (len(steps) - 1) if ranks.world == 1 else 0
        reserved = sum(memory.values()) + apart + max(held.best + checked, *others, 0)
    return StageCost(
        name=name,
        part=stage.makes,
        batch=settings.batch,
        batches=settings.batches,
        microbatch=size,
        memory={part: value for part, value in memory.items() if value},
        gradients=held.gradients,
        validation=validation,
        reserved=round(reserved * FRAGMENTS[device]),
        captured=captured,
        work=work,
        checked=checked,
        checking=checking,
        saved=bytes_of((*stage.module.parameters(), *stage.module.buffers()), "cpu") + held.moments + 2 * held.best,
    )


def _checked(
    name: str, evaluate: Callable[[Window], object], sets: Sequence[Outline], place: CostPlace
) -> tuple[int, CodeCost]:
    """Bytes and work of a validation of a stage, as they were found before where they were."""
    known = next((s for s in place.known.stages if s.name == name), None) if place.known else None
    if known is not None:
        return known.checked, known.checking
    given = place.config.evaluation.given_to(place.config.context)
    pairs = [(data, place.config.stage(name).batch_of(data.task.name)) for data in sets]
    return _together([_evaluated(name, evaluate, data, size, given, place) for data, size in pairs])


def _together(measured: Sequence[tuple[int, CodeCost]]) -> tuple[int, CodeCost]:
    """The highest peak and the sum of the work of all (peak, work)."""
    return max(peak for peak, _ in measured), total([work for _, work in measured])


def _evaluated(
    name: str, ask: Callable[[Window], object], data: Outline, batch: int, context: int, place: CostPlace
) -> tuple[int, CodeCost]:
    """Bytes at the peak, and the work, of a stage's evaluation of every trajectory for validation to its end; without
    a stage's name, of those for testing.

    One frame ahead and two tell what a frame costs where frames come one after the other; otherwise all at once.
    """
    size, ahead, count = data.whole(batch, context, "valid" if name else "test", place.device)

    def over(frames: int) -> CodeCost:
        return place.forward(name, ask, data, size, context, frames)

    short, longer = over(1), over(min(2, ahead))
    if longer.operations == short.operations:
        short, left = over(ahead), 0
    else:
        left = ahead - 1
    sums = [
        round(count * (a + left * (b - a)))
        for a, b in ((getattr(short, n), getattr(longer, n)) for n in ("flops", "moved", "operations"))
    ]
    frame = 4 * size * data.frame
    stepping = max(short.peak + left * max(0, longer.peak - short.peak), 3 * ahead * frame if left else 0)
    return (context + ahead) * frame + stepping, CodeCost(stepping, 0, *sums)
