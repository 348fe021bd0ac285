"""One JSON value of every rank, known to all of them: what arrives from another rank is data, never code."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

MOST = 2**28  # bytes that one rank may send at once


def gather_json(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Every rank's value, by rank, over a gloo group; [value] without one.

    A tuple arrives as a list and the keys of a dictionary as strings, on the sender too. RuntimeError where the ranks
    lost each other, ValueError where one sent something else; TypeError, before anything is sent, if it is not JSON.
    """
    mine = to_json(value)
    if group is None:
        return [from_json(mine)]
    world = dist.get_world_size(group)
    lengths = torch.zeros(world, 1, dtype=torch.int64)
    dist.all_gather(list(lengths.unbind()), torch.tensor([len(mine)]), group=group)
    sizes = lengths.flatten().tolist()
    longest = max(sizes)
    if min(sizes) < 0 or longest > MOST:
        raise ValueError(f"a rank wants to send {longest} bytes at once, and at most {MOST} are taken")
    parts = torch.zeros(world, longest, dtype=torch.uint8)
    padded = torch.frombuffer(bytearray(mine.ljust(longest, b" ")), dtype=torch.uint8)
    dist.all_gather(list(parts.unbind()), padded, group=group)
    return [from_json(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]


def to_json(value: Any) -> bytes:
    """A value as bytes to send; TypeError if it is not JSON."""
    return json.dumps(value).encode()


def from_json(content: bytes) -> Any:
    """What another rank sent; ValueError if it is not JSON."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("a rank sent JSON that is nested too deeply") from None
