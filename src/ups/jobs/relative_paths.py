"""Finds what the config of a run names by relative paths: from its home on, or else from the current folder."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from ups.config import rehomed
from ups.files import is_pattern
from ups.run.config import RunConfig
from ups.types import DataError


def found_config(config: RunConfig) -> RunConfig:
    """The config of a run, its relative paths counted from its home, or from the current folder where all that they
    name is there. DataError where it is in neither."""
    if not (missing := _missing(config)):
        return config
    here, home = Path.cwd(), config.home
    moved = rehomed(config, str(here))
    if not _missing(moved):
        return moved
    lost = os.path.relpath(missing[0], home) if home is not None else missing[0]
    other = "" if home in (None, str(here)) else f" nor in {here}"
    where = f"neither in {home}, from which its paths count,{other}" if other else f"not in {here}"
    raise DataError(
        f"{lost}: the run's config names it, and it is {where}; put it back, or "
        "ask from the folder in which the run's config lies now."
    )


def relative_paths(config: RunConfig) -> list[str]:
    """The files, folders and patterns that a config names and that are no absolute paths."""
    names: list[str] = []
    for data in config.data.values():
        names += [*data.paths, *([data.split.record] if data.split.record is not None else [])]
    names += [config.start_from] if config.start_from is not None else []
    return [name for name in dict.fromkeys(names) if not Path(name).is_absolute()]


def _missing(config: RunConfig) -> list[str]:
    return [name for name in relative_paths(config) if not _is_there(name)]


def _is_there(name: str) -> bool:
    if is_pattern(name):
        return any(glob.iglob(name, recursive=True))
    return Path(name).exists()
