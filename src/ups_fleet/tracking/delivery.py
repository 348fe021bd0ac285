"""Feeds the mirrors of a run while it runs, and sends them later what they have missed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ups.files import foreign_in, write_atomic
from ups.parsing import read_record
from ups.presence import look
from ups.rundir import DEEPEST, RunDir
from ups.types import counted
from ups_fleet.outbox import courier_of, sending
from ups_fleet.supervise.children import Program, finish
from ups_fleet.tracking.log_reader import whole_lines
from ups_fleet.tracking.mirror import MirrorReceipt, RunEnding, shortage
from ups_fleet.tracking.settings import TrackingConfig, is_folder

FEED = "ups_fleet.tracking.feed"  # the program of a courier
WAIT = 10.0  # seconds for deliveries by the way, of all runs together
AGAIN = 600.0  # seconds after a failure before one is tried again by the way
AT_ONCE = 4  # runs
NAMED = 3  # mirrors that lack something of which each is named
LOOK = 5.0  # seconds between two looks at what troubles them
ORPHANED = 60.0  # seconds that the courier of a run goes on when its owner was killed


@dataclass(frozen=True)
class Delivery:
    """How a mirror stands: how many lines of the log it lacks, the ending it was told, and what went wrong last."""

    name: str
    missing: int
    ending: str
    trouble: str
    whole: bool  # it holds every line, and knows how the run has ended if it has

    def sentence(self, folder: Path) -> str:
        """What a person should know."""
        if self.whole:
            return f"{self.name}: has everything ({self.ending or 'the run goes on'})."
        what = f"{counted(self.missing, 'line')} of the log and how it ended"
        reason = f" ({self.trouble})" if self.trouble else ""
        return f"{self.name}: {what} could not be sent{reason}; `ups track {folder}` sends them."


@contextlib.contextmanager
def mirrored(folder: Path, settings: TrackingConfig, say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, a courier carries the log of the run to its mirrors; afterwards it has `settings.wait`
    seconds to tell them the rest and how the run has ended. Nothing that mirrors do reaches the block."""
    if not settings.to:
        yield
        return
    try:
        with sending(lambda: _courier_of(folder, settings, say), settings.wait):
            yield
    finally:
        if RunDir(folder).config.is_file():
            for delivery in deliveries(folder):
                if not delivery.whole:
                    say(delivery.sentence(folder))


class TroubleWatch:
    """Tells, once of each mirror, that it cannot be told of a run now, and why, while the run goes on; to be called
    often."""

    def __init__(self, folder: Path, settings: TrackingConfig, say: Callable[[str], None]) -> None:
        self.run, self.names, self.say = RunDir(folder), list(settings.to), say
        self.began, self.due = time.time(), 0.0

    def __call__(self) -> None:
        if not self.names or time.monotonic() < self.due:
            return
        self.due = time.monotonic() + LOOK
        for name in list(self.names):
            path = self.run.tracking(f"{name}.json")
            trouble = MirrorReceipt.read(path).trouble
            if trouble and path.stat().st_mtime >= self.began:  # not one of an earlier start
                self.names.remove(name)
                self.say(f"{name}: cannot be told of the run now ({trouble}); training goes on, and it is tried again.")


def deliver(folder: Path, wait: float = WAIT, *, by_user: bool = False) -> list[Delivery]:
    """Send the mirrors of a run what they have missed, in at most `wait` seconds; how each stands then.

    A run that is being carried out has a courier of its own, and is left to it; where nothing is missing nothing is
    started. A folder without mirrors gives an empty list. A folder may have come from a stranger: one with links is
    left alone, and a server that it names itself gets something only where the user named this run (`by_user`).
    """
    states = deliveries(folder)
    names = [state.name for state in states if not state.whole]
    if not names or is_live(folder):
        return states
    if by_user:
        RunDir(folder).require_own_files()
    elif foreign_in(folder, DEEPEST) is not None or (settings := settings_of(folder)) is None or settings.uri:
        return states
    with contextlib.suppress(OSError):  # no process to be had, or a full disk: it is tried the next time
        finish(courier_of(folder, FEED, "0", str(wait), *names), wait)
        for state in (state for state in deliveries(folder) if not state.whole and not state.trouble):
            place = RunDir(folder).tracking(f"{state.name}.json")
            replace(MirrorReceipt.read(place), trouble=f"it took longer than {wait:.0f} s").write(place)
    return deliveries(folder)


def deliver_by_the_way(folders: Iterable[Path]) -> Iterator[str]:
    """Send the mirrors of runs that have ended what they have missed, all in at most WAIT seconds: a sentence on each
    that was sent something, and on those that lack it still. One that failed is left alone for a while."""
    deadline, lacking = time.monotonic() + WAIT, list[str]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for folder, states in threads.map(lambda folder: (folder, _delivered(folder, deadline)), folders):
            for state in states:
                sentence = f"{folder}: {state.sentence(folder)}"
                if state.whole:
                    yield sentence
                else:
                    lacking.append(sentence)
    yield from lacking[:NAMED]
    if len(lacking) > NAMED:
        yield f"The trackers of {counted(len(lacking) - NAMED, 'more run')} lack something; `ups track RUN` sends it."


def deliveries(folder: Path) -> list[Delivery]:
    """How the mirrors of a run stand."""
    run, settings = RunDir(folder), settings_of(folder)
    if settings is None:
        return []
    end = whole_lines(run.metrics)
    ending = "" if is_live(folder) else RunEnding.of(run).ending
    states = []
    for name in settings.to:
        receipt = MirrorReceipt.read(run.tracking(f"{name}.json"))
        whole = receipt.position >= end and (not ending or receipt.ending == ending)
        trouble = receipt.trouble or ("" if whole else shortage(folder))  # then nobody could write down why
        states.append(Delivery(name, _lines(run.metrics, receipt.position, end), receipt.ending, trouble, whole))
    return states


def settings_of(folder: Path) -> TrackingConfig | None:
    """The settings that the last start of a run had; None where it has no mirrors, or they are damaged."""
    path = RunDir(folder).tracking("settings.json")
    try:
        return TrackingConfig.model_validate(read_record(path))
    except (OSError, ValueError):
        return None


def write_settings(folder: Path, settings: TrackingConfig) -> None:
    """Settle where a run is shown from now on, and whoever delivers it, from wherever."""
    path = RunDir(folder).tracking("settings.json")
    if settings.uri and is_folder(settings.uri):
        settings = settings.model_copy(update={"uri": os.path.abspath(settings.uri)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, settings.model_dump_json(indent=2) + "\n")


def is_live(folder: Path) -> bool:
    """Whether somebody carries the run out, here or on another machine."""
    try:
        return look(RunDir(folder).lock).alive
    except OSError:  # no lock that any writer could hold
        return False


def _delivered(folder: Path, deadline: float) -> list[Delivery]:
    """The mirrors of a run that lacked something, as they stand after what could be done until `deadline`."""
    try:
        names = [state.name for state in deliveries(folder) if not state.whole]
        left = deadline - time.monotonic()
        states = deliver(folder, left) if left > 1.0 and _untried(folder, names) else deliveries(folder)
    except OSError:  # a folder that may not be read
        return []
    return [state for state in states if state.name in names]


def _untried(folder: Path, names: Sequence[str]) -> bool:
    """Whether one of these mirrors lacks something and has not failed just now."""
    for path in (RunDir(folder).tracking(f"{name}.json") for name in names):
        if not MirrorReceipt.read(path).trouble or time.time() - path.stat().st_mtime > AGAIN:
            return True
    return False


def _courier_of(folder: Path, settings: TrackingConfig, say: Callable[[str], None]) -> Program | None:
    """A courier for the run that this process carries out; None, with a sentence, where there can be none now."""
    try:
        write_settings(folder, settings)
        limit = max(settings.wait, ORPHANED)
        return courier_of(folder, FEED, str(os.getpid()), str(limit), *settings.to)
    except OSError as error:
        say(f"{folder}: {', '.join(settings.to)} cannot be told of the run now ({error.strerror or error}); "
            f"training goes on, and `ups track {folder}` tells them later.")  # fmt: skip
        return None


def _lines(path: Path, start: int, end: int) -> int:
    if start >= end:
        return 0
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start).count(b"\n")
