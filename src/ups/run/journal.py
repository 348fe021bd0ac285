"""The phases of a run: which there are, which of them were asked for, and the record of each in phases.jsonl."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ups.parsing import LARGEST_RECORD, Row, end_of, rows_in
from ups.provenance import changes, code
from ups.types import ConfigError, check_known
from ups.verdict import classify, now

PHASES = ("check", "data", "doctor", "estimate", "dry-run", "train", "calibrate", "evaluate", "gates", "report")


@dataclass(frozen=True)
class Span:
    """The phases that were asked for, from `first` to `last`. Those before `first` must have left what it needs; from
    `calibrate` on, what is there is made again."""

    first: str = PHASES[0]
    last: str = PHASES[-1]

    @classmethod
    def of(cls, first: str | None, last: str | None) -> Span:
        """The phases from `--from` to `--until`; ConfigError for what is no phase, or none is between them."""
        for flag, name in (("--from", first), ("--until", last)):
            try:
                check_known("phase", () if name is None else (name,), PHASES)
            except ConfigError as error:
                raise ConfigError(f"{flag}: {error}") from None
        span = cls(first or PHASES[0], last or PHASES[-1])
        if PHASES.index(span.first) > PHASES.index(span.last):
            raise ConfigError(
                f"--until {span.last} comes before --from {span.first}; the order is {', '.join(PHASES)}."
            )
        return span

    def wants(self, phase: str) -> bool:
        return PHASES.index(self.first) <= PHASES.index(phase) <= PHASES.index(self.last)

    def ends_before(self, phase: str) -> bool:
        return PHASES.index(self.last) < PHASES.index(phase)

    def repeats(self, phase: str) -> bool:
        """Whether a phase is done again although its output is there."""
        return self.first != PHASES[0] and self.wants(phase)


class Mark(AbstractContextManager["Mark"]):
    """A phase under way: recorded when it is entered and when it is left, whatever leaves it. `result` is what its end
    will say: done, resumed or skipped."""

    def __init__(self, journal: PhaseJournal, phase: str, part: str) -> None:
        self.journal, self.phase, self.part = journal, phase, part
        self.began, self.result = time.perf_counter(), "done"
        self.facts: dict[str, Any] = {}

    def skip(self, why: str) -> None:
        self.result, self.facts["why"] = "skipped", why

    def __enter__(self) -> Mark:
        self.journal.begin(self.phase, self.part)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.journal.end(self.phase, self.part, self.began, self.result, self.facts)
            return
        with suppress(OSError):  # the error itself says more than that the disk takes no line
            self.journal.end(self.phase, self.part, self.began, "failed", {"ending": classify(error).ending.name})


class PhaseJournal:
    """Appends a line to phases.jsonl when a phase begins and one when it ends, each whole and on the disk before the
    run goes on. A killed run leaves a beginning without an end. Without a file nothing is written.

    A line has `phase`, `part` (the stage that is trained), `event` (begin, end), `time`, `clock` (seconds since 1970)
    and at its end `seconds`, `result` (done, resumed, skipped, failed) and facts of the phase, such as `why` it was
    skipped and the SHA-256 of what it left.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def __call__(self, phase: str, part: str = "") -> Mark:
        """A phase, to be entered; `part` is the stage that is trained."""
        return Mark(self, phase, part)

    def begin(self, phase: str, part: str = "") -> None:
        """A line for the beginning of a phase."""
        self._append({"phase": phase, "part": part, "event": "begin"})

    def end(self, phase: str, part: str, began: float, result: str, facts: Mapping[str, Any]) -> None:
        """A line for the end of a phase that began at `began` of `time.perf_counter`."""
        seconds = round(time.perf_counter() - began, 3)
        self._append({"phase": phase, "part": part, "event": "end", "seconds": seconds, "result": result, **facts})

    def skip(self, phase: str, why: str, part: str = "") -> None:
        """A phase that is not begun at all."""
        with self(phase, part) as mark:
            mark.skip(why)

    def last(self, phase: str, part: str = "") -> dict[str, Any]:
        """The newest end of a phase that was carried out; empty where it never was."""
        rows = [row for row in read_journal(self.path) if (row.get("phase"), row.get("part")) == (phase, part)]
        done = [row for row in rows if row.get("event") == "end" and row.get("result") in ("done", "resumed")]
        return done[-1] if done else {}

    def _append(self, row: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        line = (json.dumps({**row, "time": now(), "clock": round(time.time(), 3)}, ensure_ascii=False) + "\n").encode()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a killed run left half a line
                line = b"\n" + line
            if os.write(descriptor, line) < len(line):
                raise OSError(28, os.strerror(28), str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_journal(path: Path | None) -> list[Row]:
    """The lines of a phases.jsonl, oldest first; what is no line is passed over, and no file has none."""
    return [] if path is None else [*rows_in(end_of(path, LARGEST_RECORD).splitlines())]


def record_check(journal: PhaseJournal, began: float, say: Callable[[str], None]) -> None:
    """Record the phase check, which began at `began` before there was a folder, with the code that made it; say where
    an earlier start of the run had other code."""
    today, before = code(), journal.last("check").get("code")
    if isinstance(before, dict) and (differences := changes(before, today)):
        say(
            f"goes on with other code ({', '.join(differences)}); what is computed from here on may differ from what "
            "the earlier would have given."
        )
    journal.begin("check")
    journal.end("check", "", began, "done", {"code": today})
