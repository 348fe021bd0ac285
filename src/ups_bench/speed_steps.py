"""Speed of small steps: a bare loop, `Trainer` kernel by kernel and as graphs, on ranks, and what protections cost."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.dist_config import DistConfig
from ups.heartbeat import Pulse
from ups_bench.engine import Unprotected, bare, steps_of
from ups_bench.kernels import kernel_seconds, summary
from ups_bench.speed_case import SpeedCase, SpeedNumbers, small_case
from ups_bench.turns import TurnSpread, Work, in_turn, over, repeated

NO_GRAPHS = "a CUDA graph needs a CUDA device"
PROFILED = {"cuda": 4, "cpu": 1}  # steps
EAGER, GRAPHS = "kernel by kernel", "as graphs"


def per_second(times: Sequence[float], steps: int) -> TurnSpread:
    """Steps a second, of the seconds of blocks of so many."""
    return TurnSpread.of([steps / seconds for seconds in times])


def words(rate: TurnSpread) -> str:
    return f"{rate.median:.4g} steps/s ({rate.low:.4g} – {rate.high:.4g})"


def started(device: str, world: int, strategy: str = "ddp") -> DistConfig:
    """Two ranks may share a GPU over gloo; one alone shards by nccl."""
    alone = world == 1 and device != "cpu" and strategy == "fsdp"
    return DistConfig(ranks=world, backend="nccl" if alone else "gloo", strategy=strategy, vote_timeout=60)  # type: ignore[arg-type]


def small(device: str) -> SpeedNumbers:
    """One rank: a bare loop, `Trainer` kernel by kernel, and as two graphs; beside them the time of their kernels."""
    numbers = SpeedNumbers()
    with Dist.start(device) as dist, tempfile.TemporaryDirectory() as folder:
        case = small_case(dist.device.type)
        block, batch = case.sizes.block, case.batch
        numbers.what["small"] = f"{case.words()}, batches of {batch}"
        pulse = Pulse(Path(folder) / "pulse", 0)
        eager = steps_of(case.trainer(dist, pulse, graph=False))
        works = {"bare loop": bare(case.stage(dist.device), case.window(batch, dist.device)), EAGER: eager}
        if dist.device.type == "cuda":
            works[GRAPHS] = steps_of(case.trainer(dist, pulse, graph=True))
        turns: list[tuple[str, Work | None]] = [(name, repeated(step, block)) for name, step in works.items()]
        times = in_turn(turns, case.sizes.rounds, dist.device)
        profiled = summary(kernel_seconds(eager, PROFILED[dist.device.type], dist.device))
    numbers.kernels["small"] = profiled
    rates = {name: words(per_second(each, block)) for name, each in times.items()}
    numbers.rates |= {f"one rank, {name}": rate for name, rate in rates.items()}
    numbers.row("Trainer over a bare loop, step time", over(times[EAGER], times["bare loop"]), "one rank")
    faster, floor = "graphs over a bare loop, speed", "step as graphs over its kernels, time"
    if GRAPHS not in times:
        numbers.missing(faster, NO_GRAPHS)
        numbers.missing(floor, NO_GRAPHS)
        return numbers
    numbers.row(faster, over(times["bare loop"], times[GRAPHS]), f"{rates[GRAPHS]} and {rates['bare loop']}")
    if not profiled["milliseconds"]:
        numbers.missing(floor, "torch.profiler saw no kernel")
        return numbers
    step, kernels = [seconds / block for seconds in times[GRAPHS]], 1e-3 * profiled["milliseconds"]
    least = 1e3 * min(step)
    seen = f"{1e3 * kernels:.3g} ms of kernels in a step of {least:.3g} ms at best"
    numbers.row(floor, over(step, [kernels] * len(step)), seen)
    return numbers


class Reductions:
    """Times the reductions of a trainer's gradients while it is `on`, the device's work before them apart."""

    def __init__(self, trainer: Trainer) -> None:
        self.seconds, self.on, self.each = 0.0, False, list[float]()
        self.device, self.reduce = trainer.dist.device, trainer.learner.reduce
        trainer.learner.reduce = self._timed  # type: ignore[method-assign]

    def _timed(self) -> None:
        if not self.on:
            self.reduce()
            return
        self._wait()
        began = time.perf_counter()
        self.reduce()
        self._wait()
        self.seconds += time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def watched(self, work: Work) -> Work:
        """The work, after which `each` has the seconds of its reductions as one more number."""

        def run() -> None:
            self.seconds, self.on = 0.0, True
            work()
            self.on = False
            self.each.append(self.seconds)

        return run

    def without(self, times: Sequence[float]) -> list[float]:
        """What watched works took beside their reductions; the first was to warm up."""
        return [seconds - reducing for seconds, reducing in zip(times, self.each[1:], strict=True)]


def ranks(device: str) -> SpeedNumbers:
    """Two ranks, of one GPU where there is one: each alone, both at once without a word, and as one training."""
    numbers = SpeedNumbers()
    with Dist.start(device, started(device, 2)) as dist:
        case = small_case(dist.device.type)
        block = max(2, case.sizes.block // 2)
        modes = {GRAPHS: True, EAGER: False} if dist.device.type == "cuda" else {EAGER: False}
        alone = repeated(steps_of(case.trainer(Dist(device=dist.device), graph=next(iter(modes.values())))), block)
        turns: list[tuple[str, Work | None]] = [("alone", alone if dist.rank == rank else None) for rank in range(2)]
        turns.append(("apart", alone))
        watches = {}
        for mode, graph in modes.items():
            trainer = case.trainer(dist, graph=graph)
            step, watches[mode] = repeated(steps_of(trainer), block), Reductions(trainer)
            turns += [(mode, step), (f"{mode}, watched", watches[mode].watched(step))]
        times = in_turn(turns, case.sizes.rounds, dist.device, dist.barrier)
        for mode, watch in watches.items():
            times[f"{mode}, without the reduction"] = watch.without(times.pop(f"{mode}, watched"))
        dist.barrier()
    numbers.what["ranks"] = f"two gloo ranks of one machine, {case.batch} samples each"
    numbers.rates |= {f"two ranks, {name}": words(per_second(each, block)) for name, each in times.items()}
    ranks_rows(numbers, times)
    return numbers


def ranks_rows(numbers: SpeedNumbers, times: dict[str, list[float]]) -> None:
    """Speed of this rank in several ways over its own alone; before communication, over that of one of two that share
    the machine as the ranks do, and have nothing to say to each other."""
    shared = over(times["alone"], times["apart"])
    numbers.row("two ranks that never speak, each over one alone, speed", shared, "what sharing the machine leaves")
    before = "two ranks as graphs before communication, each over one of two that never speak, speed"
    if GRAPHS not in times:
        numbers.missing(before, NO_GRAPHS)
        name = before.replace("as graphs", "kernel by kernel")
        numbers.row(name, over(times["apart"], times[f"{EAGER}, without the reduction"]), "")
        return
    numbers.row(before, over(times["apart"], times[f"{GRAPHS}, without the reduction"]), "")
    numbers.row("two ranks as graphs, each over one alone, speed", over(times["alone"], times[GRAPHS]), "all of it")
    numbers.row("two ranks, graphs over kernel by kernel, speed", over(times[EAGER], times[GRAPHS]), "all of it")


def fsdp(device: str, world: int) -> SpeedNumbers:
    """A sharded training over a replicated one of the same ranks, both kernel by kernel."""
    numbers = SpeedNumbers()
    with Dist.start(device, started(device, world, "fsdp")) as dist:
        case = small_case(dist.device.type)
        block = max(2, case.sizes.block // 5)
        replicated = dataclasses.replace(dist, config=dataclasses.replace(dist.config, strategy="ddp"))
        works = {
            "fsdp": steps_of(case.trainer(dist)),
            "ddp": steps_of(case.trainer(replicated, graph=False)),
        }
        turns: list[tuple[str, Work | None]] = [(name, repeated(step, block)) for name, step in works.items()]
        times = in_turn(turns, max(2, case.sizes.rounds // 2), dist.device, dist.barrier)
        dist.barrier()
        backend = dist.config.backend
    rates = {name: words(per_second(each, block)) for name, each in times.items()}
    who = "one rank" if world == 1 else "two ranks"
    numbers.rates |= {f"{who}, {name} over {backend}, {EAGER}": rate for name, rate in rates.items()}
    seen = f"{rates['fsdp']} and {rates['ddp']}, {backend}"
    numbers.row(f"fsdp over ddp on {who}, step time", over(times["fsdp"], times["ddp"]), seen)
    return numbers


def protections(device: str, world: int) -> SpeedNumbers:
    """Every protection on over off, of one trainer: two would lie in memory differently."""
    numbers = SpeedNumbers()
    config = started(device, world) if world > 1 else DistConfig()
    with Dist.start(device, config) as dist, tempfile.TemporaryDirectory() as folder:
        case: SpeedCase = small_case(dist.device.type)
        trainer = case.trainer(dist, Pulse(Path(folder) / "pulse", dist.rank))
        off = steps_of(trainer, Unprotected, Pulse(None, dist.rank))
        block, rounds = case.sizes.block, 2 * case.sizes.rounds
        turns = [("on", repeated(steps_of(trainer), block)), ("off", repeated(off, block))]
        times = in_turn(turns, rounds, dist.device, dist.barrier)
        dist.barrier()
    on, without = (words(per_second(times[name], block)) for name in ("on", "off"))
    who = "one rank" if world == 1 else "two ranks"
    numbers.row(
        f"every protection on over off on {who}, step time", over(times["on"], times["off"]), f"{on} and {without}"
    )
    return numbers
