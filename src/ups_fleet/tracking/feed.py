"""The courier of the mirrors of a run: each is sent the rows of the log until the run has ended, and how it ended."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ups.files import write_atomic
from ups.rundir import RunDir
from ups_fleet.outbox import AGAIN, BUSY, DONE, Line, Sender, be_courier
from ups_fleet.supervise.rank_parent import die_with_parent
from ups_fleet.tracking import MIRRORS
from ups_fleet.tracking.log_reader import LogReader, LogRow, Overruled, holding_rows, whole_lines
from ups_fleet.tracking.mirror import Mirror, MirrorReceipt, RunEnding, RunFacts

LOOK = 1.0  # seconds between two looks at the log


@dataclass
class Feeder(Sender):
    """Feeds the mirror `name` of the run in `folder`, which the process `owner` carries out; 0: nobody does."""

    folder: Path
    name: str
    owner: int = 0
    patience: ClassVar[float] = 120.0

    @property
    def receipt(self) -> Path:
        return RunDir(self.folder).tracking(f"{self.name}.json")

    def send(self, line: Line) -> int:
        lock = os.open(self.receipt.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return BUSY
        mirror = MIRRORS[self.name](RunFacts.read(self.folder, self.owner))
        return DONE if feed(mirror, self.receipt, line) else AGAIN

    def whole(self) -> bool:
        return MirrorReceipt.read(self.receipt).position >= whole_lines(RunDir(self.folder).metrics)

    def troubled(self, reason: str, printed: bytes) -> None:
        receipt = MirrorReceipt.read(self.receipt)
        receipt.trouble = reason
        receipt.write(self.receipt)
        write_atomic(self.receipt.with_suffix(".log"), printed)


def feed(mirror: Mirror, receipt: Path, line: Line) -> bool:
    """Send everything until the run is over; False where it has gone back, so that the mirror must be opened again."""
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
        line.beat()
    mirror.settle()
    held.write(receipt)
    over = False
    while True:
        rows = log.read()
        for row in rows:
            if overruled.goes_back(row):
                return False
            overruled.add(row)
        line.beat()
        if rows:
            _send(mirror, log, rows, held, receipt)
        elif over:
            break
        else:
            over = line.over(LOOK)
    conclusion = RunEnding.of(run)
    mirror.close(conclusion)
    held.ending = conclusion.ending
    held.write(receipt)
    return True


def _send(mirror: Mirror, log: LogReader, rows: list[LogRow], held: MirrorReceipt, path: Path) -> None:
    mirror.send(rows)
    held.position, held.rows = log.position, log.number
    held.write(path)


def main(folder: Path, owner: int, limit: float, names: tuple[str, ...]) -> None:
    """The courier of the mirrors `names`."""
    if not owner:  # of a run that is over: whoever wanted it sent waits for that
        die_with_parent(signal.SIGKILL, os.getppid())
    be_courier([Feeder(folder, name, owner) for name in names], limit)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), tuple(sys.argv[4:]))
