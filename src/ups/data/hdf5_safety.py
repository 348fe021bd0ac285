"""Refuses HDF5 files that point to other files, or that claim far more numbers than they can hold."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ups.data.inflation import DEFLATED, PIECE, check_inflation
from ups.data.source import HARMLESS, check_claim
from ups.lazy_imports import h5py
from ups.types import DataError

# Up to so many objects all data sets are looked at when a file is opened, of more each when it is read.
FEW = 1000
READ_WHOLE = 2**22  # bytes of a data set that may be read at once, as those of coordinates are
DEFLATE = 1  # what HDF5 calls zlib
MOST_OWN = 255  # the highest number of a filter of the library's own; those of others are plug-ins
PLUGINS = {
    **{307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz"},
    **{32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr"},
}
PACKAGE = (
    "`pip install hdf5plugin`, and set HDF5_PLUGIN_PATH to what `python -c 'import hdf5plugin; "
    "print(hdf5plugin.PLUGIN_PATH)'` prints"
)
STRANGE = "set HDF5_PLUGIN_PATH to the folder of that plug-in, if you trust who wrote it"
_PASSED: set[tuple[Path, str, int, int]] = set()  # chunks that unpack to no more than they hold
INSIDE = (0, 1)  # hard and soft links; an external one is 64, and one of a plug-in above that


def check_file(file: Any) -> None:
    """Refuse links that leave the file, and data sets that do. The library follows both without a word, so that the
    author of a file could have any other file of the reader's read."""
    path = Path(file.filename)
    status = os.stat(path)
    _check_once(path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size), _Open(file))


def check_data_set(node: Any) -> int:
    """The bytes that a data set claims; a DataError where they do not lie in its own file, or cannot."""
    path, plan = Path(node.file.filename), node.id.get_create_plist()
    if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
        raise DataError(
            f"{path}: data set '{node.name.lstrip('/')}' keeps its numbers in other files, which are not read; write "
            "them into the file itself."
        )
    _check_filters(node, plan, path)
    claimed: int = math.prod(max(1, n) for n in node.shape or ()) * node.dtype.itemsize
    chunk = math.prod(node.chunks or ()) * node.dtype.itemsize  # unpacked as a whole, however little of it is asked for
    check_claim(path, max(claimed, chunk), os.stat(path).st_size)
    if claimed <= READ_WHOLE:
        check_chunks(node)
    return claimed


def _check_filters(node: Any, plan: Any, path: Path) -> None:
    """DataError where the numbers are packed by what is not here. The library looks for it, and runs it, in the folders
    that its user has named: those named as seen from wherever a command is started could be the file's, and go."""
    for i in range(plan.get_nfilters()):
        number, _, _, label = plan.get_filter(i)
        if number <= MOST_OWN:
            continue
        for at in reversed(range(h5py.h5pl.size())):
            if not os.path.isabs(h5py.h5pl.get(at)):
                h5py.h5pl.remove(at)
        used = node.id.get_num_chunks() and not node.id.get_chunk_info(0).filter_mask >> i & 1
        if used and not h5py.h5z.filter_avail(number):
            name = PLUGINS.get(number, ascii(label.decode("latin1")).strip("'"))
            raise DataError(
                f"{path}: data set '{node.name.lstrip('/')}' is packed by HDF5's filter {number} ({name}), which is "
                f"not installed here; {PACKAGE if number in PLUGINS else STRANGE}, or write the file again with gzip."
            )


def check_chunks(node: Any, where: Sequence[Any] = ()) -> None:
    """Refuse the chunks of `node[where]` that unpack to far more than they hold: the library unpacks each to its end,
    whatever that takes. Only of one that could take much is that counted, once in a process."""
    plan, chunks = node.id.get_create_plist(), node.chunks
    kinds = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())] if chunks else []
    if DEFLATE not in kinds:
        return
    path, name = Path(node.file.filename), node.name.lstrip("/")
    if kinds.count(DEFLATE) > 1:
        raise DataError(f"{path}: data set '{name}' is packed more than once, which is not read; pack it once.")
    most, skipped = 2 * math.prod(chunks) * node.dtype.itemsize + PIECE, 1 << kinds.index(DEFLATE)
    whole = [slice(None)] * (node.ndim - len(where))
    places = [_touched(at, n, step) for at, n, step in zip((*where, *whole), node.shape, chunks, strict=True)]
    for place in itertools.product(*places):
        stored = node.id.get_chunk_info_by_coord(place)
        seen = (path, name, stored.byte_offset, stored.size)
        if stored.byte_offset is None or stored.size * DEFLATED <= HARMLESS or seen in _PASSED:
            continue
        mask, raw = node.id.read_direct_chunk(place)
        if not mask & skipped:
            check_inflation(path, f"a chunk of data set '{name}'", {"name": "zlib"}, raw, most)
        _PASSED.add(seen)


def _touched(at: Any, length: int, step: int) -> range:
    """Where the chunks begin along an axis that a place or a slice touches."""
    first, last, _ = at.indices(length) if isinstance(at, slice) else (at, at + 1, 1)
    return range(first // step * step, min(last, length), step)


class _Open:
    """An open file, equal to every other, so that only what is known of a file decides whether it is looked at."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Open)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(4096)
def _check_once(path: Path, state: tuple[int, ...], opened: _Open) -> None:
    file = opened.file
    names: list[bytes] = []

    def visit(name: bytes, info: Any) -> bytes | None:
        """A link that leaves the file ends the visit."""
        if info.type == 0:
            names.append(name)
        return None if info.type in INSIDE else name

    way_out = file.id.links.visit(visit, info=True)
    if way_out is not None:
        raise DataError(
            f"{path}: '{way_out.decode(errors='replace')}' is a link into another file, which is not followed; copy "
            "what it points to into the file."
        )
    opened.file = None
    if len(names) <= FEW:
        nodes = (h5py.h5o.open(file.id, name) for name in names)
        sizes = [check_data_set(h5py.Dataset(node)) for node in nodes if isinstance(node, h5py.h5d.DatasetID)]
        check_claim(path, sum(sizes), state[-1])
