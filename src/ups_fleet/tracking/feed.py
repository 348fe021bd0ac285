"""The process of one mirror: it sends the rows of the log until the run has ended, and then how it ended."""

from __future__ import annotations

import fcntl
import os
import select
from pathlib import Path

from ups.rundir import RunDir
from ups_fleet.tracking import MIRRORS
from ups_fleet.tracking.log_reader import LogReader, LogRow, Overruled, holding_rows
from ups_fleet.tracking.mirror import Mirror, MirrorReceipt, RunEnding, RunFacts

LOOK = 1.0  # seconds between two looks at the log
AGAIN, BUSY = 75, 76  # exit codes: start me again; another process feeds this mirror


def feed(mirror: Mirror, receipt: Path) -> bool:
    """Send everything until standard input ends; False where a run has gone back, so that it must be opened again.

    The end of standard input says that the run has ended or that nobody carries it out any more.
    """
    run = mirror.facts.run
    mirror.open()
    log, overruled = LogReader(run.metrics), Overruled()
    for row in log.all():
        overruled.add(row)
    end, names = log.position, overruled.holding()
    held = MirrorReceipt()
    log = LogReader(run.metrics)
    while log.position < end:
        _send(mirror, log, holding_rows(log.read(), names), held, receipt)
    mirror.settle()
    held.write(receipt)
    over = False
    while True:
        rows = log.read()
        for row in rows:
            if overruled.goes_back(row):
                return False
            overruled.add(row)
        if rows:
            _send(mirror, log, rows, held, receipt)
        elif over:
            break
        else:
            over = bool(select.select([0], [], [], LOOK)[0])
    conclusion = RunEnding.of(run)
    mirror.close(conclusion)
    held.ending = conclusion.ending
    held.write(receipt)
    return True


def _send(mirror: Mirror, log: LogReader, rows: list[LogRow], held: MirrorReceipt, path: Path) -> None:
    mirror.send(rows)
    held.position, held.rows = log.position, log.number
    held.write(path)


def main(folder: Path, name: str, owner: int) -> int:
    """Feed the mirror `name` of the run in `folder`."""
    run = RunDir(folder)
    lock = os.open(run.tracking(f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return BUSY
    mirror = MIRRORS[name](RunFacts.read(folder, owner))
    return 0 if feed(mirror, run.tracking(f"{name}.json")) else AGAIN
