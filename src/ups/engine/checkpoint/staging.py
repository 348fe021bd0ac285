"""Decides which pieces of a training a rank saves, and copies them to CPU memory."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ups.engine.checkpoint.index import DTYPES
from ups.engine.checkpoint.manifest import DamageError
from ups.engine.checkpoint.shard_files import local, sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def share(tensors: Mapping[str, Tensor], rank: int, world: int) -> dict[str, Tensor]:
    """What this rank writes: its shards, and its share of what several ranks hold alike."""
    loads, mine = [0] * world, dict[str, Tensor]()
    for number, name in enumerate(sorted(tensors, key=lambda n: (-tensors[n].nbytes, n))):
        tensor = tensors[name]
        if sharded(tensor):
            writes = _replica(tensor, number)
        else:
            writer = loads.index(min(loads))
            loads[writer] += tensor.nbytes + 1
            writes = writer == rank
        if writes:
            mine[name] = tensor
    return mine


def _replica(tensor: DTensor, turn: int) -> bool:
    """Whether it is this rank's turn among those that hold the same shard."""
    place: list[int] = list(tensor.device_mesh.get_coordinate() or ())
    axes = zip(tensor.device_mesh.shape, place, tensor.placements, strict=True)
    same = [(ranks, rank) for ranks, rank, placement in axes if placement.is_replicate()]
    number = 0
    for ranks, rank in same:
        number = number * ranks + rank
    return number == turn % math.prod(ranks for ranks, _ in same)


class Staging:
    """Copies of tensors in CPU memory that is kept for the next time, pinned for those that come from a GPU."""

    def __init__(self) -> None:
        self.copies: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        before, self.copies, moving = self.copies, {}, False
        for name, tensor in tensors.items():
            held = local(tensor)
            copy = before.get(name)
            if copy is None or copy.shape != held.shape or copy.dtype != held.dtype:
                copy = torch.empty(held.shape, dtype=held.dtype, pin_memory=held.is_cuda)
            self.copies[name] = copy.copy_(held, non_blocking=held.is_cuda)
            moving |= held.is_cuda
        if moving:
            torch.cuda.current_stream().synchronize()
        return self.copies


def pack(value: Any) -> dict[str, Any]:
    """A tensor as JSON."""
    if not isinstance(value, Tensor):
        raise TypeError(f"a checkpoint holds JSON and tensors, not {type(value).__name__}")
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(value.dtype).removeprefix("torch.")
    return {"tensor": base64.b64encode(raw).decode(), "dtype": dtype, "shape": list(value.shape)}


def unpack(value: dict[str, Any]) -> Any:
    """What `pack` made a tensor into, as a tensor; anything else as it is."""
    if value.keys() != {"tensor", "dtype", "shape"}:
        return value
    try:
        if value["dtype"] not in DTYPES:
            raise ValueError("of an unknown type")
        raw = torch.frombuffer(bytearray(base64.b64decode(value["tensor"])), dtype=torch.uint8)
        return raw.view(getattr(torch, value["dtype"])).reshape(value["shape"])
    except (ValueError, TypeError, RuntimeError):
        raise DamageError("it holds a tensor that cannot be read") from None
