"""`ups run` as it is at home: any of its processes killed or stopped, and the same simulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from fault_tests.home import ENV, command, saved, simulator

from ups.verdict import Ending
from ups_fleet.supervise.proc import owned

pytestmark = pytest.mark.slow


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    log = (folder / "console.log").open("ab")
    return subprocess.Popen(command(folder, 200, 20, "--ranks", "2", *words), stdout=log, stderr=log, env=ENV)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("plain")
    assert start(folder).wait(timeout=600) == 0
    return simulator(folder)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def victims(run: int) -> dict[str, int]:
    """A process of each kind, by its place under the supervisor."""
    parents = [pid for pid in children(run) if children(pid)]
    return {"parent": parents[-1], "rank": children(parents[-1])[0]}


@pytest.mark.parametrize(
    ("who", "how"),
    [
        ("rank", signal.SIGKILL),
        ("rank", signal.SIGSTOP),
        ("parent", signal.SIGKILL),
        ("parent", signal.SIGSTOP),
        ("supervisor", signal.SIGKILL),
        ("supervisor", signal.SIGTERM),
    ],
)
def test_any_process_may_be_killed_or_stopped(tmp_path: Path, plain: bytes, who: str, how: signal.Signals) -> None:
    run = start(tmp_path)
    end = time.monotonic() + 150
    while not saved(tmp_path, 40).exists():
        assert time.monotonic() < end
        assert run.poll() is None
        time.sleep(0.02)
    os.kill(run.pid if who == "supervisor" else victims(run.pid)[who], how)
    code = run.wait(timeout=600)
    if who == "supervisor":
        assert code == (-signal.SIGKILL if how == signal.SIGKILL else Ending.PREEMPTED)
        assert start(tmp_path, "--resume").wait(timeout=600) == 0
    else:
        assert code == 0
    assert simulator(tmp_path) == plain
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["verdict"] == "SUCCESS"
    assert not owned("UPS_HOME", str((tmp_path / "run").resolve()))
