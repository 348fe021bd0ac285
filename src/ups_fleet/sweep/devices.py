"""Where the runs of a sweep go: one at a time on each GPU; on CPUs so many as are asked for share the cores."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ups.types import ConfigError, counted

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time: its device (empty: the config's own) and the variables of its process."""

    device: str
    variables: tuple[tuple[str, str], ...] = ()


def slots_of(devices: Sequence[str], jobs: int | None, device: str, gpus: int) -> list[Slot]:
    """The places of a sweep. `device` is what the config asks for, `gpus` how many there are on this machine.

    On GPUs, one run each. CPU runs side by side share the cores, unless the environment says how many threads to use.
    """
    for name in devices:
        if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
            raise ConfigError(f"--devices: '{name}' is no device; write cpu, cuda or cuda:N, with commas between.")
        if name != "cpu" and int(name.partition(":")[2] or 0) >= gpus:
            raise ConfigError(f"--devices: there is no {name} here; this machine has {gpus or 'no'} CUDA devices.")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, but at least 1 run goes on at a time.")
    named = list(devices) or _own(device, gpus, jobs)
    real = [name for name in named if name.startswith("cuda")]
    if len(set(real)) < len(real):
        raise ConfigError(f"--devices names {max(real, key=real.count)} twice; one run goes on each device at a time.")
    if real and jobs is not None and jobs > len(named):
        raise ConfigError(
            f"--jobs is {jobs}, but {counted(len(named), 'device')} can take one run each; name more, or lower it."
        )
    count = jobs or len(named)
    chosen = [named[i % len(named)] for i in range(count)]
    on_cpu = sum(name == "cpu" for name in chosen) or (count if not real else 0)
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, on_cpu))
    shared = () if THREADS in os.environ else ((THREADS, str(threads)),)
    return [Slot(name, () if name.startswith("cuda") else shared) for name in chosen]


def _own(device: str, gpus: int, jobs: int | None) -> list[str]:
    """The devices where none are named: those of the config."""
    if device != "auto":
        return [device]
    return [f"cuda:{number}" for number in range(min(gpus, jobs or 1))] if gpus else ["cpu"]
