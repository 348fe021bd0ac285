"""Windows built by worker processes: the same sequence for any number of them; no CUDA, no shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ups.data.windows import Windows
from ups.host_memory import kills
from ups.shortage import shortage
from ups.tensors import TENSORS, Window
from ups.types import UpsError

# Windows that each worker builds ahead.
AHEAD = 2
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of glibc's mallopt

Packed = dict[str, Any]


class _Numbered(Dataset[Packed]):
    """Windows by task and numbers, as plain arrays: those travel through a pipe, where tensors would need /dev/shm."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __getitem__(self, request: Any) -> Packed:
        which, chosen = request
        try:
            window = self.windows.window(which, chosen)
        except UpsError as error:  # sent as a value: raised in a worker, it would arrive wrapped in a traceback
            if shortage(error) is not None:  # and without what it was raised from
                raise MemoryError(str(error)) from error
            return {"failed": error}
        tensors = {name: getattr(window, name) for name in TENSORS}
        arrays = {name: value.numpy() for name, value in tensors.items() if value is not None}
        drawn = {"which": which, "chosen": chosen}
        plain = {name: getattr(window, name) for name in ("ids", "grid")}
        return {**arrays, **drawn, **plain}


class Loader:
    """The batches of `windows`, built ahead of time by `workers` processes.

    The sampler of this process decides what a step draws; workers only read, each from files it opened itself.
    `batch` of any step but the next one starts the workers again from there.
    """

    def __init__(self, windows: Windows, workers: int) -> None:
        self.windows, self.workers = windows, workers
        self._batches: Iterator[Packed] | None = None
        self._next = 0
        self._kills = 0  # by the kernel, for want of memory, before the window under way
        self._lost_at = -1  # the last step at which a worker was lost

    def batch(self, step: int) -> Window:
        """The window of a step. Where it could not be built, to ask again starts the workers anew."""
        self._kills = kills()
        try:
            if self._batches is None or step != self._next:
                self.close()
                self._batches, self._next = self._start(step), step
            packed = dict(next(self._batches))
        except (RuntimeError, OSError, EOFError, MemoryError) as error:
            self.close()
            # A worker, or the server that forks them.
            lost = "DataLoader worker (pid" in str(error) or isinstance(error, EOFError)
            if lost and kills() > self._kills:
                raise MemoryError(f"the kernel killed a loader worker for want of host memory: {error}") from error
            if not lost or self._lost_at == step:
                raise
            self._lost_at = step  # somebody killed it, or a reader did; its next window may be another one's
            print(f"{' '.join(str(error).split())}; the workers are started anew for step {step}.", file=sys.stderr)
            return self.batch(step)
        self._next += 1
        if "failed" in packed:
            raise packed["failed"]
        which = packed.pop("which")
        self.windows.used(step, which, packed.pop("chosen"))
        task = self.windows.train[which].task
        packed |= {name: torch.from_numpy(packed[name]) for name in TENSORS if name in packed}
        return Window(task=task, **packed)

    def _start(self, first: int) -> Iterator[Packed]:
        # From a server that never had threads or a GPU: a fork of this process would have both.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ups.data.worker_imports"])
        loader = DataLoader(
            _Numbered(self.windows),
            batch_size=None,
            sampler=map(self.windows.indices, itertools.count(first)),
            num_workers=self.workers,
            collate_fn=dict,  # changes nothing: the worker makes no tensors
            prefetch_factor=AHEAD,
            multiprocessing_context=context,
            worker_init_fn=_set_up_worker,
        )
        return iter(loader)

    def count(self, step: int) -> int:
        return self.windows.count(step)

    def frames(self) -> tuple[int, int]:
        return self.windows.frames()

    def keep(self, device: torch.device, room: int, steps: int | None) -> int:  # noqa: ARG002
        """Nothing: workers read, and none of them has a GPU."""
        return 0

    def validation(self, step: int) -> Iterable[Window]:
        return self.windows.validation(step)

    def close(self) -> None:
        """End the workers."""
        self._batches = None


def _set_up_worker(worker: int) -> None:  # noqa: ARG001
    """A worker computes on one core and frees the memory of a window as soon as it is sent."""
    torch.set_num_threads(1)
    with contextlib.suppress(OSError, AttributeError):  # where the C library is not glibc
        tune = ctypes.CDLL(None).mallopt
        tune(M_MMAP_THRESHOLD, 1 << 20)
        tune(M_ARENA_MAX, 1)


@contextmanager
def loaded(windows: Windows, workers: int) -> Iterator[Windows | Loader]:
    """`windows` as they are, or built by workers until the block ends."""
    if not workers:
        yield windows
        return
    with contextlib.closing(Loader(windows, workers)) as loader:
        yield loader
