"""Zarr stores in xarray's layout, versions 2 and 3, through the package `zarr` where it is installed."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.inflation import PIECE
from ups.data.readers.arrays import ArrayStore, Variable, Where, naming_fault
from ups.data.readers.attributes import offered
from ups.data.readers.conventions import numbers_in, open_conventional, variable
from ups.data.readers.zarr_chunks import LEFT_OUT, ChunkGuard, Packing, absent, packing_of
from ups.data.source import HARMLESS, Reader, Source, check_claim
from ups.definition import Definition
from ups.parsing import parse_json, read_text
from ups.types import Array, DataError, TaskSpec

MARKS = ("zarr.json", ".zgroup", ".zmetadata")
METADATA = (*MARKS, ".zarray")
NO_CHUNKS = (*METADATA, ".zattrs")
LARGEST_METADATA = 2**26
CODEC_KEYS = ("codecs", "index_codecs", "filters", "compressor")
CODECS = {
    *("bytes", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes", "fixedscaleoffset", "delta", "bitround"),
    *("blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma", "shuffle", "quantize", "packbits", "astype"),
    *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
}


class ZarrStore(ArrayStore):
    """The arrays of one store, which each process opens for itself at its first read."""

    def __init__(self, path: Path, guard: ChunkGuard) -> None:
        super().__init__(path)
        self._guard = guard
        self._opened: tuple[Any, int] | None = None

    def read(self, key: str, where: Where) -> Array:
        opened = self._opened
        if opened is None or opened[1] != os.getpid():
            opened = self._opened = (_group(self.path, self._guard), os.getpid())
        return np.asarray(opened[0][key][where])

    def close(self) -> None:
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def is_zarr(path: Path) -> bool:
    """Whether a path is a folder with the metadata of a Zarr group; never raises."""
    return any(os.path.isfile(os.path.join(path, mark)) for mark in MARKS)


def open_zarr(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over one store, which names its axes."""
    if importlib.util.find_spec("zarr") is None:
        raise DataError(
            f"{path}: is a Zarr store, which needs a package that is not installed; "
            "`pip install 'universal-physics-stack[formats]'` brings it."
        )
    with naming_fault(path, "its metadata"):
        stored = _check_store(path)
        group, notes = _group(path), list[str]()
        # By name, as in consolidated metadata: without it they come in the order in which their reads happen to end.
        members = sorted(group.members(), key=lambda item: str(item[0]))
        groups = {str(name): node for name, node in members if hasattr(node, "members")}
        arrays = [(str(name), node) for name, node in members if name not in groups]
        packing = {name: _packing(path, name, array, stored) for name, array in arrays}
        variables = [*_variables(path, arrays, packing, notes), *offered(dict(group.attrs))]
        check_claim(path, sum(v.dtype.itemsize * math.prod(v.shape) for v in variables), stored)
        guard = ChunkGuard(path, packing)
        inner = {name: sorted(str(key) for key, _ in held.arrays()) for name, held in groups.items()}
    way = f"each is a store by itself: {path}/GROUP"
    source = open_conventional(ZarrStore(path, guard), variables, definition, inner, way)
    source.notes = (*source.notes, *notes)
    return source


def _group(path: Path, guard: ChunkGuard | None = None) -> Any:
    import zarr

    # Not by its name, in which `::` and `://` would send the reader elsewhere.
    store = zarr.storage.LocalStore(path, read_only=True)
    plain = store.get

    async def looked_at(key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        buffer = await plain(key, prototype, byte_range)
        if guard is not None and buffer is not None and key.rpartition("/")[2] not in NO_CHUNKS:
            guard.check(key, memoryview(buffer.as_numpy_array()).cast("B"), byte_range)
        return buffer

    store.get = looked_at
    return zarr.open_group(store, mode="r")


def _check_store(path: Path) -> int:
    """The bytes of all files of a store; a DataError where one of them is a link, or is made by a codec that runs code.

    Chunks are read as they lie, so that a link would have any file of the reader's read as numbers.
    """
    total = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            file = Path(folder, name)
            if file.is_symlink():
                raise DataError(
                    f"{file}: is a link inside a Zarr store, which is not followed; copy what it points to."
                )
            if name in METADATA:
                _check_metadata(file, parse_json(read_text(file, LARGEST_METADATA)))
            total += file.lstat().st_size if name in files else 0
    return total


def _check_metadata(file: Path, content: Any) -> None:
    """Refuse codecs that are not known to be harmless (numcodecs has one that unpickles), and paths that lead out."""
    stack = [content]
    while stack:
        value = stack.pop()
        stack += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for key, below in value.items() if isinstance(value, dict) else ():
            if ".." in str(key).split("/") or str(key).startswith("/"):
                raise DataError(f"{file}: names '{key}', which lies outside the store; fetch it again.")
            if key in CODEC_KEYS:
                for codec in below if isinstance(below, list) else [below]:
                    name = codec.get("id", codec.get("name")) if isinstance(codec, dict) else codec
                    if codec is not None and str(name).removeprefix("numcodecs.") not in CODECS:
                        raise DataError(f"{file}: is packed by '{name}', which is not read; pack it by zstd or blosc.")


def _packing(path: Path, name: str, array: Any, stored: int) -> Packing:
    """How the chunks of an array are packed; DataError for those that claim more than a store of that size holds."""
    size = np.dtype(array.dtype).itemsize
    check_claim(path, math.prod(array.shards or array.chunks) * size, stored)
    plain = array.dtype.kind in "biufcmM"  # of words nobody says how long they are
    most = 2 * math.prod(array.chunks) * size + PIECE if plain else HARMLESS
    return packing_of(path / name, array.metadata.to_dict(), array.chunks, array.shards or array.chunks, most)


def _variables(
    path: Path, arrays: Sequence[tuple[str, Any]], packing: Mapping[str, Packing], notes: list[str]
) -> Iterator[Variable]:
    for name, array in arrays:
        attributes, metadata = dict(array.attrs), array.metadata
        dims = getattr(metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
        names = tuple(str(dim) for dim in dims) if dims else tuple(f"axis {i} of {name}" for i in range(array.ndim))
        # A zero is what Zarr itself puts where nobody says otherwise, and a number like any other.
        stated = numbers_in(metadata.fill_value) if array.dtype.kind in "biuf" else []
        read = variable(path, name, array.shape, array.dtype, names, attributes, [x for x in stated if x])
        nothing = any(math.isnan(x) or x in read.fill for x in stated)
        if metadata.zarr_format > 2 and "_FillValue" not in attributes and read.fill and np.isfinite(stated).all():
            notes.append(f"cells of {name} that hold {stated[0]:.6g}, its fill value, are read as NaN")
        lost = absent(path / name, array.shape, array.chunks, packing[name])
        if lost.count and stated:
            notes.append(f"{lost.words(name)} {'missing' if nothing else 'full of zeros'}; {LEFT_OUT}")
        yield read


READER = Reader(is_zarr, open_zarr, suffixes=(".zarr",))
