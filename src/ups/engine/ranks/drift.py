"""The proof that ranks which should hold the same weights do: digests of tensors, compared."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ups.engine.ranks.dist import Dist, DivergedError


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers in the same memory; any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def digest(tensor: Tensor) -> str:
    """A short hash of a tensor's bytes."""
    data: Any = as_real(tensor.detach()).cpu().contiguous().numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def check_drift(dist: Dist, digests: Mapping[str, str], step: int) -> None:
    """Compare every rank's digests by tensor; where they differ, name the tensor and the rank. All ranks must ask."""
    rows = dist.gather(dict(digests))
    for name in dict.fromkeys(name for row in rows for name in row):
        other, usual = _outlier({rank: row[name] for rank, row in enumerate(rows) if name in row})
        if other is not None:
            raise DivergedError(
                f"at step {step} rank {other} holds other values of '{name}' than rank {usual}; the memory or the "
                "network of one of them is faulty, so resume from the last checkpoint, on other hardware if it "
                "happens again."
            )


def _outlier(digests: Mapping[int, str]) -> tuple[int | None, int]:
    """The first rank that holds other values than most (or than the first, if none has a majority), and one of most."""
    most, count = Counter(digests.values()).most_common(1)[0]
    usual = most if count * 2 > len(digests) else next(iter(digests.values()))
    other = next((rank for rank, value in digests.items() if value != usual), None)
    return other, next(rank for rank, value in digests.items() if value == usual)
