"""The index of a checkpoint: where each piece of each tensor is, in JSON that is checked first; no torch."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SHARD = re.compile(r"rank-(\d{1,9})-(\d{1,4})\.safetensors")

# By torch's name: the name in a safetensors file, bytes of one number there, and the axes that a number takes up.
DTYPES: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "bool": ("BOOL", 1, ()),
    "uint8": ("U8", 1, ()),
    "int8": ("I8", 1, ()),
    "uint16": ("U16", 2, ()),
    "int16": ("I16", 2, ()),
    "uint32": ("U32", 4, ()),
    "int32": ("I32", 4, ()),
    "uint64": ("U64", 8, ()),
    "int64": ("I64", 8, ()),
    "float8_e4m3fn": ("F8_E4M3", 1, ()),
    "float8_e5m2": ("F8_E5M2", 1, ()),
    "float16": ("F16", 2, ()),
    "bfloat16": ("BF16", 2, ()),
    "float32": ("F32", 4, ()),
    "float64": ("F64", 8, ()),
    "complex64": ("C64", 8, ()),
    "complex128": ("F64", 8, (2,)),
}

Kind = tuple[str, tuple[int, ...]]  # of a tensor: type and shape
Region = tuple[tuple[int, ...], tuple[int, ...]]  # of a tensor: offsets and sizes along its axes


@dataclass(frozen=True)
class Chunk:
    """A piece of a tensor, and the file that holds it."""

    file: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TensorLayout:
    """A whole tensor as it was before it was sharded; its chunks lie side by side and leave nothing out."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def words(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class ShardFile:
    """A file of chunks as the index implies it: how it begins, where each tensor's chunk lies in it, its size."""

    header: bytes
    places: Mapping[str, int]
    size: int


def item_bytes(dtype: str) -> int:
    """Bytes of one number of a format."""
    _, size, axes = DTYPES[dtype]
    return size * math.prod(axes)


def layouts_of(kinds: Mapping[str, Kind], regions: Mapping[str, Mapping[str, Region]]) -> dict[str, TensorLayout]:
    """The layouts of tensors of these kinds, whose regions lie in these files."""
    chunks: dict[str, list[Chunk]] = {name: [] for name in kinds}
    for file, of_tensors in regions.items():
        for name, (offsets, sizes) in of_tensors.items():
            chunks[name].append(Chunk(file, tuple(offsets), tuple(sizes)))
    return {name: TensorLayout(*kind, tuple(chunks[name])) for name, kind in kinds.items()}


def shard_of(chunks: Mapping[str, Kind]) -> ShardFile:
    """The file of these chunks (dtype and sizes by the name of the tensor), in the layout of safetensors."""
    header: dict[str, Any] = {}
    begins: dict[str, int] = {}
    end = 0
    for name in sorted(chunks, key=lambda n: (-DTYPES[chunks[n][0]][1], n)):  # wide numbers first: all are aligned
        dtype, sizes = chunks[name]
        kind, _, axes = DTYPES[dtype]
        begins[name], end = end, end + item_bytes(dtype) * math.prod(sizes)
        header[name] = {"dtype": kind, "shape": [*sizes, *axes], "data_offsets": [begins[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    start = 8 + len(text)
    places = {name: start + begin for name, begin in begins.items()}
    return ShardFile(len(text).to_bytes(8, "little") + text, places, start + end)


def shards_of(layouts: Mapping[str, TensorLayout]) -> dict[str, ShardFile]:
    """Every file that an index names."""
    by_file: dict[str, dict[str, Kind]] = defaultdict(dict)
    for name, layout in layouts.items():
        for chunk in layout.chunks:
            by_file[chunk.file][name] = (layout.dtype, chunk.sizes)
    return {file: shard_of(chunks) for file, chunks in by_file.items()}


def to_json(layouts: Mapping[str, TensorLayout]) -> bytes:
    """The index as its file holds it."""
    tensors = {
        name: {
            "dtype": layout.dtype,
            "shape": layout.shape,
            "chunks": [{"file": c.file, "offsets": c.offsets, "sizes": c.sizes} for c in layout.chunks],
        }
        for name, layout in sorted(layouts.items())
    }
    return json.dumps({"tensors": tensors}).encode()


def from_json(content: bytes) -> dict[str, TensorLayout]:
    """The layouts in the bytes of an index; ValueError with what is wrong with them."""
    try:
        tensors = json.loads(content)["tensors"].items()
        layouts = {
            name: TensorLayout(
                str(row["dtype"]),
                _counts(row["shape"]),
                tuple(Chunk(str(c["file"]), _counts(c["offsets"]), _counts(c["sizes"])) for c in row["chunks"]),
            )
            for name, row in tensors
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it cannot be read") from None
    for name, layout in layouts.items():
        if problem := problem_of(layout):
            raise ValueError(f"'{name}' {problem}")
    return layouts


def _counts(numbers: Iterable[Any]) -> tuple[int, ...]:
    counts = tuple(numbers)
    if len(counts) > 64 or not all(type(n) is int and 0 <= n < 2**63 for n in counts):
        raise ValueError
    return counts


def problem_of(layout: TensorLayout) -> str | None:
    """What makes a layout impossible: chunks outside the tensor, on top of each other, or not all of it."""
    if layout.dtype not in DTYPES:
        return f"has numbers of the unknown type {layout.dtype[:40]!r}"
    for chunk in layout.chunks:
        if not SHARD.fullmatch(chunk.file):
            return f"names the file {chunk.file[:80]!r}, which no checkpoint has"
        if not len(chunk.offsets) == len(chunk.sizes) == len(layout.shape):
            return "has a chunk of another number of axes"
        if any(o + s > whole for o, s, whole in zip(chunk.offsets, chunk.sizes, layout.shape, strict=True)):
            return "has a chunk that reaches outside of it"
    if len({chunk.file for chunk in layout.chunks}) < len(layout.chunks):
        return "has two chunks in one file"
    if sum(math.prod(chunk.sizes) for chunk in layout.chunks) != math.prod(layout.shape):
        return "has chunks that are not all of it"
    ordered = sorted(layout.chunks, key=lambda chunk: chunk.offsets)
    for i, chunk in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if layout.shape and other.offsets[0] >= chunk.offsets[0] + chunk.sizes[0]:
                break
            if overlap((chunk.offsets, chunk.sizes), (other.offsets, other.sizes)):
                return "has chunks that overlap"
    return None


def overlap(one: Region, other: Region) -> Region | None:
    """What two regions of a tensor have in common; None if that is nothing."""
    begins = tuple(max(a, b) for a, b in zip(one[0], other[0], strict=True))
    ends = (min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))
    sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    return (begins, sizes) if all(size > 0 for size in sizes) else None
