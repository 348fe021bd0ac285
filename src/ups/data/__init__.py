"""Data: files and indices become Trajectories; nothing here knows a network or an equation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ups.data.folders import files_in, open_folder
from ups.data.joined import Joined, renamed, same_task, with_params_of
from ups.data.nan_mask import MASK, masked
from ups.data.readers import READERS
from ups.data.source import Reader, Source, blocks, check_path
from ups.data.unreadable import stranger
from ups.data.views import Defined
from ups.definition import Definition, TaskFacts
from ups.run_files import is_run
from ups.types import ARRAYS, ConfigError, DataError, TaskSpec

MOST_AXES = 3  # of space

__all__ = [
    "READERS",
    "Joined",
    "Reader",
    "Source",
    "blocks",
    "defined",
    "open_source",
    "open_together",
    "renamed",
    "same_task",
]


def open_source(path: str | Path, tasks: Mapping[str, TaskSpec], task: str | Definition | None = None) -> Source:
    """A lazy source over a file, opened by the first of READERS that recognises it, or over a folder of such files.

    `tasks` are the built-in tasks; `task` is what the user says of the one in the file: one of their names, a new name,
    a whole definition, or nothing where the file describes itself.
    """
    path, definition = Path(path), Definition.of(task)
    return defined(_opened(path, tasks, definition), definition, tasks)


def open_together(folder: Path, paths: Sequence[Path], tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:
    """One source over several files and folders below `folder`, all of one task."""
    with ExitStack() as stack:
        parts = [stack.enter_context(_opened(path, tasks, definition)) for path in paths]
        source = defined(Joined(folder, parts), definition, tasks)
        stack.pop_all()
    return source


def defined(source: Source, definition: Definition, tasks: Mapping[str, TaskSpec]) -> Source:
    """A source as one of the task that the user defines; NaN in fixed places of arrays become a mask."""
    if source.task.ndim > MOST_AXES:
        raise DataError(
            f"{source.path}: has {source.task.ndim} axes of space, and at most {MOST_AXES} are simulated; let one of "
            "them be channels, or samples."
        )
    if definition.ignore and source.task.storage.kind != ARRAYS:
        raise ConfigError(
            f"{source.path}: its format says what is in it, and nothing of that can be ignored; take `ignore` out of "
            "the task."
        )
    if definition.mask and source.task.domain != "grid":
        raise ConfigError(f"{source.path}: points need no mask; leave out those that do not count, and `mask`.")
    if source.nan_is_mask and source.task.domain == "grid" and definition.mask not in source.task.given:
        source = masked(source, wanted=definition.mask == MASK)
    spec = TaskFacts.of(definition, source.task, tasks, str(source.path)).task
    source = with_params_of(source, spec)
    _note_replaced(source, definition)
    if spec == source.task and not definition.parameters:
        return source
    return Defined(source, spec, definition.parameters, definition.bounds, definition.periodic is not None)


def _note_replaced(source: Source, definition: Definition) -> None:
    """Say which parameters of a source the task replaces: a note, or a problem where those of samples differ."""
    for name, value in definition.parameters.items():
        stated = [params[name] for i in range(len(source)) if name in (params := source.params_of(i))]
        own = dict.fromkeys(v if isinstance(v, str) else float(np.float32(v)) for v in stated)  # as networks hear it
        value = value if isinstance(value, str) else float(np.float32(value))
        words = definition.parameters[name]
        if len(own) > 1:
            why = f"{name} has {len(own)} values in the files and is {words} in the task, so that samples look alike"
            source.problems = (*source.problems, f"{why}; take it out of the task's parameters")
        elif own and value not in own:
            source.notes = (*source.notes, f"{name} is {words}, as the task says, and {stated[0]} in the files")


def _opened(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:
    """The source of a path as its reader gives it; that of a folder, joined from those of its files."""
    check_path(path)
    for reader in READERS.values():
        if reader.sniff(path):
            return reader.open(path, tasks, definition)
    suffixes = list(dict.fromkeys(s for reader in READERS.values() for s in reader.suffixes))
    files = files_in(path, suffixes) if path.is_dir() else []
    if not files or is_run(os.listdir(path)):
        raise stranger(path, READERS, suffixes)
    return open_folder(path, files, lambda file: _opened(file, tasks, definition))
