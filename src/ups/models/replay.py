"""Replays: on a GPU, the steps of a rollout as CUDA graphs, kept for the next rollout of the same shape."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ups.graphs import QUIET, cause_of, fill, record, signature, tensors_of
from ups.models.ensembles import Draws
from ups.models.simulator_like import SimulatorLike
from ups.models.stepping import Stepping
from ups.progress import reporter
from ups.tensors import Window, tables_kept
from ups.types import TaskSpec

FEWEST = 4  # steps with one signature, of all rollouts so far, before it is captured: that costs about two of them
MOST = 8  # captured signatures; each holds the memory of a step
FREE = 0.25  # part of a GPU's memory that must be free for a capture: what it takes, nobody else can have


def replayable(simulator: SimulatorLike, window: Window) -> bool:
    """Whether steps after a window may be replayed: plain tensors on a GPU, networks at rest, nobody watching."""
    if not window.context.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if not at_rest(simulator, window.task):
        return False
    if torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode():  # part of somebody's own graph
        return False
    # Counters of FLOPs and of memory must see every operation; shards of weights are gathered by the host.
    plain = type(window.context) is Tensor and _get_current_dispatch_mode() is None
    return plain and window.mask is None and all(type(p) is nn.Parameter for p in simulator.parameters())


def at_rest(simulator: SimulatorLike, task: TaskSpec) -> bool:
    """Whether no network that takes part in a rollout is in training or compiled; the others may be."""
    parts = {simulator.codec, simulator.operator, *simulator.awake(task)}
    return not any(m.training or m._compiled_call_impl is not None for part in parts for m in part.modules())


def key_of(simulator: SimulatorLike, window: Window, points: Tensor | None, drawn: bool) -> Hashable:
    """All that a captured step depends on beside the numbers that it is given: where the weights are, too."""
    awake = [repr(part.config) for part in (simulator.codec, simulator.operator, *simulator.awake(window.task))]
    weights = tuple(t.data_ptr() for tensors in (simulator.parameters(), simulator.buffers()) for t in tensors)
    mixed = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    matmul = torch.get_float32_matmul_precision()
    shape, corner = None if points is None else tuple(points.shape), simulator.codec.corners.get(window.task.name)
    return signature(window), shape, corner, drawn, repr(simulator.config), *awake, weights, mixed, matmul


class Replays:
    """What a simulator has captured. A copy begins with nothing: graphs belong to the tensors they were made of."""

    def __init__(self) -> None:
        self.captured: dict[Hashable, _Replay] = {}
        self.steps: dict[Hashable, int] = {}
        self.refused: set[Hashable] = set()
        self.emptied: set[Hashable] = set()  # for these, what torch kept of the GPU's memory was given back
        self.reported: set[str] = set()
        self.say: Callable[[str], None] = lambda sentence: None  # noqa: ARG005
        self.stream: torch.cuda.Stream | None = None  # one for all: each keeps a workspace for good
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Replays:
        return Replays()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Replays, ()

    def frames(
        self,
        simulator: SimulatorLike,
        window: Window,
        steps: int,
        points: Tensor | None = None,
        draw: Draws | None = None,
    ) -> Tensor:
        """What `Stepping.frames` gives."""
        if not replayable(simulator, window):
            return Stepping(simulator, window, points).frames(steps, draw)
        # Only what the steps read; one dt, which is set anew for each where they differ.
        given = dataclasses.replace(window, targets=window.targets[:, :0], dt=window.step(0), ids=(), tokens=None)
        with self.lock:
            key = key_of(simulator, given, points, draw is not None)
            ready = self._ready(key, simulator, given, points, draw, steps)
            if ready is not None:
                return ready.frames(window, given, steps, points, draw)
        return Stepping(simulator, window, points).frames(steps, draw)

    def _ready(
        self,
        key: Hashable,
        simulator: SimulatorLike,
        given: Window,
        points: Tensor | None,
        draw: Draws | None,
        steps: int,
    ) -> _Replay | None:
        """The captured steps of a signature; None where they are not worth it yet, or cannot be captured."""
        if key in self.captured:
            self.captured[key] = ready = self.captured.pop(key)  # the last used is the last to go
            return ready
        self.steps[key] = self.steps.get(key, 0) + steps
        if key in self.refused or self.steps[key] < FEWEST or not self._room(key, given):
            return None
        while len(self.captured) >= MOST:
            del self.captured[next(iter(self.captured))]
        try:
            if self.stream is None or self.stream.device != given.context.device:
                self.stream = torch.cuda.Stream(given.context.device)  # type: ignore[no-untyped-call]
            self.captured[key] = ready = _Replay(simulator, given, points, draw, self.stream)
        except torch.OutOfMemoryError as error:
            self.captured.clear()  # an ordinary rollout needs no more than its own
            self._refuse(key, given, error)
            return None
        except RuntimeError as error:  # a step that the host takes part in is no graph
            self._refuse(key, given, error)
            return None
        return ready

    def _room(self, key: Hashable, given: Window) -> bool:
        """Whether a capture leaves memory to others. What torch keeps for later counts, once it is given back."""
        free, total = torch.cuda.mem_get_info(given.context.device)
        if free < FREE * total and key not in self.emptied:
            self.emptied.add(key)
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info(given.context.device)
            if free < FREE * total:
                self._tell(given, f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free, less than a quarter")
        return free >= FREE * total

    def _refuse(self, key: Hashable, given: Window, error: BaseException) -> None:
        self.refused.add(key)
        self._tell(given, cause_of(error))

    def _tell(self, given: Window, cause: str) -> None:
        """Say once why a rollout is slower than it could be."""
        sentence = f"a rollout of task '{given.task.name}' is not replayed as CUDA graphs ({cause}), which is slower."
        if sentence not in self.reported:
            self.reported.add(sentence)
            self.say(sentence)

    @contextmanager
    def lent(self, say: Callable[[str], None]) -> Iterator[None]:
        """Inside, why a rollout cannot be replayed is said by `say`; afterwards nothing captured is left, nor its
        memory."""
        before, self.say = self.say, say
        try:
            yield
        finally:
            self.say = before
            with self.lock:
                held = bool(self.captured)
                self.captured.clear()
                self.steps.clear()
                self.emptied.clear()
            if held:
                torch.cuda.empty_cache()


class _Replay:
    """One captured rollout: a graph from a window to the first tokens, and one from tokens to the next and a frame."""

    def __init__(
        self,
        simulator: SimulatorLike,
        given: Window,
        points: Tensor | None,
        draw: Draws | None,
        stream: torch.cuda.Stream,
    ) -> None:
        self.window = given.clone()
        self.inputs = {name: t for name, t in tensors_of(self.window).items() if t.numel()}
        self.points = None if points is None else points.clone()
        self.noise: Tensor | None = None
        pool = torch.cuda.graph_pool_handle()
        here = torch.cuda.current_stream()
        stream.wait_stream(here)
        with QUIET, tables_kept() as self.tables:
            with torch.cuda.stream(stream):  # once as it is: what is made at first use must lie behind a capture
                stepping = Stepping(simulator, self.window, self.points)
                z = stepping.start()
                self.noise = None if draw is None else torch.zeros_like(z[:, -1])
                stepping.step(z, 0, self.noise)
                del stepping, z
            here.wait_stream(stream)

            def start() -> tuple[Stepping, Tensor]:
                stepping = Stepping(simulator, self.window, self.points)
                return stepping, stepping.start().clone()

            def step() -> Tensor:
                after, frame = self.stepping.step(self.z, 0, self.noise)
                self.z.copy_(after)
                self.stepping.unrepaired = None
                return frame

            self.begin, (self.stepping, self.z) = record(start, pool, stream)
            self.advance, self.frame = record(step, pool, stream)
        here.wait_stream(stream)

    def frames(self, window: Window, given: Window, steps: int, points: Tensor | None, draw: Draws | None) -> Tensor:
        fill(self.inputs, given)
        if self.points is not None and points is not None:
            self.points.copy_(points)
        self.begin.replay()
        tell, noise = reporter(), None if draw is None else draw.of_steps(steps, self.z[:, -1])
        frames = self.frame.new_empty(len(window), steps, *self.frame.shape[1:])
        for i in range(steps):
            if window.dt.ndim > 1:
                self.window.dt.copy_(window.step(i))
            if noise is not None and self.noise is not None:
                self.noise.copy_(next(noise))
            self.advance.replay()
            frames[:, i] = self.frame
            tell((i + 1) / steps)
        return frames
