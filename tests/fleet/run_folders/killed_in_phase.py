"""`ups run` that is killed, with its supervisor, right after a phase's beginning or right before its end is recorded:
`python killed_in_phase.py begin|end PHASE PART WORDS…`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from ups.cli.app import main
from ups.run.journal import PhaseJournal

event, phase, part, supervisor = *sys.argv[1:4], os.getpid()
begin, end = PhaseJournal.begin, PhaseJournal.end


def kill_all() -> None:
    """SIGKILL to the supervisor and to the process that writes the record, which was forked from it."""
    for pid in dict.fromkeys((supervisor, os.getpid())):
        os.kill(pid, signal.SIGKILL)


def killed_after(journal: PhaseJournal, name: str, stage: str = "") -> None:
    begin(journal, name, stage)
    if (event, name, stage) == ("begin", phase, part):
        kill_all()


def killed_before(journal: PhaseJournal, name: str, stage: str, *facts: Any) -> None:
    if (event, name, stage) == ("end", phase, part):
        kill_all()
    end(journal, name, stage, *facts)


PhaseJournal.begin, PhaseJournal.end = killed_after, killed_before  # type: ignore[method-assign]
main(sys.argv[4:])
