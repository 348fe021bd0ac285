"""Prepares the data before the first step, then checks the machine and whether the run fits on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ups.data.splits import PARTS
from ups.progress import Say
from ups.run.config import RunConfig
from ups.run.data.data_identity import Identity, files_of
from ups.run.data.datasets import DataSet
from ups.run.data.doubts import doubts
from ups.run.data.statistics import read_before
from ups.run.journal import PhaseJournal, Span
from ups.run.judging.leaks import leaks
from ups.rundir import RunDir


def _no_check(*about: object) -> Sequence[str]:  # noqa: ARG001
    return ()


@dataclass(frozen=True)
class Preflight:
    """Each gives sentences worth a remark, and raises ConfigError where the run could not come to its end. They are
    made above this room, and given the config, the folder and the open data sets; by default nothing is looked at."""

    doctor: Callable[[RunConfig, Path], Sequence[str]] = _no_check
    estimate: Callable[[RunConfig, Path, Sequence[DataSet]], Sequence[str]] = _no_check

    def has(self, phase: str) -> bool:
        """Whether there is a check for the phase."""
        return getattr(self, phase) is not _no_check


def prepare_data(
    journal: PhaseJournal, identity: Identity, sets: Callable[[], Sequence[DataSet]], config: RunConfig, done: bool
) -> None:
    """Make the data where they are not there, and read all of them, unless they hold what was read before. Where the
    simulator is trained (`done`), data that the run could make again may be missing."""
    with journal("data") as mark:
        identity.require_unchanged()
        validated = journal.last("data").get("files")
        known = bool(validated) and validated == identity.summary()
        if not (known and done and not identity.complete()):
            identity.settle(files_of(config, sets()))
        if known and (done or identity.complete()):
            mark.skip("its files hold what was validated before")
            return
        if read_before(identity.folder, sets(), identity):
            mark.facts["read"] = "by another run, when the files held the same"
        else:
            for part in (part for data in sets() for name in PARTS for part in data.parts(name)):
                part.sound()
        if remarks := [*(words for data in sets() for words in leaks(data)), *doubts(sets())]:
            mark.facts["remarks"] = remarks
            for words in remarks:
                identity.say(words)
        mark.facts["files"] = identity.summary()


def look_ahead(
    journal: PhaseJournal,
    span: Span,
    preflight: Preflight,
    config: RunConfig,
    folder: RunDir,
    say: Say,
    sets: Sequence[DataSet],
) -> None:
    """The phases doctor and estimate of a run on `sets`; there are none where the simulator is trained already."""
    for phase in ("doctor", "estimate"):
        if span.ends_before(phase):
            return
        with journal(phase) as mark:
            if not span.wants(phase):
                mark.skip(f"--from {span.first}")
            elif not sets or not preflight.has(phase):
                mark.skip("nobody asked for it" if sets else "the simulator is trained")
            else:
                about = (config, folder.folder)
                remarks = preflight.doctor(*about) if phase == "doctor" else preflight.estimate(*about, sets)
                mark.facts["remarks"] = list(remarks)
                for remark in remarks:
                    say(remark)
