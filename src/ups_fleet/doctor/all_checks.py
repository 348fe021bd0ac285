"""Every check of the doctor in its order, each in processes of its own, as lines that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ups_fleet.doctor import machine_checks
from ups_fleet.doctor.findings import DoctorLine, Finding, bad, run_check
from ups_fleet.doctor.rank_checks import GROUP, PRELOAD, RankChecks
from ups_fleet.supervise.forked_functions import failure_of, run_copy, warm

if TYPE_CHECKING:
    from ups.run.config import RunConfig

QUICK = 15.0  # seconds for a check without ranks


def all_checks(
    ranks: int, device: str, folder: Path, rendezvous: str, limit: float, config: RunConfig | None
) -> Iterator[DoctorLine]:
    """Check this machine, then real ranks on it, then a config's own model on them, if there is one."""
    warm(PRELOAD)
    interface = (config.dist.interface if config is not None else None) or ""
    for group, name, function, *args in quick_checks(ranks, folder, rendezvous, interface):
        yield run_check(group, name, partial(guarded, function, *args))
    checks = RankChecks(ranks, device, folder, limit)
    try:
        for name, work in {
            "devices": checks.devices,
            "backends": checks.backends,
            "listening": checks.listening,
            "shared files": checks.files,
            "collectives": checks.collectives,
            "bandwidth": checks.bandwidth,
            "ddp training": lambda: checks.training("ddp"),
            "fsdp training": lambda: checks.training("fsdp"),
            "checkpoint": checks.checkpoint,
            "memory fault": checks.memory_fault,
            "killed rank": checks.killed_rank,
        }.items():
            yield run_check(GROUP, name, work)
    finally:
        checks.close()
    if config is not None:
        from ups_fleet.doctor.model_checks import (
            model_checks,  # imports torch, which this process needs for nothing else
        )

        yield from model_checks(config, ranks, "cpu" if checks.device == "auto" else checks.device, limit)


def quick_checks(ranks: int, folder: Path, rendezvous: str = "", interface: str = "") -> list[tuple[Any, ...]]:
    """The checks that start no rank: the group and name of each, its function and what that is given."""
    return [
        ("packages", "python", machine_checks.python),
        ("packages", "required", machine_checks.required),
        ("packages", "optional", machine_checks.optional),
        ("machine", "environment", machine_checks.environment),
        ("machine", "cores", machine_checks.cores, ranks),
        ("machine", "memory", machine_checks.memory, ranks),
        ("machine", "shared memory", machine_checks.shared_memory, ranks),
        ("machine", "disk", machine_checks.disk, folder),
        ("machine", "file system", machine_checks.file_system, folder),
        ("machine", "open files", machine_checks.descriptors, ranks),
        ("machine", "clock", machine_checks.clock, folder),
        ("machine", "ports", machine_checks.ports, rendezvous),
        ("machine", "network", machine_checks.network, interface),
    ]


def guarded(function: Callable[..., Finding], *args: Any, seconds: float = QUICK) -> Finding:
    """A check made in a child process: if it raises, crashes or hangs (a dead network disk), that is the finding."""
    result = run_copy(function, *args, seconds=seconds)
    if text := failure_of([result]):
        advice = "repair what is named here, or choose another folder."
        return bad(text, advice if any(isinstance(a, Path) for a in args) else "repair what is named here.")
    finding: Finding = result.value
    return finding
