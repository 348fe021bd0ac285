"""Every launcher: it starts ranks, knows which are there and how each ended, and leaves nobody behind."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ups
import ups_fleet
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.supervise.job import RankJob, RankStart, environment
from ups_fleet.supervise.launchers import LAUNCHERS, Launcher, launcher_of
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.proc import alive, owned
from ups_fleet.supervise.start_dir import StartDir
from ups_fleet.supervise.supervisor import Supervisor

PAGE = Path(__file__).parents[3] / "docs" / "howto-add-a-launcher.md"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(100)
"""

# A rank that beats as one that trains would; the last is killed in the first start, and the others wait for it.
TRAINING = """
import os, signal, time
from ups_fleet.supervise.rank_context import RankContext
with RankContext() as seat:
    for step in range(20):
        seat.pulse.beat("forward", step)
        time.sleep(0.01)
        if step == 5 and seat.attempt == 1:
            if seat.rank == int(os.environ["WORLD_SIZE"]) - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            seat.pulse.beat("vote", step)
            time.sleep(60)
    seat.succeed()
"""


def start(folder: Path, launcher: Launcher, code: str, attempt: int = 1) -> RankStart:
    """Two ranks that run a piece of Python."""
    job = RankJob((sys.executable, "-c", code), ranks=2)
    files, logs = StartDir(folder / f"files-{attempt}"), folder / f"logs-{attempt}"
    for made in (files.folder, logs):
        made.mkdir()
    begun = RankStart(job, attempt, files, logs, environment(job, attempt, files, logs, folder, secrets.token_hex(8)))
    launcher.start(begun)
    return begun


def until(true: Callable[[], object], limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_are_started_known_and_ended(tmp_path: Path, name: str) -> None:
    launcher = LAUNCHERS[name]()
    begun = start(tmp_path, launcher, STUBBORN)
    logs = [begun.logs / f"rank-{rank}.log" for rank in range(2)]
    until(lambda: all(log.exists() and log.read_text() == "here\n" for log in logs))
    pids = launcher.pids()
    assert (sorted(pids), launcher.exits(), launcher.poll()) == ([0, 1], {}, None)
    os.kill(pids[1], signal.SIGKILL)  # a rank that dies is known, with its signal, while the other lives on
    until(lambda: 1 in launcher.exits())
    assert launcher.exits()[1].code == -signal.SIGKILL
    os.kill(pids[0], signal.SIGTERM)
    time.sleep(0.2)
    assert alive(pids[0]), "it does not follow a SIGTERM"
    launcher.kill()
    assert launcher.poll() is not None
    until(lambda: not owned("UPS_TOKEN", begun.env["UPS_TOKEN"]))
    again = start(tmp_path, launcher, "print('well')", attempt=2)
    until(lambda: launcher.poll() is not None)
    assert (launcher.poll(), {rank: e.code for rank, e in launcher.exits().items()}) == (0, {0: 0, 1: 0})
    assert not owned("UPS_TOKEN", again.env["UPS_TOKEN"])


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_killed_rank_is_found_named_and_restarted(tmp_path: Path, name: str) -> None:
    job = RankJob((sys.executable, "-c", TRAINING), 2)
    limits = Limits(start=60, phase=20, first=20, echo=1, teardown=5)
    verdict = Supervisor(job, tmp_path, limits, say=lambda _: None, launcher=launcher_of(job, name)).supervise()
    assert (verdict.ending, len(verdict.attempts)) == (Ending.SUCCESS, 2)
    first = verdict.attempts[0]
    assert (first["verdict"], first["rank"], first["kind"]) == ("RANK_DIED", 1, "SIGKILL")
    assert first["detection"] < 1.0


def test_one_machine_has_plain_processes_and_several_have_a_place_to_meet() -> None:
    jobs = [RankJob(("x",)), RankJob(("x",), ranks=2), RankJob(("x",), nodes=2, rendezvous="here:1")]
    assert [type(launcher_of(job)) for job in jobs] == [LAUNCHERS[name] for name in ("processes", "processes", "nodes")]
    with pytest.raises(ConfigError, match="there is no launcher 'ssh'; the launchers are forked, processes, nodes"):
        launcher_of(RankJob(("x",)), "ssh")
    with pytest.raises(ConfigError, match="starts ranks on one machine, not on 2; use nodes"):
        launcher_of(RankJob(("x",), nodes=2, rendezvous="here:1"), "processes")


@pytest.mark.skipif(not shutil.which("taskset"), reason="the example uses taskset")
def test_the_page_on_adding_a_launcher_works_as_written(tmp_path: Path) -> None:
    """Its class and its line are added to a copy of the package, and its script is run with that."""
    code, line, script = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for wing in (ups, ups_fleet):
        there = Path(str(wing.__file__)).parent
        shutil.copytree(there, tmp_path / there.name, ignore=shutil.ignore_patterns("__pycache__"))
    launchers = tmp_path / "ups_fleet" / "supervise" / "launchers"
    (launchers / "pinned.py").write_text(code)
    table = launchers / "__init__.py"
    imported, _, entries = line.partition("\n\n")
    text, count = re.subn(r"BUILT_IN: dict.*?\n}\n", lambda _: entries, table.read_text(), flags=re.DOTALL)
    assert count == 1
    table.write_text(text.replace("from ups.plugins import", f"{imported}\nfrom ups.plugins import"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    expected = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[-1]
    assert done.stdout.endswith(expected), done.stdout + done.stderr
