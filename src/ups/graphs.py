"""CUDA graphs: records work on a GPU once and replays it, which saves launching its many kernels each time."""

from __future__ import annotations

import gc
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
    return window.task.name, window.grid, shapes


def fill(static: Mapping[str, Tensor], window: Window) -> None:
    """Copy the tensors of a window into those that a graph reads."""
    given = tensors_of(window)
    torch._foreach_copy_(list(static.values()), [given[name] for name in static])


_LOST = [0]


def lost_generators() -> int:
    """How often a failed capture has cost the GPU's generator its state: graphs from before that go on drawing from the
    old one, which nobody sets or saves any more."""
    return _LOST[0]


def record(work: Callable[[], Made], pool: Any, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Made]:
    """The graph of some work, which is not done yet, and what it will have made; RuntimeError where it is no graph.

    After an error the pool must not be captured into again unless a graph of it is kept."""
    graph, began, worked = torch.cuda.CUDAGraph(), False, False
    try:
        # The outer context: one that cannot be ended leaves its stream as the current one.
        with (
            _uncollected(),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            began = True
            made = work()
            worked = True
    except RuntimeError as error:
        # Where the work alone has failed, the capture was ended in good order.
        _recover(pool, spoilt=worked or not began or error.__context__ is not None)
        raise
    return graph, made


@contextmanager
def _uncollected() -> Iterator[None]:
    """Inside, Python looks for no circles of dead objects: one that held an older graph would end it, and a graph that
    ends makes any capture invalid that is going on."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _recover(pool: Any, spoilt: bool) -> None:
    """Undo what a failed capture leaves: an allocator and, of a `spoilt` one that could not be ended, a generator that
    believe it is still going on."""
    device = torch.cuda.current_device()
    if spoilt:
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())
        _LOST[0] += 1
    with suppress(RuntimeError, AttributeError):  # where torch has ended the allocation itself
        torch._C._cuda_endAllocateToPool(device, pool)


def _chain(error: BaseException) -> list[BaseException]:
    """What failed, the last first: ending a spoilt capture fails too."""
    return [error, *(_chain(error.__context__) if error.__context__ is not None else [])]


def out_of_memory(error: BaseException) -> bool:
    """Whether a capture failed for want of memory."""
    return any(isinstance(link, torch.OutOfMemoryError) for link in _chain(error))


def cause_of(error: BaseException) -> str:
    """Why a capture failed, in a line: what failed first."""
    error = _chain(error)[-1]
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
