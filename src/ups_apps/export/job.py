"""Export: a simulator, the task and the grid that are exported, and where to; what every format is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ups.models import Simulator
from ups.types import Grid, TaskSpec


@dataclass(frozen=True)
class Export:
    """What is to be written.

    Args:
        simulator: In evaluation mode, on the CPU, without gradients.
        tasks: Those that are exported; formats of one task are given one.
        out: The file, which is not there yet.
        say: Is told what somebody should know.
    """

    simulator: Simulator
    tasks: tuple[TaskSpec, ...]
    out: Path
    say: Callable[[str], None]

    @property
    def task(self) -> TaskSpec:
        """The one task."""
        (task,) = self.tasks
        return task

    def grid(self, task: TaskSpec) -> Grid:
        """The grid that a task was trained on."""
        return Grid(self.simulator.codec.shapes[task.name], task.periodic, task.bounds)


class Writer(Protocol):
    """A format: writes an export to its file."""

    def __call__(self, export: Export) -> None:
        """Write it; a ConfigError that says why where it cannot be done."""
