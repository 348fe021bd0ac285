"""What outlives what: ranks never outlive their supervisor, a supervisor outlives everything else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ranks import free_port
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.launchers.nodes import Nodes
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.proc import alive, owned
from ups_fleet.supervise.supervisor import Supervisor

FAKE = Path(__file__).parent / "fake_rank.py"
LIMITS = {"floor": 100.0, "start": 200.0, "first": 100.0, "phase": 100.0, "grace": 3.0, "echo": 1.0, "teardown": 5.0}
SUPERVISE = Path(__file__).parent / "supervisor_process.py"


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, str(FAKE), *words)


def start(home: Path, words: tuple[str, ...], launcher: str = "processes", **job: Any) -> subprocess.Popen[str]:
    described = json.dumps({"command": words, "ranks": 2, **job})
    limits = json.dumps({**LIMITS, "rejoin": 30.0})
    arguments = [sys.executable, str(SUPERVISE), str(home), described, limits, launcher]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(true: Callable[[], object], limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def beating(home: Path, ranks: int = 2, attempt: int = 1) -> Callable[[], object]:
    """Whether so many ranks have said their first word."""
    logs = home / "logs" / f"attempt-{attempt}"
    return lambda: sum(path.stat().st_size > 0 for path in logs.glob("rank-*.log")) == ranks


def test_killing_the_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    supervisor = start(tmp_path, command("slow"))
    until(beating(tmp_path))
    assert len(owned("UPS_HOME", str(tmp_path))) == 4  # two ranks, their two parents
    supervisor.kill()
    supervisor.wait()
    until(lambda: not owned("UPS_HOME", str(tmp_path)))


@pytest.mark.parametrize("launcher", ["processes", "forked"])
def test_a_killed_supervisor_leaves_nobody_whoever_was_stopped_before(tmp_path: Path, launcher: str) -> None:
    """Each of eight ranks is one combination of a stopped parent, a stopped rank and stopped workers."""
    supervisor = start(tmp_path, command("workers"), launcher, ranks=8)
    until(lambda: len(list(tmp_path.glob("pids-?"))) == 8, limit=60)
    pids = [list(map(int, (tmp_path / f"pids-{rank}").read_text().split())) for rank in range(8)]
    try:
        time.sleep(1.0)  # what ranks start is found by and by
        for rank, (parent, child, *workers) in enumerate(pids):
            for bit, whom in ((1, [parent]), (2, [child]), (4, workers)):
                for pid in whom if rank & bit else ():
                    os.kill(pid, signal.SIGSTOP)
        assert all(alive(pid) for row in pids for pid in row)
        supervisor.kill()
        supervisor.wait()
        until(lambda: not [pid for row in pids for pid in row if alive(pid)])
    finally:
        supervisor.kill()
        for pid in (pid for row in pids for pid in row if alive(pid)):
            os.kill(pid, signal.SIGKILL)


def test_a_rank_whose_parent_is_killed_is_gone_and_found_gone(tmp_path: Path) -> None:
    supervisor = start(tmp_path, command("slow"))
    until(beating(tmp_path))
    parents = [
        pid for pid in owned("UPS_HOME", str(tmp_path)) if "rank_parent" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(parents[0], signal.SIGKILL)
    until(beating(tmp_path, attempt=2))
    supervisor.terminate()
    assert supervisor.wait(timeout=600) == Ending.PREEMPTED
    first = json.loads((tmp_path / "verdict.json").read_text())["attempts"][0]
    assert (first["verdict"], first["kind"]) == ("RANK_DIED", "SIGKILL")


def test_a_run_with_a_living_supervisor_is_not_disturbed(tmp_path: Path) -> None:
    supervisor = start(tmp_path, command("slow"))
    try:
        until(beating(tmp_path))
        with pytest.raises(ConfigError, match=f"process {supervisor.pid} is running it"):
            Supervisor(RankJob(command("ok")), tmp_path, say=lambda _: None).supervise()
        assert len(owned("UPS_HOME", str(tmp_path))) == 4
    finally:
        supervisor.kill()
        supervisor.wait()


def test_orphans_of_an_earlier_start_are_ended_first(tmp_path: Path) -> None:
    env = {**os.environ, "UPS_HOME": str(tmp_path), "UPS_RUN": str(tmp_path / "gone"), "UPS_TOKEN": "earlier"}
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env=env)
    said: list[str] = []
    verdict = Supervisor(RankJob(command("ok")), tmp_path, say=said.append).supervise()
    assert verdict.ending == Ending.SUCCESS
    assert orphan.wait(timeout=600) == -signal.SIGKILL
    assert f"process {orphan.pid} was left over" in said[0]


def test_time_in_which_the_supervisor_itself_was_stopped_is_nobodys_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("floor", "first", "phase"):
        monkeypatch.setitem(LIMITS, name, 3.0)
    supervisor = start(tmp_path, command("preempted"))
    until(beating(tmp_path))
    time.sleep(0.5)
    supervisor.send_signal(signal.SIGSTOP)
    time.sleep(4.5)  # longer than any limit of the ranks
    supervisor.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=600) == Ending.PREEMPTED


def test_logs_of_earlier_starts_are_never_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        Supervisor(RankJob(command("ok")), tmp_path, say=lambda _: None).supervise()
    assert [(tmp_path / f"logs/attempt-{n}/rank-0.log").read_text() for n in (1, 2)] == [
        f"rank 0 of 1, attempt {n}\n" for n in (1, 2)
    ]


def test_a_folder_that_cannot_be_written_is_a_sentence_and_a_code(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder must be")
    verdict = Supervisor(RankJob(command("ok")), tmp_path, say=lambda _: None).supervise()
    assert verdict.ending == Ending.CRASH
    assert "could not be started" in verdict.cause


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meet = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{meet}: the port is in use"):
            Supervisor(RankJob(command("ok"), nodes=2, rendezvous=meet), tmp_path).supervise()


def test_a_supervisor_leaves_the_meeting_point_to_the_next_one(tmp_path: Path) -> None:
    """As under --forever, which supervises again in the same process."""
    job = RankJob(command("ok"), ranks=1, nodes=2, least=1, rendezvous=f"127.0.0.1:{free_port()}")
    for _ in range(2):
        supervisor = Supervisor(job, tmp_path, Limits(**LIMITS), lambda _: None, launcher=Nodes(last_call=0.2, join=30))
        assert supervisor.supervise().ending == Ending.SUCCESS


def test_a_closed_terminal_does_not_end_a_run(tmp_path: Path) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    job, limits = RankJob(command("signal-once", "KILL"), ranks=2), Limits(**LIMITS)
    verdict = Supervisor(job, tmp_path, limits, say=closed, launcher=ProcessLauncher()).supervise()
    assert (verdict.ending, len(verdict.attempts)) == (Ending.SUCCESS, 2)


def nodes(home: Path, *words: str, least: int = 2) -> list[subprocess.Popen[str]]:
    meet = f"127.0.0.1:{free_port()}"
    job = {"ranks": 1, "nodes": 2, "least": least, "rendezvous": meet}
    return [start(home, command(*words), "nodes", node=node, **job) for node in (0, 1)]


@pytest.mark.slow
def test_two_nodes_meet_again_after_a_rank_of_one_was_killed(tmp_path: Path) -> None:
    assert [node.wait(timeout=600) for node in nodes(tmp_path, "signal-once", "KILL")] == [0, 0]
    first = json.loads((tmp_path / "verdict.json").read_text())["attempts"][0]
    assert (first["rank"], first["kind"]) == (1, "SIGKILL"), "whichever node it was on"


@pytest.mark.slow
@pytest.mark.parametrize(("least", "ending"), [(1, Ending.SUCCESS), (2, Ending.RANK_DIED)])
def test_a_node_lost_for_good_is_done_without_or_ends_the_run_in_time(
    tmp_path: Path, least: int, ending: Ending
) -> None:
    first, second = nodes(tmp_path, "pair", least=least)
    until(beating(tmp_path), limit=60)
    time.sleep(2)
    second.kill()
    assert first.wait(timeout=600) == ending
    second.wait()


@pytest.mark.slow
def test_a_node_whose_ranks_have_left_waits_for_the_report_of_rank_0_on_another(tmp_path: Path) -> None:
    both = nodes(tmp_path, "reporting", str(2 * int(LIMITS["teardown"])))
    assert [node.wait(timeout=600) for node in both] == [0, 0]
    assert len(json.loads((tmp_path / "verdict.json").read_text())["attempts"]) == 1


@pytest.mark.slow
def test_a_mistake_on_one_node_ends_all_with_the_same_code(tmp_path: Path) -> None:
    assert [node.wait(timeout=600) for node in nodes(tmp_path, "raise", "user")] == [Ending.USER, Ending.USER]


@pytest.mark.slow
def test_a_node_that_comes_late_is_let_in(tmp_path: Path) -> None:
    meet = f"127.0.0.1:{free_port()}"
    job = {"ranks": 1, "nodes": 2, "least": 1, "rendezvous": meet}
    first = start(tmp_path, command("pair", "1000"), "nodes", node=0, **job)
    until(beating(tmp_path, ranks=1))
    second = start(tmp_path, command("pair", "1000"), "nodes", node=1, **job)
    assert [node.wait(timeout=600) for node in (first, second)] == [0, 0]
    assert "rank 1 of 2" in "".join(path.read_text() for path in tmp_path.glob("logs/*/rank-1.log"))
