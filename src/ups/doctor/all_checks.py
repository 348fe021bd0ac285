"""Every check of the doctor in its order, each in processes of its own, as lines that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ups.doctor import machine_checks, package_checks
from ups.doctor.findings import Check, Finding, Line, bad, run_check
from ups.doctor.rank_checks import GROUP, PRELOAD, RankChecks
from ups.supervise.forked import failure_of, run, warm

if TYPE_CHECKING:
    from ups.run.config import RunConfig

QUICK = 15.0  # seconds for a check without ranks


def all_checks(
    ranks: int = 2,
    device: str = "auto",
    folder: Path = Path("runs"),
    rendezvous: str = "",
    limit: float = 60.0,
    config: RunConfig | None = None,
) -> Iterator[Line]:
    """Check this machine, then real ranks on it, then a config's own model on them, if there is one."""
    warm(PRELOAD)
    for check in quick_checks(ranks, folder, rendezvous):
        yield run_check(check)
    checks = RankChecks(ranks, device, folder, limit)
    checks.start_killed_rank()
    try:
        for name, work in {
            "devices": checks.devices,
            "backends": checks.backends,
            "shared files": checks.files,
            "collectives": checks.collectives,
            "bandwidth": checks.bandwidth,
            "ddp training": lambda: checks.training("ddp"),
            "fsdp training": lambda: checks.training("fsdp"),
            "checkpoint": checks.checkpoint,
            "memory fault": checks.memory_fault,
            "killed rank": checks.killed_rank,
        }.items():
            yield run_check(Check(GROUP, name, work))
    finally:
        checks.close()
    if config is not None:
        from ups.doctor.model_checks import model_checks  # imports torch, which this process needs for nothing else

        yield from model_checks(config, ranks, "cpu" if checks.device == "auto" else checks.device, limit)


def quick_checks(ranks: int, folder: Path, rendezvous: str = "") -> list[Check]:
    """The checks that start no rank."""

    def check(group: str, name: str, function: Callable[..., Finding], *args: Any) -> Check:
        return Check(group, name, lambda: guarded(function, *args))

    return [
        check("packages", "python", package_checks.python),
        check("packages", "required", package_checks.required),
        check("packages", "optional", package_checks.optional),
        check("machine", "environment", machine_checks.environment),
        check("machine", "cores", machine_checks.cores, ranks),
        check("machine", "memory", machine_checks.memory, ranks),
        check("machine", "shared memory", machine_checks.shared_memory, ranks),
        check("machine", "disk", machine_checks.disk, folder),
        check("machine", "file system", machine_checks.file_system, folder),
        check("machine", "open files", machine_checks.descriptors, ranks),
        check("machine", "clock", machine_checks.clock, folder),
        check("machine", "ports", machine_checks.ports, rendezvous),
    ]


def guarded(function: Callable[..., Finding], *args: Any, seconds: float = QUICK) -> Finding:
    """A check made in a child process: if it raises, crashes or hangs (a dead network disk), that is the finding."""
    results = run(_apply, 1, function, args, seconds=seconds, method="fork")
    if text := failure_of(results):
        advice = "repair what is named here, or choose another folder."
        return bad(text, advice if any(isinstance(a, Path) for a in args) else "repair what is named here.")
    finding: Finding = results[0].value
    return finding


def _apply(function: Callable[..., Finding], args: tuple[Any, ...]) -> Finding:
    return function(*args)
