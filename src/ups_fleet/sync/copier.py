"""Keeps the copy of a run in a store up to date while the run runs, and says at the end what the copy lacks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ups.files import sha256
from ups.rundir import RunDir
from ups.types import UpsError
from ups_fleet.fetch.addresses import shown
from ups_fleet.fetch.patience import ChangedError, TransientError
from ups_fleet.fetch.stores import spoken
from ups_fleet.outbox import DONE, Line, Sender, be_courier, courier_of, sending
from ups_fleet.supervise.children import Program
from ups_fleet.sync.push import CopyReceipt, alone_with, glimpse, push, receipt_of
from ups_fleet.sync.remote_run import RemoteRun

LOOK = 0.5  # seconds between two looks at the folder
LOGS = 30.0  # seconds between two copies for the sake of logs alone
WAIT = 900.0  # seconds for which the end of a run waits for its copy


@dataclass
class Copier(Sender):
    """Keeps the copy of the run in `folder` at `url` true: a pass for whatever is new."""

    folder: Path
    url: str
    patience: ClassVar[float] = 300.0
    patience_after: ClassVar[float] = 300.0
    tries: ClassVar[int] = 4
    longest: ClassVar[float] = 300.0

    def send(self, line: Line) -> int:
        run, over = RunDir(self.folder), False
        copied: tuple[object, object] = (None, None)  # what the last pass has seen
        since = float("-inf")  # when that was
        while True:
            line.beat()
            seen = glimpse(run)
            if seen != copied and (over or seen[0] != copied[0] or time.monotonic() - since >= LOGS):
                try:
                    with alone_with(run, line.beat):
                        push(run, RemoteRun(self.url, self.folder.name), line.beat)
                except (UpsError, TransientError, ChangedError, OSError, ValueError, KeyError) as error:
                    print(spoken(error) or type(error).__name__)
                    return 1
                copied, since = seen, time.monotonic()
            if over:
                return DONE
            over = line.over(LOOK)

    def troubled(self, reason: str, printed: bytes) -> None:  # noqa: ARG002
        run = RunDir(self.folder)
        with alone_with(run, lambda: None):
            receipt = CopyReceipt.read(receipt_of(run))
            receipt.trouble = reason
            receipt.write(receipt_of(run))


@contextlib.contextmanager
def copied(folder: Path, url: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, a courier copies the run to `url`; afterwards it has WAIT seconds for the rest. Nothing
    that the store does reaches the block."""
    if url is None:
        yield
        return
    run = RunDir(folder)
    try:
        with sending(lambda: _courier(folder, url, say), WAIT):
            yield
    finally:
        receipt = CopyReceipt.read(receipt_of(run))
        if receipt.trouble or not run.verdict.is_file() or receipt.verdict != sha256(run.verdict):
            reason = f" ({receipt.trouble})" if receipt.trouble else ""
            say(f"{shown(url)}: does not have all of {folder}{reason}; the same command with --resume copies the rest.")


def _courier(folder: Path, url: str, say: Callable[[str], None]) -> Program | None:
    try:
        return courier_of(folder, "ups_fleet.sync.copier", url, str(WAIT))
    except OSError as error:
        say(f"{shown(url)}: cannot be written to now ({error.strerror or error}); training goes on without a copy.")
        return None


if __name__ == "__main__":
    be_courier([Copier(Path(sys.argv[1]), sys.argv[2])], float(sys.argv[3]))
