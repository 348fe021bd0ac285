"""Progress: how far the making or fetching of a file is, for whoever displays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a file is, of its name: samples solved (parts of samples count) of how many, or megabytes fetched.

    `written` are those samples that are on the disk, where files are made: what an interruption leaves. `note` is
    something to be said once: how long it will take, or what is kept. `percent`: `done` are percent of the whole.
    """

    done: float
    total: int
    name: str
    note: str = ""
    written: int | None = None
    percent: bool = False

    @property
    def amount(self) -> str:
        return f"{self.done:.0f} %" if self.percent else f"{self.done:.0f} of {self.total}"


Report = Callable[[Progress], None]
