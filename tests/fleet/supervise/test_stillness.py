"""A rank that does nothing is seen soon, in every phase; one that works, or waits for who works, is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import pytest
from supervise.test_limits import Hands, beat
from supervise.test_survival import SUPERVISE

from ups.heartbeat import Beat
from ups.verdict import Ending, Verdict
from ups_fleet.supervise import stillness
from ups_fleet.supervise.children import Child
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.limits import Limits, Stays
from ups_fleet.supervise.stillness import ProcessWork, Stillness, Threads
from ups_fleet.supervise.supervisor import Supervisor

RANK = Path(__file__).parent / "still_rank.py"
# No limit but that of stillness is short; one that is well does something every second.
LIMITS = {"still": 4.0, "start": 100.0, "first": 100.0, "phase": 100.0, "echo": 0.5, "teardown": 5.0, "attempts": 1}


def supervise(home: Path, *words: str, ranks: int = 2, launcher: ProcessLauncher | None = None) -> Verdict:
    job = RankJob((sys.executable, str(RANK), *words), ranks=ranks)
    run = Supervisor(job, home, Limits(**LIMITS), lambda _: None, launcher=launcher or ProcessLauncher())
    verdict = run.supervise()
    assert verdict.facts["underlying"] == "HANG"
    assert verdict.attempts[0]["detection"] is None or verdict.attempts[0]["detection"] < 100
    return verdict


@pytest.mark.parametrize("phase", ["start", *(pytest.param(p, marks=pytest.mark.slow) for p in ("judge", "validate"))])
def test_a_rank_that_sleeps_is_named_with_its_phase(tmp_path: Path, phase: str) -> None:
    verdict = supervise(tmp_path, "sleeps", phase)
    assert (verdict.rank, verdict.phase) == (1, phase)
    assert f"in {phase} of step 3, using no processor time and moving no bytes" in verdict.cause


def test_a_rank_that_is_stopped_before_its_first_word_is_named(tmp_path: Path) -> None:
    verdict = supervise(tmp_path, "early", "start")
    assert (verdict.rank, verdict.phase) == (1, "start")
    assert "its process is stopped" in verdict.cause


def test_who_prepares_for_the_others_is_named_and_not_those_who_wait_for_it(tmp_path: Path) -> None:
    verdict = supervise(tmp_path, "prepares", "start", ranks=3)
    assert (verdict.rank, verdict.phase) == (0, "start")


def test_a_stopped_worker_of_a_rank_is_named(tmp_path: Path) -> None:
    verdict = supervise(tmp_path, "worker", "data", ranks=1)
    assert verdict.rank == 0
    assert "is stopped" in verdict.cause


class Stopped(ProcessLauncher):
    """The parent of rank 1 is stopped before it has begun anything."""

    def child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        if env["RANK"] == "1":
            return subprocess.Popen(["sh", "-c", "kill -STOP $$; sleep 100"], start_new_session=True)
        return super().child(command, env, log)


def test_a_parent_that_is_stopped_before_its_rank_began_is_seen(tmp_path: Path) -> None:
    verdict = supervise(tmp_path, "early", "start", launcher=Stopped())
    assert "which was to start a rank, is stopped" in verdict.cause


@pytest.mark.slow
def test_ranks_that_work_where_few_would_look_are_left_alone(tmp_path: Path) -> None:
    """Computing, in a child, reading slowly, without a core, waiting for another's lock, or for a peer at work."""
    limits = json.dumps({**LIMITS, "still": 1.5})
    started = {}
    for kind in ("computes", "child", "reads", "crowded", "lock", "peer"):
        job = json.dumps({"command": [sys.executable, str(RANK), kind], "ranks": 2 if kind == "peer" else 1})
        words = [sys.executable, str(SUPERVISE), str(tmp_path / kind), job, limits, "processes"]
        started[kind] = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    outputs = {kind: process.communicate(timeout=600)[0] for kind, process in started.items()}
    assert {kind: process.returncode for kind, process in started.items()} == dict.fromkeys(started, 0), outputs


class Machine:
    """A machine whose processes do what a test says: rank r is process 100 + r."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: dict[int, ProcessWork] = {}
        self.threads: dict[int, Threads] = {}
        self.states: dict[int, str] = {}
        self.waiters: set[int] = set()
        self.stored, self.gpu = 0, False
        monkeypatch.setattr(stillness, "work_of", lambda pid: self.work.get(pid, ProcessWork()))
        monkeypatch.setattr(stillness, "threads_of", lambda pid: self.threads.get(pid, Threads()))
        monkeypatch.setattr(stillness, "storage_bytes", lambda: self.stored)
        monkeypatch.setattr(stillness, "lock_waiters", lambda: self.waiters)
        monkeypatch.setattr(stillness, "waits_for_lock", lambda pid, waiters: pid in waiters)
        monkeypatch.setattr(stillness, "has_accelerator", lambda pid: self.gpu)  # noqa: ARG005
        monkeypatch.setattr(stillness, "state_of", lambda pid: self.states.get(pid, "S"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def late(
    beats: Mapping[int, Beat | None],
    seconds: float = 45,
    then: Callable[[float], None] = lambda second: None,  # noqa: ARG005
    whole: bool = True,
    slack: float = 1.0,
) -> dict[int, str]:
    """Who is over the limit of 40 s after so many seconds without a beat; `then` is called every second."""
    clock = Hands()
    watch = Stillness(Limits(), whole, lambda phase: slack, clock)  # noqa: ARG005
    pids, known = {rank: 100 + rank for rank in beats}, {rank: b for rank, b in beats.items() if b}
    for tenth in range(int(seconds * 10)):
        clock.now += 0.1
        if tenth % 10 == 0:
            then(tenth / 10)
        watch.look(pids, known)
        if words := watch.overdue(pids, known):
            return words
    return {}


def test_only_who_waits_for_nobody_is_judged(machine: Machine) -> None:
    assert late({0: beat("vote"), 1: beat("data")}, 45).keys() == {1}
    assert late({0: beat("vote"), 1: beat("data")}, 35) == {}
    assert late({0: beat("vote"), 1: beat("vote")}).keys() == {0, 1}, "all wait, and nobody is left to wait for"
    assert late({0: beat("vote"), 1: beat("vote")}, whole=False) == {}, "but on another machine one may be"
    assert late({0: beat("start"), 1: None}).keys() == {0, 1}
    assert late({0: beat("start")}, whole=False) == {}, "it may be meeting another machine"
    machine.waiters = {101}
    assert late({0: beat("vote"), 1: beat("data")}).keys() == {0, 1}, "for a lock that one of them has"


def test_a_peer_at_work_may_be_what_a_rank_waits_for(machine: Machine) -> None:
    def works(second: float) -> None:
        machine.work[100] = ProcessWork(seconds=second)

    assert late({0: beat("start"), 1: beat("start")}, then=works) == {}
    assert late({0: beat("idle"), 1: beat("idle")}, then=works) == {}
    assert late({0: beat("vote"), 1: beat("data")}, then=works).keys() == {1}, "one that waits is not at work"


def test_a_trickle_is_nothing_and_a_stream_is_work(machine: Machine) -> None:
    def moves(seconds: float, moved: int) -> Callable[[float], None]:
        def act(second: float) -> None:
            machine.work[100] = ProcessWork(seconds * second, int(moved * second))

        return act

    assert late({0: beat("judge")}, then=moves(0.002, 100)).keys() == {0}
    assert late({0: beat("judge")}, then=moves(0.02, 0)) == {}
    assert late({0: beat("judge")}, then=moves(0, 4000)) == {}


def test_who_waits_for_a_core_or_for_storage_that_works_is_not_still(machine: Machine) -> None:
    machine.threads[100] = Threads(runs=True)
    assert late({0: beat("judge")}) == {}
    machine.threads[100] = Threads(disk=True)
    assert "no disk moves" in late({0: beat("judge")})[0]

    def disks(second: float) -> None:
        machine.stored = int(second) << 20

    assert late({0: beat("judge")}, then=disks) == {}
    machine.threads[100] = Threads()
    assert late({0: beat("judge")}, then=disks).keys() == {0}, "it does not wait for them"


def test_a_stopped_rank_is_still_even_while_it_waits_and_its_children_work(machine: Machine) -> None:
    machine.states[100] = "T"
    machine.threads[100] = Threads(runs=True)
    assert late({0: beat("vote"), 1: beat("data")}, 45) == {0: "its process is stopped"}

    def pulses(second: float) -> None:
        machine.states[100] = "T" if second % 20 else "S"

    assert late({0: beat("vote"), 1: beat("vote")}, 35, then=pulses) == {}


def test_a_gpu_and_an_earlier_alarm_give_more_time(machine: Machine) -> None:
    assert late({0: beat("judge")}, 70, slack=2.0) == {}
    assert late({0: beat("judge")}, 90, slack=2.0).keys() == {0}
    machine.gpu = True
    assert late({0: beat("judge")}, 190) == {}
    assert late({0: beat("judge")}, 210).keys() == {0}


@pytest.mark.usefixtures("machine")
def test_a_gap_in_the_watching_is_nobodys_stillness() -> None:
    clock = Hands()
    watch = Stillness(Limits(), clock=clock)
    for seconds in (*[0.1] * 300, 3600, *[0.1] * 80):
        clock.now += seconds
        watch.look({0: 100}, {0: beat("judge")})
        assert not watch.overdue({0: 100}, {0: beat("judge")})
    assert watch.seconds_still(0) < 39
    for _ in range(50):
        clock.now += 0.1
        watch.look({0: 100}, {0: beat("judge")})
    assert watch.overdue({0: 100}, {0: beat("judge")})


def test_stays_of_earlier_starts_are_kept_for_the_same_machine_and_ranks(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "stays-0.json"
    first = Stays(path, ranks=2)
    first.note("judge", 30.0)
    first.note("judge", 20.0)
    first.note("forward", 50.0)  # learnt within a start, by the rank itself
    first.save()
    assert [Stays(path, ranks=n).longest("judge") for n in (2, 4)] == [30.0, 0.0]
    again = Stays(path, ranks=2)
    assert (again.longest("forward"), again.slack("judge")) == (0.0, 1.0)
    again.note("judge", 400.0, hang=True)
    again.save()
    assert (Stays(path, ranks=2).longest("judge"), Stays(path, ranks=2).slack("judge")) == (400.0, 2.0)
    path.write_text('{"' + f"{os.uname().nodename}, 2 ranks" + '": {"judge": "long"}}')
    assert Stays(path, ranks=2).longest("judge") == 0.0, "what cannot be read teaches nothing"


def test_a_ceiling_holds_only_for_what_was_never_seen() -> None:
    limits, stays = Limits(), Stays()
    judging = beat("judge", seen=0)
    assert (limits.of(judging, stays), limits.of(None, stays)) == (limits.judge, limits.start)
    stays.note("judge", 60.0)
    stays.note("start", 1.0)
    assert (limits.of(judging, stays), limits.of(None, stays)) == (600.0, 150.0)
    stays.note("judge", 3600.0)
    assert limits.of(judging, stays) == limits.judge


def test_ranks_teach_the_limits_of_their_next_start(tmp_path: Path) -> None:
    job = RankJob((sys.executable, str(RANK), "peer"))
    run = Supervisor(job, tmp_path, Limits(), lambda _: None, launcher=ProcessLauncher())
    assert run.supervise().ending == Ending.SUCCESS
    stays = Stays(tmp_path / "logs" / "stays-0.json", ranks=1)
    assert 4.5 < stays.longest("judge") < 15
    assert stays.longest("start") > 0
