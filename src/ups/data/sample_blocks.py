"""Many small samples read at once, in blocks of rows that lie beside each other in a file, by threads; moments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from ups.data.source import Source
from ups.later import torch
from ups.types import Array, DataError

# A sample of more bytes is read alone: one call for it costs little beside its bytes.
SMALL = 2**20
# Bytes of a block, and those between two wanted samples that are read along rather than asking twice.
BLOCK, GAP = 16 * 2**20, 2**16
# Threads that read trajectories at once; more do not help, for the memory is the limit.
THREADS = 8

T = TypeVar("T")


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


def moments_of(values: Array) -> Array:
    """Mean and mean square of each sample of `values (N, …, C)`, `(2, N, C)`, in float64."""
    count, channels = len(values), values.shape[-1]
    flat = values.reshape(count, -1, channels).astype(np.float64)
    if flat.nbytes > count * SMALL:  # torch is several times as fast on what is long
        rows = [(each.mean(0).numpy(), each.square_().mean(0).numpy()) for each in map(torch.from_numpy, flat)]
        return np.stack(rows, axis=1)
    mean = np.stack([flat[..., c].mean(axis=1) for c in range(channels)], axis=-1)
    np.square(flat, out=flat)
    return np.stack([mean, np.stack([flat[..., c].mean(axis=1) for c in range(channels)], axis=-1)])


def in_threads(work: Callable[[int], T], count: int, cores_each: int = 1) -> list[T]:
    """`work(0)`, `work(1)`, … `work(count − 1)`, by as many threads as there are cores for this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(THREADS, cores // cores_each, count)), "trajectories") as pool:
        return list(pool.map(work, range(count)))
