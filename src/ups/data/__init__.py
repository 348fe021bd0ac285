"""Data: files and indices become Trajectories; nothing here knows a network or an equation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ups.data.pdebench import open_pdebench
from ups.data.source import Source, blocks, duplicates
from ups.data.well import is_well, open_well
from ups.types import ConfigError, TaskSpec

__all__ = ["READERS", "Source", "blocks", "duplicates", "open_source"]

READERS: Mapping[str, Callable[[Path, Mapping[str, TaskSpec], str | None], Source]] = {
    "pdebench": open_pdebench,
    "well": lambda path, tasks, task: open_well(path),  # noqa: ARG005  (a Well file describes itself)
}


def open_source(path: str | Path, tasks: Mapping[str, TaskSpec], task: str | None = None) -> Source:
    """A lazy source over a file, or over a folder of The Well's files (`<base>/<name>/data/train`).

    `tasks` are the tasks a PDEBench file may hold; `task` names the one it does hold, where the file does not say so.
    """
    path = Path(path)
    reader = "well" if is_well(path) else "pdebench"
    source = READERS[reader](path, tasks, task)
    if task is not None and source.task.name != task:
        raise ConfigError(f"{path}: describes itself as {source.task.name}, not as task {task}; leave --task out.")
    return source
