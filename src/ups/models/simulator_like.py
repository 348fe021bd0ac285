"""SimulatorLike: what requests, steps, replays, searches and estimates ask of a simulator, which is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor, nn

from ups.models.codec import Codec
from ups.models.config import SimulatorConfig
from ups.models.ensembles import Draws
from ups.models.operator import LatentOperator
from ups.models.part import Part
from ups.tensors import Condition, Window
from ups.types import TaskSpec


class SimulatorLike(Protocol):
    """What of a simulator its rollouts need: the protocol through which they see it."""

    codec: Codec
    operator: LatentOperator
    config: SimulatorConfig
    parts: dict[str, Part]
    trust: dict[str, Any]  # a `Trust` of each task; its module asks simulators itself, so it is not imported here
    training: bool
    dt: Tensor

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        """The tasks that it knows."""

    def ranges(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Per task, the trained range of each parameter and of dt."""

    def awake(self, task: TaskSpec) -> list[Part]:
        """The parts that refine what is predicted of a task."""

    def encode_context(self, context: Tensor, condition: Condition) -> Tensor:
        """Frames to tokens."""

    def simulate(self, window: Window, steps: int, points: Tensor | None = None, draw: Draws | None = None) -> Tensor:
        """The frames after the context of a window."""

    def parameters(self) -> Iterable[nn.Parameter]: ...

    def buffers(self) -> Iterable[Tensor]: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...
