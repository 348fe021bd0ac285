"""The tensors that flow through training (Window, Condition, LatentState, Losses), and kept constant tensors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ups.lazy_imports import Tensor, torch
from ups.types import Cloud, Grid, Points, TaskSpec

Losses = Mapping[str, Tensor]
Key = ParamSpec("Key")
Made = TypeVar("Made")
# What the tables gave, where somebody keeps it (`tables_kept`).
_given: ContextVar[list[object] | None] = ContextVar("_given", default=None)
TENSORS = ("context", "targets", "inputs", "params", "dt", "tokens")  # the fields of a window that are tensors


@dataclass(frozen=True)
class Window:
    """A batch of one task: frames up to t, the frames after it, and what conditions them.

    A steady task is one step of length 1 from nothing to its solution: its context is zero, its targets that one frame.

    Args:
        task: Of all its samples.
        context: Frames t−K+1 … t, `(B, K, *S, C)`, in physical units.
        targets: Frames t+1 … t+M, `(B, M, *S, C)`.
        inputs: What is given rather than predicted, `(B, *S, C_in)`.
        params: Numbers `(B, P)` in the order of `numeric_params(task)`.
        dt: The time between frames `(B,)`, or of each step to a target `(B, M)` where they differ; ask `step`.
        grid: Of all its samples.
        ids: Their names.
        tokens: What a frozen codec made of context and targets, `(B, K + M, *G, D)`; the frames may then be left out
            (C = 0).
    """

    task: TaskSpec
    context: Tensor
    targets: Tensor
    inputs: Tensor
    params: Tensor
    dt: Tensor
    grid: Grid
    ids: tuple[str, ...] = ()
    tokens: Tensor | None = None

    def __len__(self) -> int:
        return len(self.context)

    @property
    def state(self) -> Tensor:
        """The last known frame, `(B, *S, C)`."""
        return self.context[:, -1]

    @property
    def mask(self) -> Tensor | None:
        """Which cells count, `(B, *S)`; None where all do."""
        return mask_of(self.task, self.inputs)

    @property
    def weights(self) -> Tensor | None:
        """What each cell counts in errors: what `mask` says, or as much as the volume of a point, `(B, N)`; None where
        all count alike."""
        if isinstance(self.grid, Points):
            return volumes_of(self.grid, self.context.device).expand(len(self), -1)
        return self.mask

    @property
    def kind(self) -> tuple[object, ...]:
        """What windows of one task that can be joined share: shapes of frames and dt, and the grid."""
        shapes = (tuple(x.shape[1:]) for x in (self.context, self.targets, self.dt))
        return (*shapes, self.grid)

    def step(self, i: int) -> Tensor:
        """The time `(B,)` from target i − 1 (the last frame of the context for i = 0) to target i."""
        return self.dt if self.dt.ndim == 1 else self.dt[:, min(i, self.dt.shape[1] - 1)]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Window:
        return self._each(lambda x: x.to(device, non_blocking=non_blocking))

    def pin(self) -> Window:
        """The same window in page-locked memory, from which copies to a GPU overlap with work."""
        return self._each(lambda x: x.pin_memory())

    def clone(self) -> Window:
        """The same window in memory of its own."""
        return self._each(lambda x: x.clone())

    def rows(self, first: int, last: int) -> Window:
        """Samples `first` … `last` − 1 alone."""
        return dataclasses.replace(self._each(lambda x: x[first:last]), ids=self.ids[first:last])

    def split(self, size: int) -> Iterator[Window]:
        """Microbatches of at most `size` samples, in order."""
        for first in range(0, len(self), size):
            yield self.rows(first, first + size)

    @classmethod
    def join(cls, windows: Sequence[Window]) -> Window:
        """Windows of one task and one `kind` as one."""
        first = windows[0]
        if len(windows) == 1:
            return first
        present = [name for name in TENSORS if getattr(first, name) is not None]
        joined: dict[str, Any] = {name: torch.cat([getattr(w, name) for w in windows]) for name in present}
        return dataclasses.replace(first, **joined, ids=tuple(i for w in windows for i in w.ids))

    def _each(self, change: object) -> Window:
        assert callable(change)
        held = {name: getattr(self, name) for name in TENSORS}
        return dataclasses.replace(self, **{name: change(value) for name, value in held.items() if value is not None})


def numeric_params(task: TaskSpec) -> tuple[str, ...]:
    """The names of the parameters that a network is told, in the order of `Window.params`: numbers, and words that are
    encoded as the place among their choices."""
    return tuple(p.name for p in task.parameters if p.encoded or not p.choices)


NOT_TOLD = (
    "has one frame of each sample, and neither inputs nor parameters that tell samples apart: there is nothing to "
    "predict it from; give at least two frames, or `inputs`."
)


def told_apart(task: TaskSpec) -> bool:
    """Whether anything says which answer is asked for: a frame to go on from, or of a steady task an input that is no
    mask, or a parameter."""
    return not task.steady or bool(set(task.given) - {task.mask}) or bool(numeric_params(task))


def mask_of(task: TaskSpec, inputs: Tensor) -> Tensor | None:
    """Which cells count, `(B, *S)` bool, from the inputs `(B, *S, C_in)` of a task; None where all do."""
    return inputs[..., task.given.index(task.mask)] > 0.5 if task.mask else None


@dataclass(frozen=True)
class Condition:
    """What drives one step.

    Args:
        params: Numbers `(B, P)` in the order of `numeric_params(task)`.
        dt: The time of the step, `(B,)`.
        grid: Of frames and inputs; where it has no bounds, the box is the task's own.
        task: Its name.
        inputs: What the task is given rather than predicts, `(B, *S, C_in)`, in physical units; None where nothing.
        noise: Standard normal `(B, *G, D)`, with which a part draws; without it the part gives its mean.
    """

    params: Tensor
    dt: Tensor
    grid: Grid
    task: str
    inputs: Tensor | None = None
    noise: Tensor | None = None

    @classmethod
    def of(cls, window: Window, step: int = 0) -> Condition:
        """What drives a step of a window."""
        inputs = window.inputs if window.task.inputs else None
        return cls(window.params, window.step(step), window.grid, window.task.name, inputs)


@dataclass(frozen=True)
class LatentState:
    """What the codec makes of frames.

    Args:
        z: Tokens `(B, *G, D)`.
        grid: Of the frames.
    """

    z: Tensor
    grid: Grid


@dataclass(frozen=True)
class TaskStatistics:
    """What the training data of a task are like.

    Args:
        mean, std, least, most: Of its channels, `(C,)`.
        input_mean, input_std: Of its inputs, `(C_in,)`.
        low, high: The range of its parameters, `(P,)`.
        dt: The least and the greatest time between two frames.
    """

    mean: Tensor
    std: Tensor
    least: Tensor
    most: Tensor
    input_mean: Tensor
    input_std: Tensor
    low: Tensor
    high: Tensor
    dt: tuple[float, float]


def table(make: Callable[Key, Made]) -> Callable[Key, Made]:
    """Keeps the constant tensors that `make` builds for its arguments (a device among them), the latest 256.

    A table is made once, outside of inference mode and never kept if it is a fake one, so that it may be used by
    training, by a captured CUDA graph (which could not copy it from the host) and by shape inference alike. Its
    arguments are plain values, not a `Grid`: a compiler of torch passes no others on.
    """
    tables: dict[object, Made] = {}

    @functools.wraps(make)
    def look(*args: Key.args, **kwargs: Key.kwargs) -> Made:
        if torch._guards.detect_fake_mode() is not None:
            return make(*args, **kwargs)
        key = (args, tuple(kwargs.items()))
        if key not in tables:
            if len(tables) >= 256:
                del tables[next(iter(tables))]
            with torch.inference_mode(False):
                tables[key] = make(*args, **kwargs)
        if (given := _given.get()) is not None:
            given.append(tables[key])
        return tables[key]

    # To a compiler a table is a constant. This is what `torch.compiler.assume_constant_result` writes, without its
    # import of the whole compiler, which takes seconds.
    look._dynamo_marked_constant = True  # type: ignore[attr-defined]
    # By the name of its code a compiler tells one table from another.
    code: Any = look.__code__  # type: ignore[attr-defined]
    look.__code__ = code.replace(co_name=make.__name__)  # type: ignore[attr-defined]
    return look


def volumes_of(points: Points, device: torch.device) -> Tensor:
    """The volume of each point, `(N,)`, in units of their mean."""
    return _volumes(points.cloud, device)


@table
def _volumes(cloud: Cloud, device: torch.device) -> Tensor:
    return torch.as_tensor(cloud.volumes / cloud.volumes.mean(), dtype=torch.float32, device=device)


@contextmanager
def tables_kept() -> Iterator[list[object]]:
    """Inside, every table that is asked for is added to a list: whoever goes on reading its memory, as a graph does,
    keeps it alive."""
    before = _given.set([])
    try:
        given = _given.get()
        assert given is not None
        yield given
    finally:
        _given.reset(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, one thread computes: over little work several wait for each other, and copies of a process lack them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
