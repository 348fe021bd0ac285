"""Keeps a GPU busy: runs steps as two CUDA graphs, builds windows ahead, bounds how far the host runs ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

import torch
from torch import Tensor

from ups.engine.learner import Learner
from ups.engine.randomness import generators, set_generators
from ups.engine.ranks.replicated import Packed, Replicated
from ups.graphs import (
    QUIET,
    cause_of,
    fill,
    lost_generators,
    no_waiting,
    out_of_memory,
    record,
    signature,
    tensors_of,
)
from ups.tensors import Window
from ups.types import ConfigError

Work = Callable[[], None]
Say = Callable[[str], None]

WARM = 3  # ordinary steps with a key before it is captured: lazy initialisation must lie behind it
MOST = 64  # keys; more than this means that shapes are not static at all
LEAD = 4  # steps the host may be ahead of the GPU


def graphed(learner: Learner, mode: Literal["auto"] | bool, say: Say) -> Graphs | None:
    """A learner's steps as graphs on a CUDA device, on any number of ranks that each hold the whole module; None where
    they run kernel by kernel."""
    cuda = learner.dist.device.type == "cuda"
    if mode is True and not cuda:
        raise ConfigError("graph is on, but a CUDA graph needs a CUDA device; set graph to auto or off.")
    if mode is True and not isinstance(learner.parallel, Replicated):
        raise ConfigError(
            "graph is on, but with strategy fsdp ranks wait for each other in the middle of a step, which is no graph "
            "then; set graph to auto or off, or dist.strategy to ddp."
        )
    if not (cuda and mode and isinstance(learner.parallel, Replicated) and learner.config.activations == "keep"):
        return None
    return Graphs(learner, learner.parallel, mode is True, say, CudaRecorder())


class Recorder(Protocol):
    """Records work so that it can be done again and again. `record` does none of it; what it gives does it all, in the
    memory that was recorded, and changes nothing that only Python sees."""

    def aside(self, window: Window) -> AbstractContextManager[None]: ...  # where work is recorded, and warmed up
    def strict(self) -> AbstractContextManager[None]: ...  # work that cannot be recorded raises RuntimeError
    def record(self, work: Work) -> Work: ...  # RuntimeError where it cannot be recorded
    def forget(self) -> None: ...  # all that was recorded is gone: its memory too
    def stale(self) -> bool: ...  # what was recorded would draw other random numbers than it should


class CudaRecorder:
    """CUDA graphs, all of one memory pool, captured on a stream of their own."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool, self.lost = torch.cuda.graph_pool_handle(), lost_generators()

    @contextmanager
    def aside(self, window: Window) -> Iterator[None]:
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            here.wait_stream(self.stream)
            for tensor in tensors_of(window).values():
                tensor.record_stream(self.stream)

    def strict(self) -> AbstractContextManager[None]:
        return no_waiting()

    def record(self, work: Work) -> Work:
        graph, _ = record(work, self.pool, self.stream)
        replay: Work = graph.replay
        return replay

    def forget(self) -> None:
        """A pool whose graphs are all gone cannot be captured into again, so there is a new one."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.pool, self.lost = torch.cuda.graph_pool_handle(), lost_generators()

    def stale(self) -> bool:
        return lost_generators() != self.lost


@dataclass(frozen=True)
class _Captured:
    """A step: its static inputs, its two graphs, and what Python knows of it between them."""

    inputs: dict[str, Tensor]
    compute: Work
    move: Work
    terms: dict[str, Tensor]
    packed: Packed


class Graphs:
    """A learner whose steps are captured and replayed on static inputs, as two graphs: `compute` up to the vote, which
    may be repeated, and `move` after the gradients are reduced. The vote and the reduction between them are no graph,
    so that any number of ranks does what one does, and each rank may capture or not, for itself.

    A key is all that is baked into a graph beside the numbers: the signature of the window, the samples of all ranks,
    and the microbatch (the number of ranks never changes). The first steps with a key are ordinary ones and count as
    training. The next one captures both graphs before it runs anything: a failure to capture costs nothing. `move` of
    one key reads the gradients and the loss of its own `compute`, and nothing is captured or replayed between the two.

    All graphs share one memory pool. What survives a step (weights, moments, averages, meters, the learning rate, the
    buffer in which ranks reduce) exists before it, elsewhere. What passes from `compute` to `move` is referred to by
    the key, so no later capture is given its memory, and `.grad` stays readable until the next step: of several ranks
    it is the buffer, of one alone every key keeps gradients of its own. All else is dead when its graph ends.

    When the microbatch has shrunk, memory is short and no old graph is of use: all are dropped, with the pool.
    """

    def __init__(self, learner: Learner, replicated: Replicated, must: bool, say: Say, recorder: Recorder) -> None:
        self.learner, self.replicated, self.must, self.say, self.recorder = learner, replicated, must, say, recorder
        self.seen: dict[Hashable, int] = {}  # ordinary steps that are over
        self.captured: dict[Hashable, _Captured] = {}
        self.eager: set[Hashable] = set()
        self.microbatch = learner.state.microbatch
        self._key: Hashable = None  # of the step under way
        self._ready: _Captured | None = None

    def compute(self, window: Window) -> None:
        """What `Learner.compute` does."""
        learner = self.learner
        if learner.state.microbatch != self.microbatch or self.recorder.stale():
            self.microbatch = learner.state.microbatch
            self._forget()
        key = self._key = (signature(window), learner.count(learner.state.step), self.microbatch)
        self._ready = ready = self.captured.get(key) or self._captured(key, window)
        if ready is None:
            self._ordinary(key, window)
            return
        learner.pulse.beat("forward")
        fill(ready.inputs, window)
        ready.compute()
        learner.terms, self.replicated.packed = ready.terms, ready.packed
        learner.pulse.beat("backward")

    def commit(self, window: Window) -> None:
        """What `Learner.commit` does."""
        learner, key = self.learner, self._key
        learner.reduce()
        if self._ready is not None:
            learner.pulse.beat("step")
            self._ready.move()
        elif key in self.eager:
            learner.move(window)
        else:
            with self.recorder.aside(window):
                learner.move(window)
            self.seen[key] = self.seen.get(key, 0) + 1

    def _ordinary(self, key: Hashable, window: Window) -> None:
        """Kernel by kernel; the last such step before a capture looks for what would spoil it."""
        learner = self.learner
        if key in self.eager:
            learner.compute(window)
            return
        with self.recorder.aside(window):
            if self.seen.get(key, 0) < WARM - 1:
                learner.compute(window)
                return
            device = learner.dist.device
            states = generators(device)
            with QUIET:
                try:
                    with self.recorder.strict():
                        learner.compute(window)
                    return
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:  # most likely a host decision inside the step: nothing has moved yet
                    self._give_up(key, window, cause_of(error))
            set_generators(states, device)
            learner.compute(window)

    def _captured(self, key: Hashable, window: Window) -> _Captured | None:
        """The graphs of a step, captured now; None where it is not time yet, or where it cannot be."""
        if key in self.eager or self.seen.get(key, 0) < WARM:
            return None
        if len(self.captured) >= MOST:
            self._give_up(key, window, f"there are {MOST} graphs already")
            return None
        self.learner.pulse.beat("forward")
        states = generators(self.learner.dist.device)
        try:
            with QUIET, self.recorder.aside(window), self.learner.silent():
                self.captured[key] = ready = self._capture(window)
            return ready
        except RuntimeError as error:  # nothing has run
            short, cause = out_of_memory(error), cause_of(error)
        self._forget()  # here, where the error's frames no longer refer to what was captured
        set_generators(states, self.learner.dist.device)
        if not (self.must and short):  # else smaller microbatches are tried
            self._give_up(key, window, cause)
        if short:  # for all ranks to vote on
            raise torch.OutOfMemoryError(cause)
        return None

    def _capture(self, window: Window) -> _Captured:
        learner, replicated = self.learner, self.replicated
        static = window.clone()
        compute = self.recorder.record(lambda: learner.compute(static))
        terms, packed = learner.terms, replicated.packed
        assert packed is not None
        replicated.show()  # `move` reads what a reduction would leave
        move = self.recorder.record(lambda: learner.move(static))
        inputs = {name: t for name, t in tensors_of(static).items() if t.numel()}
        return _Captured(inputs, compute, move, terms, packed)

    def _forget(self) -> None:
        """Let go of all graphs, and of what refers to their memory. Keys that were warm are captured again."""
        self._ready = None
        self.captured.clear()
        self.learner.terms = {}
        self.replicated.recover()
        self.recorder.forget()

    def _give_up(self, key: Hashable, window: Window, cause: str) -> None:
        what = f"the step of task '{window.task.name}' cannot be captured as a CUDA graph ({cause})"
        if self.must:
            raise ConfigError(f"{what}; mend the stage, or set graph to auto or off.")
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

    def finish(self) -> None:
        """Wait until the device has done all steps it was given."""
        if self.events:
            self.events[-1].synchronize()

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
