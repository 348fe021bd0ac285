"""The parent of a rank passes every request to stop on, from its first moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# The signal arrives while the parent installs its handlers: there is no child yet to pass it on to.
EARLY = """
import os, signal, sys
from ups_fleet.supervise import rank_parent
install, mine = signal.signal, os.getpid()

def at_once(number, handler):
    old = install(number, handler)
    if number == signal.SIGTERM and os.getpid() == mine:
        os.kill(mine, signal.SIGTERM)
    return old

signal.signal = at_once
sys.exit(rank_parent.rank(["sleep", "60"]))
"""


def test_a_request_to_stop_that_comes_before_the_rank_ends_it_too(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "RANK": "0",
        "UPS_RUN": str(tmp_path),
        "UPS_LOGS": str(tmp_path),
        "UPS_PARENT": str(os.getpid()),
    }
    parent = subprocess.run([sys.executable, "-c", EARLY], env=env, timeout=600, check=False)
    assert parent.returncode == 128 + 15
    assert (tmp_path / "exit-0.json").exists()
    assert int((tmp_path / "pid-0").read_text()) > 0
