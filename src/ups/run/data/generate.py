"""Equation → file: draws, solves and writes batch after batch, and goes on where a killed run stopped."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ups.data.hdf5 import open_file
from ups.data.layouts import FileSpec, file_name, spell
from ups.data.reduction import Reduction
from ups.data.write import TrajectoryWriter, discard
from ups.engine.preemption import Preempted
from ups.engine.ranks.dist import device_of
from ups.parsing import parse_json
from ups.physics import EQUATIONS
from ups.physics.fit import fit
from ups.physics.random import Draw
from ups.physics.solver import Equation, simulate_each
from ups.progress import OnProgress, Progress, reporting
from ups.run.data.data_config import GenerateConfig
from ups.run.data.params import FileParams, files_of
from ups.types import Array, ConfigError, Grid, PhysicsError, Trajectory, UpsError, counted, duration
from ups.version import __version__

# Bytes of one batch of frames; what a solver needs beside them is a few times that.
CPU_BATCH, CUDA_BATCH = 2**28, 2**32
# On a processor: most samples of a batch, and least where so many numbers of a frame are too many for its cache.
CPU_SAMPLES, CPU_LEAST, CPU_NUMBERS = 128, 8, 2**16
RESIDUAL = "equation residual"
FITTED = 2  # trajectories that it is measured on
# Seconds after which the time that a file takes is judged from what is done of it.
JUDGED = 2.0
# PDEBench computes in single precision; what is called accurate here shall not be limited by it.
DTYPES = {"pdebench": "float32", "accurate": "float64"}


def equation_of(config: GenerateConfig) -> Equation:
    """The equation with the config's parameters, the first and least where there are several."""
    return equations_of(config)[0]


def batch_of(config: GenerateConfig, frames: int, grid: Grid, channels: int, device: torch.device) -> int:
    """The batch asked for, or the largest that fits, all batches of a file being of one size.

    On a processor larger ones than these are slower, and an interruption loses more.
    """
    if config.batch:
        return config.batch
    frame = math.prod(grid.shape) * channels
    at_once = 4096 if device.type == "cuda" else min(CPU_SAMPLES, max(CPU_LEAST, CPU_NUMBERS // frame))
    most = max(1, min(config.samples, at_once, _budget(device) // (8 * frames * frame)))
    return math.ceil(config.samples / math.ceil(config.samples / most))


def _budget(device: torch.device) -> int:
    return CUDA_BATCH if device.type == "cuda" else CPU_BATCH


def equations_of(config: GenerateConfig) -> list[Equation]:
    """The equation of each file that a config asks for; it stands for all samples of the file."""
    return [params.equation(EQUATIONS[config.task]) for params in files_of(config.params)]


def generate(
    config: GenerateConfig, folder: Path, report: OnProgress, overwrite: bool = False, known: Path | None = None
) -> list[Path]:
    """Make the files that `config` describes in `folder`, one for each combination of listed parameters. Those that
    the folder `known` has already are taken, as further names of the same files."""
    return [_make(config, params, folder, report, overwrite, known) for params in files_of(config.params)]


def _make(
    config: GenerateConfig, params: FileParams, folder: Path, report: OnProgress, overwrite: bool, known: Path | None
) -> Path:
    equation, device = params.equation(EQUATIONS[config.task]), device_of(config.device)
    scheme = config.scheme or equation.schemes[0]
    equation.check_scheme(scheme)
    grid = equation.grid(config.resolution or equation.task.resolution)
    path = folder / name_of(config, params, equation, config.store.grid(grid))
    plan = file_spec(config, params, grid, scheme)
    if overwrite:
        discard(path)
    elif path.exists():
        return _existing(path, plan)
    elif known is not None and _taken(known / path.name, path, plan):
        return path
    times = equation.times()[: config.frames]
    batch = batch_of(config, len(times), grid, len(plan.task.channels), device)
    writer = TrajectoryWriter(path, plan)
    with writer.open():
        tell = SolvingProgress(report, path.name, config.samples, writer)
        try:
            _write_batches(writer, SolveBatch(0, batch, scheme, grid, times, device), params, config, tell)
        except (KeyboardInterrupt, Preempted):
            tell.interrupted()
            raise
        return writer.publish(_provenance(config, plan, scheme, batch, device, writer))


def _write_batches(
    writer: TrajectoryWriter, job: SolveBatch, params: FileParams, config: GenerateConfig, tell: SolvingProgress
) -> None:
    """Solve batch after batch; one thread measures and writes a batch while the next one is solved."""
    with ThreadPoolExecutor(max_workers=1) as disk:
        pending: Future[None] | None = None
        for first in range(writer.done, config.samples, job.size):
            tell(first)
            size = min(job.size, config.samples - first)
            with reporting(lambda share, first=first, size=size: tell(first + share * size)):  # type: ignore[misc]
                solved = _solve(params, config, replace(job, first=first), writer.spec)
            if pending is not None:
                pending.result()
            pending = disk.submit(_write, writer, replace(job, first=first), solved)
        if pending is not None:
            pending.result()
        tell(config.samples)


@dataclass
class SolvingProgress:
    """Tells `report` how far a file is, and once, as soon as that can be judged, how long all of it will take."""

    report: OnProgress
    name: str
    total: int
    writer: TrajectoryWriter

    def __post_init__(self) -> None:
        self.began, self.first = time.monotonic(), float(self.writer.done)
        self.mark: tuple[float, float] | None = None  # when the first interval was done, and how far it led
        self.estimated = False

    def __call__(self, done: float) -> None:
        now, note = time.monotonic(), ""
        if self.mark is None:
            self.mark = (now, done) if done > self.first else None
        elif not self.estimated and now - self.mark[0] >= JUDGED and self.mark[1] < done < self.total:
            # The first interval is no measure of the others: it pays for all that is made once.
            when, start = self.mark
            seconds = when - self.began + (now - when) / (done - start) * (self.total - start)
            time_needed = duration(max(1, round(seconds)), digits=2)
            note = f"about {time_needed} for {counted(round(self.total - self.first), 'trajectory')}"
            self.estimated = True
        self.report(Progress(done, self.total, self.name, note, self.writer.done))

    def interrupted(self) -> None:
        """Say how many trajectories are kept."""
        done = self.writer.done
        note = f"stopped; {done} of {self.total} trajectories are kept, and the same command goes on from there"
        self.report(Progress(done, self.total, self.name, note, done))


@dataclass(frozen=True)
class SolveBatch:
    """A batch to be solved: samples `first` … `first + size − 1`."""

    first: int
    size: int
    scheme: str
    grid: Grid  # on which it is solved
    times: Sequence[float]  # at which it is solved
    device: torch.device


@dataclass(frozen=True)
class Solved:
    """Frames, inputs and measured laws of a batch; its first trajectories and their inputs as they were solved."""

    frames: Array
    inputs: Array
    measured: dict[str, float]
    few: tuple[Array, Array]


def _write(writer: TrajectoryWriter, job: SolveBatch, solved: Solved) -> None:
    measured = solved.measured
    if job.first == 0:
        solution = replace(writer.spec, grid=job.grid, times=np.asarray(job.times))
        measured = measured | _residual(solution, *solved.few)
    writer.write(job.first, solved.frames, solved.inputs, measured)


def _solve(params: FileParams, config: GenerateConfig, job: SolveBatch, plan: FileSpec) -> Solved:
    """A batch. The last one is solved whole and cut, so that a sample's bits do not depend on how many samples were
    asked for."""
    kind, samples = EQUATIONS[config.task], range(job.first, job.first + job.size)
    equation = params.equation(kind)
    draw = Draw(config.seed, samples, job.device, getattr(torch, plan.identity["dtype"]))
    keep = slice(0, config.samples - job.first)
    if params.ranges:
        drawn = params.drawn(config.seed, samples)
        rows = [{**params.shared, **{n: float(values[i]) for n, values in drawn.items()}} for i in range(job.size)]
        solved = simulate_each(kind, rows, draw, job.grid, job.times, job.scheme)
        alone = [replace(draw, samples=[sample]) for sample in samples]
        given = torch.cat([kind(**row).inputs(one, job.grid) for row, one in zip(rows, alone, strict=True)])
    else:
        solved = equation.simulate(draw, job.grid, job.times, job.scheme)
        given = equation.inputs(draw, job.grid)
    frames, inputs = solved[keep].float(), given[keep].float()
    _check_finite(frames, job, config.task)
    measured = {law.name: float(law.residual(frames, job.grid).max()) for law in equation.laws()}
    few = frames[:FITTED].clone().cpu().numpy(), inputs[:FITTED].clone().cpu().numpy()
    every = (slice(None, None, config.store.space),) * job.grid.ndim
    stored = frames[(slice(None), config.store.frames, *every)].contiguous()
    return Solved(stored.cpu().numpy(), inputs[(slice(None), *every)].contiguous().cpu().numpy(), measured, few)


def _residual(plan: FileSpec, frames: Array, inputs: Array) -> dict[str, float]:
    """What the first trajectories leave unexplained of their equation, 0 to 1, where its fields are stored."""
    few = []
    for i in range(len(frames)):
        params = {**plan.params, **{name: float(values[i]) for name, values in plan.varying.items()}}
        few.append(Trajectory(str(i), plan.task, frames[i], plan.grid, plan.times, params, inputs[i]))
    together = [[sample] for sample in few] if plan.varying else [few]
    fits = [f for samples in together for f in fit(plan.task.name, samples, samples[0].params)]
    left = [f.residual for f in fits if not math.isnan(f.residual)]
    return {RESIDUAL: max(left)} if left else {}


def name_of(config: GenerateConfig, params: FileParams, equation: Equation, grid: Grid) -> str:
    """PDEBench's name; a range is written 0.001-1.0 in the place of its number."""
    spelling = equation.task.storage.spelling
    ranges = {name: f"{spell(r.low, spelling)}-{spell(r.high, spelling)}" for name, r in params.ranges.items()}
    known = {**equation.params(), **ranges}
    return file_name(equation.task, known, grid.shape[0], config.seed, {*params.listed, *params.ranges})


def file_spec(config: GenerateConfig, params: FileParams, grid: Grid, scheme: str) -> FileSpec:
    """What a file will hold whose solution is computed on `grid`."""
    equation = params.equation(EQUATIONS[config.task])
    times = np.asarray(equation.times()[: config.frames])
    shared = {name: value for name, value in equation.params().items() if name not in params.ranges}
    identity = {
        "task": config.task,
        "params": {**equation.params(), **{name: r.model_dump() for name, r in params.ranges.items()}},
        "scheme": scheme,
        "seed": config.seed,
        "samples": config.samples,
        "resolution": grid.shape[0],
        "frames": len(times),
        "dtype": config.dtype or DTYPES[scheme],
        "version": __version__,
    }
    if config.store != Reduction():  # files that are whole are those they were before this could be asked for
        identity["store"] = asdict(config.store)
    varying = params.drawn(config.seed, range(config.samples))
    times_kept, stored_on = times[config.store.frames], config.store.grid(grid)
    return FileSpec(equation.spec(), shared, stored_on, times_kept, config.samples, identity, varying)


def _identities(path: Path, plan: FileSpec) -> tuple[dict[str, object], dict[str, object]]:
    """What a file says it holds, and what a plan wants of it."""
    with open_file(path) as file:
        made = parse_json(file.attrs.get("ups_identity", "{}"))
    return made, json.loads(json.dumps(plan.identity))


def _taken(source: Path, path: Path, plan: FileSpec) -> bool:
    """Whether a file that was made elsewhere is what is wanted, and has been given the name `path` too."""
    try:
        made, wanted = _identities(source, plan)
        if made != wanted:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, path)
    except (UpsError, OSError, ValueError):  # not there, no whole file, or on another disk: it is made anew
        return False
    return True


def _existing(path: Path, plan: FileSpec) -> Path:
    made, wanted = _identities(path, plan)
    if made == wanted:
        return path
    other = ", ".join(f"{key} {made.get(key, 'unknown')}" for key in wanted if made.get(key) != wanted[key])
    raise ConfigError(f"{path}: is there already, with {other}; choose another --out, or replace it with --overwrite.")


def _check_finite(frames: Tensor, job: SolveBatch, task: str) -> None:
    bad = ~frames.flatten(2).isfinite().all(-1)
    if bool(bad.any()):
        sample, frame = (int(i) for i in bad.nonzero()[0])
        raise PhysicsError(
            f"{task}: sample {job.first + sample} became infinite at t = {job.times[frame]:g}; use another "
            f"resolution, scheme or parameter."
        )


def _provenance(
    config: GenerateConfig, plan: FileSpec, scheme: str, batch: int, device: torch.device, writer: TrajectoryWriter
) -> dict[str, object]:
    measured = {name: max(part.get(name, 0.0) for part in writer.measured) for name in writer.measured[0]}
    residual = measured.pop(RESIDUAL, math.nan)
    return {
        "ups_task": config.task,
        "ups_scheme": scheme,
        "ups_seed": config.seed,
        "ups_version": __version__,
        "ups_identity": json.dumps(plan.identity),
        "ups_batch": batch,
        "ups_device": device.type,
        "ups_laws": json.dumps(measured),
        "ups_residual": residual,
    }
