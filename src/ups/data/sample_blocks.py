"""Reads many samples at once, in blocks of neighbouring rows and by threads; computes their moments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from ups.data.source import Source
from ups.lazy_imports import Tensor, torch
from ups.types import Array, DataError

# A sample of more bytes is read alone: one call for it costs little beside its bytes.
SMALL = 2**20
# Bytes of a block, and those between two wanted samples that are read along rather than asking twice.
BLOCK, GAP = 16 * 2**20, 2**16
# Bytes of all buffers on the way to a GPU, beyond which there are fewer of them than threads.
STAGED = 2**28
# Threads that read trajectories at once; more do not help, for the memory is the limit.
THREADS = 8

T = TypeVar("T")
# Reads some of several samples to `(N, T, *S, C)`.
Read = Callable[[range, Array], None]


def blocks_of(source: Source, rows: Sequence[int], samples: range, size: int) -> list[range]:
    """`samples`, which are places in `rows`, in pieces that are each read at once; `size` bytes are those of one."""
    pieces, first, beside = [], samples.start, range(0)
    for i in samples:
        near = i > first and rows[i - 1] < rows[i] < beside.stop and (rows[i] - rows[i - 1] - 1) * size <= GAP
        if size > SMALL or not near or (rows[i] - rows[first] + 1) * size > BLOCK:
            if i > first:
                pieces.append(range(first, i))
            first, beside = i, source.beside(rows[i])
    return [*pieces, range(first, samples.stop)] if samples else []


def read_block(rows: Sequence[int], one: Callable[[int], Array], several: Callable[[range], Array]) -> Array:
    """What is stored of the samples `rows` of a block, `(N, …)`: by `several` at once, or by `one` alone."""
    if len(rows) > 1:
        try:
            values: Array = several(range(rows[0], rows[-1] + 1))
            return values if len(rows) == len(values) else values[np.asarray(rows) - rows[0]]
        except DataError:
            pass  # one by one, so that the sample that cannot be read is named, and those around it are not needed
        return np.stack([one(row) for row in rows])
    return one(rows[0])[None]


def side_by_side(pieces: Sequence[Array]) -> Array:
    """Arrays of one shape but for their channels, joined along these. Channel by channel, which is twice as fast as
    numpy's own way where a piece has a few channels."""
    if len(pieces) == 1:
        return pieces[0]
    counts = [piece.shape[-1] for piece in pieces]
    result = np.empty((*pieces[0].shape[:-1], sum(counts)), np.result_type(*pieces))
    places = iter(range(sum(counts)))
    for piece, count in zip(pieces, counts, strict=True):
        for channel in range(count):
            result[..., next(places)] = piece[..., channel]
    return result


def moments_of(values: Array, volumes: Array | None = None) -> Array:
    """Mean, mean square, least and greatest of each sample of `values (N, …, C)`, `(4, N, C)`, in float64; of values at
    points, `(N, T, points, C)`, each counts as much as its volume."""
    count, channels = len(values), values.shape[-1]
    if volumes is not None:
        ends, parts = (values.min(axis=(1, 2)), values.max(axis=(1, 2))), volumes / volumes.sum()
        means = [np.einsum("ntpc,p->ntc", each, parts).mean(1) for each in (values, values.astype(np.float64) ** 2)]
        return np.stack([*means, *ends])
    flat = values.reshape(count, -1, channels).astype(np.float64)
    if flat.nbytes > count * SMALL:  # torch is several times as fast on what is long
        rows = []
        for each in map(torch.from_numpy, flat):
            middle, least, most = each.mean(0), each.amin(0), each.amax(0)
            rows.append(torch.stack((middle, each.square_().mean(0), least, most)).numpy())
        return np.stack(rows, axis=1)
    ends, mean = (flat.min(axis=1), flat.max(axis=1)), _means(flat)
    np.square(flat, out=flat)
    return np.stack([mean, _means(flat), *ends])


def _means(flat: Array) -> Array:
    """Means over the middle of `(N, n, C)`, a channel at a time: that adds up in an order of its own."""
    return np.stack([flat[..., c].mean(axis=1) for c in range(flat.shape[-1])], axis=-1)


def fill_frames(held: Tensor, read: Read, apart: bool, staged: bool | None = None) -> None:
    """Fill `held (N, T, *S, C)`, wherever it lies, by several threads: `read` samples of it to an array of their own.

    Where it does not lie in the memory of the host (or `staged` says so) each thread has a buffer to read to,
    page-locked for a GPU, which is copied there while other threads read; `apart`, it holds one channel after the
    other, which the device puts side by side.
    """
    count, numbers = len(held), held[0].numel()
    step = max(1, BLOCK // (4 * numbers))
    pieces = [range(first, min(first + step, count)) for first in range(0, count, step)]
    if not (held.device.type != "cpu" if staged is None else staged):
        whole = held.numpy()
        in_threads(lambda i: read(pieces[i], whole[pieces[i].start : pieces[i].stop]), len(pieces))
        return
    buffers = SimpleQueue[Tensor]()
    for _ in range(max(1, min(threads_for(len(pieces)), STAGED // (4 * step * numbers)))):
        buffers.put(torch.empty(step * numbers, dtype=held.dtype, pin_memory=held.is_cuda))

    def carry(i: int) -> None:
        buffer, there = buffers.get(), held[pieces[i].start : pieces[i].stop]
        try:
            shape = (there.shape[-1], *there.shape[:-1]) if apart else tuple(there.shape)
            flat = buffer[: there.numel()].view(shape)
            read(pieces[i], (flat.movedim(0, -1) if apart else flat).numpy())
            with torch.cuda.device(held.device) if held.is_cuda else nullcontext():
                moved = flat.to(held.device)  # returns when the buffer may be used again
                there.copy_(moved.movedim(0, -1) if apart else moved)
        finally:
            buffers.put(buffer)

    in_threads(carry, len(pieces))
    if held.is_cuda:
        torch.cuda.synchronize(held.device)  # each thread has copied in its own time


def threads_for(count: int, cores_each: int = 1) -> int:
    """How many threads do `count` pieces of work, each on so many of the cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(THREADS, cores // cores_each, count))


def in_threads(work: Callable[[int], T], count: int, cores_each: int = 1) -> list[T]:
    """`work(0)`, `work(1)`, … `work(count − 1)`, by as many threads as there are cores for this process."""
    with ThreadPoolExecutor(threads_for(count, cores_each), "trajectories") as pool:
        return list(pool.map(work, range(count)))
