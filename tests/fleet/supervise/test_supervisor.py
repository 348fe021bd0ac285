"""Ranks that die, hang, lie or stop on request: each ends in time, with the right verdict, and nobody is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from ups.types import ConfigError
from ups.verdict import Ending, Verdict
from ups_fleet.supervise.children import Child
from ups_fleet.supervise.job import RankJob, RankStart, refuse_nesting
from ups_fleet.supervise.launchers.launcher import Exit, ProcessLauncher, read_exits
from ups_fleet.supervise.proc import owned, state_of
from ups_fleet.supervise.supervisor import Supervisor

Supervise = Callable[..., Verdict]


@pytest.fixture(autouse=True)
def nobody_is_left(tmp_path: Path) -> object:
    yield
    assert owned("UPS_HOME", str(tmp_path / "run")) == {}


def written(tmp_path: Path) -> dict[str, object]:
    return json.loads((tmp_path / "run" / "verdict.json").read_text())


def test_success_is_what_rank_0_said_and_logs_are_kept(supervise: Supervise, tmp_path: Path) -> None:
    shown: list[bytes] = []
    verdict = supervise("ok", relay=shown.append)
    assert (verdict.ending, verdict.facts) == (Ending.SUCCESS, {"steps": 10})
    assert written(tmp_path)["verdict"] == "SUCCESS"
    assert written(tmp_path)["code"] == 0
    assert "rank 1 of 2" in (tmp_path / "run/logs/attempt-1/rank-1.log").read_text()
    assert b"".join(shown) == b"rank 0 of 2, attempt 1\n"


def test_leaving_with_code_0_without_a_word_is_not_success(supervise: Supervise) -> None:
    verdict = supervise("silent", limits={"attempts": 1})
    assert (verdict.ending, verdict.rank, verdict.step) == (Ending.NO_PROGRESS, 1, 5)
    assert verdict.facts["underlying"] == "RANK_DIED"
    assert verdict.attempts[0]["detection"] < 60


def test_all_leaving_well_without_the_word_of_success_is_a_failure(supervise: Supervise) -> None:
    verdict = supervise("no-word", limits={"attempts": 1})
    assert verdict.facts["underlying"] == "RANK_DIED"
    assert "none said" in verdict.cause


def test_an_exception_stops_all_with_the_real_traceback_of_the_rank_that_failed_first(supervise: Supervise) -> None:
    began = time.monotonic()
    verdict = supervise("raise")
    assert time.monotonic() - began < 100
    assert (verdict.ending, verdict.rank, verdict.phase, verdict.step) == (Ending.CRASH, 1, "forward", 5)
    assert "ValueError: not my day" in verdict.traceback
    assert "in act" in verdict.traceback
    assert len(verdict.attempts) == 1


def test_memory_that_runs_out_at_every_start_is_said_by_the_supervisor_alone(
    supervise: Supervise, tmp_path: Path
) -> None:
    shown: list[bytes] = []
    verdict = supervise("raise", "memory", ranks=1, relay=shown.append)
    assert verdict.ending == Ending.OOM
    assert len(verdict.attempts) > 1
    assert b"".join(shown) == b"".join(b"rank 0 of 1, attempt %d\n" % (n + 1) for n in range(len(verdict.attempts)))
    records = [json.loads(path.read_text()) for path in (tmp_path / "run/logs").glob("attempt-*/failure-0.json")]
    assert all("Traceback" in record["traceback"] for record in records)
    assert len(records) == len(verdict.attempts)


@pytest.mark.parametrize(("word", "ending"), [("user", Ending.USER), ("disk", Ending.STORAGE)])
def test_what_a_restart_cannot_mend_is_not_restarted(supervise: Supervise, word: str, ending: Ending) -> None:
    verdict = supervise("raise", word, ranks=1)
    assert (verdict.ending, len(verdict.attempts)) == (ending, 1)


def test_a_mistake_found_by_a_rank_is_told_in_its_own_words_and_no_others(supervise: Supervise, tmp_path: Path) -> None:
    said: list[str] = []
    verdict = supervise("raise", "user", say=said.append)
    assert (verdict.cause, verdict.kind, said) == ("a bad key; mend it.", "ConfigError", [])
    assert (tmp_path / "run" / "logs").is_dir()
    supervise("raise", say=said.append)
    assert any("process" in words for words in said), "of a crash, who was where"


@pytest.mark.parametrize("name", ["KILL", "SEGV"])
def test_a_rank_killed_by_a_signal_is_named_and_the_run_goes_on(supervise: Supervise, name: str) -> None:
    said: list[str] = []
    verdict = supervise("signal-once", name, say=said.append, progress=lambda: 34)
    assert verdict.ending == Ending.SUCCESS
    assert f"by SIG{name} in forward of step 5" in said[-1]
    assert said[-1].endswith(" Starting again with the 34 steps kept of all stages.")
    assert [a["verdict"] for a in verdict.attempts] == ["RANK_DIED", "SUCCESS"]
    assert (verdict.attempts[0]["rank"], verdict.attempts[0]["kind"]) == (1, f"SIG{name}")
    assert verdict.attempts[0]["detection"] < 60


class Hasty(ProcessLauncher):
    """Like torchrun, ends as soon as one rank has; the first one of its first start has not begun by then."""

    starts = 0

    def start(self, start: RankStart) -> None:
        self.starts += 1
        super().start(start)

    def child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        if env["RANK"] == "0" and self.starts == 1:
            return subprocess.Popen(["sleep", "100"], start_new_session=True)
        return super().child(command, env, log)

    def poll(self) -> int | None:
        return next((code for rank in self._parents if (code := rank.poll())), super().poll())

    def exits(self) -> dict[int, Exit]:
        return read_exits(self._files)


def test_a_rank_killed_before_another_has_begun_is_named_all_the_same(supervise: Supervise) -> None:
    verdict = supervise("signal-once", "KILL", launcher=Hasty())
    assert verdict.ending == Ending.SUCCESS
    first = verdict.attempts[0]
    assert (first["verdict"], first["rank"], first["kind"]) == ("RANK_DIED", 1, "SIGKILL")


def test_a_fatal_signal_leaves_the_stack_in_the_verdict_and_its_line_in_the_cause(supervise: Supervise) -> None:
    verdict = supervise("crowd", ranks=1, limits={"attempts": 1})
    assert "Segmentation fault" in verdict.traceback
    assert "in act" in verdict.traceback
    assert "killed by SIGSEGV in forward of step 5, in string_at (" in verdict.cause


def test_a_stopped_process_is_found_and_killed(supervise: Supervise) -> None:
    verdict = supervise("signal-once", "STOP")
    first = verdict.attempts[0]
    assert verdict.ending == Ending.SUCCESS
    assert (first["verdict"], first["rank"]) == ("HANG", 1)
    assert "stopped" in str(first["cause"])


@pytest.mark.parametrize("scenario", ["hang", "gil"])
def test_a_hang_names_rank_phase_and_stack_not_those_who_wait(
    supervise: Supervise, tmp_path: Path, scenario: str
) -> None:
    verdict = supervise(scenario, limits={"attempts": 1})
    assert verdict.facts["underlying"] == "HANG"
    assert (verdict.rank, verdict.phase, verdict.step) == (1, "data" if scenario == "hang" else "forward", 5)
    assert "in act" in verdict.traceback
    assert [row["phase"] for row in verdict.facts["where"]] == ["vote", verdict.phase]
    text = (tmp_path / "run/logs/attempt-1/where-0.txt").read_text()
    assert "in echo" in text, "the stacks of those who wait are kept too"


def test_a_fault_in_every_attempt_ends_after_three_without_progress(supervise: Supervise) -> None:
    verdict = supervise("signal", "KILL", ranks=1)
    assert (verdict.ending, len(verdict.attempts)) == (Ending.NO_PROGRESS, 3)
    assert "SIGKILL" in verdict.cause
    assert verdict.rank == 0


def test_attempts_that_get_further_are_not_counted(supervise: Supervise) -> None:
    steps = iter([0, 10, 10, 20, 20, 20, 20, 20, 20, 20])  # before and after each attempt
    verdict = supervise("signal", "KILL", ranks=1, progress=lambda: next(steps))
    assert (verdict.ending, len(verdict.attempts)) == (Ending.NO_PROGRESS, 5)


def test_a_cuda_error_is_restarted(supervise: Supervise) -> None:
    verdict = supervise("lost-once", "cuda", ranks=1)
    assert [a["verdict"] for a in verdict.attempts] == ["CRASH", "SUCCESS"]


def test_out_of_memory_halves_the_microbatch_until_it_fits(supervise: Supervise, tmp_path: Path) -> None:
    verdict = supervise("memory", ranks=1, limits={"attempts": 1})
    assert [a["verdict"] for a in verdict.attempts] == ["OOM", "OOM", "SUCCESS"]
    assert json.loads((tmp_path / "run/ledger.json").read_text()) == {"microbatch": 2}


def test_out_of_memory_at_microbatch_1_is_the_end(supervise: Supervise) -> None:
    verdict = supervise("no-memory", ranks=1)
    assert (verdict.ending, len(verdict.attempts)) == (Ending.OOM, 4)
    assert verdict.cause.endswith("or give the job more memory (ulimit -v, its container, its machine).")


@pytest.mark.parametrize("scenario", ["abort", "linger"])
def test_nothing_in_teardown_takes_a_success_back(supervise: Supervise, scenario: str) -> None:
    verdict = supervise(scenario)
    assert verdict.ending == Ending.SUCCESS
    assert "rank 1" in verdict.cause


def test_a_rank_that_aborts_in_teardown_does_not_disturb_one_that_still_judges(supervise: Supervise) -> None:
    verdict = supervise("abort-early")
    assert (verdict.ending, len(verdict.attempts)) == (Ending.SUCCESS, 1)


def test_children_of_a_dead_rank_die_too(supervise: Supervise, tmp_path: Path) -> None:
    supervise("orphans", limits={"attempts": 1})
    children = (tmp_path / "run/children").read_text().split()
    assert [state_of(int(pid)) for pid in children] in (["", ""], ["Z", "Z"], ["", "Z"], ["Z", ""])


@pytest.mark.parametrize(
    ("scenario", "number", "ending"),
    [
        ("preempted", signal.SIGTERM, Ending.PREEMPTED),
        ("preempted", signal.SIGUSR1, Ending.PREEMPTED),
        ("preempted", signal.SIGINT, Ending.INTERRUPTED),
        ("slow", signal.SIGTERM, Ending.PREEMPTED),  # has no handler: as during imports
    ],
)
def test_a_request_to_stop_reaches_every_rank(
    supervise: Supervise, tmp_path: Path, scenario: str, number: signal.Signals, ending: Ending
) -> None:
    later(lambda: os.kill(os.getpid(), number), after=tmp_path / "run/logs/attempt-1/rank-1.log")
    verdict = supervise(scenario)
    assert (verdict.ending, len(verdict.attempts)) == (ending, 1)
    assert number.name in verdict.cause
    assert written(tmp_path)["code"] == int(ending)


def test_ranks_that_do_not_stop_are_killed_after_the_grace(supervise: Supervise, tmp_path: Path) -> None:
    later(lambda: os.kill(os.getpid(), signal.SIGTERM), after=tmp_path / "run/logs/attempt-1/rank-1.log")
    verdict = supervise("stubborn", limits={"grace": 1.0})
    assert verdict.ending == Ending.PREEMPTED
    assert "[0, 1] had not left after 1 s" in verdict.cause


def test_a_second_ctrl_c_does_not_wait(supervise: Supervise, tmp_path: Path) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    later(twice, after=tmp_path / "run/logs/attempt-1/rank-1.log")
    began = time.monotonic()
    verdict = supervise("stubborn", limits={"grace": 1000.0})
    assert verdict.ending == Ending.INTERRUPTED
    assert time.monotonic() - began < 100


def test_ranks_told_to_stop_by_somebody_else_end_as_preempted(supervise: Supervise, tmp_path: Path) -> None:
    def tell() -> None:
        for pid in owned("UPS_HOME", str(tmp_path / "run")):
            if "rank_parent" not in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGTERM)

    later(tell, after=tmp_path / "run/logs/attempt-1/rank-1.log")
    assert supervise("preempted").ending == Ending.PREEMPTED


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    job = RankJob(("/no/such/program",))
    verdict = Supervisor(job, tmp_path / "run", say=lambda _: None).supervise()
    assert (verdict.ending, verdict.rank) == (Ending.CRASH, 0)
    assert "/no/such/program: could not be started" in verdict.traceback


def test_on_a_full_disk_every_other_failure_is_its_shadow(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.supervise.supervisor.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    verdict = supervise("code", "1", ranks=1)
    assert (verdict.ending, len(verdict.attempts)) == (Ending.STORAGE, 1)
    assert "disk is full" in str(written(tmp_path)["cause"])
    assert (tmp_path / "run/.reserve").exists(), "room for the verdict of the next start, which may find none"


def test_another_launcher_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"RANK=0, WORLD_SIZE=2.*unset RANK WORLD_SIZE"):
        refuse_nesting({"RANK": "0", "WORLD_SIZE": "2"})
    refuse_nesting({"OMP_NUM_THREADS": "1"})


def later(act: Callable[[], None], after: Path) -> None:
    """Do it once the file is there and its writer has had a moment, from another thread."""

    def wait() -> None:
        while not (after.exists() and after.stat().st_size):
            time.sleep(0.02)
        time.sleep(0.5)
        act()

    threading.Thread(target=wait, daemon=True).start()


def test_what_one_rank_was_asked_the_others_are_told(supervise: Callable[..., Verdict]) -> None:
    """One that left on request before the ranks have met leaves others that would idle for ever."""
    began = time.monotonic()
    verdict = supervise("idle")
    assert verdict.ending == Ending.PREEMPTED
    assert time.monotonic() - began < 100
