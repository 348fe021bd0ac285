"""The process that copies a run to a store while it runs; copies in a child process that it can end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ups.rundir import RunDir
from ups.types import UpsError
from ups_fleet.fetch.patience import ChangedError, TransientError
from ups_fleet.fetch.stores import spoken
from ups_fleet.supervise.proc import end_all, identity, is_mine, owned, seen_by
from ups_fleet.supervise.rank_parent import die_with_parent
from ups_fleet.sync.push import CopyReceipt, alone_with, glimpse, push, receipt_of
from ups_fleet.sync.remote_run import RemoteRun

VARIABLE = "UPS_COURIER"  # by which the couriers of a folder are found
LOOK = 0.5  # seconds between two looks at the folder
LOGS = 30.0  # seconds between two copies for the sake of logs alone
PAUSE, LONGEST = 2.0, 300.0  # seconds before a copy that failed is tried again; doubled each time
PATIENCE = 300.0  # seconds without a byte sent, after which a copy counts as hung
LAST_TRIES = 4  # after the end of the run


@dataclass
class RunCopier:
    """Keeps the copy of a run true: a pass for whatever is new, again after each that failed."""

    run: RunDir
    url: str
    copied: tuple[object, object] = (None, None)  # what the last good pass has seen
    due: float = 0.0
    since: float = float("-inf")  # when the last good pass was
    failures: int = 0

    def look(self, now: float, last: bool = False) -> bool:
        """Copy where that is due; whether all that is there is copied."""
        seen = glimpse(self.run)
        if seen == self.copied:
            return True
        if not last and (now < self.due or (seen[0] == self.copied[0] and now - self.since < LOGS)):
            return False
        if one_pass(self.run, self.url):
            self.copied, self.since, self.failures = seen, time.monotonic(), 0
            return True
        self.failures += 1
        self.due = time.monotonic() + min(PAUSE * 2 ** (self.failures - 1), LONGEST)
        return False


def one_pass(run: RunDir, url: str) -> bool:
    """One pass in a process of its own, which is ended where nothing moves; whether it ended well."""
    context = multiprocessing.get_context("fork")
    moved = context.Value("d", time.monotonic())
    process = context.Process(target=_pass, args=(run.folder, url, moved, os.getpid()))
    process.start()
    while process.is_alive() and time.monotonic() - moved.value < PATIENCE:
        process.join(LOOK)
    if process.exitcode is None:
        process.kill()
        process.join()
        _trouble(run, f"nothing was sent for {PATIENCE:.0f} s")
    elif process.exitcode < 0:
        _trouble(run, f"the process that copies was ended by signal {-process.exitcode}")
    return process.exitcode == 0


def _pass(folder: Path, url: str, moved: Any, courier: int) -> None:
    die_with_parent(signal.SIGKILL, courier)
    run = RunDir(folder)

    def beat() -> None:
        moved.value = time.monotonic()

    try:
        with alone_with(run, beat):
            push(run, RemoteRun(url, folder.name), beat)
    except (UpsError, TransientError, ChangedError, OSError, ValueError, KeyError) as error:
        _trouble(run, spoken(error) or type(error).__name__)
        os._exit(1)
    os._exit(0)  # without waiting for threads of a library


def _trouble(run: RunDir, words: str) -> None:
    with contextlib.suppress(OSError), alone_with(run, lambda: None):  # the disk may be full; it is tried again
        receipt = CopyReceipt.read(receipt_of(run))
        receipt.trouble = words[:500]
        receipt.write(receipt_of(run))


def carry(run: RunDir, url: str, limit: float, over: Callable[[float], bool]) -> None:
    """Copy until the run is over (`over(seconds)` waits for that) and its end is copied, for at most `limit` seconds
    after it."""
    copying = RunCopier(run, url)
    while not over(LOOK):
        copying.look(time.monotonic())
    deadline = time.monotonic() + limit
    for number in range(LAST_TRIES):
        if copying.look(time.monotonic(), last=True) or time.monotonic() > deadline:
            return
        time.sleep(min(PAUSE * 2**number, max(0.0, deadline - time.monotonic())))


def environment(folder: Path) -> dict[str, str]:
    """What the courier of a folder is started with."""
    return {**os.environ, VARIABLE: str(folder.resolve())}


def couriers_of(folder: Path) -> list[int]:
    """This user's processes on this machine that copy the run in `folder`."""
    place, here = str(folder.resolve()), identity(folder)
    pids = [pid for pid in owned(VARIABLE, place) if is_mine(Path(f"/proc/{pid}"))]
    return [pid for pid in pids if identity(seen_by(pid, place)) == here]


def end_couriers(folder: Path) -> None:
    """End the couriers of a run that this process holds now: who has started them was killed."""
    end_all(lambda: couriers_of(folder))


def main(folder: Path, url: str, limit: float) -> None:
    """The courier of the run in `folder`; the end of its standard input says that the run is over."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    carry(RunDir(folder), url, limit, lambda seconds: bool(select.select([0], [], [], seconds)[0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
