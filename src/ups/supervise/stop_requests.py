"""Signals that asked the supervisor to stop."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass


@dataclass
class StopRequests:
    """Signals that asked this process to stop, in the order of their arrival."""

    signals: list[int]
    since: float = 0.0

    def add(self, number: int) -> None:
        self.since = self.since or time.monotonic()
        self.signals.append(number)

    @property
    def now(self) -> bool:
        """A second Ctrl-C: no more patience."""
        return self.signals.count(signal.SIGINT) > 1

    def __bool__(self) -> bool:
        return bool(self.signals)
