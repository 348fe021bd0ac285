"""Snapshot, Checkpoint and Store: what a checkpoint holds, and the interface of what keeps checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ups.types import DataError
from ups.verdict import Ending


class CorruptError(DataError):
    """There are checkpoints, and none of them can be read back."""

    ending = Ending.CORRUPT


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is made of. Names, shapes and facts are the same on every rank."""

    step: int
    tensors: Mapping[str, Tensor]  # plain: the same bits on every rank; DTensor: each rank's shard
    facts: Mapping[str, Any] = field(default_factory=dict)  # whatever JSON can say; rank 0's are kept
    own: Mapping[str, Any] = field(default_factory=dict)  # of this rank alone: JSON and small tensors


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; its tensors are still on disk. `own` is this rank's, or derived if the world differs."""

    step: int
    facts: Mapping[str, Any]
    own: Mapping[str, Any]
    world: int = 1
    path: Path = Path()


class StateStore(Protocol):
    """Where a trainer keeps its state between lives. Every method is called by all ranks alike."""

    def save(self, snapshot: Snapshot) -> OSError | None:
        """Begin to save. What comes back is the failure of the save before, where nobody has waited for it."""

    def wait(self) -> None:
        """Wait until the last save is on the disk and verified; OSError if it could not be."""

    def newest(self) -> Checkpoint | None: ...
    def load(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None: ...


class NoStore:
    """No checkpoints: nothing is saved, nothing is found."""

    def save(self, snapshot: Snapshot) -> OSError | None: ...
    def wait(self) -> None: ...
    def newest(self) -> Checkpoint | None: ...
    def load(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None: ...
