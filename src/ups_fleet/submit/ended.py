"""Translates the exit code of a run into the status of its job."""

from __future__ import annotations

import signal

from ups.verdict import Ending
from ups_fleet.submit.job import Status


def ended(code: int) -> Status:
    """The status of a job whose command has left with this code."""
    if code == 0:
        return Status("done", "it has ended well.", code)
    word = Ending(code).name if code in list(Ending) else f"signal {code - 128}" if code > 128 else "an error"
    if code in (Ending.PREEMPTED, Ending.INTERRUPTED):
        return Status("stopped", f"{word}: it was asked to stop, and has saved; launch it again to go on.", code)
    if code == 128 + signal.SIGTERM:
        return Status("stopped", "it was asked to stop before it could listen; launch it again to go on.", code)
    return Status("failed", f"{word}: it has ended with code {code}.", code)
