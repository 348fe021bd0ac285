"""numpy's .npy and .npz files, memory-mapped; members of an .npz that are compressed are kept in memory once read."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.readers.array_dims import VALUES
from ups.data.readers.arrays import APART, DAMAGE, ArrayStore, Kept, Variable, Where, is_small
from ups.data.readers.assemble import open_arrays
from ups.data.source import Reader, Source, check_claim
from ups.definition import Definition
from ups.files import starts_with
from ups.types import Array, DataError, TaskSpec

LONGEST_HEADER = 2**16  # bytes; numpy itself reads none of more than 10000
NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"


@dataclass(frozen=True)
class NumpyMember:
    """An array in a file.

    Args:
        name: What it is called.
        start: Where its bytes begin in the file; None where they are compressed.
        shape: Its shape.
        dtype: Its number format.
        fortran: Whether its first axis varies fastest.
        content: The array, where it is small and was read with the header.
    """

    name: str
    start: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    content: Array | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class NumpyStore(ArrayStore):
    """The arrays of one .npy or .npz file, by name. The file does not stay open: each read maps it anew."""

    def __init__(self, path: Path, members: Mapping[str, NumpyMember]) -> None:
        super().__init__(path)
        self._members = dict(members)

    def read(self, key: str, where: Where) -> Array:
        member = self._members[key]
        if member.start is None:
            try:
                whole = Kept.get(self.path, key, lambda: self._unpacked(member))
            except DAMAGE as error:
                raise DataError(
                    f"{self.path}: {key} cannot be unpacked, the file is damaged; fetch it again."
                ) from error
            return np.array(whole[where])
        if 0 in member.shape:
            return np.zeros(member.shape, member.dtype)[where]
        whole = np.memmap(self.path, member.dtype, "r", member.start, member.shape, "F" if member.fortran else "C")
        return np.array(whole[where])

    def _unpacked(self, member: NumpyMember) -> Array:
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{member.name}.npy") as stream:
            values: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return values


def is_numpy(path: Path) -> bool:
    """Whether a path is an .npy file, or a .npz file by its name and its first bytes; never raises."""
    return starts_with(path, NPY) or (path.suffix.lower() == ".npz" and starts_with(path, ZIP))


def open_numpy(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over one file; the array of a .npy is called `values`. DataError where the file is damaged or holds
    Python objects."""
    try:
        members = _npy(path) if starts_with(path, NPY) else _npz(path)
    except DAMAGE as error:
        raise DataError(f"{path}: its header cannot be read, the file is damaged; fetch or write it again.") from error
    ignored = {name.strip("/") for name in definition.ignore}
    for member in members.values():
        if member.dtype.hasobject and member.name not in ignored:
            leave = f", or leave it out with `ignore: [{member.name}]` in the task" if len(members) > 1 else ""
            raise DataError(
                f"{path}: {member.name} holds Python objects, not numbers; save it as an array of floats, or, {APART}"
                f"{leave}."
            )
    return open_arrays(
        NumpyStore(path, {name: replace(member, content=None) for name, member in members.items()}),
        [Variable(m.name, m.name, m.shape, m.dtype, content=m.content) for m in members.values()],
        definition,
    )


def _npy(path: Path) -> dict[str, NumpyMember]:
    with path.open("rb") as file:
        member = _header(VALUES, file, None)
        start = file.tell()
    _check_whole(path, member, start, path.stat().st_size)
    return {VALUES: replace(member, start=start)}


def _npz(path: Path) -> dict[str, NumpyMember]:
    members, claimed = {}, 0
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if info.compress_type != zipfile.ZIP_STORED:
                with archive.open(info) as stream:
                    member = _header(name, stream, None)
                    claimed += member.nbytes
                    check_claim(path, claimed, path.stat().st_size)
                    members[name] = _with_content(member, stream)
                continue
            file.seek(info.header_offset)
            local = file.read(30)
            file.seek(info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30])))
            member = _header(name, file, 0)
            start = file.tell()
            _check_whole(path, member, start, path.stat().st_size)
            members[name] = _with_content(replace(member, start=start), file)
    return members


def _with_content(member: NumpyMember, stream: Any) -> NumpyMember:
    """The member with the numbers that follow its header, if they are few."""
    if not is_small(member.shape) or member.dtype.hasobject:
        return member
    raw = stream.read(member.nbytes)
    return replace(member, content=np.frombuffer(raw, member.dtype).reshape(member.shape))


def _check_whole(path: Path, member: NumpyMember, start: int, size: int) -> None:
    if start + member.nbytes > size:
        raise DataError(f"{path}: is truncated, its end is missing; fetch or write it again.")


def _header(name: str, stream: Any, start: int | None) -> NumpyMember:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    # A header is read to its end before numpy looks at its length, and what is packed can be of any.
    count = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(count, "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    shape, fortran, dtype = read(io.BytesIO(count + stream.read(length)))
    if any(n < 0 for n in shape):
        raise ValueError("an axis of a negative length")
    return NumpyMember(name, start, shape, dtype, fortran)


READER = Reader(is_numpy, open_numpy, suffixes=(".npz", ".npy"))
