"""Checks whether the simulators that a run started from were trained on the data it is judged on."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from ups.data.duplicates import Ends, ends_of
from ups.progress import OnProgress
from ups.run.config import RunConfig
from ups.run.data.data_identity import Identity
from ups.run.data.datasets import DataEntry, DataSet, open_sets
from ups.run.data.doubts import doubts
from ups.run.judging.leaks import leaks
from ups.run.judging.seen_in_training import WARNING, seen_in, used_by
from ups.run.load import config_of
from ups.rundir import RunDir
from ups.types import DataError, UpsError

MOST = 16  # generations that are looked at


class Warned(NamedTuple):
    """A sentence on a simulator from before, and whether trajectories are known to have been seen by it."""

    words: str
    seen: bool = False


def seen_before(config: RunConfig, sets: Sequence[DataSet], split: str, following: OnProgress) -> tuple[str, list[str]]:
    """What trajectories of a part of a run's data are to its simulator, in words, and what a reader must know of it."""
    if split == "train":
        return "on trajectories SEEN IN TRAINING", [WARNING]
    warned = [Warned(words, seen=True) for data in sets for words in leaks(data, (split,))]
    warned += _trained_before(config, sets, split, following)
    which = "SEEN IN TRAINING in part or whole" if any(each.seen for each in warned) else "not seen in training"
    return f"on trajectories {which}", [*(each.words for each in warned), *doubts(sets)]


def _trained_before(config: RunConfig, sets: Sequence[DataSet], split: str, following: OnProgress) -> Iterator[Warned]:
    """For each task of which some trajectories of a part were trained or validated on before, and for each simulator of
    which nobody can tell."""
    for place, parent in _line(config.start_from):
        doubtful = {data.task.name: _others(data, place, parent) for data in sets}
        if parent is None:
            yield Warned(
                f"{place}, from which this run goes on, is no run that can be read here: nobody can tell whether it "
                "was trained on these trajectories."
            )
        elif any(doubtful.values()):
            with ExitStack() as stack:
                try:
                    used = _used(RunDir.at(place), parent, following, stack)
                except (UpsError, OSError):
                    yield Warned(
                        f"The data of {place}, from which this run goes on, are gone, have changed or cannot be read: "
                        "nobody can tell whether it was trained on these trajectories."
                    )
                    continue
                for task, entries in doubtful.items():
                    yield from _seen(task, entries, split, used, place)


def _line(start: str | None) -> Iterator[tuple[Path, RunConfig | None]]:
    """The runs that a run was started from, one after the other, the nearest first. The config is None for a simulator
    that is a file alone, and for a run that another version wrote."""
    for _ in range(MOST):
        if start is None:
            return
        place = Path(start)
        parent = None
        if (run := RunDir(place)).config.is_file():
            with suppress(UpsError):
                parent = config_of(run)
        yield place, parent
        start = parent.start_from if parent is not None else None


def _others(data: DataSet, place: Path, parent: RunConfig | None) -> list[DataEntry]:
    """The entries that the parent does not have in just this form: an equal entry of the same files is cut into the
    same parts."""
    if parent is None:
        return list(data.entries)
    known, files = parent.data.values(), _files(RunDir.at(place), parent)
    return [entry for entry in data.entries if entry.config not in known or not _recorded([entry], files)]


def _files(folder: RunDir, config: RunConfig) -> set[str]:
    """The files that a run was trained on."""
    return {os.path.abspath(path) for path in Identity(folder, lambda _: None, config.home).by_path()}


def _recorded(entries: Iterable[DataEntry], files: Collection[str]) -> bool:
    """Whether all files of the entries are among `files`; data that a run makes are always the same."""
    there = (entry for entry in entries if entry.config.there)
    return all(os.path.abspath(path) in files for entry in there for path in entry.source.files())


def _used(folder: RunDir, config: RunConfig, following: OnProgress, stack: ExitStack) -> list[Ends]:
    """What a run was trained and validated on, open until `stack` closes; DataError where its data are gone. None are
    made."""
    files = _files(folder, config)
    if not files or not all(os.path.exists(path) for path in files):
        raise FileNotFoundError(folder.data)
    sets = open_sets(config.data, folder.cache("data"), following, stack)
    entries = [entry for data in sets for entry in data.entries]
    if not _recorded(entries, files):
        raise DataError(f"{folder.folder}: the files that it was trained on are not those that its config names now.")
    return used_by(entries)


def _seen(task: str, entries: Sequence[DataEntry], split: str, used: Sequence[Ends], place: Path) -> Iterator[Warned]:
    """Warnings where a part of some entries is among what was used, whole or cut in time."""
    ours = [each for entry in entries for each in ends_of(entry.source, set(entry.split.part(split)))]
    seen = seen_in(ours, used)
    for which, what in (
        (seen.copies, "were trained or validated on by"),
        (seen.pieces, "begin or end with the first or last frame of one that was trained or validated on by"),
    ):
        if which:
            yield Warned(
                f"{task}: {len(which)} of {len(ours)} trajectories {what} {place}, from which this run goes on: they "
                "are NOT unseen.",
                seen=True,
            )
