"""Part: the base of every network of a simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ups.tensors import Condition, TaskStatistics
from ups.types import TaskSpec


@dataclass(frozen=True)
class Blueprint:
    """What a part is built for.

    Args:
        tasks: Those that it must know.
        shapes: The shape of the grid that each is trained on.
        parts: Those that were built before it.
    """

    tasks: Sequence[TaskSpec]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)


class NamedAxis(NamedTuple):
    """An axis of a tensor with equal pieces for each of some names (channels, inputs, parameters), in their order.

    `silent`: a piece of zeros has no effect, so that a name that is new to a trained network changes nothing at first.
    """

    axis: int
    names: tuple[str, ...]
    silent: bool = False


class Part(nn.Module, ABC):
    """A network of a simulator: built, trained, saved and replaced by itself.

    A part that corrects what others predict overrides `refine_tokens` or `refine_frame`; the simulator calls both of
    every part, in the order of the parts, after each step.
    """

    Config: ClassVar[type]
    config: Any
    # Methods other than `forward` through which it is run.
    entries: ClassVar[tuple[str, ...]] = ()
    # The parts in whose place it refines, where it is trained: a student's teacher.
    replaces: ClassVar[tuple[str, ...]] = ()
    # Whether what it gives is drawn where the condition brings noise, so that ensembles can be asked for.
    draws: ClassVar[bool] = False
    # Whether a search asks its `error` how wrong each draw looks.
    judges: ClassVar[bool] = False
    # Of its network, for one draw or one judgement.
    evaluations: int = 1
    # Tensors with a row per task, in the order of the tasks.
    rows: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def build(cls, config: Any, blueprint: Blueprint) -> Self:
        """The part with fresh weights."""

    def connect(self, parts: Mapping[str, Part]) -> None:
        """Take what it needs of the simulator's other parts; called again when one is replaced. Nothing by default."""

    def learn_statistics(self, task: TaskSpec, statistics: TaskStatistics) -> None:
        """Record what it needs to know of a task's training data; nothing by default."""

    def by_name(self, task: TaskSpec) -> dict[str, NamedAxis]:  # noqa: ARG002
        """Its tensors in which each channel, input or parameter of a task has a place of its own; none by default."""
        return {}

    def shard_units(self) -> list[nn.Module]:
        """The repeated blocks, each with a `forward` of its own, that are sharded and recomputed one by one."""
        return []

    def acts_on(self, task: TaskSpec) -> bool:  # noqa: ARG002
        """Whether it refines anything of a task; of all tasks by default."""
        return True

    def refine_tokens(self, z: Tensor, before: Tensor, condition: Condition) -> Tensor:  # noqa: ARG002
        """The tokens `z (B, *G, D)` of the next frame, corrected; `before (B, K, *G, D)` are those they follow."""
        return z

    def refine_frame(self, frame: Tensor, condition: Condition) -> Tensor:  # noqa: ARG002
        """A decoded frame `(B, *S, C)`, or its values at points `(B, P, C)`, corrected, in physical units."""
        return frame

    def error(self, drawn: Tensor, z: Tensor, last: Tensor, condition: Condition) -> Tensor:
        """How wrong drawn tokens `(B, *G, D)` look, `(B,)`, where `z` was predicted to follow `last`; of a part that
        `judges`."""
        raise NotImplementedError(f"{type(self).__name__} judges no draws")


def drawn_parts(
    tasks: Sequence[TaskSpec],
    configs: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    empty: Collection[str],
    kinds: Mapping[str, type[Part]],
) -> dict[str, Part]:
    """Parts with fresh weights, drawn one after the other in the order of `kinds`; those in `empty` have shapes and no
    memory. No other random number changes."""
    parts: dict[str, Part] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in (name for name in kinds if name in configs):
            if name not in empty and any(before in empty for before in parts):
                raise ValueError(f"the weights of '{name}' are drawn after those of an empty part and cannot be made")
            with torch.device("meta") if name in empty else nullcontext():
                parts[name] = kinds[name].build(configs[name], Blueprint(tasks, shapes, parts))
    return parts
