"""A folder of files as one source: each file is a part of it, and ids are paths within the folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from ups.data.joined import Joined
from ups.data.source import Source, View


def files_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files and stores below a folder whose names end so, sorted; hidden ones are left out."""
    return sorted(_walk(folder, tuple(suffixes), set()))


def open_folder(folder: Path, files: list[Path], open_file: Callable[[Path], Source]) -> Source:
    """One source over files of a folder. The id of a sample is the path of its file within the folder, without its
    suffix, and its id there where the file holds several: `train/a/000003`."""
    parts = [open_file(file) for file in files]
    joined = Joined(folder, parts, ids=[name for part in parts for name in _ids(folder, part)])
    if len({part.task.name for part in parts}) == 1:
        return joined
    # Files that say nothing of their task are called after themselves; together they are called after the folder.
    title = folder.name.replace("_", " ")
    return View(joined, task=dataclasses.replace(joined.task, name=folder.name, title=title))


def _ids(folder: Path, part: Source) -> Iterator[str]:
    stem = part.path.relative_to(folder).with_suffix("").as_posix()
    return iter((stem,)) if len(part) == 1 else (f"{stem}/{name}" for name in part.ids)


def _walk(folder: Path, suffixes: tuple[str, ...], visited: set[tuple[int, int]]) -> Iterator[Path]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in visited:  # a link that leads back
        return
    visited.add((status.st_dev, status.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(suffixes):
                yield Path(entry.path)
            elif entry.is_dir():
                yield from _walk(Path(entry.path), suffixes, visited)
