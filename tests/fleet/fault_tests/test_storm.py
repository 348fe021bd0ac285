"""`ups run` while its supervisor, the parents of its ranks and the ranks are stopped and continued at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from fault_tests.home import ENV, command, simulator

from ups_fleet.supervise.proc import owned

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 1200  # at 200 a run was over after 17 stops; a quicker machine must not be done before the twentieth


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = command(folder, STEPS, 20, "--ranks", "2")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("dist: {", "dist: {launcher: processes, "))
    log = (folder / "console.log").open("ab")
    return subprocess.Popen(words, stdout=log, stderr=log, env=ENV)


def test_twenty_stops_of_anybody_change_no_bit(tmp_path: Path) -> None:
    plain, stormy = tmp_path / "plain", tmp_path / "stormy"
    for folder in (plain, stormy):
        folder.mkdir()
    assert start(plain).wait(timeout=600) == 0
    run, draw, stops = start(stormy), random.Random(7), 0
    home = str((stormy / "run").resolve())
    while run.poll() is None:
        if stops < 20 and (others := sorted(owned("UPS_HOME", home))):
            stops += 1
            pids = draw.sample([run.pid, *others], draw.randint(1, 1 + len(others)))
            for number, seconds in ((signal.SIGSTOP, draw.uniform(0.2, 3.0)), (signal.SIGCONT, draw.uniform(0.2, 1.5))):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(seconds)
        time.sleep(0.1)
    assert (run.returncode, stops) == (0, 20), (stormy / "console.log").read_text()[-3000:]
    assert simulator(stormy) == simulator(plain)
    assert not owned("UPS_HOME", home)
