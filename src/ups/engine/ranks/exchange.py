"""Gathers one JSON value of every rank on all ranks; what arrives is treated as data, never as code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MOST = 2**28  # bytes that one rank may send at once
AllGather = Callable[[list[Tensor], Tensor], None]  # every rank's tensor into a list, by rank


def gather_json(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Every rank's value, by rank, over a gloo group; [value] without one.

    A tuple arrives as a list and the keys of a dictionary as strings, on the sender too. RuntimeError where the ranks
    lost each other, ValueError where one sent something else; TypeError, before anything is sent, if it is not JSON.
    """
    mine = to_json(value)
    if group is None:
        return [from_json(mine)]
    world = dist.get_world_size(group)

    def all_gather(into: list[Tensor], tensor: Tensor) -> None:
        dist.all_gather(into, tensor, group=group)

    lengths = torch.zeros(world, 1, dtype=torch.int64)
    all_gather(list(lengths.unbind()), torch.tensor([len(mine)]))
    return [from_json(content) for content in padded_gather(mine, lengths.flatten().tolist(), all_gather)]


def padded_gather(mine: bytes, sizes: Sequence[int], all_gather: AllGather) -> list[bytes]:
    """Every rank's bytes, by rank. `sizes`: how many each sends, which all know; ValueError if one sends too many."""
    longest = max(sizes)
    if min(sizes) < 0 or longest > MOST:
        raise ValueError(f"a rank wants to send {longest} bytes at once, and at most {MOST} are taken")
    parts = [torch.empty(max(longest, 1), dtype=torch.uint8) for _ in sizes]
    all_gather(parts, torch.frombuffer(bytearray(mine.ljust(max(longest, 1), b"\0")), dtype=torch.uint8))
    return [part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]


def to_json(value: Any) -> bytes:
    """A value as bytes to send; TypeError if it is not JSON."""
    return json.dumps(value).encode()


def from_json(content: bytes) -> Any:
    """What another rank sent; ValueError if it is not JSON."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("a rank sent JSON that is nested too deeply") from None
