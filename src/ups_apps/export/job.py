"""Export: a simulator, the task and the grid that are exported, and where to; what every format is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ups.models import Simulator
from ups.types import Grid, TaskSpec


@dataclass(frozen=True)
class Export:
    """What is to be written.

    Args:
        simulator: In evaluation mode, on the CPU, without gradients.
        run: The folder or file that it was loaded from.
        tasks: Those that are exported; formats of one task are given one.
        out: The file, which is not there yet.
        say: Is told what somebody should know.
    """

    simulator: Simulator
    run: Path
    tasks: tuple[TaskSpec, ...]
    out: Path
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        """What the simulator is called: its run, or its file."""
        return self.run.resolve().name if self.run.is_dir() else self.run.stem

    @property
    def task(self) -> TaskSpec:
        """The one task."""
        (task,) = self.tasks
        return task

    def grid(self, task: TaskSpec) -> Grid:
        """The grid that a task was trained on."""
        return Grid(self.simulator.codec.shapes[task.name], task.periodic, task.bounds)


@dataclass(frozen=True)
class ExportFormat:
    """What writes an export to its file, or says in a ConfigError why it cannot; whether a file holds several tasks."""

    write: Callable[[Export], None]
    several: bool = False
