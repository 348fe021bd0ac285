"""How much packed bytes unpack to, told before they take the memory: by what they state, or counted piece by piece."""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ups.data.source import HARMLESS
from ups.types import DataError

try:
    from lzma import LZMAError as LZMAError
except ImportError:  # a Python that was built without it cannot unpack such bytes either
    LZMAError = OSError  # type: ignore[misc,assignment]

PACKERS = ("blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma")
Raw = bytes | memoryview
DEFLATED = 1032  # times its bytes, and no more, is what zlib unpacks
PIECE, ZSTD_BLOCK = 2**20, 2**17  # bytes unpacked at a time; those that a block of zstd unpacks at most
ZSTD, SKIPPED = 0xFD2FB528, 0x184D2A50


def check_inflation(path: Path, what: str, packer: Mapping[str, Any], raw: Raw, most: int) -> None:
    """DataError where bytes unpack to more than `most` by `packer`, its name and its settings; `what` they are, for the
    sentence. Bytes that are damaged pass: what unpacks them says so."""
    check_size(path, what, _inflated(packer, raw, most), most)


def check_size(path: Path, what: str, size: int, most: int) -> None:
    """DataError where what is packed takes more than `most` bytes."""
    if size > most:
        raise DataError(
            f"{path}: {what} unpacks to more than the {most / 1e6:.3g} MB that it may hold; it is damaged, or made to "
            "fill the memory: fetch or write it again."
        )


def _inflated(packer: Mapping[str, Any], raw: Raw, most: int) -> int:
    """How many bytes there are unpacked, or any number above `most`."""
    name = packer["name"]
    if name == "blosc":
        return _number("<I", raw, 4)
    if name == "lz4":
        return _number("<I", raw, 0)
    if name == "zstd":
        return _zstd(raw)
    if name in ("zlib", "gzip") and DEFLATED * len(raw) <= HARMLESS / 2:
        return 0
    return _counted(_unpacker(packer), raw, most)


def _unpacker(packer: Mapping[str, Any]) -> Callable[[], Any]:
    name = packer["name"]
    if name == "bz2":
        return bz2.BZ2Decompressor
    if name == "lzma":
        from lzma import FORMAT_RAW, FORMAT_XZ, LZMADecompressor

        kind, filters = packer.get("format", FORMAT_XZ), packer.get("filters")
        limit = {} if kind == FORMAT_RAW else {"memlimit": HARMLESS}
        return lambda: LZMADecompressor(kind, filters=filters if kind == FORMAT_RAW else None, **limit)
    return lambda: _Deflated(31 if name == "gzip" else 15)


class _Deflated:
    """zlib's decompressor under the names that the others have."""

    def __init__(self, window: int) -> None:
        self._inner, self._left = zlib.decompressobj(window), b""

    def decompress(self, data: bytes, most: int) -> bytes:
        piece = self._inner.decompress(self._left + data, most)
        self._left = self._inner.unconsumed_tail
        return piece

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _counted(unpacker: Callable[[], Any], raw: Raw, most: int) -> int:
    """Unpack piece by piece, keeping none, to the end of the last stream or beyond `most`."""
    total = 0
    try:
        while raw:
            stream, data = unpacker(), raw
            while not stream.eof and total <= most:
                piece, data = stream.decompress(data, PIECE), b""
                if not piece and not stream.eof:
                    return total  # the bytes end before the stream does
                total += len(piece)
            if total > most:
                return total
            raw = stream.unused_data
    except (OSError, EOFError, ValueError, zlib.error, LZMAError) as error:
        # Damaged from here on, but where lzma asks for more memory than it is given.
        return most + 1 if "memory usage limit" in str(error).lower() else total
    return total


def _zstd(raw: Raw) -> int:
    """What the frames say that they unpack to, or, where one does not, at most can."""
    return sum(_zstd_frames(raw))


def _zstd_frames(raw: Raw) -> Iterator[int]:
    at = 0
    while len(raw) - at > 8:
        magic = _number("<I", raw, at)
        if magic & ~0xF == SKIPPED:
            at += 8 + _number("<I", raw, at + 4)
            continue
        if magic != ZSTD:
            return
        flags = raw[at + 4]
        single = flags >> 5 & 1
        at += 6 - single + (0, 1, 2, 4)[flags & 3]
        size = (single, 2, 4, 8)[flags >> 6]
        if size:
            yield int.from_bytes(raw[at : at + size], "little") + 256 * (size == 2)
        at += size
        last = False
        while not last and len(raw) - at > 2:
            header = int.from_bytes(raw[at : at + 3], "little")
            last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
            if not size:
                yield ZSTD_BLOCK if kind == 2 else length
            at += 3 + (1 if kind == 1 else length)
        at += 4 * (flags >> 2 & 1)


def _number(kind: str, raw: Raw, at: int) -> int:
    return int(struct.unpack_from(kind, raw, at)[0]) if len(raw) >= at + struct.calcsize(kind) else 0
