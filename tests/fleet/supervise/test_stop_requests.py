"""Requests to stop: heard while there is something to stop, and no reason for another exit code afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ups_fleet.supervise.stop_requests import STOPS, StopRequests


@pytest.mark.parametrize("number", STOPS)
def test_within_the_block_a_signal_is_a_request_and_after_it_what_it_was(number: int) -> None:
    before, stops = signal.getsignal(number), StopRequests()
    with stops.listening():
        os.kill(os.getpid(), number)
    assert stops.signals == [number]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_after_the_verdict_does_not_change_the_exit_code(number: int) -> None:
    code = (
        "import os, sys\nfrom ups_fleet.supervise.stop_requests import StopRequests\n"
        "with StopRequests().listening(to_the_end=True):\n    pass\n"
        f"os.kill(os.getpid(), {int(number)})\nsys.exit(18)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 18


def test_where_there_is_no_verdict_signals_mean_again_what_they_meant() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), StopRequests().listening(to_the_end=True):
        _ = 1 / 0
    assert signal.getsignal(signal.SIGTERM) == before
