"""A try that may fail on one rank: its failure is held, put to the vote, and only then anyone's."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import TracebackType

import torch

from ups.engine.control import LostPeer, PeerFailed, Word
from ups.engine.dist import Dist
from ups.heartbeat import PHASES, Pulse
from ups.types import UpsError
from ups.verdict import Ending

NOTHING, MEMORY, OTHER = range(3)


class MemoryStop(UpsError):  # noqa: N818
    """Out of memory even with a single sample at a time, or again and again; on this rank or on another."""

    ending = Ending.OOM

    def __init__(self, sentence: str, phase: str, mine: bool) -> None:
        super().__init__(sentence)
        self.phase, self.first_hand = phase, mine


class PeerError(UpsError):
    """Another rank failed; this one only says so."""

    def __init__(self, sentence: str, rank: int, trace: str) -> None:
        super().__init__(sentence)
        self.rank, self.trace = rank, trace


@dataclass
class Failure:
    """What a failing rank tells the others."""

    rank: int
    phase: str
    step: int
    sentence: str
    trace: str


class Attempt:
    """As a context: holds the exception that ended it instead of letting it out. Ctrl-C and the like pass through."""

    def __init__(self, pulse: Pulse, step: int) -> None:
        self.pulse, self.step = pulse, step
        self.kind, self.sentence, self.trace, self.phase = NOTHING, "", "", ""
        self.error: Exception | None = None

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, LostPeer):
            return False  # there is nobody left to vote with
        self.phase = self.pulse.phase
        self.error = error
        error.phase = self.phase  # type: ignore[attr-defined]  # for whoever writes down where it happened
        if not isinstance(error, PeerFailed):
            self.kind = MEMORY if out_of_memory(error) else OTHER
            self.sentence = f"{type(error).__name__}: {error}".strip()
            self.trace = "".join(traceback.format_exception(error))
        if self.kind != OTHER:  # its frames hold activations; what is to be raised again keeps them
            traceback.clear_frames(at)
            error.__traceback__ = None
        return True

    def word(self, stop: bool, clock: float, mark: int) -> Word:
        """What this rank says of it."""
        failed = self.error is not None
        phase = PHASES.index(self.phase) if failed else 0
        return Word(not failed, self.kind, stop, self.step, phase, clock, 0 if failed else mark)

    def failure(self, rank: int) -> Failure | None:
        """For the others; None where this rank did not fail by itself."""
        return Failure(rank, self.phase, self.step, self.sentence, self.trace) if self.kind else None


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of the GPU or of the host, could not be had."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "not enough memory", "can't allocate memory", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def give_up(dist: Dist, attempt: Attempt) -> None:
    """Everyone stops: the rank that failed with its own error, the others naming it. All ranks must call this."""
    told = [failure for failure in dist.gather(attempt.failure(dist.rank)) if failure is not None]
    if attempt.error is not None and attempt.kind:
        raise attempt.error
    first = told[0]
    raise PeerError(
        f"rank {first.rank} failed in phase '{first.phase}' of step {first.step}: {first.sentence}",
        first.rank,
        first.trace,
    )
