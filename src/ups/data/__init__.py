"""Data: files and indices become Trajectories; nothing here knows a network or an equation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ups.data.joined import Joined, renamed, same_task
from ups.data.readers import READERS
from ups.data.source import Defined, Reader, Source, blocks, check_path, duplicates
from ups.definition import Definition
from ups.types import DataError, TaskSpec

__all__ = ["READERS", "Joined", "Reader", "Source", "blocks", "duplicates", "open_source", "renamed", "same_task"]


def open_source(path: str | Path, tasks: Mapping[str, TaskSpec], task: str | Definition | None = None) -> Source:
    """A lazy source over a file or a folder, opened by the first of READERS that recognises it.

    `tasks` are the built-in tasks; `task` is what the user says of the one in the file: one of their names, a new name,
    a whole definition, or nothing where the file describes itself.
    """
    path, definition = Path(path), Definition.of(task)
    check_path(path)
    for reader in READERS.values():
        if reader.sniff(path):
            source = reader.open(path, tasks, definition)
            break
    else:
        raise _unknown(path)
    spec = definition.applied(source.task, tasks, str(path))
    if spec == source.task and not definition.parameters:
        return source
    return Defined(source, spec, definition.parameters, definition.boxed)


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
