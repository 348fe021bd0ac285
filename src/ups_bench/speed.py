"""`ups bench speed`: how close training is to the device's limit, each ratio to a peer timed in turn with it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.engine.ranks.dist import device_of
from ups.parsing import read_record
from ups.provenance import environment
from ups.types import ConfigError, DataError
from ups_bench.numbers import measured_on, write_numbers
from ups_bench.speed_case import SpeedNumbers
from ups_bench.speed_large import large
from ups_bench.speed_steps import fsdp, protections, ranks, small
from ups_bench.speed_validation import validation
from ups_fleet.supervise.forked_functions import failure_of, run_ranks

Say = Callable[[str], None]

# What ratios should reach.
BARS: dict[str, tuple[str, float]] = {
    "graphs over a bare loop, speed": ("≥", 5.0),
    "two ranks as graphs before communication, each over one of two that never speak, speed": ("≥", 0.9),
    "transformer: TFLOP/s over those of matrix products": ("≥", 0.5),
    "transformer, compiled: TFLOP/s over those of matrix products": ("≥", 0.5),
    "unet: TFLOP/s over those of matrix products": ("≥", 0.5),
    "unet, compiled: TFLOP/s over those of matrix products": ("≥", 0.5),
    "every protection on over off on one rank, step time": ("≤", 1.02),
    "every protection on over off on two ranks, step time": ("≤", 1.02),
    "share of a run that its validations take": ("≤", 0.1),
}


@dataclass(frozen=True)
class SpeedJob:
    """A measurement in processes of its own, so that none fails or remembers for another."""

    what: str
    function: Callable[..., SpeedNumbers]
    world: int
    limit: float  # seconds after which it is given up
    args: tuple[Any, ...] = ()


# In this order: what takes long, and may be cut off, comes last.
PARTS: dict[str, tuple[SpeedJob, ...]] = {
    "small": (SpeedJob("small", small, 1, 60),),
    "protections": (
        SpeedJob("protections on one rank", protections, 1, 60, (1,)),
        SpeedJob("protections on two ranks", protections, 2, 90, (2,)),
    ),
    "validation": (SpeedJob("validation", validation, 1, 60),),
    "large": (
        SpeedJob("transformer", large, 1, 90, ("transformer", False)),
        SpeedJob("unet", large, 1, 90, ("unet", False)),
    ),
    "ranks": (
        SpeedJob("ddp on two ranks", ranks, 2, 90),
        SpeedJob("fsdp on one rank", fsdp, 1, 60, (1,)),
        SpeedJob("fsdp on two ranks", fsdp, 2, 90, (2,)),
    ),
    "compiled": (
        SpeedJob("transformer, compiled", large, 1, 180, ("transformer", True)),
        SpeedJob("unet, compiled", large, 1, 240, ("unet", True)),
    ),
}


def bench_speed(
    parts: Sequence[str] | None, device: str, seconds: float, json_path: Path | None, commit: str | None, say: Say
) -> int:
    """Measure part by part, and write what there is after each: 1 where something could not be measured.

    Parts of the file that are not measured now stay as they are.
    """
    if unknown := [name for name in parts or () if name not in PARTS]:
        raise ConfigError(f"there is no part '{unknown[0]}'; the parts are {', '.join(PARTS)}.")
    if seconds <= 0:
        raise ConfigError(f"--seconds {seconds:g} is no time to measure in; it is above 0.")
    place = device_of(device)
    known = earlier(json_path) if json_path else {}
    facts: dict[str, Any] = environment()
    git = facts["git"] or {}
    about = {
        **measured_on(place),
        "cores": facts["cores"],
        "started": facts["started"],
        "command": facts["command"],
        "commit": commit or git.get("commit"),
        "changed": git.get("changed"),
    }
    deadline, failed = time.monotonic() + seconds, False
    for name in [name for name in PARTS if not parts or name in parts]:
        known[name] = {**measure(name, str(place), deadline, say), "provenance": about}
        failed = failed or bool(known[name]["failures"])
        if json_path:
            ordered = {part: known[part] for part in PARTS if part in known}
            write_numbers(json_path, {"parts": ordered, "bars": BARS}, about)
    return int(failed)


def earlier(path: Path) -> dict[str, Any]:
    """The parts that a file of numbers has."""
    if not path.exists():
        return {}
    try:
        return dict(read_record(path)["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: holds no parts of `ups bench speed` ({error}); choose another --json.") from None


def measure(part: str, device: str, deadline: float, say: Say) -> dict[str, Any]:
    """All jobs of a part; one that fails is named, and the others go on."""
    began, numbers, failures = time.monotonic(), SpeedNumbers(), list[dict[str, str]]()
    for job in PARTS[part]:
        left = deadline - time.monotonic()
        if left <= 0:
            why = "its turn came when --seconds were over"
        else:
            results = run_ranks(job.function, job.world, device, *job.args, seconds=min(job.limit, left))
            why = failure_of(results)
            if not why:
                numbers.add(results[0].value)
                continue
        failures.append({"what": job.what, "why": why})
        say(f"{job.what}: not measured: {why}")
    took = time.monotonic() - began
    tell(part, numbers, took, say)
    return {**dataclasses.asdict(numbers), "failures": failures, "seconds": round(took, 1)}


def tell(part: str, numbers: SpeedNumbers, took: float, say: Say) -> None:
    say(f"{part}, {took:.0f} s")
    for row in numbers.rows:
        say(f"  {row['name']:<72} {ratio_of(row)}")
    for name, rate in numbers.rates.items():
        say(f"  {name}: {rate}")
    for name, spent in numbers.kernels.items():
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in spent["shares"].items())
        say(f"  kernels of {name}: {spent['milliseconds']:.3g} ms: {shares}")


def ratio_of(row: Mapping[str, Any]) -> str:
    if "why" in row:
        return f"not measured: {row['why']}"
    sign, bar = BARS.get(row["name"], ("", 0.0))
    goal = f"   to reach {sign} {bar:g}" if sign else ""
    return f"{row['ratio']:6.3f} ({row['low']:.3f} – {row['high']:.3f}){goal}   {row['seen']}".rstrip()
