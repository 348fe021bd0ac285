"""The chunks of an array in a Zarr store: which of them are there."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ups.types import counted

# What notes say of them that is worth a look before anything is trained.
ABSENT = "not in the store"
LEFT_OUT = "Zarr leaves such chunks out; if they were lost, fetch the store again"


@dataclass(frozen=True)
class Absent:
    """How many of all chunks of an array are not in its store, and which is the first of them."""

    count: int
    total: int
    first: tuple[int, ...] = ()

    def words(self, name: str) -> str:
        first = f" (the first: {'.'.join(map(str, self.first))})" if self.count < self.total else ""
        return f"{self.count} of the {counted(self.total, 'chunk')} of {name} are {ABSENT}{first}, so taken to be"


def absent(folder: Path, shape: tuple[int, ...], pieces: tuple[int, ...]) -> Absent:
    """The chunks of an array of `shape` in pieces of `pieces` whose files are not in its folder."""
    grid = tuple(-(-n // piece) for n, piece in zip(shape, pieces, strict=True))
    total = math.prod(grid)
    there = {place for place in _places(folder) if len(place) == len(grid) and _inside(place, grid)}
    if len(there) >= total or not grid:
        return Absent(0, total)
    return Absent(total - len(there), total, next(place for place in np.ndindex(*grid) if place not in there))


def _inside(place: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    return all(at < n for at, n in zip(place, grid, strict=True))


def _places(folder: Path) -> Iterator[tuple[int, ...]]:
    """Where each chunk lies in the grid of chunks, by the names of files: 0.1.2, 0/1/2, c/0/1/2 or c.0.1.2."""
    for root, _, files in os.walk(folder):
        above = Path(root).relative_to(folder).parts
        for name in files:
            numbers = ".".join((*above, name)).removeprefix("c.").split(".")
            if all(number.isdecimal() for number in numbers):
                yield tuple(map(int, numbers))
