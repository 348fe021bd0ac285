"""Decides quickly whether a run fits: adds up what is certain, and counts all only where that is much."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from ups.engine.memory import batches_memory, captures, held_memory
from ups.engine.ranks.dist import device_of
from ups.jobs.estimate.costs import KEPT, costs
from ups.models.frames_memory import free_memory
from ups.run.check import new_simulator
from ups.run.config import RunConfig
from ups.run.data.datasets import DataSet
from ups.run.data.outlines import Outline, outlines, shares_of
from ups.rundir import RunDir
from ups.types import ConfigError, data_size
from ups.verdict import StorageError

MUCH = 50  # times what is certain, below which there is so much memory that activations are not counted


def quick_estimate(config: RunConfig, folder: Path, opened: Sequence[DataSet] = ()) -> Sequence[str]:
    """What the run takes, in a sentence; ConfigError where it cannot fit in memory, StorageError on the disk. Data sets
    that are `opened` are not opened again.

    Weights, gradients, moments, averages, batches and resident data are certain. Where `MUCH` times as much is not
    free, activations and evaluations are counted too, on tensors without memory.
    """
    device, sets = device_of(config.device), outlines(config, opened)
    memory, disk = certain_memory(config, sets, device.type), certain_disk(config, sets)
    free, room = free_memory(device), shutil.disk_usage(folder).free
    if disk > room and not RunDir(folder).checkpoints().exists():
        raise StorageError(
            f"{folder}: the run writes about {data_size(disk)} of checkpoints, and {data_size(room)} are free; free "
            "some space, or name another `out`."
        )
    if memory > free:
        raise ConfigError(_lacks(memory, free, device.type, "use a smaller model, batch or data set"))
    if MUCH * memory < free:
        return ()
    needed = costs(config, device.type).needed * _processes(config, device.type)
    if needed <= free:
        return (f"estimate: {data_size(needed)} of tensors at the peak, and {data_size(free)} of memory are free.",)
    least = costs(config, device.type, 1).needed * _processes(config, device.type)
    if least > free:
        raise ConfigError(
            _lacks(least, free, device.type, "use a smaller model or grid, or train.activations recompute")
        )
    words = f"estimate: {data_size(needed)} of tensors at the peak, and only {data_size(free)} of memory are free"
    if device.type == "cuda":  # the probe finds the microbatch that fits
        return (f"{words}; the microbatch will be made smaller.",)
    raise ConfigError(f"{words}; set a smaller train.microbatch (`ups estimate` says which), or batch.")


def certain_memory(config: RunConfig, sets: Sequence[Outline], device: str) -> int:
    """Bytes that every stage has to hold at least, of the stage that holds most; of all processes on the host."""
    stages = []
    with torch.device("meta"):
        for name in config.plan:
            settings, simulator = config.stage(name), new_simulator(config, sets)
            stage, train = config.stages[name](simulator, settings), settings.train
            held = held_memory(stage.module, simulator, train, device, config.dist)
            windows = shares_of(config, name, [data for data in sets if stage.learns(data.task)])
            batches = batches_memory(windows, train, device, captures(train, device, config.dist))
            stages.append(held.without_gradients + held.gradients + batches)
    resident = sum(data.resident("train", "valid") for data in sets) if device == "cpu" else 0
    return (max(stages) + resident) * _processes(config, device)


def certain_disk(config: RunConfig, sets: Sequence[Outline]) -> int:
    """Bytes of the checkpoints that are kept, and of one that is written."""
    total = 0
    with torch.device("meta"):
        for name in config.plan:
            simulator = new_simulator(config, sets)
            stage = config.stages[name](simulator, config.stage(name))
            held = held_memory(stage.module, simulator, config.stage(name).train, "cpu", config.dist)
            total += (KEPT + 1) * (held.gradients + held.moments + 2 * held.best)
    return total


def _processes(config: RunConfig, device: str) -> int:
    """How many ranks share the memory."""
    return config.dist.ranks if device == "cpu" else 1


def _lacks(needed: int, free: int, device: str, remedy: str) -> str:
    whose = "the GPU" if device == "cuda" else "this machine"
    return (
        f"estimate: needs at least {data_size(needed)} of memory, and {data_size(free)} are free on {whose}; {remedy}."
    )
