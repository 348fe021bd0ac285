"""Checks by digests that all ranks hold the same tensors; names the rank that differs, or mends it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as c10d
from torch import Tensor

from ups.engine.ranks.dist import Dist, DivergedError
from ups.engine.ranks.majority import named, odd_ranks
from ups.engine.state import TrainingState

CHUNK = 1 << 20  # numbers that are hashed at once
SMALL = 1 << 16  # bytes of a tensor that is hashed together with others
SPREAD, STEP = -7046029254386353131, 6364136223846793005  # odd, so that no change of one number is lost in 64 bits


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers in the same memory; any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@torch.no_grad()
def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A hash of each tensor's bytes and their places, computed where the tensors are; the host waits once."""
    hashes: dict[str, int] = {}
    for home in {tensor.device for tensor in tensors.values()}:
        data = {name: _bytes_of(tensor) for name, tensor in tensors.items() if tensor.device == home}
        small = [name for name, d in data.items() if d.numel() <= SMALL and d.numel() % 8 == 0]
        large = [name for name in data if name not in set(small)]
        sums = [_hash(data[name]).reshape(1) for name in large]
        if small:
            sums.append(_hashes([data[name] for name in small]))
        hashes |= zip((*large, *small), torch.cat(sums).tolist(), strict=True)
    return {name: f"{hashes[name] % 2**64:016x}" for name in tensors}


def _bytes_of(tensor: Tensor) -> Tensor:
    return as_real(tensor.detach()).contiguous().view(-1).view(torch.uint8)


def _hashes(small: list[Tensor]) -> Tensor:
    """What `_hash` says of each of many small tensors of whole words, in a few operations for all: `(tensors,)`."""
    device = small[0].device
    sizes = [data.numel() // 8 for data in small]
    counts = torch.tensor(sizes, device=device)
    owner = torch.repeat_interleave(torch.arange(len(small), device=device), counts, output_size=sum(sizes))
    place = torch.arange(sum(sizes), device=device) - (counts.cumsum(0) - counts)[owner]
    words = torch.cat(small).view(torch.int64)
    totals = torch.zeros(len(small), dtype=torch.int64, device=device)
    return totals.index_add_(0, owner, words * ((place * SPREAD) | 1)) * STEP


def _hash(data: Tensor) -> Tensor:
    """A sum modulo 2**64 in which every eight bytes have an odd weight of their own."""
    if data.storage_offset() % 8:
        data = data.clone()
    whole = data.numel() // 8 * 8
    words = data[:whole].view(torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for at in range(0, words.numel(), CHUNK):
        part = words[at : at + CHUNK]
        total = total * STEP + (part * _weights(data.device)[: part.numel()]).sum()
    rest = data[whole:].to(torch.int64)
    return total * STEP + (rest * _weights(data.device)[: rest.numel()]).sum()


@functools.cache
def _weights(device: torch.device) -> Tensor:
    return (torch.arange(CHUNK, dtype=torch.int64, device=device) * SPREAD) | 1


@dataclass(frozen=True)
class WeightDifference:
    """A tensor that ranks hold unlike each other. `usual` is one of most, `ranks` are the others; None: no majority."""

    name: str
    ranks: tuple[int, ...]
    usual: int | None


def differences(rows: list[dict[str, str]]) -> list[WeightDifference]:
    """What is not the same on every rank that has it, from each rank's digests."""
    names = dict.fromkeys(name for row in rows for name in row)
    compared = [(name, *odd_ranks({rank: row[name] for rank, row in enumerate(rows) if name in row})) for name in names]
    return [WeightDifference(name, tuple(ranks), usual) for name, ranks, usual in compared if ranks]


class Holder(Protocol):
    """What is compared, by name: `lasting` is what every step builds on, `passing` what the next step makes anew."""

    state: TrainingState

    def lasting(self) -> Mapping[str, Tensor]: ...
    def passing(self) -> Mapping[str, Tensor]: ...


@dataclass
class WeightSync:
    """Compares what ranks should hold alike, by its `digests`.

    With `mends`, where every difference has a majority against it, the ranks in the minority take over what the others
    hold; each rank once. Otherwise all stop, and whoever can be told to be wrong is named.
    """

    dist: Dist
    digests: Callable[[Mapping[str, Tensor]], dict[str, str]]
    holder: Holder
    mends: bool
    say: Callable[[str], None]

    def check(self) -> None:
        """All ranks must ask."""
        lasting = self.holder.lasting()
        odd = self._compare({**self.holder.passing(), **lasting})
        if not odd:
            return
        guilty = sorted({rank for difference in odd for rank in difference.ranks})
        certain = all(difference.usual is not None for difference in odd) and len(guilty) * 2 < self.dist.world
        before = sorted(set(guilty) & set(self.holder.state.mended))
        mends = self.mends and self.dist.config.strategy == "ddp"  # a rank of fsdp holds what no other does
        if not (mends and certain) or before:
            raise self._error(odd, guilty if certain else [], before)
        self._mend({d.name: lasting[d.name] for d in odd if d.name in lasting}, guilty)
        self.holder.state.mended += guilty
        self.say(f"{self._words(odd, guilty)}; it has taken over what the others hold, and training goes on.")
        if left := self._compare(lasting):
            raise self._error(left, guilty, guilty)

    def _compare(self, tensors: Mapping[str, Tensor]) -> list[WeightDifference]:
        return differences(self.dist.gather(self.digests(tensors)))

    @torch.no_grad()
    def _mend(self, tensors: Mapping[str, Tensor], guilty: list[int]) -> None:
        """Every rank's tensors become those of the first rank that is in the majority."""
        giver = next(rank for rank in range(self.dist.world) if rank not in guilty)
        for name, tensor in tensors.items():
            if tensor.device == self.dist.device:
                whole = as_real(tensor).contiguous()
                with self.dist.control.wait(f"mending {name}"):
                    c10d.broadcast(whole, giver, group=self.dist.group)
            else:  # a backend that knows the device alone
                whole = as_real(self.dist.gather(tensor if self.dist.rank == giver else tensor.new_empty(0))[giver])
            as_real(tensor).copy_(whole)

    def _words(self, odd: list[WeightDifference], guilty: list[int]) -> str:
        first = odd[0]
        names = f"'{first.name}'" + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
        place = f"at step {self.holder.state.step}"
        if not guilty:
            why = "of two" if len(first.ranks) == 2 else "of these"
            ranks = named(first.ranks)
            return f"{place} {ranks} hold different values of {names}, and {why} it cannot be told which is wrong"
        verb, others = ("holds" if len(guilty) == 1 else "hold"), self.dist.world - len(guilty)
        return f"{place} {named(guilty)} {verb} other values of {names} than the {others} others"

    def _error(self, odd: list[WeightDifference], guilty: list[int], before: list[int]) -> DivergedError:
        whose = "its" if len(guilty) == 1 else "their"
        again = f" for the second time, after {named(before)} had been mended," if before else ""
        error = DivergedError(
            f"{self._words(odd, guilty)}{again}; {whose} memory or network is faulty, so resume from the last "
            "checkpoint, on other hardware if it happens again."
        )
        if guilty:  # theirs is the record that counts
            error.first_hand = self.dist.rank in guilty  # type: ignore[attr-defined]
        return error
