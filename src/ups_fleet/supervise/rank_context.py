"""A rank's side of the supervision: heartbeat, stacks on request, the record of a failure, the mark of success."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ups.heartbeat import Fire, Pulse
from ups.parsing import read_json
from ups.rundir import RunDir
from ups.types import UpsError
from ups.verdict import Ending, Failure, classify, now
from ups_fleet.supervise import flight_recorder
from ups_fleet.supervise.start_dir import StartDir

VICTIM = 500  # thousandths of the machine's memory that the kernel adds to what a rank holds when it looks for a victim
PEACEFUL = (Ending.PREEMPTED, Ending.INTERRUPTED)

_open_files: list[Any] = []  # stay open as long as the process: signal handlers write to their descriptors


class RankContext(contextlib.AbstractContextManager["RankContext"]):
    """A rank under its supervisor. Without one (no UPS_RUN in the environment) its beats and records go nowhere.

    As a context it turns whatever leaves the block into the right exit. Code after the block is teardown: it cannot
    undo a success.

        what leaves the block                   what it leaves behind                       exit code
        nothing, or an exit with 0              a last beat "left on purpose"               0
        a request to stop, as exit or error     the same                                    its ending's: 15, 130
        an exit with another code               nothing                                     that code
        any error, without a supervisor         nothing; it is raised on                    Python's
        UpsError, a failing disk, a lost peer   a record; a sentence, unless it is a USER's its ending's
        memory that ran out                     a record                                    its ending's
        any other error                         a record, its traceback                     its ending's
    """

    def __init__(self, environ: Mapping[str, str] | None = None, fire: Fire | None = None) -> None:
        env = os.environ if environ is None else environ
        self.rank = int(env.get("RANK", "0"))
        self.attempt = int(env.get("UPS_ATTEMPT", "0"))
        self.files = StartDir(Path(env["UPS_RUN"])) if "UPS_RUN" in env else None
        self.run = RunDir(Path(env["UPS_HOME"])) if "UPS_HOME" in env else None
        if self.files is not None:
            _offer_itself()
            self.files.name_semaphores()
            flight_recorder.answer(self.files.flight(self.rank))
            _write_stacks_on_request(self.files.stack(self.rank))
        self.pulse = Pulse(self.files.heartbeat(self.rank) if self.files else None, self.rank, fire)

    def limit(self) -> int | None:
        """The largest microbatch that earlier starts of the ranks leave to this one; None where there is none."""
        return microbatch_of(self.run) if self.run else None

    def succeed(self, ending: Ending = Ending.SUCCESS, cause: str = "done.", **facts: Any) -> None:
        """Everything is written and verified: rank 0 says so, durably, before any teardown; `ending` is one of
        AS_ASKED."""
        if self.run is not None and self.rank == 0:
            mark = {"time": now(), "verdict": ending.name, "cause": cause, "facts": facts}
            self.run.write(self.run.success, mark)

    def fail(self, error: BaseException) -> Ending:
        """Leave the record of an exception; its ending is the exit code of this rank."""
        record = Failure.of(error, self.rank, self.pulse.step, self.pulse.phase, self.pulse.microbatch)
        if self.files is not None:
            with contextlib.suppress(OSError):  # the exit code says it too
                record.write(self.files.failure(self.rank))
            if not record.first_hand:  # what it did last with the peer that it lost
                flight_recorder.dump(self.files.flight(self.rank))
        return record.ending

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (0, None, *PEACEFUL)):
            self.pulse.close()
            return
        if isinstance(error, SystemExit) or self.files is None:
            return
        meaning = classify(error)
        if meaning.ending in PEACEFUL:
            self.pulse.close()
            raise SystemExit(int(meaning.ending)) from None
        ending = self.fail(error)
        mine = not isinstance(error, UpsError) and ending != Ending.STORAGE and meaning.first_hand
        silent = ending in (Ending.USER, Ending.OOM)  # the supervisor tells it, and the record has the traceback
        if mine and not silent:
            sys.excepthook(type(error), error, at)
        elif not silent:  # one sentence, also of a lost peer
            print(f"rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(int(ending)) from None


def microbatch_of(run: RunDir) -> int | None:
    """The largest microbatch that later starts of the ranks may take; None where nothing possible is written."""
    size = read_json(run.ledger).get("microbatch")
    return size if type(size) is int and size > 0 else None


def write_microbatch(run: RunDir, microbatch: int) -> None:
    """The largest microbatch that later starts of the ranks may take."""
    run.write(run.ledger, {**read_json(run.ledger), "microbatch": microbatch})


def _offer_itself() -> None:
    """Where memory runs out, the kernel is to end this rank: neither its supervisor, which has to say so, nor a
    neighbour. Its loader workers inherit it."""
    with contextlib.suppress(OSError, ValueError):
        path = Path("/proc/self/oom_score_adj")
        path.write_text(str(max(VICTIM, int(path.read_text()))))


def _write_stacks_on_request(path: Path) -> None:
    """On SIGUSR2 the stacks of all threads go to `path`; on a fatal signal they go to the log."""
    file = path.open("ab", buffering=0)
    _open_files.append(file)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=True)  # then the flight recorder's turn
