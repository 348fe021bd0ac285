"""A shard of the latent cache: one safetensors file, written row by row, read where it lies."""

from __future__ import annotations

import hashlib
import json
import math
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ups.files import draft, read_at, stamp
from ups.lazy_imports import Tensor, torch
from ups.parsing import parse_json
from ups.types import Array, DataError, counted

TokenFormat = Literal["fp32", "bf16", "fp16"]
ALIGN = 64
LONGEST_HEADER = 2**26


@dataclass(frozen=True)
class Format:
    """A number format: its name in safetensors, in torch, and the numpy type its bytes are read as."""

    code: str
    name: str
    raw: np.dtype[Any]

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = getattr(torch, self.name)
        return kind


FORMATS: dict[str, Format] = {
    "fp32": Format("F32", "float32", np.dtype("<f4")),
    "bf16": Format("BF16", "bfloat16", np.dtype("<i2")),  # numpy has none: its bits travel as integers
    "fp16": Format("F16", "float16", np.dtype("<f2")),
}
BYTES = Format("U8", "uint8", np.dtype("u1"))
_BY_CODE = {form.code: form for form in (*FORMATS.values(), BYTES)}


def raw(values: Tensor) -> Array:
    """The numbers of a tensor as numpy holds them."""
    values = values.contiguous()
    return values.view(torch.int16).numpy() if values.dtype == torch.bfloat16 else values.numpy()


def write(
    path: Path,
    small: Mapping[str, Array],
    name: str,
    shape: tuple[int, ...],
    kind: str,
    rows: Iterable[Tensor],
    metadata: Mapping[str, str],
) -> dict[str, Any]:
    """Write the arrays `small` and, piece by piece, the rows of the array `name`; the size and SHA-256 of the file.

    It appears whole or not at all.
    """
    fields: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    plain = {key: BYTES if value.dtype == np.uint8 else FORMATS["fp32"] for key, value in small.items()}
    sizes = {key: (plain[key], value.shape) for key, value in small.items()} | {name: (FORMATS[kind], shape)}
    for key, (form, dims) in sizes.items():
        end = at + math.prod(dims) * form.raw.itemsize
        fields[key] = {"dtype": form.code, "shape": list(dims), "data_offsets": [at, end]}
        at = end
    header = json.dumps(fields).encode()
    header += b" " * (-(8 + len(header)) % ALIGN)
    hashed, size = hashlib.sha256(), 0
    with draft(path) as beside, beside.open("wb") as file:
        for piece in _pieces(header, small, rows):
            hashed.update(piece)
            size += len(piece)
            file.write(piece)
        if size != 8 + len(header) + at:
            raise DataError(f"{path}: was promised {at} bytes of numbers and given {size - 8 - len(header)}.")
    return {"bytes": size, "sha256": hashed.hexdigest()}


def named(ids: Sequence[str]) -> Array:
    """Names as rows of bytes, `(n, longest)`, filled up with zeros."""
    coded = [name.encode() for name in ids]
    width = max(map(len, coded), default=0)
    return np.frombuffer(b"".join(name.ljust(width, b"\0") for name in coded), np.uint8).reshape(len(ids), width)


def _pieces(header: bytes, small: Mapping[str, Array], rows: Iterable[Tensor]) -> Iterable[bytes]:
    yield len(header).to_bytes(8, "little") + header
    for value in small.values():
        yield np.ascontiguousarray(value, None if value.dtype == np.uint8 else "<f4").tobytes()
    for piece in rows:
        yield raw(piece).tobytes()


class StoredArray(NamedTuple):
    """An array of a shard: where its bytes begin, its shape `(rows, ...)`, what its numbers are read as, and the bytes
    of a row."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int


class CacheShard:
    """The arrays of a shard, as they lie on disk: opening reads the header, `read` one row.

    A row is read by its place in the file, from the system's page cache, which all processes share: at random places
    that costs a third of what faulting it into a memory map does, and nothing stays with the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()
        try:
            length = int.from_bytes(os.pread(self._file, 8, 0), "little")
            if not 2 <= length <= min(self.bytes - 8, LONGEST_HEADER):
                raise ValueError("its header is longer than the file, or than any")
            fields = parse_json(os.pread(self._file, length, 8))
            fields.pop("__metadata__", None)
            self.fields = {name: self._field(field, 8 + length) for name, field in fields.items()}
        except OSError as error:
            raise self._unreadable(error) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: is cut short or no shard at all ({error}); build the cache again.") from None

    def open(self) -> None:
        """Open the file, the first time or again after `close`."""
        try:
            self._file = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.close = weakref.finalize(self, os.close, self._file)
            status = os.fstat(self._file)
            self.bytes, self.stamp = status.st_size, stamp(status)
        except OSError as error:
            raise self._unreadable(error) from None

    def read(self, name: str, row: int, into: memoryview, skip: int = 0) -> None:
        """Fill `into` (bytes) with what a row of an array holds after its first `skip` bytes."""
        start, shape, _, size = self.fields[name]
        if not 0 <= row < shape[0]:
            raise IndexError(f"{self.path} has {counted(shape[0], 'row')}, and there is no row {row}")
        place = start + row * size + skip
        try:
            done = read_at(self._file, into, place)
        except OSError as error:
            raise self._unreadable(error) from None
        if done < len(into):
            raise DataError(f"{self.path}: has become shorter while it was read; build the cache again.")

    def _field(self, field: Mapping[str, Any], start: int) -> StoredArray:
        form, shape = _BY_CODE[field["dtype"]], tuple(field["shape"])
        first, last = field["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
            raise ValueError("its shapes or places are no numbers")
        if last - first != math.prod(shape) * form.raw.itemsize or start + last > self.bytes:
            raise ValueError("its numbers do not fill the shape it states")
        return StoredArray(start + first, shape, form.raw, math.prod(shape[1:]) * form.raw.itemsize)

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"{self.path}: cannot be read ({error.strerror}); build the cache again.")
