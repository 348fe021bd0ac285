"""Progress of what takes time: of files, trainings and solutions, and the screen that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


@dataclass(frozen=True)
class TrainingProgress:
    """How far the training of a stage is; `note` is a sentence when there is something to say."""

    stage: str
    step: int
    fraction: float  # of the budget, 0 … 1
    seconds: float  # spent
    eta: float  # seconds left
    loss: float
    score: float  # of the last validation; nan before the first
    lr: float
    samples_per_second: float
    input_wait: float  # share of the time since the last line in which no window was ready
    memory: int  # bytes at the peak: of the GPU's memory, or of the process's
    note: str = ""


Say = Callable[[str], None]
OnProgress = Callable[[Progress], None]
OnTraining = Callable[[TrainingProgress], None]
OnShare = Callable[[float], None]  # of a solution or a rollout, 0 … 1


@dataclass(frozen=True)
class Screen:
    """Where a run shows what it does: sentences, the making of data, the progress of training."""

    say: Say
    following: OnProgress
    watch: OnTraining

    @classmethod
    def silent(cls) -> Screen:
        """A screen that shows nothing."""
        return cls(_nothing, _nothing, _nothing)


def _nothing(_: object) -> None:
    """Not shown."""


_reporter: ContextVar[OnShare] = ContextVar("reporter", default=_nothing)


@contextmanager
def reporting(callback: OnShare) -> Iterator[None]:
    """While this is open, whoever steps through time and calls `reporter()` tells `callback` which share of its steps
    is done."""
    token = _reporter.set(callback)
    try:
        yield
    finally:
        _reporter.reset(token)


@contextmanager
def one_of(many: int, done: int) -> Iterator[None]:
    """While this is open, what is told is a share of one of so many equal parts, of which some are done."""
    tell = reporter()
    with reporting(lambda share: tell((done + share) / many)):
        yield


def reporter() -> OnShare:
    """What is to be told the share of a solution that is reached."""
    return _reporter.get()
