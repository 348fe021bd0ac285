"""A rank's seat under its supervisor: heartbeat, stacks on request, the record of a failure, the word of success."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ups.files import write_atomic
from ups.heartbeat import Fire, Pulse
from ups.launch import flight
from ups.types import UpsError
from ups.verdict import Ending, Failure, classify, read_json, succeed

PEACEFUL = (Ending.PREEMPTED, Ending.INTERRUPTED)
SUCCESS = ".success.json"
LEDGER = "ledger.json"


class Seat:
    """What a rank is to its supervisor. Without one (no UPS_RUN in the environment) beats and words go nowhere.

    As a context it turns whatever leaves the block into the right exit: a failure record and the code of its ending
    for an exception, a mark "left on purpose" otherwise, also where it only was asked to stop. Code after the block
    is teardown: it cannot undo a success.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, fire: Fire | None = None) -> None:
        found = os.environ if environ is None else environ
        self.rank = int(found.get("RANK", "0"))
        self.attempt = int(found.get("UPS_ATTEMPT", "0"))
        self.folder = Path(found["UPS_RUN"]) if "UPS_RUN" in found else None
        self.home = Path(found["UPS_HOME"]) if "UPS_HOME" in found else None
        if self.folder is not None:
            flight.answer(self.folder / f"flight-{self.rank}.json")
            _answer(self.folder / f"stack-{self.rank}")
        self.pulse = Pulse(self.folder / f"heartbeat-{self.rank}" if self.folder else None, self.rank, fire)

    def limit(self) -> int | None:
        """The microbatch an earlier attempt has learnt to keep to; None where there is none."""
        found = read_json(self.home / LEDGER).get("microbatch") if self.home else None
        return int(found) if found else None

    @property
    def microbatch(self) -> int:
        """The samples this rank takes at once; 0 where it never said."""
        return self.pulse.microbatch

    def note(self, microbatch: int) -> None:
        """This rank now takes so many samples at once; rank 0 tells later attempts."""
        self.pulse.note(microbatch)
        if self.home is not None and self.rank == 0 and read_json(self.home / LEDGER).get("microbatch") != microbatch:
            write_ledger(self.home, microbatch)

    def succeed(self, **facts: Any) -> None:
        """Everything is written and verified: rank 0 says so, durably, before any teardown."""
        if self.home is not None and self.rank == 0:
            succeed(self.home / SUCCESS, **facts)

    def fail(self, error: BaseException) -> Ending:
        """Leave the record of an exception; its ending is the exit code of this rank."""
        record = Failure.of(error, self.rank, self.pulse.step, self.pulse.phase, self.microbatch)
        if self.folder is not None:
            with contextlib.suppress(OSError):  # the exit code says it too
                record.write(self.folder)
            if not record.first_hand:  # what it did last with the peer that it lost
                flight.dump(self.folder / f"flight-{self.rank}.json")
        return record.ending

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (0, None, *PEACEFUL)):
            self.pulse.close()
            return
        if isinstance(error, SystemExit) or self.folder is None:
            return
        ending = classify(error).ending
        if ending in PEACEFUL:
            self.pulse.close()
            raise SystemExit(int(ending)) from None
        ending = self.fail(error)
        if not isinstance(error, UpsError):
            sys.excepthook(type(error), error, at)
        elif ending != Ending.USER:  # a sentence says it; the record has the rest, and a mistake is told from there
            print(f"rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(int(ending)) from None


def write_ledger(home: Path, microbatch: int) -> None:
    """What later attempts must keep to."""
    values = {**read_json(home / LEDGER), "microbatch": microbatch}
    write_atomic(home / LEDGER, json.dumps(values) + "\n")


def _answer(path: Path) -> None:
    """On SIGUSR2 the stacks of all threads go to `path`; on a fatal signal they go to the log."""
    file = path.open("ab", buffering=0)  # stays open as long as the process: the handler writes to its descriptor
    _OPEN.append(file)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=True)  # then the flight recorder's turn


_OPEN: list[Any] = []
