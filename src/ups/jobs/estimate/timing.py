"""Times this machine: how fast it multiplies and moves numbers, and a few real training steps."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ups.engine.graph import WARM
from ups.engine.loop import Trainer
from ups.engine.memory import CodeCost, captures
from ups.engine.ranks.dist import Dist
from ups.engine.stage import Learnable
from ups.engine.train import TrainConfig
from ups.progress import TrainingProgress
from ups.run.check import new_simulator
from ups.run.config import RunConfig
from ups.run.data.outlines import Outline, outlines, shares_of
from ups.tensors import Window

INTERVALS = 3  # timed ones, after those that warm up


@dataclass(frozen=True)
class Ceilings:
    """What a device reaches at best: floating-point operations and bytes a second, and seconds to start a kernel."""

    flops: float
    bytes: float
    launch: float

    def seconds(self, work: CodeCost, captured: bool = False) -> float:
        """How long work takes that reaches both; a captured graph starts its kernels for free."""
        return work.flops / self.flops + work.moved / self.bytes + (0.0 if captured else work.operations * self.launch)


@torch.no_grad()
def ceilings(device: torch.device, bf16: bool) -> Ceilings:
    """Measured in a fraction of a second."""
    on_gpu = device.type == "cuda"
    n, size = (4096, 2**28) if on_gpu else (768, 2**23)
    a = torch.rand(n, n, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    big, small = torch.rand(size, device=device), torch.rand(8, device=device)
    other = torch.empty_like(big)

    def many() -> None:
        for _ in range(200):
            small.add(1.0)

    product, copy, start = (_best(f, device) for f in (lambda: a @ a, lambda: other.copy_(big), many))
    return Ceilings(2 * n**3 / product, 8 * size / copy, start / 200)


def _best(work: Callable[[], object], device: torch.device) -> float:
    """The least of a few timings in seconds, the first not counted."""
    seconds = []
    for _ in range(5):
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class RandomBatches:
    """Batches of random numbers in the shapes of the data; made once, so that only the step is timed."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = tuple(windows)

    def batch(self, step: int) -> Window:
        return self.windows[step % len(self.windows)]

    def count(self, step: int) -> int:
        return len(self.batch(step))

    def frames(self) -> tuple[int, int]:
        return 1, 1

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        for window in self.windows:
            yield next(window.split(1))


@dataclass(frozen=True)
class Timed:
    """A stage on this machine."""

    seconds: float  # of one step
    allocated: int  # bytes torch had given out at the peak; 0 on a CPU
    reserved: int  # bytes torch had taken from the GPU; 0 on a CPU
    spread: float = 1.0  # how many times longer the slowest timed steps took than the quickest


def trial(config: RunConfig, sets: Sequence[Outline], device: torch.device, most: float) -> dict[str, Timed]:
    """Some real steps of each stage, with throw-away weights on random numbers, for roughly `most` seconds each."""
    return {name: timed_stage(config, name, device, most, sets=sets) for name in config.stages}


def timed_stage(
    config: RunConfig,
    name: str,
    device: torch.device,
    most: float,
    ranks: int | None = None,
    sets: Sequence[Outline] | None = None,
) -> Timed:
    """Some real steps of one stage as a rank of the run would take them, with its share of each batch or with that of
    one of so many `ranks`; nothing is sent."""
    kind, settings = config.stages[name], config.stage(name)
    sets = outlines(config) if sets is None else sets
    windows = shares_of(config, name, [data for data in sets if kind.learns(data.task)], ranks)
    stage, train = kind(new_simulator(config, sets).to(device), settings), settings.train
    if not captures(train, device.type, config.dist):
        train = dataclasses.replace(train, graph=False)
    return _steps(stage, RandomBatches(windows), train, device, most)


def _steps(stage: Learnable, batches: RandomBatches, train: TrainConfig, device: torch.device, most: float) -> Timed:
    tasks, ticks = len(batches.windows), list[tuple[int, float]]()
    each = 2 * tasks  # steps between two readings of the clock, each task twice
    warm = -(-(WARM + 1) * tasks // each)

    def tick(progress: TrainingProgress) -> None:
        if progress.step and (not ticks or progress.step > ticks[-1][0]):
            ticks.append((progress.step, time.perf_counter()))

    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    short = dataclasses.replace(
        train,
        steps=(warm + INTERVALS) * each,
        seconds=most,
        validate_every=0,
        checkpoint_steps=None,
        checkpoint_seconds=None,
        log_every=each,
    )
    Trainer(short, stage, batches, Dist(device=device), report=tick).fit()
    speeds = [(b - a) / (n - m) for (m, a), (n, b) in itertools.pairwise(ticks)]
    timed = speeds[-INTERVALS:] or [most]
    speed, spread = statistics.median(timed), max(timed) / max(min(timed), 1e-9)
    taken = (torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)) if on_gpu else (0, 0)
    return Timed(speed, *taken, spread)
