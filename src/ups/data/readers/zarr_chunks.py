"""The chunks of an array in a Zarr store: which of them are there, and what they unpack to."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.inflation import PACKERS, check_inflation
from ups.types import DataError, counted

CHECKSUM = 4  # bytes behind the index of a shard
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


@dataclass(frozen=True)
class Packing:
    """How the chunks of an array are packed: by what, to how many bytes at most each unpacks, and, where many of them
    lie in one file, as how many pairs of numbers its index says where, of which endianness, at its start or its end."""

    packer: Mapping[str, Any] | None
    most: int
    held: int = 0
    order: str = "<"
    at_start: bool = False

    def packed(self, raw: memoryview, part: Any) -> Iterator[memoryview]:
        """The packed chunks in a file, or in a part of it."""
        size = 16 * self.held
        if not self.held or (part is not None and hasattr(part, "start") and not (self.at_start and part.start == 0)):
            yield raw
        elif part is None and len(raw) >= size + CHECKSUM:
            index = raw[:size] if self.at_start else raw[len(raw) - size - CHECKSUM : len(raw) - CHECKSUM]
            for start, length in np.frombuffer(index, f"{self.order}u8").reshape(-1, 2).tolist():
                if start < len(raw):
                    yield raw[start : start + length]


class ChunkGuard:
    """Looks at what is read of a store, by the `packing` of each array, before it is unpacked."""

    def __init__(self, path: Path, packing: Mapping[str, Packing]) -> None:
        self._path, self._packing, self._passed = path, dict(packing), set[tuple[str, str]]()

    def check(self, key: str, raw: memoryview, part: Any) -> None:
        """DataError for chunks that unpack to more than their array says that they hold."""
        packing, which = self._packing.get(key.partition("/")[0]), (key, str(part))
        if packing is None or packing.packer is None or which in self._passed:
            return
        for piece in packing.packed(raw, part):
            check_inflation(self._path, f"the chunk {key}", packing.packer, piece, packing.most)
        self._passed.add(which)


def packing_of(
    where: Path, metadata: Mapping[str, Any], pieces: tuple[int, ...], whole: tuple[int, ...], most: int
) -> Packing:
    """How the metadata of an array say that its chunks are packed, each a piece of `pieces` in files of `whole`, to
    unpack to `most` bytes; DataError for what is packed twice, which no program does but to fill a memory."""
    outer = _codecs(metadata)
    shards = [c for c in outer if c["name"] == "sharding_indexed"]
    inner = _codecs(shards[0]) if shards else []
    index = [c["name"] for c in _codecs({"codecs": shards[0].get("index_codecs", ())})] if shards else []
    packers = [c for c in (*outer, *inner) if c["name"] in PACKERS]
    deep = any(c["name"] == "sharding_indexed" for c in inner) or not {*index} <= {"bytes", "crc32c"}
    if len(packers) > 1 or deep or (shards and any(c["name"] in PACKERS for c in outer)):
        raise DataError(f"{where}: its chunks are packed more than once, which is not read; pack them once.")
    packer = packers[0] if packers else None
    if not shards:
        return Packing(packer, most)
    big = any(c.get("endian") == "big" for c in _codecs({"codecs": shards[0].get("index_codecs", ())}))
    held = math.prod(n // m for n, m in zip(whole, pieces, strict=True))
    return Packing(packer, most, held, ">" if big else "<", shards[0].get("index_location") == "start")


def _codecs(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The codecs of an array or of a shard, each with its name and its settings."""
    listed = [*(metadata.get("codecs") or ()), *(metadata.get("filters") or ()), metadata.get("compressor")]
    codecs = []
    for codec in (c for c in listed if isinstance(c, Mapping)):
        name = str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.")
        codecs.append({**codec, **(codec.get("configuration") or {}), "name": name})
    return codecs
