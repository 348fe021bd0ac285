"""Data: files and indices become Trajectories; nothing here knows a network or an equation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ups.data.readers import READERS
from ups.data.source import Reader, Source, blocks, check_path, duplicates
from ups.types import ConfigError, DataError, TaskSpec

__all__ = ["READERS", "Reader", "Source", "blocks", "duplicates", "open_source"]


def open_source(path: str | Path, tasks: Mapping[str, TaskSpec], task: str | None = None) -> Source:
    """A lazy source over a file or a folder, opened by the first of READERS that recognises it.

    `tasks` are the tasks a file may hold; `task` names the one it does hold, where the file does not say so.
    """
    path = Path(path)
    check_path(path)
    for reader in READERS.values():
        if reader.sniff(path):
            source = reader.open(path, tasks, task)
            break
    else:
        raise _unknown(path)
    if task is not None and source.task.name != task:
        raise ConfigError(f"{path}: describes itself as {source.task.name}, not as task {task}; leave --task out.")
    return source


def _unknown(path: Path) -> DataError:
    """The error of a path that no reader recognises."""
    names = ", ".join(READERS)
    if path.is_dir():
        return DataError(
            f"{path}: holds no .hdf5 file, nor anything else that can be read ({names}); fetch the data or name "
            "another folder."
        )
    return DataError(
        f"{path}: is not an HDF5 file, nor anything else that can be read ({names}), or is damaged; check what it is "
        "and fetch it again."
    )
