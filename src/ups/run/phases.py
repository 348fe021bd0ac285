"""Where the time of a run went: seconds by phase, from the start of its first process on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def process_started() -> float:
    """When this process was started, by the wall clock; now, where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))


class Phases:
    """Seconds by phase, in the order in which phases began; a phase that comes again is added up."""

    def __init__(self, begun: Mapping[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(begun or {})

    @classmethod
    def since(cls, began: float | None = None) -> Phases:
        """Phases that begin with the time since the command `began`: `start` until this process was started, `imports`
        in it until now. What this process did before the command is not counted."""
        mine = process_started()
        command = mine if began is None else began
        return cls({"start": max(0.0, mine - command), "imports": time.time() - max(mine, command)})

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def before(self, name: str, seconds: float) -> None:
        """Say of the time before the run that so much of it went to a phase, and not to imports."""
        self.seconds["imports"] = max(0.0, self.seconds.get("imports", 0.0) - seconds)
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def divide(self, name: str, parts: Mapping[str, float]) -> None:
        """Say of a phase what its time was spent on; what `parts` do not account for is the rest of it."""
        whole = self.seconds.pop(name)
        rest = max(0.0, whole - sum(parts.values()))
        for part, seconds in (*parts.items(), ("the rest", rest)):
            key = f"{name.removeprefix('stage ')}: {part}"
            self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def rows(self) -> tuple[tuple[str, float], ...]:
        return tuple(self.seconds.items())
