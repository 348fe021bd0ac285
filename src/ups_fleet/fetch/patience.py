"""Decides how long a fetch waits and how often it retries: back-off with jitter, and Retry-After."""

from __future__ import annotations

import email.utils
import queue
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import TypeVar

from ups.types import DataError, UpsError

Result = TypeVar("Result")


class TransientError(Exception):
    """Something that another try may mend. `wait` is how many seconds the server asks to be left alone, `silent` how
    many of this try went by while next to nothing came."""

    def __init__(self, words: str, wait: float = 0.0, silent: float = 0.0) -> None:
        super().__init__(words)
        self.wait, self.silent = wait, silent


class UnreachableError(DataError):
    """What could not be had although it was tried often enough: later it may be."""


class ChangedError(Exception):
    """The file is another one than before."""


class NoRangesError(Exception):
    """The server sends all of a file where a piece was asked for."""


class StoppedError(Exception):
    """Somebody has ended the fetch."""


@dataclass(frozen=True)
class Patience:
    """Tries without a byte in between, pauses between them in seconds, and how little may come in which time."""

    tries: int = 8
    first: float = 0.5
    longest: float = 60.0
    longest_requested: float = 600.0  # the longest pause that a server may ask for
    stall: float = 50.0  # seconds in which at least `least` bytes come
    least: int = 4096
    silence: float = 115.0  # seconds that tries in a row may be silent together
    restarts: int = 3  # of a file that changes while it is fetched
    draw: Callable[[], float] = random.random

    def pause(self, failures: int, requested: float) -> float:
        """Seconds before the next try: doubled each time and drawn between half and all of that. Where the server
        requested a pause, at least that and a little more, so that not all clients come back at once."""
        own = min(self.first * 2.0 ** (failures - 1), self.longest) * (0.5 + 0.5 * self.draw())
        return max(own, requested * (1.0 + 0.1 * self.draw())) if requested else own

    def wait(self, failures: int, error: TransientError, stop: Event, silent: float = 0.0) -> None:
        """Wait before the next try; the error itself where there is none, or the server asks for too long a time, or
        another try might make too long a time of those that were `silent`."""
        hopeless = silent + self.stall > self.silence
        if failures >= self.tries or error.wait > self.longest_requested or hopeless:
            raise error
        if stop.wait(self.pause(failures, error.wait)):
            raise StoppedError


def within(seconds: float, act: Callable[[], Result]) -> Result:
    """What `act` gives; a TransientError where it has not ended after so many seconds. Then it is left to itself, and
    ends with the process at the latest."""
    outcome: queue.SimpleQueue[tuple[list[Result], BaseException | None]] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            outcome.put(([act()], None))
        except (TransientError, ChangedError, NoRangesError, UpsError, OSError, MemoryError) as error:
            outcome.put(([], error))

    Thread(target=attempt, daemon=True).start()
    try:
        results, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TransientError(f"nothing was heard for {seconds:.3g} s", silent=seconds) from None
    if error is not None:
        raise error
    return results[0]


def retry_after(value: str | None) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date; 0 for none and for nonsense."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
