"""Finds the directory from which a config's relative paths count: this one, or where its run was started."""

from __future__ import annotations

import glob
from contextlib import suppress
from pathlib import Path

from ups.files import is_pattern
from ups.run.config import RunConfig
from ups.rundir import RunDir
from ups.types import DataError


def directory_of(folder: RunDir, config: RunConfig) -> Path:
    """The directory from which everything is found that the config names by a relative path. DataError where neither
    this one nor that in which the run was started is such."""
    here = Path.cwd()
    began = here
    with suppress(DataError):  # a record that is damaged says nothing
        began = Path(str(folder.read(folder.environment).get("directory") or here))
    names = relative_paths(config)
    for place in (here, began):
        if all(_is_there(place, name) for name in names):
            return place
    lost = next((name for name in names if not _is_there(began, name)), names[0])
    other = "" if began == here else f" nor in {began}, where the run was started"
    where = f"neither in {here}{other}" if other else f"not in {here}"
    raise DataError(f"{lost}: the run's config names it, and it is {where}; go to the directory that it is in.")


def relative_paths(config: RunConfig) -> list[str]:
    """The files, folders and patterns that a config names and that are no absolute paths."""
    names: list[str] = []
    for data in config.data.values():
        names += [*data.paths, *([data.split.record] if data.split.record is not None else [])]
    names += [config.start_from] if config.start_from is not None else []
    return [name for name in dict.fromkeys(names) if not Path(name).is_absolute()]


def _is_there(place: Path, name: str) -> bool:
    if is_pattern(name, place):
        return any(glob.iglob(name, root_dir=place, recursive=True))
    return (place / name).exists()
