"""Equation → file: draws, solves and writes batch after batch, and goes on where a killed run stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ups.data.hdf5 import open_file
from ups.data.layouts import FileSpec, file_name
from ups.data.write import Writer, discard
from ups.engine.ranks.dist import device_of
from ups.physics import EQUATIONS
from ups.physics.fit import fit
from ups.physics.random import Draw
from ups.physics.solver import Equation, watched
from ups.run.data_config import GenerateConfig
from ups.types import Array, ConfigError, Domain, PhysicsError, Trajectory
from ups.version import __version__

# Bytes of one batch of frames; what a solver needs beside them is a few times that.
CPU_BATCH, CUDA_BATCH = 2**28, 2**32
RESIDUAL = "equation residual"
# PDEBench computes in single precision; what is called accurate here shall not be limited by it.
DTYPES = {"pdebench": "float32", "accurate": "float64"}


@dataclass(frozen=True)
class Progress:
    """How far a generation is: samples done (parts of samples count), of how many, and the name of the file."""

    done: float
    total: int
    name: str


Report = Callable[[Progress], None]


def equation_of(config: GenerateConfig) -> Equation:
    """The equation with the config's parameters; the config has checked that it exists and knows them."""
    return EQUATIONS[config.task](**config.params)


def batch_of(config: GenerateConfig, frames: int, domain: Domain, channels: int, device: torch.device) -> int:
    """The batch asked for, or the largest that fits, all batches of a file being of one size."""
    if config.batch:
        return config.batch
    sample = 8 * frames * math.prod(domain.shape) * channels
    most = max(1, min(config.samples, 4096 if device.type == "cuda" else 256, _budget(device) // sample))
    return math.ceil(config.samples / math.ceil(config.samples / most))


def _budget(device: torch.device) -> int:
    return CUDA_BATCH if device.type == "cuda" else CPU_BATCH


def equations_of(config: GenerateConfig) -> list[Equation]:
    """The equation of each file that a config asks for."""
    return [equation_of(config)]


def generate(config: GenerateConfig, folder: Path, report: Report, overwrite: bool = False) -> list[Path]:
    """Make the files that `config` describes in `folder`, and return their paths."""
    return [_file(config, folder, report, overwrite)]


def _file(config: GenerateConfig, folder: Path, report: Report, overwrite: bool = False) -> Path:
    equation, device = equation_of(config), device_of(config.device)
    scheme = config.scheme or equation.schemes[0]
    equation.check_scheme(scheme)
    domain = equation.domain(config.resolution or equation.task.resolution)
    path = folder / file_name(equation.task, equation.params(), domain.shape[0], config.seed)
    plan = _plan(config, equation, domain, scheme)
    if overwrite:
        discard(path)
    elif path.exists():
        return _existing(path, plan)
    batch = batch_of(config, len(plan.times), domain, len(plan.task.channels), device)
    writer = Writer(path, plan)

    def tell(done: float) -> None:
        report(Progress(done, config.samples, path.name))

    # One thread writes a batch to disk while the next one is solved.
    with writer.open(), ThreadPoolExecutor(max_workers=1) as disk:
        pending: Future[None] | None = None
        for first in range(writer.done, config.samples, batch):
            tell(first)
            size = min(batch, config.samples - first)
            with watched(lambda share, first=first, size=size: tell(first + share * size)):  # type: ignore[misc]
                solved = _solve(equation, config, Job(first, batch, scheme, domain, device), plan)
            if pending is not None:
                pending.result()
            pending = disk.submit(writer.write, first, *solved)
        if pending is not None:
            pending.result()
        tell(config.samples)
        return writer.publish(_provenance(config, plan, scheme, batch, device, writer))


@dataclass(frozen=True)
class Job:
    """A batch to be solved: samples `first` … `first + size − 1`."""

    first: int
    size: int
    scheme: str
    domain: Domain
    device: torch.device


def _solve(
    equation: Equation, config: GenerateConfig, job: Job, plan: FileSpec
) -> tuple[Array, Array, dict[str, float]]:
    """Frames, inputs and measured laws of a batch. The last batch is solved whole and cut, so that a sample's bits do
    not depend on how many samples were asked for."""
    draw = Draw(config.seed, range(job.first, job.first + job.size), job.device, getattr(torch, plan.identity["dtype"]))
    keep = slice(0, config.samples - job.first)
    frames = equation.simulate(draw, job.domain, plan.times.tolist(), job.scheme)[keep].float()
    inputs = equation.inputs(draw, job.domain)[keep].float()
    _check_finite(frames, job.first, plan)
    stored, given = frames.cpu().numpy(), inputs.cpu().numpy()
    measured = {law.name: float(law.residual(frames, job.domain).max()) for law in equation.laws()}
    if job.first == 0:
        measured |= _residual(plan, stored, given)
    return stored, given, measured


def _residual(plan: FileSpec, frames: Array, inputs: Array) -> dict[str, float]:
    """What the first stored trajectories leave unexplained of their equation, 0 to 1, where its fields are stored."""
    few = [
        Trajectory(str(i), plan.task, frames[i], plan.domain, plan.times, plan.params, inputs[i])
        for i in range(min(2, len(frames)))
    ]
    found = [f.residual for f in fit(plan.task.name, few, plan.params) if not math.isnan(f.residual)]
    return {RESIDUAL: max(found)} if found else {}


def _plan(config: GenerateConfig, equation: Equation, domain: Domain, scheme: str) -> FileSpec:
    times = np.asarray(equation.times()[: config.frames])
    identity = {
        "task": config.task,
        "params": equation.params(),
        "scheme": scheme,
        "seed": config.seed,
        "samples": config.samples,
        "resolution": domain.shape[0],
        "frames": len(times),
        "dtype": config.dtype or DTYPES[scheme],
        "version": __version__,
    }
    return FileSpec(equation.spec(), equation.params(), domain, times, config.samples, identity)


def _existing(path: Path, plan: FileSpec) -> Path:
    with open_file(path) as file:
        made = json.loads(file.attrs.get("ups_identity", "{}"))
    wanted = json.loads(json.dumps(plan.identity))
    if made == wanted:
        return path
    other = ", ".join(f"{key} {made.get(key, 'unknown')}" for key in wanted if made.get(key) != wanted[key])
    raise ConfigError(f"{path}: is there already, with {other}; choose another --out, or replace it with --overwrite.")


def _check_finite(frames: Tensor, first: int, plan: FileSpec) -> None:
    bad = ~frames.flatten(2).isfinite().all(-1)
    if bool(bad.any()):
        sample, frame = (int(i) for i in bad.nonzero()[0])
        raise PhysicsError(
            f"{plan.task.name}: sample {first + sample} became infinite at t = {plan.times[frame]:g}; use another "
            f"resolution, scheme or parameter."
        )


def _provenance(
    config: GenerateConfig, plan: FileSpec, scheme: str, batch: int, device: torch.device, writer: Writer
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
