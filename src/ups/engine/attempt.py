"""A try that may fail on one rank: its failure is held, put to the vote, and only then anyone's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ups.engine.control import LostPeer, PeerFailed, Word
from ups.engine.dist import Dist
from ups.heartbeat import PHASES, Pulse
from ups.types import UpsError
from ups.verdict import Ending, Failure, classify

if TYPE_CHECKING:
    from ups.engine.loop import Trainer

T = TypeVar("T")

NOTHING, MEMORY, OTHER = range(3)


class MemoryStop(UpsError):  # noqa: N818
    """Out of memory even with a single sample at a time, or again and again; on this rank or on another."""

    ending = Ending.OOM

    def __init__(self, sentence: str, phase: str, mine: bool) -> None:
        super().__init__(sentence)
        self.phase, self.first_hand = phase, mine


class PeerError(UpsError):
    """Another rank failed; this one only says so."""


class Attempt:
    """As a context: holds the exception that ended it instead of letting it out. Ctrl-C and the like pass through."""

    def __init__(self, pulse: Pulse, step: int) -> None:
        self.pulse, self.step = pulse, step
        self.kind, self.phase = NOTHING, ""
        self.error: Exception | None = None
        self.failure: Failure | None = None  # for the others; None where this rank did not fail by itself

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
            self.kind = MEMORY if classify(error).ending == Ending.OOM else OTHER
            self.failure = Failure.of(error, self.pulse.rank, self.step, self.phase)
        if self.kind != OTHER:  # its frames hold activations; what is to be raised again keeps them
            traceback.clear_frames(at)
            error.__traceback__ = None
        return True

    def word(self, stop: bool, clock: float, mark: int) -> Word:
        """What this rank says of it."""
        failed = self.error is not None
        phase = PHASES.index(self.phase) if failed else 0
        return Word(not failed, self.kind, stop, self.step, phase, clock, 0 if failed else mark)


def give_up(dist: Dist, attempt: Attempt) -> None:
    """Everyone stops: the rank that failed with its own error, the others naming it. All ranks must call this."""
    told = [failure for failure in dist.gather(attempt.failure) if failure is not None]
    if attempt.error is not None and attempt.kind:
        raise attempt.error
    first = told[0]
    raise PeerError(
        f"rank {first.rank} failed in phase '{first.phase}' of step {first.step}: {first.kind}: {first.sentence}"
    )


def together(trainer: Trainer, phase: str, work: Callable[[], T], tries: int = 1) -> T:
    """What `work`, which changes nothing, gives on this rank once it has succeeded on all.

    Memory that was short for a moment is met by doing it again, `tries` times in all; else all stop, the cause named.
    """
    generators = trainer.keeper.generators()
    while True:
        found: list[T] = []
        with Attempt(trainer.pulse, trainer.step) as attempt:
            trainer.pulse.beat(phase, trainer.step)
            found.append(work())
        if attempt.error is not None and not trainer.parallel.gated:
            raise attempt.error  # the others may be inside a collective already, where no vote can reach them
        trainer.pulse.beat("vote", trainer.step)
        words = trainer.dist.control.finish(attempt.word(False, 0.0, 0))
        if all(word.ok for word in words):
            return found[0]
        tries -= 1
        trainer.parallel.recover()
        if tries == 0 or any(word.kind == OTHER for word in words):
            give_up(trainer.dist, attempt)
        rank = next(rank for rank, word in enumerate(words) if word.kind == MEMORY)
        trainer.recovered += 1
        trainer.keeper.set_generators(generators)
        trainer._say(f"out of memory on rank {rank} in phase '{phase}' of step {trainer.step}; once more.")
