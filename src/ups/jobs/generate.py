"""Equation → file: draws, solves and writes batch after batch, and goes on where a killed run stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ups.data.layouts import Plan, file_name
from ups.data.source import open_file
from ups.data.write import Writer, discard
from ups.jobs.settings import GenerateConfig
from ups.physics import EQUATIONS
from ups.physics.random import Draw
from ups.physics.solver import Equation
from ups.types import ConfigError, Domain, PhysicsError

# Bytes of one batch of frames; what a solver needs beside them is a few times that.
CPU_BATCH, CUDA_BATCH = 2**28, 2**32


@dataclass(frozen=True)
class Progress:
    """How far a generation is: samples done, of how many, and the name of the file."""

    done: int
    total: int
    name: str


Report = Callable[[Progress], None]


def equation_of(config: GenerateConfig) -> Equation:
    """The equation with the config's parameters; the config has checked that it exists and knows them."""
    return EQUATIONS[config.task](**config.params)


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is one; anything else must exist."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is '{name}', but torch sees no CUDA device here; use --device cpu.")
    return torch.device(name)


def batch_of(config: GenerateConfig, frames: int, domain: Domain, channels: int, device: torch.device) -> int:
    """The batch asked for, or the largest that fits, all batches of a file being of one size."""
    if config.batch:
        return config.batch
    sample = 8 * frames * math.prod(domain.shape) * channels
    most = max(1, min(config.samples, 4096 if device.type == "cuda" else 128, _budget(device) // sample))
    return math.ceil(config.samples / math.ceil(config.samples / most))


def _budget(device: torch.device) -> int:
    return CUDA_BATCH if device.type == "cuda" else CPU_BATCH


def generate(config: GenerateConfig, folder: Path, report: Report, overwrite: bool = False) -> Path:
    """Make the file that `config` describes in `folder`, and return its path."""
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
    with writer.open():
        for first in range(writer.done, config.samples, batch):
            report(Progress(first, config.samples, path.name))
            draw = Draw(config.seed, range(first, first + batch), device, getattr(torch, config.dtype))
            frames = equation.simulate(draw, domain, equation.times(), scheme)
            keep = min(batch, config.samples - first)
            stored, inputs = frames[:keep], equation.inputs(draw, domain)[:keep]
            _check_finite(stored, first, plan)
            writer.write(first, _array(stored), _array(inputs), _measure(equation, stored, domain, first))
        report(Progress(config.samples, config.samples, path.name))
        return writer.publish(_provenance(config, plan, scheme, batch, device, writer))


def _plan(config: GenerateConfig, equation: Equation, domain: Domain, scheme: str) -> Plan:
    identity = {
        "task": config.task,
        "params": equation.params(),
        "scheme": scheme,
        "seed": config.seed,
        "samples": config.samples,
        "resolution": domain.shape[0],
        "dtype": config.dtype,
        "version": version("universal-physics-stack"),
    }
    return Plan(equation.spec(), equation.params(), domain, np.asarray(equation.times()), config.samples, identity)


def _existing(path: Path, plan: Plan) -> Path:
    with open_file(path) as file:
        made = json.loads(file.attrs.get("ups_identity", "{}"))
    wanted = json.loads(json.dumps(plan.identity))
    if made == wanted:
        return path
    other = ", ".join(f"{key} {made.get(key, 'unknown')}" for key in wanted if made.get(key) != wanted[key])
    raise ConfigError(f"{path}: is there already, with {other}; choose another --out, or replace it with --overwrite.")


def _check_finite(frames: Tensor, first: int, plan: Plan) -> None:
    bad = ~frames.flatten(2).isfinite().all(-1)
    if bool(bad.any()):
        sample, frame = (int(i) for i in bad.nonzero()[0])
        raise PhysicsError(
            f"{plan.task.name}: sample {first + sample} became infinite at t = {plan.times[frame]:g}; use another "
            f"resolution, scheme or parameter."
        )


def _measure(equation: Equation, frames: Tensor, domain: Domain, first: int) -> dict[str, float]:
    """The largest violation of each law in a batch, and, once per file, how well the stored data obey the equation."""
    stored = frames.float()
    found = {law.name: float(law.residual(stored, domain).max()) for law in equation.laws()}
    return found


def _array(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return values.to("cpu", torch.float32).numpy()


def _provenance(
    config: GenerateConfig, plan: Plan, scheme: str, batch: int, device: torch.device, writer: Writer
) -> dict[str, object]:
    laws = {name: max(batch[name] for batch in writer.measured) for name in writer.measured[0]}
    return {
        "ups_task": config.task,
        "ups_scheme": scheme,
        "ups_seed": config.seed,
        "ups_version": version("universal-physics-stack"),
        "ups_identity": json.dumps(plan.identity),
        "ups_batch": batch,
        "ups_device": device.type,
        "ups_laws": json.dumps(laws),
    }
