"""The packed variables of a MATLAB file of version 5 to 7, held to the numbers that they say they hold."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from ups.data.inflation import PIECE, check_size

FILE_HEADER, TAG = 128, 8  # bytes before the first variable; of what stands before each, and before each part of one
COMPRESSED, MATRIX = 15, 14
DOUBLE, OPAQUE = 6, 17  # classes of variables: the first of numbers, and one without dimensions
WIDTHS = (8, 4, 1, 1, 2, 2, 4, 4, 8, 8)  # bytes of a number of each class from DOUBLE on
IMAGINARY = 1 << 11  # among the flags of a variable: it is complex
LONGEST = 4096  # bytes of dimensions, or of a name
LITTLE = 512  # bytes of a file that mostly say it
HEAD = 3 * LONGEST  # bytes unpacked to read of what a variable consists


def check_packed(path: Path) -> dict[str, tuple[int, ...]]:
    """DataError where a packed variable is to unpack to far more than its numbers, told by how each begins; name and
    shape of those that are complex, of which the end is not seen. What is damaged in another way is left to whoever
    reads it."""
    size, imaginary = path.stat().st_size, dict[str, tuple[int, ...]]()
    with open(path, "rb", buffering=0) as file:  # a buffer would read more than is looked at
        beginning = file.read(FILE_HEADER)
        if not beginning.startswith(b"MATLAB 5.0") or len(beginning) < FILE_HEADER:
            return {}
        order, at = "<" if beginning[126:] == b"IM" else ">", FILE_HEADER
        while at + TAG <= size:
            file.seek(at)
            kind, length = struct.unpack(f"{order}II", file.read(TAG))
            if kind == COMPRESSED:
                with suppress(zlib.error):
                    for head in _heads(file, min(length, HEAD)):
                        with suppress(struct.error):  # not all of it is there yet
                            imaginary.update(_checked(path, head, order))
                            break
            at += TAG + length
    return imaginary


def _heads(file: IO[bytes], length: int) -> Iterator[bytes]:
    """How a packed variable begins, as little of it as can be, then more."""
    unpacking, head = zlib.decompressobj(), b""
    while length > 0 and len(head) < HEAD and (piece := file.read(min(length, LITTLE))):
        length -= len(piece)
        head += unpacking.decompress(piece, HEAD - len(head))
        yield head


def _checked(path: Path, head: bytes, order: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of a variable that begins so, if it is complex."""
    matrix, flags = (struct.unpack_from(f"{order}I", head, at)[0] for at in (0, 2 * TAG))
    kind = flags & 0xFF
    if matrix != MATRIX or kind == OPAQUE:
        return
    (first, count), at = _part(head, 3 * TAG, order)
    check_size(path, "the list of dimensions of a variable", count, LONGEST)
    (where, length), at = _part(head, at, order)
    check_size(path, "the name of a variable", length, LONGEST)
    if not DOUBLE <= kind < DOUBLE + len(WIDTHS):
        return
    name = head[where : where + length].decode("latin1")
    shape = struct.unpack_from(f"{order}{count // 4}i", head, first)
    most = 2 * WIDTHS[kind - DOUBLE] * math.prod(map(abs, shape)) + PIECE
    check_size(path, f"the variable {name}", _part(head, at, order)[0][1], most)
    if flags & IMAGINARY:
        yield name, shape


def _part(head: bytes, at: int, order: str) -> tuple[tuple[int, int], int]:
    """Where a part begins whose tag stands at `at`, its bytes, and where the next one stands. A small one stands in its
    own tag."""
    kind, length = struct.unpack_from(f"{order}II", head, at)
    if small := kind >> 16:
        return (at + TAG // 2, small), at + TAG
    return (at + TAG, length), at + TAG + -(-length // TAG) * TAG
