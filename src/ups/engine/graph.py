"""Keeping a GPU busy: a step as one CUDA graph per signature, windows built ahead, a host not too far ahead."""

from __future__ import annotations

import copy
import dataclasses
import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor

from ups.tensors import Window
from ups.types import ConfigError

Update = Callable[[Window], None]
Say = Callable[[str], None]

WARM = 3  # ordinary steps with a signature before it is captured: lazy initialisation must lie behind it
MOST = 64  # graphs; more signatures than this means that shapes are not static at all
LEAD = 4  # steps the host may be ahead of the GPU

# Held while a window is built and while a graph is captured: a capture is invalid if another thread allocates.
QUIET = threading.Lock()


def tensors_of(window: Window) -> dict[str, Tensor]:
    """The tensors of a window by field."""
    values = {f.name: getattr(window, f.name) for f in dataclasses.fields(window)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def signature(window: Window) -> Hashable:
    """What a captured step depends on beside the numbers: the task, the boundary, and every shape and type."""
    shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in tensors_of(window).items())
    return window.task.name, window.periodic, window.box, shapes


def graphed(update: Update, mode: Literal["auto"] | bool, device: torch.device, alone: bool, say: Say) -> Graphs | None:
    """`update` as graphs on a CUDA device, where the step is one rank's `alone`; None where it runs step by step."""
    if mode is True and device.type != "cuda":
        raise ConfigError("graph is on, but a CUDA graph needs a CUDA device; set graph to auto or off.")
    if mode is True and not alone:
        raise ConfigError("graph is on, but a step that ranks vote on is no graph; set graph to auto or off.")
    return Graphs(update, mode is True, say) if device.type == "cuda" and mode and alone else None


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]


class Graphs:
    """`update(window)` captured once per signature and replayed on static inputs; all graphs share one memory pool.

    The first steps with a signature are ordinary ones and count as training. `update` must be free of host
    decisions that depend on data, and everything that outlives a step (weights, moments, averages, meters, the
    learning rate) must exist before it. Sharing the pool is sound because nothing else survives a step.
    """

    def __init__(self, update: Update, must: bool, say: Say) -> None:
        self.update, self.must, self.say = update, must, say
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: dict[Hashable, int] = {}
        self.captured: dict[Hashable, _Captured] = {}
        self.eager: set[Hashable] = set()

    def __call__(self, window: Window) -> None:
        key = signature(window)
        if key in self.captured:
            ready = self.captured[key]
            given = tensors_of(window)
            torch._foreach_copy_(list(ready.inputs.values()), [given[name] for name in ready.inputs])
            ready.graph.replay()
        elif key in self.eager:
            self.update(window)
        else:
            self._first(key, window)

    def _first(self, key: Hashable, window: Window) -> None:
        """An ordinary step on the capturing stream; the last of them looks for what would spoil a capture."""
        count = self.seen[key] = self.seen.get(key, 0) + 1
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            if count < WARM:
                self.update(window)
            else:
                self._try(key, window)
        here.wait_stream(self.stream)
        for tensor in tensors_of(window).values():
            tensor.record_stream(self.stream)

    def _try(self, key: Hashable, window: Window) -> None:
        with QUIET:
            try:
                with _no_waiting():
                    self.update(window)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # a host decision inside the step: nothing has moved yet
                self._give_up(key, window, error)
                self.update(window)
                return
            if len(self.captured) >= MOST:
                self._give_up(key, window, RuntimeError(f"there are {MOST} graphs already"))
                return
            try:
                self.captured[key] = self._capture(window)
            except RuntimeError as error:  # this window's step is done; the capture itself ran nothing
                self._recover()
                self._give_up(key, window, error)

    def _capture(self, window: Window) -> _Captured:
        static = copy.copy(window)
        for name, tensor in tensors_of(window).items():
            object.__setattr__(static, name, tensor.clone())  # frozen, but this one is ours
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            self.update(static)
        return _Captured(graph, {name: t for name, t in tensors_of(static).items() if t.numel()})

    def _recover(self) -> None:
        """Undo what a failed capture leaves: a generator and an allocator that believe it is still going on."""
        device = torch.cuda.current_device()
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())
        with suppress(RuntimeError, AttributeError):  # where torch has ended the allocation itself
            torch._C._cuda_endAllocateToPool(device, self.pool)

    def _give_up(self, key: Hashable, window: Window, error: BaseException) -> None:
        while error.__context__ is not None:  # ending a spoilt capture fails too; the first failure is the cause
            error = error.__context__
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"the step of task '{window.task.name}' cannot be captured as a CUDA graph ({cause})"
        if self.must:
            raise ConfigError(f"{what}; mend the stage, or set graph to auto or off.") from error
        self.eager.add(key)
        self.say(f"{what}; it runs step by step instead, which is slower.")


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, anything that makes the host wait for the GPU raises (as far as torch notices)."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class Pace:
    """Holds the host at most `LEAD` steps ahead of the GPU, so that clocks, budgets and memory stay honest."""

    def __init__(self, device: torch.device) -> None:
        self.events: deque[torch.cuda.Event] | None = deque() if device.type == "cuda" else None

    def step(self) -> None:
        if self.events is None:
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.events.append(event)
        if len(self.events) > LEAD:
            self.events.popleft().synchronize()

    def idle(self) -> bool:
        """Whether the device has done all steps it was given; the host, which computes itself, always has."""
        return not self.events or bool(self.events[-1].query())  # type: ignore[no-untyped-call]


class Prefetch(AbstractContextManager["Prefetch"]):
    """Windows `first`, `first + 1`, … of a pure function of the step, built and copied by a thread `depth` ahead.

    On CUDA they are pinned and copied on a stream of their own, and the caller's stream waits for the copy, not the
    host. `depth` 0 builds each window when it is asked for. An error in the thread is raised by `get`.
    """

    def __init__(self, build: Callable[[int], Window], first: int, device: torch.device, depth: int) -> None:
        self.build, self.next, self.device = build, first, device
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.thread = ThreadPoolExecutor(1, "windows", self._settle) if depth else None
        self.ahead: deque[Future[tuple[Window, torch.cuda.Event | None]]] = deque()
        self.depth = depth

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.thread:
            self.thread.shutdown(cancel_futures=True)
        self.ahead.clear()

    def get(self) -> Window:
        """The next window, on the device."""
        if self.thread is None:
            window, copied = self._make(self.next)
        else:
            while len(self.ahead) <= self.depth:
                self.ahead.append(self.thread.submit(self._make, self.next + len(self.ahead)))
            built = self.ahead.popleft()
            error = built.exception()
            if error is not None:  # asked again, it builds the same window again, not the one after it
                self.ahead.clear()
                raise error
            window, copied = built.result()
        self.next += 1
        if copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(copied)
            for tensor in tensors_of(window).values():
                tensor.record_stream(stream)
        return window

    def _make(self, step: int) -> tuple[Window, torch.cuda.Event | None]:
        with QUIET:
            if self.side is None:
                return self.build(step).to(self.device), None
            with torch.cuda.stream(self.side):
                window = self.build(step)
                if not window.context.is_cuda:
                    window = window.pin().to(self.device, non_blocking=True)
                copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                copied.record()
            return window, copied

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
