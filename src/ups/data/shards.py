"""A shard of the latent cache: one safetensors file, written row by row, read through a memory map."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ups.files import draft
from ups.types import Array, DataError

Kind = Literal["fp32", "bf16", "fp16"]
CHUNK = 1 << 22
ALIGN = 64


@dataclass(frozen=True)
class Format:
    """A number format: its name in safetensors, in torch, and the numpy type its bytes are read as."""

    code: str
    torch: torch.dtype
    raw: np.dtype[Any]


FORMATS: dict[str, Format] = {
    "fp32": Format("F32", torch.float32, np.dtype("<f4")),
    "bf16": Format("BF16", torch.bfloat16, np.dtype("<i2")),  # numpy has none: its bits travel as integers
    "fp16": Format("F16", torch.float16, np.dtype("<f2")),
}
BYTES = Format("U8", torch.uint8, np.dtype("u1"))
_BY_CODE = {found.code: found for found in (*FORMATS.values(), BYTES)}


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
    with draft(path) as beside, beside.open("xb") as file:
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


class Shard:
    """The arrays of a shard as views of its bytes on disk: opening reads the header, and reading what is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.bytes = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= self.bytes - 8:
                    raise ValueError("its header is longer than the file")
                fields = json.loads(file.read(length))
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata: dict[str, str] = fields.pop("__metadata__", {})
            self.arrays = {name: self._view(field, 8 + length) for name, field in fields.items()}
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); build the cache again.") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: is cut short or no shard at all ({error}); build the cache again.") from None

    def _view(self, field: Mapping[str, Any], start: int) -> Array:
        form, shape = _BY_CODE[field["dtype"]], tuple(field["shape"])
        first, last = field["data_offsets"]
        if last - first != math.prod(shape) * form.raw.itemsize or start + last > self.bytes:
            raise ValueError("its numbers do not fill the shape it states")
        return np.frombuffer(self.map, form.raw, math.prod(shape), start + first).reshape(shape)

    def forget(self) -> None:
        """Unmap what was read; the system keeps it in memory for everyone as long as there is room."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, read a few megabytes at a time."""
    hashed = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()
