"""The header of a netCDF file of the classic kinds (CDF-1, CDF-2, CDF-5): variables, where each lies, attributes."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
# Number formats by their code in the file, all of the big end first; 2 is text.
TYPES = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8", 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}


@dataclass(frozen=True)
class NetcdfVariable:
    """A variable: the names of its dimensions, its attributes, and where its numbers lie in the file."""

    dims: tuple[str, ...]
    attributes: Mapping[str, Any]
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def end(self) -> int:
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return self.start + last + self.dtype.itemsize if 0 not in self.shape else self.start


class _Reader:
    """Numbers, words and lists, one after the other, as the format writes them."""

    def __init__(self, data: Any) -> None:
        self.data, self.at, self.wide = data, 4, data[3] == 5
        self.offset = "q" if data[3] > 1 else "i"

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f">{kind}", self.data, self.at)
        self.at += struct.calcsize(f">{kind}")
        return int(value)

    def count(self) -> int:
        return self.number("q" if self.wide else "i")

    def padded(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise ValueError("the header ends before it should")
        content = bytes(self.data[self.at : self.at + size])
        self.at += -(-size // 4) * 4
        return content

    def word(self) -> str:
        return self.padded(self.count()).decode()

    def length(self) -> int:
        """How many entries a list has; its tag is not needed."""
        self.number("i")
        return self.count()

    def attributes(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in range(self.length()):
            name, dtype = self.word(), np.dtype(TYPES[self.number("i")])
            content = self.padded(self.count() * dtype.itemsize)
            result[name] = content.decode(errors="replace") if dtype.kind == "S" else np.frombuffer(content, dtype)
        return result


def places(path: Path) -> tuple[dict[str, NetcdfVariable], dict[str, Any]]:
    """The variables of a file by name, and its attributes; ValueError or struct.error where it is damaged."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader, size = _Reader(data), len(data)
        records = reader.count()
        dims = [(reader.word(), reader.count()) for _ in range(reader.length())]
        whole = reader.attributes()
        variables = {}
        for _ in range(reader.length()):
            name = reader.word()
            axes = [dims[reader.count()] for _ in range(reader.count())]
            attributes, dtype = reader.attributes(), np.dtype(TYPES[reader.number("i")])
            reader.count()  # its size, which is not to be relied on
            variables[name] = (axes, attributes, dtype, reader.number(reader.offset))
    return _placed(variables, max(records, 0), size), whole


def _placed(variables: Mapping[str, Any], records: int, size: int) -> dict[str, NetcdfVariable]:
    """Records of all variables that have any lie one after the other; other variables lie in one piece."""
    recorded = {name: v for name, v in variables.items() if v[0] and v[0][0][1] == 0}
    sizes = {name: v[2].itemsize * math.prod(n for _, n in v[0][1:]) for name, v in recorded.items()}
    step = sum(sizes.values()) if len(sizes) == 1 else sum(-(-n // 4) * 4 for n in sizes.values())
    result = {}
    for name, (axes, attributes, dtype, start) in variables.items():
        shape = tuple(n or records for _, n in axes)
        strides = [dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        strides = [step, *strides[1:]] if name in recorded else strides
        place = NetcdfVariable(tuple(d for d, _ in axes), attributes, start, shape, tuple(strides), dtype)
        if place.end > size:
            raise ValueError(f"{name} ends beyond the file")
        result[name] = place
    return result
