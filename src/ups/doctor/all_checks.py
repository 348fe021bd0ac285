"""A visit: every check in its order, each apart from the others, as lines that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ups.doctor import machine_checks, package_checks
from ups.doctor.findings import Check, Finding, Line, bad, look
from ups.doctor.rank_checks import GROUP, PRELOAD, Rounds
from ups.supervise.forked import blamed, run, warm

if TYPE_CHECKING:
    from ups.jobs.settings import RunConfig

QUICK = 15.0  # seconds for a check that only looks


def visit(
    ranks: int = 2,
    device: str = "auto",
    folder: Path = Path("runs"),
    rendezvous: str = "",
    limit: float = 60.0,
    config: RunConfig | None = None,
) -> Iterator[Line]:
    """Look at this machine, then at real ranks on it, then at a config's own model on them, if there is one."""
    warm(PRELOAD)
    for check in looks(ranks, folder, rendezvous):
        yield look(check)
    rounds = Rounds(ranks, device, folder, limit)
    rounds.begin_supervising()
    try:
        for name, work in {
            "devices": rounds.devices,
            "backends": rounds.backends,
            "shared files": rounds.files,
            "collectives": rounds.collectives,
            "bandwidth": rounds.bandwidth,
            "ddp training": lambda: rounds.steps("ddp"),
            "fsdp training": lambda: rounds.steps("fsdp"),
            "checkpoint": rounds.checkpoint,
            "memory fault": rounds.fault,
            "killed rank": rounds.killed,
        }.items():
            yield look(Check(GROUP, name, work))
    finally:
        rounds.close()
    if config is not None:
        from ups.doctor.model_checks import examine  # torch, which this process does without otherwise

        yield from examine(config, ranks, "cpu" if rounds.device == "auto" else rounds.device, limit)


def looks(ranks: int, folder: Path, rendezvous: str = "") -> list[Check]:
    """What can be seen without starting a rank."""

    def check(group: str, name: str, function: Callable[..., Finding], *args: Any) -> Check:
        return Check(group, name, lambda: guarded(function, *args))

    return [
        check("packages", "python", packages.python),
        check("packages", "required", packages.required),
        check("packages", "optional", packages.optional),
        check("machine", "environment", machine.environment),
        check("machine", "cores", machine.cores, ranks),
        check("machine", "memory", machine.memory, ranks),
        check("machine", "shared memory", machine.shared_memory, ranks),
        check("machine", "disk", machine.disk, folder),
        check("machine", "file system", machine.file_system, folder),
        check("machine", "open files", machine.descriptors, ranks),
        check("machine", "clock", machine.clock, folder),
        check("machine", "ports", machine.ports, rendezvous),
    ]


def guarded(function: Callable[..., Finding], *args: Any, seconds: float = QUICK) -> Finding:
    """A look made in a child: where it raises, crashes or hangs (a dead network disk), that is what was found."""
    results = run(_in_place, 1, function, args, seconds=seconds, method="fork")
    if text := blamed(results):
        advice = "repair what is named here, or choose another folder."
        return bad(text, advice if any(isinstance(a, Path) for a in args) else "repair what is named here.")
    found: Finding = results[0].value
    return found


def _in_place(function: Callable[..., Finding], args: tuple[Any, ...]) -> Finding:
    return function(*args)
