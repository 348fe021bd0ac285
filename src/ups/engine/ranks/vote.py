"""Attempts work that may fail on one rank; a vote of all ranks decides whether it counts or is repeated."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TypeVar

import torch

from ups.engine.preemption import StopFlag
from ups.engine.randomness import generators, set_generators
from ups.engine.ranks.control import LostPeer, PeerFailed, Word
from ups.engine.ranks.dist import Dist
from ups.engine.ranks.parallelize import Parallel
from ups.engine.state import TrainingState
from ups.heartbeat import PHASES, Pulse
from ups.shortage import Shortage, Where, remedy
from ups.types import UpsError
from ups.verdict import Ending, Failure, classify

T = TypeVar("T")

NOTHING, HOST, OTHER, DEVICE = range(4)  # what kept a rank from getting through: whose memory, or something else
MEMORY: dict[int, Where] = {HOST: "host", DEVICE: "device"}
RETRIES = 2  # at one microbatch size; the first repeats it as it was, for memory may have been short for a moment


class MemoryStop(UpsError):  # noqa: N818
    """Out of memory even with a single sample at a time, or again and again; on this rank or on another."""

    ending = Ending.OOM

    def __init__(self, sentence: str, phase: str, short: Shortage, mine: bool) -> None:
        super().__init__(sentence)
        self.phase, self.short, self.first_hand = phase, short, mine


class PeerError(UpsError):
    """Another rank failed; this one only says so."""


class Attempt(AbstractContextManager["Attempt"]):
    """A context that keeps the exception that ended it until every rank has voted. Ctrl-C and the like pass through."""

    def __init__(self, pulse: Pulse, step: int) -> None:
        self.pulse, self.step = pulse, step
        self.kind, self.phase = NOTHING, ""
        self.error: Exception | None = None
        self.failure: Failure | None = None  # for the others; None where this rank did not fail by itself

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, LostPeer):
            return False  # there is nobody left to vote with
        self.phase = self.pulse.phase
        self.error = error
        error.phase = self.phase  # type: ignore[attr-defined]  # for whoever writes down where it happened
        if not isinstance(error, PeerFailed):
            short = classify(error).short
            self.kind = OTHER if short is None else HOST if short.where == "host" else DEVICE
            self.failure = Failure.of(error, self.pulse.rank, self.step, self.phase)
        if self.kind != OTHER:  # its frames hold activations; what is to be raised again keeps them
            traceback.clear_frames(at)
            error.__traceback__ = None
        return True

    def word(self, stop: bool = False, clock: float = 0.0, mark: int = 0) -> Word:
        """What this rank says of it."""
        failed = self.error is not None
        phase = PHASES.index(self.phase) if failed else 0
        return Word(not failed, self.kind, stop, self.step, phase, clock, 0 if failed else mark)


@dataclass
class StepVote:
    """Work that counts only where it succeeded on all ranks.

    Each rank tries, all vote, and after a common no all clear up. Where memory was short, all do the same work again
    with the same random numbers; after any other failure all stop, the cause named.
    """

    dist: Dist
    parallel: Parallel
    pulse: Pulse
    state: TrainingState
    stop: StopFlag
    say: Callable[[str], None]
    seconds: Callable[[], float]  # of training so far, by this rank's clock
    count: Callable[[int], int]  # samples of all ranks in a step

    def together(self, phase: str, work: Callable[[], T], tries: int = 1) -> T:
        """What `work`, which changes nothing, gives here once all ranks have succeeded, after at most `tries` tries."""
        states = generators(self.dist.device)
        while True:
            results: list[T] = []
            with Attempt(self.pulse, self.state.step) as attempt:
                self.pulse.beat(phase, self.state.step)
                results.append(work())
            words = self._vote(attempt, attempt.word())
            if all(word.ok for word in words):
                return results[0]
            tries -= 1
            self._clear(words, attempt, last=tries == 0)
            where, _, _ = _first_short(words)
            self.state.recovered += 1
            _give_back(self.dist.device)
            set_generators(states, self.dist.device)
            self.say(f"{where}; once more.")

    def repeated(self, work: Callable[[], None]) -> bool:
        """Do the work of a step until each rank got through it, in smaller microbatches if memory stays short.

        True if a rank was asked to stop. Rank 0's clock becomes everyone's. The work moves no weights.
        """
        states, tries = generators(self.dist.device), 0
        while True:
            with Attempt(self.pulse, self.state.step) as attempt:
                work()
            mark = 0 if attempt.error is not None else self.parallel.mark()
            words = self._vote(attempt, attempt.word(self.stop.raised, self.seconds(), mark))
            self.state.seconds = words[0].clock
            if all(word.ok for word in words):
                return any(word.stop for word in words)
            self._clear(words, attempt, last=False)
            tries = self._shrink(words, tries + 1)
            set_generators(states, self.dist.device)

    def _vote(self, attempt: Attempt, word: Word) -> list[Word]:
        """Every rank's word on an attempt."""
        if attempt.error is not None and (not self.parallel.gated or getattr(attempt.error, "beyond_votes", False)):
            raise attempt.error  # the others may be inside a collective already, where no vote can reach them
        self.pulse.beat("vote", self.state.step)
        try:
            return self.dist.control.finish(word)
        except LostPeer as lost:
            if attempt.failure is None:
                raise
            assert attempt.error is not None
            raise attempt.error from lost  # this rank's own failure came before it lost the others

    def _clear(self, words: Sequence[Word], attempt: Attempt, last: bool) -> None:
        """Undo an attempt after a common no. Everyone stops if it was the `last`, or failed not for want of memory: the
        rank that failed with its own error, the others naming it."""
        self.parallel.recover()
        if not last and all(word.kind != OTHER for word in words):
            return
        mine = None if attempt.failure is None else asdict(attempt.failure)
        failures = [failure for failure in self.dist.gather(mine) if failure is not None]
        if attempt.error is not None and attempt.kind:
            raise attempt.error
        first = failures[0]
        raise PeerError(
            f"rank {first['rank']} failed in phase '{first['phase']}' of step {first['step']}: {first['kind']}: "
            f"{first['sentence']}"
        )

    def _shrink(self, words: Sequence[Word], tries: int) -> int:
        """Memory that was short is met by trying again, then by smaller microbatches; the tries at the size in use."""
        state = self.state
        where, rank, word = _first_short(words)
        state.recovered += 1
        share = math.ceil(self.count(state.step) / self.dist.world)
        size = min(state.microbatch or share, share)
        if tries >= RETRIES:
            if size == 1:
                memory = MEMORY[word.kind]
                raise MemoryStop(
                    f"{where} with one sample at a time; {remedy(memory)}",
                    PHASES[word.phase],
                    Shortage(memory),
                    mine=rank == self.dist.rank,
                )
            state.microbatch, tries = max(1, size // 2), 0
            self.pulse.note(state.microbatch)
        _give_back(self.dist.device)
        self.say(f"{where}; the same batch again in microbatches of {state.microbatch or share}.")
        return tries


def _first_short(words: Sequence[Word]) -> tuple[str, int, Word]:
    """The first rank that ran out of memory: in words, its number, and what it said."""
    rank, word = next((r, w) for r, w in enumerate(words) if w.kind in MEMORY)
    where = f"out of {MEMORY[word.kind]} memory on rank {rank} in phase '{PHASES[word.phase]}' of step {word.step}"
    return where, rank, word


def _give_back(device: torch.device) -> None:
    """What allocators keep for later goes back, so that another may have it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError):  # where the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)
