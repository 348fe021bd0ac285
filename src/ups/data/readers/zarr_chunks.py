"""The chunks of an array in a Zarr store: which of them are there, and what they unpack to."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.inflation import PACKERS, Raw, check_inflation
from ups.types import Array, DataError, counted

CHECKSUM = 4  # bytes of a crc32c
NOWHERE = 2**64 - 1  # where an index says that a chunk is that is not in its file
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


@dataclass(frozen=True)
class Packing:
    """How the chunks of an array are packed: by what, to how many bytes at most each unpacks, and, where many of them
    lie in one file, `each` so many of them along an axis, how its index says where: as pairs of numbers of which
    endianness, with how many bytes of a checksum behind them, at the file's start or its end."""

    packer: Mapping[str, Any] | None
    most: int
    each: tuple[int, ...] = ()
    order: str = "<"
    checksum: int = 0
    at_start: bool = False

    @property
    def index_size(self) -> int:
        """Bytes of the index of a file, without its checksum."""
        return 16 * math.prod(self.each) if self.each else 0

    def packed(self, raw: memoryview, part: Any) -> Iterator[memoryview]:
        """The packed chunks in a file, or in a part of it."""
        size = self.index_size
        if not size or (part is not None and hasattr(part, "start") and not (self.at_start and part.start == 0)):
            yield raw
        elif part is None and len(raw) >= size + self.checksum:
            index = raw[:size] if self.at_start else raw[len(raw) - size - self.checksum : len(raw) - self.checksum]
            for start, length in self._pairs(index).tolist():
                if start < len(raw):
                    yield raw[start : start + length]

    def held_in(self, file: Path) -> Array:
        """Which chunks of a file are in it, along each axis; all where they lie in files of their own, or its index
        cannot be read: what reads it says so."""
        size = self.index_size
        if not size or file.stat().st_size < size + self.checksum:
            return np.broadcast_to(np.True_, self.each)
        with open(file, "rb") as opened:
            opened.seek(*((0,) if self.at_start else (-size - self.checksum, os.SEEK_END)))
            held: Array = (self._pairs(opened.read(size)) != NOWHERE).any(1)
        return held.reshape(self.each)

    def _pairs(self, index: Raw) -> Array:
        """Where each chunk begins in its file, and its length."""
        return np.frombuffer(index, f"{self.order}u8").reshape(-1, 2)


def absent(folder: Path, shape: tuple[int, ...], pieces: tuple[int, ...], packing: Packing) -> Absent:
    """The chunks of an array of `shape` in pieces of `pieces` that are not in its folder: whose files are not there, or
    of which the index of their file says so."""
    grid = tuple(-(-n // piece) for n, piece in zip(shape, pieces, strict=True))
    each = packing.each or (1,) * len(grid)
    files, total = tuple(-(-n // m) for n, m in zip(grid, each, strict=True)), math.prod(grid)
    there = {place: file for place, file in _places(folder) if len(place) == len(grid) and _inside(place, files)}
    if not grid:
        return Absent(0, total)
    here, firsts = 0 if packing.each else len(there), list[tuple[int, ...]]()
    for place, file in there.items() if packing.each else ():
        begins = tuple(at * m for at, m in zip(place, each, strict=True))
        held = packing.held_in(file)[tuple(slice(0, n - at) for n, at in zip(grid, begins, strict=True))]
        here += int(held.sum())
        if not held.all():
            firsts.append(tuple(int(a) + b for a, b in zip(np.argwhere(~held)[0], begins, strict=True)))
    if len(there) < math.prod(files):
        lost = next(place for place in np.ndindex(*files) if place not in there)
        firsts.append(tuple(at * m for at, m in zip(lost, each, strict=True)))
    return Absent(total - here, total, min(firsts, default=()))


def _inside(place: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    return all(at < n for at, n in zip(place, grid, strict=True))


def _places(folder: Path) -> Iterator[tuple[tuple[int, ...], Path]]:
    """Where the chunk of each file lies in the grid of chunks, by its name: 0.1.2, 0/1/2, c/0/1/2 or c.0.1.2."""
    for root, _, files in os.walk(folder):
        above = Path(root).relative_to(folder).parts
        for name in files:
            numbers = ".".join((*above, name)).removeprefix("c.").split(".")
            if all(number.isdecimal() for number in numbers):
                yield tuple(map(int, numbers)), Path(root, name)


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
    ends = _codecs({"codecs": shards[0].get("index_codecs", ())})
    order = ">" if any(c.get("endian") == "big" for c in ends) else "<"
    each = tuple(n // m for n, m in zip(whole, pieces, strict=True))
    return Packing(
        packer, most, each, order, CHECKSUM * index.count("crc32c"), shards[0].get("index_location") == "start"
    )


def _codecs(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The codecs of an array or of a shard, each with its name and its settings."""
    listed = [*(metadata.get("codecs") or ()), *(metadata.get("filters") or ()), metadata.get("compressor")]
    codecs = []
    for codec in (c for c in listed if isinstance(c, Mapping)):
        name = str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.")
        codecs.append({**codec, **(codec.get("configuration") or {}), "name": name})
    return codecs
