"""Writes and reads tensors of all ranks: each rank writes its pieces, and reads what it needs."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from ups.engine.checkpoint import index, manifest
from ups.engine.checkpoint.index import Region, TensorLayout
from ups.files import read_at, write_all

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

LARGE = 2**27  # bytes that are worth a file and a thread of their own
PIECE = 2**24  # bytes written or read at once


def sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this is one rank's part of a tensor. Asked without its class, whose import takes a second."""
    return hasattr(tensor, "placements")


def dtype_name(tensor: Tensor) -> str:
    """The type of a tensor's numbers as an index names it."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in index.DTYPES:
        raise ValueError(f"a checkpoint cannot hold numbers of the type {name}")
    return name


def region(tensor: Tensor) -> Region:
    """The part of a tensor that this rank holds: all of a plain one."""
    offsets, sizes = [0] * tensor.ndim, list(tensor.shape)
    if sharded(tensor):
        from torch.distributed.tensor import Replicate, Shard

        place = tensor.device_mesh.get_coordinate()
        if place is None:
            raise ValueError("a tensor is sharded over ranks of which this is none")
        for ranks, rank, placement in zip(tensor.device_mesh.shape, place, tensor.placements, strict=True):
            if type(placement) is Shard:
                axis = placement.dim
                most = -(-sizes[axis] // ranks)  # as torch.chunk: the last ones may hold less, or nothing
                begin = min(rank * most, sizes[axis])
                offsets[axis] += begin
                sizes[axis] = min(most, sizes[axis] - begin)
            elif type(placement) is not Replicate:
                raise ValueError(f"a checkpoint cannot hold a tensor that is placed as {placement}")
        if tuple(sizes) != tuple(tensor.to_local().shape):
            raise ValueError(f"a shard is {list(tensor.to_local().shape)} and should be {sizes}")
    return tuple(offsets), tuple(sizes)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory."""
    return (tensor.to_local() if sharded(tensor) else tensor).detach()


def write_shards(folder: Path, rank: int, tensors: Mapping[str, Tensor]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Write this rank's pieces, in CPU memory; by file: its entry for the manifest, and the tensors that it has."""
    pieces = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    threads = max(1, min(manifest.THREADS, sum(t.nbytes for t in pieces.values()) // LARGE))
    groups: list[dict[str, Tensor]] = [{} for _ in range(threads)]
    loads = [0] * threads
    for name in sorted(pieces, key=lambda n: (-pieces[n].nbytes, n)):
        lightest = loads.index(min(loads))
        loads[lightest] += pieces[name].nbytes
        groups[lightest][name] = pieces[name]
    files = {f"rank-{rank}-{n}.safetensors": group for n, group in enumerate(groups) if group}
    with ThreadPoolExecutor(threads) as pool:
        entries = list(pool.map(lambda item: _write(folder / item[0], item[1]), files.items()))
    return {name: (entry, list(group)) for (name, group), entry in zip(files.items(), entries, strict=True)}


def _write(path: Path, pieces: Mapping[str, Tensor]) -> dict[str, Any]:
    """One file, hashed on its way: the manifest says what was meant, not what the disk made of it."""
    shard = index.shard_of({name: (dtype_name(t), tuple(t.shape)) for name, t in pieces.items()})
    hashed = hashlib.sha256(shard.header)
    with path.open("xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(shard.header))
        for name in shard.places:
            content = memoryview(_bytes(pieces[name]))
            for begin in range(0, len(content), PIECE):
                hashed.update(content[begin : begin + PIECE])
                write_all(file.fileno(), content[begin : begin + PIECE])
        os.fsync(file.fileno())
    return manifest.entry(shard.size, hashed.hexdigest())


def _bytes(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor in CPU memory, in place."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> str | None:
    """Read this rank's part into `tensors`, in place; a sentence instead if names, shapes or types differ.

    Each rank reads alone and only what it needs: nothing here waits for another one.
    """
    there = manifest.read_index(folder)
    here = {name: TensorLayout(dtype_name(t), tuple(t.shape), ()) for name, t in tensors.items()}
    for name in (*here, *there):
        ours, theirs = (layouts[name].words() if name in layouts else "absent" for layouts in (here, there))
        if ours != theirs:
            return (
                f"the checkpoint belongs to another model: '{name}' is {theirs} there and {ours} here; use the config "
                "it was made with, or overwrite the run."
            )
    shards = index.shards_of(there)
    jobs = [
        (chunk.file, shards[chunk.file].places[name], there[name].dtype, (chunk.offsets, chunk.sizes), tensor)
        for name, tensor in tensors.items()
        for chunk in there[name].chunks
    ]
    descriptors = {name: os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW) for name in shards}
    try:
        with ThreadPoolExecutor(manifest.THREADS) as pool:
            list(pool.map(lambda job: _fill(descriptors[job[0]], *job[1:]), jobs))
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return None


@torch.no_grad()
def _fill(descriptor: int, place: int, dtype: str, chunk: Region, tensor: Tensor) -> None:
    """Copy what a chunk has of this rank's part of a tensor; of the file, only rows with something of it are read."""
    mine = region(tensor)
    common = index.overlap(chunk, mine)
    if common is None:
        return
    (offsets, sizes), held = common, local(tensor)
    for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        held = held.narrow(axis, offset - mine[0][axis], size)
    row = index.item_bytes(dtype) * math.prod(chunk[1][1:])
    first, rows = (offsets[0] - chunk[0][0], sizes[0]) if sizes else (0, 1)
    if held.device.type == "cpu" and held.is_contiguous() and sizes[1:] == chunk[1][1:]:
        _read(descriptor, memoryview(_bytes(held)), place + first * row)
        return
    step = max(1, PIECE // row)
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        buffer = torch.empty(count * row, dtype=torch.uint8)
        _read(descriptor, memoryview(_bytes(buffer)), place + (first + begin) * row)
        piece = buffer.view(held.dtype).reshape((count, *chunk[1][1:]) if sizes else ())
        for axis, (offset, size) in enumerate(zip(offsets[1:], sizes[1:], strict=True), 1):
            piece = piece.narrow(axis, offset - chunk[0][axis], size)
        (held.narrow(0, begin, count) if sizes else held).copy_(piece)


def _read(descriptor: int, into: memoryview, place: int) -> None:
    if read_at(descriptor, into, place) < len(into):
        raise OSError(5, "a file of the checkpoint ends before its last chunk")
