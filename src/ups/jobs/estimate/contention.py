"""Whether others used this machine's processors while something was timed on it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

BUSY = 0.1  # share of the time without a processor, above which a timing is not to be trusted


class Contention:
    """What this process has had to wait for processors since it was made."""

    def __init__(self) -> None:
        self._ran, self._waited = _scheduled()
        self._used, self._stolen = _machine()

    def share(self) -> float:
        """The part of the time in which a processor was wanted and not had, for other processes of this machine or, by
        its host, other machines had it. 0 where the system does not say."""
        ran, waited = _scheduled()
        used, stolen = _machine()
        queue = _part(waited - self._waited, ran - self._ran)
        return max(queue, _part(stolen - self._stolen, used - self._used))


def _part(lost: float, had: float) -> float:
    return max(0.0, lost) / (lost + had) if lost + had > 0 and had >= 0 else 0.0


def _scheduled() -> tuple[float, float]:
    """Nanoseconds in which the threads of this process ran, and in which they could have run and did not."""
    ran = waited = 0.0
    with suppress(OSError):  # not on every system
        for file in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(OSError, ValueError):  # a thread may have ended
                on, off, _ = file.read_text().split()
                ran, waited = ran + float(on), waited + float(off)
    return ran, waited


def _machine() -> tuple[float, float]:
    """Ticks in which the processors of this machine worked, and in which its host kept them from it."""
    with suppress(OSError, ValueError, IndexError):
        user, nice, system, _, _, irq, softirq, stolen, *_ = map(
            float, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        )
        return user + nice + system + irq + softirq, stolen
    return 0.0, 0.0
