"""A request to stop: SIGTERM and SIGUSR1 raise a flag that the ranks put to their next vote."""

from __future__ import annotations

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopFlag:
    """Raised by a signal, from the moment of `listen` on; cheap to ask."""

    def __init__(self) -> None:
        self.raised = False
        self.signal = ""

    def listen(self) -> StopFlag:
        """Take over the signals; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._heard)
        return self

    def _heard(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.raised, self.signal = True, signal.Signals(number).name


# One per process, since signals are; it listens only where a worker says so.
STOP = StopFlag()
