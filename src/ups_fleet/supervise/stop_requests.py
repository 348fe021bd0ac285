"""Signals that asked the supervisor to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


@dataclass
class StopRequests:
    """Signals that asked this process to stop, in the order of their arrival."""

    signals: list[int] = field(default_factory=list)
    since: float = 0.0

    def add(self, number: int) -> None:
        self.since = self.since or time.monotonic()
        self.signals.append(number)

    @contextlib.contextmanager
    def listening(self, *, to_the_end: bool = False) -> Iterator[None]:
        """Signals are requests within the block; with `to_the_end` also after it: where the verdict is written, and
        the process has only to end with its code, a signal must not give it another one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {number: signal.signal(number, lambda sent, _: self.add(sent)) for number in STOPS}
        decided = False
        try:
            yield
            decided = to_the_end
        finally:
            for number, handler in old.items() if not decided else ():
                signal.signal(number, handler)

    @property
    def now(self) -> bool:
        """A second Ctrl-C: no more patience."""
        return self.signals.count(signal.SIGINT) > 1

    def __bool__(self) -> bool:
        return bool(self.signals)
