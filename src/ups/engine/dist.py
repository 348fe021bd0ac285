"""Dist: rank, world and device, and the few collectives everything goes through; one process is the same object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ups.types import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Dist:
    """Who this process is among the ranks. At world size 1 every collective is the identity.

    Made once, by `Dist.start`, before any loader: what needs a rank needs this object. `local_rank` counts on this
    machine and chooses the device; `rank` counts over all machines and chooses the data.
    """

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (a value, not a resource)

    @classmethod
    @contextmanager
    def start(cls, device: str = "auto") -> Iterator[Dist]:
        """The one process of this run on `device` (auto, cpu, cuda, cuda:N); `auto` is CUDA where there is one."""
        asked = int(os.environ.get("WORLD_SIZE", "1"))
        if asked > 1:
            raise ConfigError(
                f"WORLD_SIZE is {asked} in the environment, but training runs in one process here; "
                "start it without torchrun, or unset WORLD_SIZE and RANK."
            )
        found = device_of(device)
        if found.type == "cuda":
            torch.cuda.set_device(found)  # the device comes first: everything later may allocate on it
        yield cls(device=found)

    @property
    def leads(self) -> bool:
        """Whether this rank writes what only one may write."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum over ranks."""
        return value

    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks."""
        return value

    def min(self, value: Tensor) -> Tensor:
        """The smallest over ranks, elementwise: the vote in which one "no" (0) is everyone's."""
        return value

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's value."""
        return value

    def agree(self, value: float) -> float:
        """Rank 0's number, so that decisions by the clock are the same everywhere."""
        return value

    def average(self, gradients: Sequence[Tensor], samples: int) -> None:
        """Replace each gradient by its mean over the samples of all ranks (once per optimizer step)."""

    def gather(self, value: T) -> list[T]:
        """Every rank's object, in order of rank."""
        return [value]

    def barrier(self) -> None:
        """Wait for all ranks."""


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is one; anything else must exist. CUDA always carries its index."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is '{name}', which is no device; use auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device is '{name}', but torch sees no CUDA device here; use cpu or auto.")
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ConfigError(f"device is '{name}', but there are only {torch.cuda.device_count()} CUDA devices here.")
        return torch.device("cuda", index)
    return device
