"""`ups bench cache`: windows per second from the latent cache and the raw file, memory per process, cost by size."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ups.data.cache import FORMAT, MANIFEST, VERSION, Latents, key_of, read_manifest
from ups.data.cache_builder import Builder
from ups.data.cache_shards import named, write
from ups.data.loader import loaded
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.data.windows import Samples, Windows, spread
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import TrainConfig
from ups.files import sum_of, write_atomic
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import TASKS
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.stages import OperatorStage
from ups.stages.operator import OperatorLoss, OperatorStageConfig
from ups.types import TaskSpec
from ups_bench.numbers import measured_on, write_numbers

Say = Callable[[str], None]
TASK = "advection1d"
BATCH, CONTEXT, FRAMES = 32, 1, 41
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TURNS = 10
PER_ROW = 8  # windows of a sample of the synthetic cache
MEMORY = ("Private_Clean", "Private_Dirty")


@dataclass(frozen=True)
class CacheReading:
    """What one process measured: windows per second, and the memory that is its own alone, in MB."""

    per_second: float
    private: float
    grown: float


def bench_cache(samples: int, seconds: float, dim: int, device: str, json_path: Path | None, say: Say) -> None:
    """Measure on data made for it; print and write the numbers."""
    with tempfile.TemporaryDirectory(prefix="ups-bench-") as name:
        place = Path(name)
        file, folder = prepared(place, samples, dim)
        sizes = [size / 1e6 for size in (file.stat().st_size, read_manifest(folder)["bytes"])]
        say(f"{samples} × {FRAMES} frames of {TASK}: {sizes[0]:.0f} MB raw, {sizes[1]:.0f} MB of tokens")
        readings = {kind: together(kind, file, folder, seconds) for kind in ("raw", "cache", "raw", "cache")}
        ratio = sum(r.per_second for r in readings["cache"]) / sum(r.per_second for r in readings["raw"])
        for kind, pair in readings.items():
            total = sum(r.per_second for r in pair)
            most, grown = max(r.private for r in pair), max(r.grown for r in pair)
            memory = f"{grown:.1f} MB of its own for reading, {most:.0f} MB in all"
            say(f"{kind:<6} {total:>9.0f} windows/s from two processes; each has {memory}")
        say(f"ratio  {ratio:.1f}")
        with Dist.alone(device) as dist:
            where, waits = str(dist.device), fed(file, folder, dim, dist, seconds, say)
        costs = growth(place, seconds, say)
    if json_path:
        numbers: dict[str, Any] = {"ratio": ratio, "microseconds per window": costs, "input wait": waits}
        numbers |= {kind: [asdict(r) for r in pair] for kind, pair in readings.items()}
        write_numbers(json_path, numbers, measured_on(torch.device(where)))


def prepared(place: Path, samples: int, dim: int) -> tuple[Path, Path]:
    """A file of trajectories at PDEBench's resolution, and the cache that a fresh codec makes of it."""
    made = GenerateConfig(task=TASK, samples=samples, frames=FRAMES, device="cpu", scheme="accurate")
    (file,) = generate(made, place, lambda progress: None)  # noqa: ARG005
    part = trajectories(file)
    codec = build([part.task], CodecConfig(dim=dim)).codec
    key = key_of(part, {"codec weights": str(dim)}, "made for this", "fp32")
    return file, Builder(part, lambda x: codec.encode(x, part.task, part.grid).z, key, place / "cache" / "train").run()


def trajectories(file: Path) -> Trajectories:
    """All samples of the file, read from it window by window, as those are that do not fit in memory."""
    from ups.data import open_source

    source = open_source(file, TASKS)
    return Trajectories(source, source.ids, Reduction(), resident=0)


def together(kind: str, file: Path, folder: Path, seconds: float) -> list[CacheReading]:
    """Two processes that read at the same time."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool:
        list(pool.map(time.sleep, (0.5, 0.5)))  # both have started
        start = time.time() + 3.0
        futures = [pool.submit(read, kind, str(file), str(folder), seconds, seed, start) for seed in range(2)]
        return [future.result() for future in futures]


def read(kind: str, file: str, folder: str, seconds: float, seed: int, start: float) -> CacheReading:
    """Random batches of one process, from `start` (a time of the clock on the wall) on."""
    torch.set_num_threads(1)
    before = private()
    part: Samples = trajectories(Path(file)) if kind == "raw" else _open(Path(folder), TASKS[TASK])
    windows = Windows([part], [], BATCH, CONTEXT, seed=seed, ranks=Dist())
    step = 0
    while time.time() < start:
        windows.batch(step)
        step += 1
    begin, first = time.perf_counter(), step
    while time.perf_counter() - begin < seconds:
        windows.batch(step)
        step += 1
    rate = BATCH * (step - first) / (time.perf_counter() - begin)
    return CacheReading(rate, private(), private() - before)


def _open(folder: Path, task: TaskSpec) -> Latents:
    return Latents(folder, read_manifest(folder)["key"], task)


def fed(file: Path, folder: Path, dim: int, dist: Dist, seconds: float, say: Say) -> dict[str, float]:
    """The share of a training's time in which no window was ready: the small operator on this device, from the cache,
    its windows built by a thread of the process or by two processes. The first half of the time is for warming up."""
    truth = trajectories(file)
    task, waits = truth.task, {}
    few = Trajectories(truth.source, truth.ids[:1], Reduction(), resident=0)
    train = TrainConfig(seconds=4 * seconds, validate_every=0, validate_first=False, log_every=20)
    for workers, who in ((0, "a thread"), (2, "two processes")):
        simulator = build([task], CodecConfig(dim=dim), OperatorConfig(size="small"), shapes={task.name: truth.shape})
        stage = OperatorStage(simulator.to(dist.device), OperatorStageConfig(loss=OperatorLoss(increment=0.0)))
        stage.fit(*(window.to(dist.device) for window in spread([truth], CONTEXT, 1)))
        tracker = _InputWaits()
        with loaded(Windows([_open(folder, task)], [few], BATCH, CONTEXT, ranks=Dist()), workers) as batches:
            Trainer(train, stage, batches, dist, trackers=[tracker]).fit()
        wait, speed = (statistics.fmean(of[len(of) // 2 :]) for of in (tracker.waits, tracker.speeds))
        waits[who] = wait
        say(f"input wait {wait:.2%} of the time on {dist.device}: {speed:.0f} windows/s, read by {who}")
    return waits


class _InputWaits:
    """A tracker that keeps how long a training waited for its windows, and how many it took."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.speeds: list[float] = []

    def log(self, step: int, values: Mapping[str, float | str]) -> None:  # noqa: ARG002
        if "operator/input_wait" in values:
            self.waits.append(float(values["operator/input_wait"]))
            self.speeds.append(float(values["operator/samples_per_second"]))


def private() -> float:
    """Megabytes of this process that no other shares; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(MEMORY)) / 1024


def growth(place: Path, seconds: float, say: Say) -> dict[str, float]:
    """Microseconds per window, drawing and reading, from caches of ever more windows; measured in turns, so that
    whatever else the machine does meets all of them alike."""
    readers: dict[int, Windows] = {}
    for size in SIZES:
        folder = synthetic(place / f"synthetic-{size}", size)
        readers[size] = Windows([_open(folder, TASKS[TASK])], [], BATCH, CONTEXT, ranks=Dist())
        assert readers[size].sampler.counts == (size,)
    spent: dict[int, list[float]] = {size: [] for size in SIZES}
    drawing: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(TURNS):
        for size, windows in readers.items():
            _time(windows.batch, seconds / TURNS, spent[size])
            _time(windows.sampler.indices, seconds / TURNS / 4, drawing[size])
    costs = {str(size): 1e6 * statistics.median(times) / BATCH for size, times in spent.items()}
    for size in SIZES:
        part = 1e6 * statistics.median(drawing[size]) / BATCH
        say(f"{size:>9} windows: {costs[str(size)]:6.2f} µs per window, {part:.2f} of them for the drawing")
    say(f"cost at {SIZES[-1]} windows over that at {SIZES[0]}: {costs[str(SIZES[-1])] / costs[str(SIZES[0])]:.2f}")
    return costs


def _time(work: Callable[[int], Any], seconds: float, times: list[float]) -> None:
    """Add to `times` what each call takes, of step after step."""
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        work(len(times))
        times.append(time.perf_counter() - begin)


def synthetic(folder: Path, size: int) -> Path:
    """A cache of so many windows with tokens from nowhere: 4 tokens of 16 numbers, 9 frames a sample."""
    frames, tokens, rows = PER_ROW + CONTEXT, (4, 16), size // PER_ROW
    per_shard = min(rows, 8192)
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(0)
    shards: list[Mapping[str, Any]] = []
    for number, first in enumerate(range(0, rows, per_shard)):
        count = min(per_shard, rows - first)
        small: dict[str, Any] = {
            "params": np.ones((count, 1), np.float32),
            "inputs": np.zeros((count, 16, 0), np.float32),
            "ids": named([f"{i:08d}" for i in range(first, first + count)]),
        }
        path, shape = folder / f"shard-{number:05d}.safetensors", (count, frames, *tokens)
        values = [torch.randn(shape, generator=draw)]
        entry = write(path, small, "tokens", shape, "fp32", values, {"format": FORMAT})
        shards.append({**entry, "file": path.name, "first": first, "samples": count})
    write_atomic(folder / MANIFEST, json.dumps(_manifest(shards, rows, per_shard, frames, tokens)))
    return folder


def _manifest(
    shards: Sequence[Mapping[str, Any]], rows: int, per_shard: int, frames: int, tokens: tuple[int, ...]
) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "key": {"made": "for a measurement"},
        "task": TASK,
        "rounding": {"relative": 0.0, "worst": 0.0},
        "dtype": "fp32",
        "samples": rows,
        "frames": frames,
        "tokens": list(tokens),
        "rows": per_shard,
        "bytes": sum(shard["bytes"] for shard in shards),
        "times": list(range(frames)),
        "lengths": [frames] * rows,
        "dt": [1.0] * rows,
        "steps": None,
        "shape": [16],
        "periodic": [True],
        "bounds": [[0.0, 1.0]],
        "corner": [],
        "shards": list(shards),
    }
    return {**manifest, "sum": sum_of(manifest)}
