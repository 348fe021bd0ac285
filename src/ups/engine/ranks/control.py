"""The control plane: votes between ranks on a group of their own, so that a failure on one is known to all."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ups.engine.ranks.exchange import from_json, padded_gather, to_json
from ups.types import UpsError

T = TypeVar("T")

GATE, FINISH, GATHER, AGREE = range(4)
NAME_BYTES = 256
# A ballot: which call, ok, kind of failure, stop, step, phase, the op's id, one number more (a size, a float), a mark.
BALLOT = 9


@dataclass(frozen=True)
class Word:
    """What one rank says at the end of an attempt; it travels as a few integers."""

    ok: bool = True
    kind: int = 0  # see vote.NOTHING
    stop: bool = False  # asked to stop
    step: int = 0
    phase: int = 0  # index into the heartbeat's phases: where it failed
    clock: float = 0.0  # seconds by this rank's clock; rank 0's decides for all
    mark: int = 0  # a digest of what is reduced next; ranks that differ would mix it up


class PeerFailed(Exception):  # noqa: N818  (news, not an error: it never reaches a user)
    """Another rank has failed in this attempt: leave it, clear up, and come to `finish`."""


class DesyncError(UpsError):
    """Ranks were at different operations; names each rank's."""


class LostPeer(UpsError):  # noqa: N818
    """A vote met a closed connection, or nobody answered in time: a rank is gone or stuck."""


class Control:
    """Votes of all ranks. Every rank's n-th vote meets every other's n-th vote, whatever the call it came from.

    So all ranks see a failure, or a difference, at the same vote, and nothing is launched after it. One thread uses
    it at a time. At world size 1 (`group` None) every call is local and free.

    After a desync or a lost peer there is no common place to go on from: every later call raises the same error.
    """

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world: int) -> None:
        if (group is None) is not (world == 1):
            raise ValueError("a group for several ranks, and none for one")
        self.group, self.rank, self.world = group, rank, world
        self._mine = torch.zeros(BALLOT, dtype=torch.int64)
        self._everyone = torch.zeros(world, BALLOT, dtype=torch.int64)
        self._rows = list(self._everyone.unbind())
        # Told what is waited for, and "" when it has come.
        self.waiting: Callable[[str], None] = lambda op: None  # noqa: ARG005
        self._draining = False  # a peer's failure is known here, and `finish` has not been called yet
        self._broken: UpsError | None = None

    def gate(self, op: str) -> None:
        """A vote immediately before a training collective, after its buffers are allocated.

        Returns if every rank is about to launch `op`; raises PeerFailed if one has failed, DesyncError if they differ.
        """
        if self.world > 1:
            self._vote(GATE, op)

    def finish(self, word: Word) -> list[Word]:
        """The end of an attempt, also of a failed one: every rank's word, by rank, once all are here.

        A rank that failed waits here while the others meet its failure at their next gate and come too.
        """
        if self.world == 1:
            return [word]
        self._draining = False
        while True:
            ballots = self._vote(FINISH, "the end of a step", word, _bits(word.clock))
            if all(ballot[0] == FINISH for ballot in ballots):
                return [Word(bool(b[1]), b[2], bool(b[3]), b[4], b[5], _float(b[7]), b[8]) for b in ballots]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. It travels as JSON, so that nothing a peer sends can be code: tuples arrive as
        lists, and names of a mapping are text."""
        if self.world == 1:
            return [value]
        mine = to_json(value)
        sizes = [ballot[7] for ballot in self._vote(GATHER, "gather", extra=len(mine))]
        return [from_json(content) for content in self._bytes(mine, sizes)]

    def agree(self, value: float) -> float:
        """Rank 0's number."""
        if self.world == 1:
            return value
        ballots = self._vote(AGREE, "agree", extra=_bits(value))
        return _float(ballots[0][7])

    def end(self) -> None:
        """Let go of the group; several ranks share nothing any more."""
        self.group = None
        self._broken = self._broken or LostPeer("the ranks have parted, and this came after it")

    @contextmanager
    def wait(self, op: str) -> Iterator[None]:
        """Around whatever waits for the other ranks, so that an outsider can tell who waits from who is waited for."""
        self.waiting(op)
        try:
            yield
        finally:
            self.waiting("")

    def _vote(self, call: int, op: str, word: Word | None = None, extra: int = 0) -> list[list[int]]:
        """All ballots, by rank, if there is nothing to raise.

        Any failure comes before any difference: a rank that failed is expected to be elsewhere than the others.
        """
        if self._broken is not None:
            raise self._broken
        if self._draining:
            raise PeerFailed
        word = word or Word()
        ballot = [call, word.ok, word.kind, word.stop, word.step, word.phase, zlib.crc32(op.encode()), extra, word.mark]
        self._mine.copy_(torch.tensor(ballot, dtype=torch.int64))
        self._exchange(self._rows, self._mine, op)
        ballots: list[list[int]] = self._everyone.tolist()
        failed = any(b[0] == FINISH and not b[1] for b in ballots)
        if failed and call != FINISH:
            self._draining = True
            raise PeerFailed
        if not failed and len({(b[0], b[6], b[4], b[8]) for b in ballots}) > 1:
            self._desync(call, op, word.step)
        return ballots

    def _exchange(self, into: list[Tensor], mine: Tensor, op: str) -> None:
        try:
            with self.wait(op):
                dist.all_gather(into, mine, group=self.group)
        except RuntimeError as error:
            late = "timed out" in str(error).lower()
            peer = f"rank {1 - self.rank}" if self.world == 2 else f"one of the other {self.world - 1} ranks"
            what = "did not answer in time and is stuck or gone" if late else "closed its connection and is gone"
            self._broken = LostPeer(
                f"rank {self.rank} was at '{op}' when {peer} {what}; look at that rank's log, then start the run "
                "again, which goes on from its last checkpoint."
            )
            raise self._broken from error

    def _bytes(self, mine: bytes, sizes: Sequence[int]) -> list[bytes]:
        """Every rank's bytes, by rank."""
        return padded_gather(mine, sizes, lambda into, tensor: self._exchange(into, tensor, "gather"))

    def _desync(self, call: int, op: str, step: int) -> NoReturn:
        """All ranks are here, having seen the same ballots; so they can still tell each other where they were."""
        place = f"the end of step {step}" if call == FINISH else op
        places = self._bytes(place.encode()[:NAME_BYTES], [NAME_BYTES] * self.world)
        names = [name.rstrip(b"\0").decode(errors="replace") for name in places]
        where = ", ".join(f"rank {rank} at '{name}'" for rank, name in enumerate(names))
        self._broken = DesyncError(
            f"ranks are at different operations: {where}; all ranks must run the same config on batches of the same "
            "task and count."
        )
        raise self._broken


def _bits(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value
