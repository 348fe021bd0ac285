"""The memory of this machine: how much is left, and how often the kernel has killed because it ran out."""

from __future__ import annotations

from pathlib import Path


def available() -> tuple[int, int]:
    """Bytes that can still be taken, and bytes in all: of the control group if it has a limit, else of the machine."""
    free, total = _meminfo("MemAvailable"), _meminfo("MemTotal")
    group = _group()
    if group is not None:
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None and limit < total:
            reclaimable = _fields(group / "memory.stat").get("inactive_file", 0)
            return min(free, max(0, limit - used + reclaimable)), limit
    return free, total


def kills() -> int:
    """How often the kernel has killed for lack of memory: in our control group where it counts, else anywhere."""
    group = _group()
    if group is not None and (events := _fields(group / "memory.events")):
        return events.get("oom_kill", 0)
    return _fields(Path("/proc/vmstat")).get("oom_kill", 0)


def _group() -> Path | None:
    """This process's control group (version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::"):
            group = Path("/sys/fs/cgroup") / line[3:].lstrip("/")
            return group if (group / "memory.events").exists() else None
    return None


def _meminfo(name: str) -> int:
    return _fields(Path("/proc/meminfo")).get(f"{name}:", 0) * 1024


def _fields(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
