"""`ups bench growth`: how step time grows with cells, tokens, samples, parameters, tasks; start time with data."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ups.engine.ranks.dist import device_of
from ups.files import writing
from ups.jobs.estimate.timing import timed_stage
from ups.pages.charts import Curve, chart
from ups.run.config import RunConfig, run_config
from ups.types import ConfigError
from ups_bench.growth_start import BARS, SIZES, start_seconds
from ups_bench.numbers import measured_on, write_numbers

TASKS = ("burgers1d", "advection1d", "ks1d", "kdv1d")
TOKENS = 64  # where tokens do not grow
START = "start"  # of a whole run, by samples on disk


@dataclass(frozen=True)
class GrowthAxis:
    """Something that grows while all else stays, and the exponent that its cost should stay below."""

    name: str
    unit: str
    values: Mapping[str, tuple[int, ...]]  # by kind of device
    settings: Callable[[int], dict[str, Any]]
    bar: float | None = None


@dataclass(frozen=True)
class Measured:
    """Seconds of a step along an axis."""

    axis: str
    core: str
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """The power of size with which seconds grow, fitted to the larger half of the sizes: what does not grow rules
        small ones."""
        keep = max(2, math.ceil(len(self.sizes) / 2))
        x, y = (np.log(values[-keep:]) for values in (self.sizes, self.seconds))
        return float(np.polyfit(x, y, 1)[0])


def settings_of(
    core: str, cells: int = 256, patch: int = 4, batch: int = 16, width: int = 64, tasks: Sequence[str] = TASKS[:1]
) -> dict[str, Any]:
    """A run whose operator is timed; no data of it are ever made."""
    model = {
        "codec": {"dim": max(16, patch), "patch": [patch, patch, 2]},
        "operator": {"core": core, "mixing": "attention", "width": width, "depth": 4, "heads": 4},
    }
    data = {name: {"task": name, "samples": 64, "resolution": cells} for name in tasks}
    operator = {"batch": batch, "loss": {"increment": 0.0}}
    return {"name": "growth", "data": data, "model": model, "operator": operator}


AXES = (
    GrowthAxis(
        "tokens",
        "tokens",
        {"cpu": (64, 128, 256, 512, 1024), "cuda": (256, 512, 1024, 2048, 4096, 8192)},
        lambda n: {"cells": 4 * n},
        1.1,
    ),
    GrowthAxis(
        "cells",
        "cells, in as many tokens",
        {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 4096, 16384, 65536)},
        lambda n: {"cells": n, "patch": n // TOKENS},
        1.1,
    ),
    GrowthAxis(
        "samples", "samples", {"cpu": (8, 16, 32, 64), "cuda": (64, 256, 1024, 4096)}, lambda n: {"batch": n}, 1.1
    ),
    GrowthAxis(
        "width", "width", {"cpu": (64, 128, 256, 512), "cuda": (256, 512, 1024, 2048)}, lambda n: {"width": n}, 2.1
    ),
    GrowthAxis("tasks", "tasks", {"cpu": (1, 2, 4), "cuda": (1, 2, 4)}, lambda n: {"tasks": TASKS[:n]}, 0.1),
)


def measure(
    axis: GrowthAxis, core: str, device: torch.device, seconds: float, rounds: int, say: Callable[[str], None]
) -> Measured:
    """Each size in turn, several times over; the quickest counts, since others on the machine only ever slow it."""
    sizes = axis.values[device.type]
    configs: list[RunConfig] = [run_config().model_validate(settings_of(core, **axis.settings(n))) for n in sizes]
    times: list[list[float]] = [[] for _ in sizes]
    for _ in range(rounds):
        for size, row, config in zip(sizes, times, configs, strict=True):
            row.append(timed_stage(config, "operator", device, seconds).seconds)
            if row[-1] >= seconds:  # also what timed_stage gives where no step at all could be timed
                raise ConfigError(f"steps of {size} {axis.unit} take longer than --seconds {seconds:g}; give more.")
    best = tuple(min(row) for row in times)
    spread = statistics.median(max(row) / min(row) for row in times)
    measured = Measured(axis.name, core, tuple(map(float, sizes)), best)
    bar = f"to reach ≤ {axis.bar}" if axis.bar is not None else ""
    steps = ", ".join(f"{n}: {1e3 * s:.3g}" for n, s in zip(sizes, best, strict=True))
    say(
        f"{axis.name:<8} {core:<12} {measured.exponent:5.2f}   {bar}   ms by {axis.unit}: {steps} (spread {spread:.2f})"
    )
    return measured


def measure_start(rounds: int, say: Callable[[str], None]) -> list[Measured]:
    """Seconds from the command of a run to its first step, by samples on disk: the first run on them, and the next."""
    measurements = [
        Measured(kind, "command", tuple(map(float, SIZES)), s) for kind, s in start_seconds(rounds, say).items()
    ]
    for row in measurements:
        shown = ", ".join(f"{n:.0f}: {s:.3g}" for n, s in zip(row.sizes, row.seconds, strict=True))
        say(f"{row.axis:<12} {row.exponent:5.2f}   to reach ≤ {BARS[row.axis]}   s by samples on disk: {shown}")
    return measurements


def bench_growth(
    axes: Sequence[str] | None,
    cores: Sequence[str],
    device: str,
    seconds: float,
    rounds: int,
    json_path: Path | None,
    plot: Path | None,
    say: Callable[[str], None],
) -> None:
    """Measure every axis with every core; print the exponents, write the numbers, and draw them."""
    names = [*(axis.name for axis in AXES), START]
    if unknown := [name for name in axes or () if name not in names]:
        raise ConfigError(f"nothing grows along '{unknown[0]}'; the axes are {', '.join(names)}.")
    if seconds <= 0 or rounds < 1:
        raise ConfigError(f"--seconds {seconds:g} and --rounds {rounds} measure nothing; both are above 0.")
    place = device_of(device)
    chosen = [axis for axis in AXES if not axes or axis.name in axes]
    steps = [measure(axis, core, place, seconds, rounds, say) for axis in chosen for core in cores]
    starts = measure_start(rounds, say) if not axes or START in axes else []
    rows = [*steps, *starts]
    if json_path:
        facts = [
            {"axis": r.axis, "core": r.core, "sizes": r.sizes, "seconds": r.seconds, "exponent": r.exponent}
            for r in rows
        ]
        bars = {**{axis.name: axis.bar for axis in chosen}, **(BARS if starts else {})}
        write_numbers(json_path, {"growth": facts, "bars": bars}, {**measured_on(place), "rounds": rounds})
    if plot and steps:
        curves = [
            Curve(f"{r.axis}, {r.core}: {r.exponent:.2f}", np.divide(r.sizes, r.sizes[0]), np.array(r.seconds))
            for r in steps
        ]
        picture = chart(curves, "times the smallest", "seconds of a step", log_x=True)
        with writing(plot, "choose another --plot") as beside:
            beside.write_bytes(base64.b64decode(picture.partition(",")[2]))
