"""CUDA graphs: work on a GPU recorded once and replayed, so that nobody waits for its many launches."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from ups.tensors import TENSORS, Window

Made = TypeVar("Made")

# Held while a window is built and while a graph is captured: a capture is invalid if another thread allocates.
QUIET = threading.Lock()


def tensors_of(window: Window) -> dict[str, Tensor]:
    """The tensors of a window by field."""
    values = {name: getattr(window, name) for name in TENSORS}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def signature(window: Window) -> Hashable:
    """What captured work depends on beside the numbers: the task, the boundary, and every shape and type."""
    shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in tensors_of(window).items())
    return window.task.name, window.periodic, window.box, shapes


def fill(static: Mapping[str, Tensor], window: Window) -> None:
    """Copy the tensors of a window into those that a graph reads."""
    given = tensors_of(window)
    torch._foreach_copy_(list(static.values()), [given[name] for name in static])


def record(work: Callable[[], Made], pool: Any, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Made]:
    """The graph of some work, which is not done yet, and what it will have made; RuntimeError where it is no graph."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            made = work()
    except RuntimeError:
        _recover(pool)
        raise
    return graph, made


def _recover(pool: Any) -> None:
    """Undo what a failed capture leaves: a generator and an allocator that believe it is still going on."""
    device = torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())
    with suppress(RuntimeError, AttributeError):  # where torch has ended the allocation itself
        torch._C._cuda_endAllocateToPool(device, pool)


def cause_of(error: BaseException) -> str:
    """Why a capture failed, in a line."""
    while error.__context__ is not None:  # ending a spoilt capture fails too; the first failure is the cause
        error = error.__context__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, anything that makes the host wait for the GPU raises (as far as torch notices)."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
