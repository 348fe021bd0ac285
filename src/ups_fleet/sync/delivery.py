"""Keeps the copy of a run up to date while the run runs, and says at the end what the copy lacks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ups.files import sha256
from ups.rundir import RunDir
from ups_fleet.fetch.addresses import shown
from ups_fleet.sync.courier import environment
from ups_fleet.sync.push import CopyReceipt, receipt_of
from ups_fleet.tracking.delivery import end_courier

WAIT = 900.0  # seconds for which the end of a run waits for its copy


@contextlib.contextmanager
def copied(folder: Path, url: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, a process of its own copies the run to `url`; afterwards it has WAIT seconds for the rest.
    Nothing that the store does reaches the block."""
    if url is None:
        yield
        return
    run = RunDir(folder)
    courier = _courier(folder, url, say)
    try:
        yield
    finally:
        if courier is None or courier.poll() is not None:  # there was none to be had, or somebody has killed it
            courier = _courier(folder, url, say)
        if courier is not None:
            end_courier(courier, WAIT)
        receipt = CopyReceipt.read(receipt_of(run))
        if receipt.trouble or not run.verdict.is_file() or receipt.verdict != sha256(run.verdict):
            reason = f" ({receipt.trouble})" if receipt.trouble else ""
            say(f"{shown(url)}: does not have all of {folder}{reason}; the same command with --resume copies the rest.")


def _courier(folder: Path, url: str, say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
    words = [sys.executable, "-m", "ups_fleet.sync.courier", str(folder.resolve()), url, str(WAIT)]
    nothing, own = subprocess.DEVNULL, environment(folder)
    try:
        return subprocess.Popen(
            words, env=own, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
        )
    except OSError as error:
        say(f"{shown(url)}: cannot be written to now ({error.strerror or error}); training goes on without a copy.")
        return None
