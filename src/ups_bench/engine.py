"""`ups bench engine`: times the training loop against a bare one, without protections, saving, and on two ranks."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.checkpoint.store import Snapshot
from ups.engine.graph import Prefetch
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.engine.train import TrainConfig
from ups.heartbeat import Pulse
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import TASKS
from ups.stages import OperatorStage
from ups.stages.operator import OperatorLoss, OperatorStageConfig
from ups.tensors import Window
from ups.types import Grid
from ups_bench.numbers import measured_on, write_numbers
from ups_bench.turns import Work, in_turn
from ups_fleet.supervise.forked_functions import Result, run_ranks, values

Times = dict[str, list[float]]

BLOCK = 8  # steps at a time, in turn with the peer
# What each ratio should stay below (or, for ranks, above).
BARS = {
    "engine over bare loop": 1.03,
    "protections on over off": 1.02,
    "blocked over whole save": 0.1,
    "two ranks": 0.9,
}


class SameBatch:
    """The same window at every step; this rank's share of the `size` samples of all ranks."""

    def __init__(self, window: Window, size: int) -> None:
        self.window, self.size = window, size

    def batch(self, step: int) -> Window:  # noqa: ARG002
        return self.window

    def count(self, step: int) -> int:  # noqa: ARG002
        return self.size

    def frames(self) -> tuple[int, int]:
        return 1, 1

    def validation(self, step: int) -> Iterator[Window]:  # noqa: ARG002
        yield self.window


def burgers(dist: Dist, size: int) -> Window:
    """Random walks in the shapes of a 1D task: this rank's share of `size` samples."""
    first, last = (size * rank // dist.world for rank in (dist.rank, dist.rank + 1))
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(size, 2, 256, 1, generator=generator).cumsum(2) / 16
    task = TASKS["burgers1d"]
    nu, dt = torch.full((size, 1), 0.01), torch.full((size,), 0.05)
    window = Window(
        task, frames[:, :1], frames[:, 1:], torch.zeros(size, 256, 0), nu, dt, Grid((256,), (True,), ((0.0, 1.0),))
    )
    return window.rows(first, last).to(dist.device)


class Unprotected(Trainer):
    """A trainer whose steps have nothing to fall back on: no vote, no heartbeat, no state to repeat them from."""

    def _step(self, windows: Prefetch, progress: float) -> bool:
        window = self.stage.view(windows.get(), progress)
        learner = self.graph or self.learner
        learner.compute(window)
        learner.commit(window)
        self.state.step += 1
        return False


def stage_of(dist: Dist) -> OperatorStage:
    task = TASKS["burgers1d"]
    simulator = build([task], CodecConfig(dim=16), OperatorConfig(size="small"), shapes={task.name: (256,)})
    stage = OperatorStage(simulator.to(dist.device), OperatorStageConfig(loss=OperatorLoss(increment=0.0)))
    stage.fit(burgers(Dist(), 8).to(dist.device))
    return stage


def trainer_of(dist: Dist, size: int, pulse: Pulse | None) -> Trainer:
    config = TrainConfig(steps=10**6, log_every=50, validate_every=0)
    return Trainer(config, stage_of(dist), SameBatch(burgers(dist, size), size), dist, pulse=pulse)


def steps_of(trainer: Trainer, kind: type[Trainer] = Trainer, pulse: Pulse | None = None) -> Work:
    """A step of a trainer as `fit` takes it, in the way of `kind`; with another heartbeat if one is given. All ranks
    must ask."""
    windows = Prefetch(trainer.batches.batch, 0, trainer.dist.device, trainer.config.prefetch)
    pulse = pulse or trainer.pulse
    trainer.stragglers.start(trainer.state.step)  # a line of the log compares ranks

    def step() -> None:
        trainer.pulse = trainer.learner.pulse = trainer.vote.pulse = pulse
        trainer.dist.control.waiting = pulse.wait
        trainer.learner.tune(0.5)
        kind._step(trainer, windows, 0.5)
        if trainer._log_due():
            trainer._log()

    return step


def bare(stage: OperatorStage, window: Window) -> Work:
    """The loop anyone would write, with the same mathematics: loss, backward, clip, AdamW, average."""
    weights: list[Tensor] = [p for p in stage.module.parameters() if p.requires_grad]
    average = [p.detach().clone() for p in weights]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack(list(stage.loss(window).values())).sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, weights, 1e-3)

    return step


def quick(times: Sequence[float]) -> float:
    """The mean of the fastest twentieth: whoever else is on the machine only ever slows it, and most of all ranks that
    wait for each other."""
    return statistics.fmean(sorted(times)[: max(1, len(times) // 20)])


def against_bare(size: int, rounds: int) -> Times:
    with Dist.start("cpu") as dist, tempfile.TemporaryDirectory() as folder:
        ours = trainer_of(dist, size, Pulse(Path(folder) / "pulse", 0))
        turns = [("engine", steps_of(ours)), ("bare", bare(stage_of(dist), burgers(dist, size)))]
        return in_turn(turns, rounds, dist.device, block=BLOCK)


def protected(size: int, rounds: int) -> Times:
    """Times of steps on two ranks, every protection on and off; of one trainer, as two lie in memory differently."""
    with Dist.start("cpu", DistConfig(ranks=2)) as dist, tempfile.TemporaryDirectory() as folder:
        ours = trainer_of(dist, size, Pulse(Path(folder) / "pulse", dist.rank))
        off = steps_of(ours, Unprotected, Pulse(None, dist.rank))
        return in_turn([("on", steps_of(ours)), ("off", off)], rounds, dist.device, dist.barrier, BLOCK)


def pinned(size: int, rounds: int) -> Times:
    """Times of steps on two ranks with a core each: of this rank while the other waits, of both at once without a word
    between them, and of both as one training of twice the batch."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    with Dist.start("cpu", DistConfig(ranks=2)) as dist:
        apart = steps_of(trainer_of(Dist(), size, None))
        joint = steps_of(trainer_of(dist, 2 * size, None))
        alone: list[tuple[str, Work | None]] = [("alone", apart if dist.rank == rank else None) for rank in range(2)]
        return in_turn([*alone, ("apart", apart), ("joint", joint)], rounds, dist.device, dist.barrier, BLOCK)


def saves(megabytes: int, rounds: int) -> list[float]:
    """Seconds the loop is held up by a save in the background, and those of the whole save; medians."""
    tensors = {f"w{i}": torch.randn(250_000) for i in range(megabytes)}
    blocked, whole = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        for step in range(rounds + 1):
            began = time.perf_counter()
            store.save(Snapshot(step, tensors))
            returned = time.perf_counter() - began
            store.wait()
            if step:  # the first also makes the memory that the others use again
                blocked.append(returned)
                whole.append(time.perf_counter() - began)
    return [statistics.median(blocked), statistics.median(whole)]


def _ranks(function: Callable[..., Any], world: int, *args: Any) -> list[Result]:
    return run_ranks(function, world, *args, seconds=600, env={"OMP_NUM_THREADS": "1"})


def bench_engine(rounds: int, size: int, json_path: Path | None, say: Callable[[str], None]) -> None:
    """Measure all four on the CPU; print a table, and write the numbers."""
    rows: list[tuple[str, float, str]] = []

    def report(name: str, ratio: float, detail: str) -> None:
        rows.append((name, ratio, detail))
        say(f"{name:<26} {ratio:6.3f}   to reach {'≥' if name == 'two ranks' else '≤'} {BARS[name]:<5} {detail}")

    def compared(name: str, times: Times, what: str) -> None:
        ours, theirs = times.values()
        usual = statistics.median(ours) / statistics.median(theirs)
        detail = f"{1e3 * quick(ours):.1f} and {1e3 * quick(theirs):.1f} ms a step, {what}; {usual:.3f} in the median"
        report(name, quick(ours) / quick(theirs), detail)

    compared("engine over bare loop", values(_ranks(against_bare, 1, size, rounds))[0], "one thread")
    compared("protections on over off", values(_ranks(protected, 2, 2 * size, rounds))[0], "two ranks")
    blocked, whole = values(_ranks(saves, 1, 100, max(3, rounds // 2)))[0]
    report("blocked over whole save", blocked / whole, f"{1e3 * blocked:.1f} and {1e3 * whole:.1f} ms for 100 MB")
    both = values(_ranks(pinned, 2, size, rounds))

    def rate(name: str, time_of: Callable[[Sequence[float]], float] = quick) -> float:
        return sum(size / time_of(rank[name]) for rank in both)

    joint, alone, most = rate("joint"), rate("alone"), rate("apart") / rate("alone")
    usual = rate("joint", statistics.median) / rate("alone", statistics.median)
    detail = f"{joint:.0f} and 2 × {alone / 2:.0f} samples/s, a core each; {usual:.3f} in the median"
    report("two ranks", joint / alone, f"{detail}; two that never speak: {most:.3f}")
    result: dict[str, Any] = {
        "ratios": [dict(zip(("name", "ratio", "detail"), row, strict=True)) for row in rows],
        "bars": BARS,
        "two processes that never speak": most,
    }
    if json_path:
        depends = {**measured_on(torch.device("cpu")), "rounds": rounds, "block": BLOCK, "batch": size}
        write_numbers(json_path, result, depends)
