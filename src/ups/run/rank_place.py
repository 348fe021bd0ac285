"""Which process of a run this one is: a rank with its seat, or the only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ups.heartbeat import Pulse


class RankPlace(Protocol):
    """Which process of a run this one is."""

    @property
    def rank(self) -> int: ...
    @property
    def pulse(self) -> Pulse: ...
    def limit(self) -> int | None: ...  # the largest microbatch that an earlier start has found to fit
    def prepared(self, prepare: Callable[[], None]) -> None: ...  # one process prepares, the others wait for it


class Alone:
    """The only process of a run, without a supervisor."""

    rank = 0

    def __init__(self) -> None:
        self.pulse = Pulse(None, 0)

    def limit(self) -> int | None:
        return None

    def prepared(self, prepare: Callable[[], None]) -> None:
        prepare()
