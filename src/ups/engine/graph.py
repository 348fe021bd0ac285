"""Keeping a GPU busy: a step as one CUDA graph per signature, windows built ahead, a host not too far ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor

from ups.graphs import QUIET, cause_of, fill, no_waiting, record, signature, tensors_of
from ups.tensors import Window
from ups.types import ConfigError

Update = Callable[[Window], None]
Say = Callable[[str], None]

WARM = 3  # ordinary steps with a signature before it is captured: lazy initialisation must lie behind it
MOST = 64  # graphs; more signatures than this means that shapes are not static at all
LEAD = 4  # steps the host may be ahead of the GPU


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
            fill(ready.inputs, window)
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
                with no_waiting():
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
                self._give_up(key, window, error)

    def _capture(self, window: Window) -> _Captured:
        static = window.clone()
        graph, _ = record(lambda: self.update(static), self.pool, self.stream)
        return _Captured(graph, {name: t for name, t in tensors_of(static).items() if t.numel()})

    def _give_up(self, key: Hashable, window: Window, error: BaseException) -> None:
        what = f"the step of task '{window.task.name}' cannot be captured as a CUDA graph ({cause_of(error)})"
        if self.must:
            raise ConfigError(f"{what}; mend the stage, or set graph to auto or off.") from error
        self.eager.add(key)
        self.say(f"{what}; it runs step by step instead, which is slower.")


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
