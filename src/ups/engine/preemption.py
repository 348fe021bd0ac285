"""Requests to stop: SIGTERM and SIGUSR1 set a flag for the ranks' next vote, or end work nobody waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ups.types import UpsError
from ups.verdict import Ending

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Preempted(UpsError):  # noqa: N818
    """Asked to stop; everything is saved, and the run can be resumed."""

    ending = Ending.PREEMPTED


class StopFlag:
    """Raised by a signal, from the moment of `listen` on; cheap to ask."""

    def __init__(self) -> None:
        self.raised = False
        self.signal = ""
        self._doing = ""

    def listen(self) -> StopFlag:
        """Take over the signals; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._heard)
        return self

    @contextmanager
    def at_once(self, doing: str) -> Iterator[None]:
        """Inside, a request ends the work where it is: nobody waits for it, and what it has written is whole."""
        self._doing = doing
        try:
            self._end()
            yield
        finally:
            self._doing = ""

    def _heard(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.raised, self.signal = True, signal.Signals(number).name
        self._end()

    def _end(self) -> None:
        if self.raised and self._doing:
            raise Preempted(f"stopped by {self.signal} while {self._doing}; --resume goes on.")


# One per process, since signals are; it listens only where a worker says so.
STOP = StopFlag()
