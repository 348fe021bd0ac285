"""A rank's seat: whatever leaves the block becomes the right record and the right exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import DistNetworkError

from ups.engine.ranks.control import LostPeer
from ups.heartbeat import read
from ups.rundir import RunDir
from ups.types import ConfigError, UpsError
from ups.verdict import Ending, read_failures
from ups_fleet.supervise.job import RankJob, environment
from ups_fleet.supervise.rank_context import RankContext, write_microbatch
from ups_fleet.supervise.start_dir import StartDir


class Preempted(UpsError):  # noqa: N818
    ending = Ending.PREEMPTED


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "now").mkdir()
    return {"RANK": "1", "UPS_RUN": str(tmp_path / "now"), "UPS_HOME": str(tmp_path), "UPS_ATTEMPT": "2"}


def test_an_exception_becomes_a_record_and_its_code(env: dict[str, str], tmp_path: Path) -> None:
    seat = RankContext(env)
    seat.pulse.note(4)
    seat.pulse.beat("data", 3)
    with pytest.raises(SystemExit) as left, seat:
        raise ConfigError("no such key; mend it.")
    assert left.value.code == Ending.USER
    (record,) = read_failures(StartDir(tmp_path / "now").failures())
    assert (record.rank, record.step, record.phase, record.microbatch) == (1, 3, "data", 4)
    beat = read(tmp_path / "now/heartbeat-1")
    assert beat is not None
    assert not beat.done


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (LostPeer("rank 0 is gone."), ["rank 1: LostPeer: rank 0 is gone."]),
        (DistNetworkError("closed by peer"), ["rank 1: DistNetworkError: closed by peer"]),
        (ConfigError("mend it."), []),  # the supervisor tells it
    ],
)
def test_a_lost_peer_is_one_sentence_in_the_log_of_a_rank(
    env: dict[str, str], error: Exception, lines: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), RankContext(env):
        raise error
    assert capfd.readouterr().err.splitlines() == lines


def test_an_exception_of_its_own_is_a_traceback_in_the_log_of_a_rank(
    env: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), RankContext(env):
        raise ValueError("mine")
    assert "Traceback" in (text := capfd.readouterr().err)
    assert text.endswith("ValueError: mine\n")


@pytest.mark.parametrize("error", [MemoryError("no more"), RuntimeError("[enforce fail] Cannot allocate memory")])
def test_memory_that_ran_out_is_a_traceback_in_the_record_alone(
    env: dict[str, str], tmp_path: Path, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    """What rank 0 prints is passed on to the terminal, where the supervisor says it in a sentence."""
    with pytest.raises(SystemExit) as left, RankContext(env):
        raise error
    assert left.value.code == Ending.OOM
    assert capfd.readouterr() == ("", "")
    (record,) = read_failures(StartDir(tmp_path / "now").failures())
    assert record.traceback.startswith("Traceback")
    assert record.memory == "host"


def test_stopping_because_one_was_asked_is_no_failure(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left, RankContext(env):
        raise Preempted("saved.")
    assert left.value.code == Ending.PREEMPTED
    assert read_failures(StartDir(tmp_path / "now").failures()) == []
    beat = read(tmp_path / "now/heartbeat-1")
    assert beat is not None
    assert beat.done


def test_only_rank_0_says_that_the_run_succeeded(env: dict[str, str], tmp_path: Path) -> None:
    with RankContext(env) as seat:
        seat.succeed()
    assert not (tmp_path / ".success.json").exists()
    with RankContext({**env, "RANK": "0"}) as seat:
        seat.succeed(nrmse=0.1)
    assert json.loads((tmp_path / ".success.json").read_text())["facts"] == {"nrmse": 0.1}


def test_the_microbatch_an_earlier_attempt_learnt_is_found(env: dict[str, str], tmp_path: Path) -> None:
    assert RankContext(env).limit() is None
    write_microbatch(RunDir(tmp_path), 8)
    assert RankContext(env).limit() == 8
    for wrong in ('"x"', "[1]", "1e400", "-5", "0", "true", "null", "{}"):
        RunDir(tmp_path).ledger.write_text(f'{{"microbatch": {wrong}}}')
        assert RankContext(env).limit() is None


def test_without_a_supervisor_an_error_is_only_itself() -> None:
    seat = RankContext({})
    seat.pulse.beat("data", 1)
    seat.pulse.note(2)
    seat.succeed()
    with pytest.raises(ValueError, match="mine"), seat:
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"ranks": 0}, "at least one each"),
        ({"nodes": 2}, "give --rendezvous HOST:PORT"),
        ({"nodes": 2, "rendezvous": "here"}, "give --rendezvous HOST:PORT"),
        ({"nodes": 2, "node": 2, "rendezvous": "here:1"}, "counted from 0"),
        ({"nodes": 2, "least": 3, "rendezvous": "here:1"}, "ask for fewer"),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_a_sentence(words: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RankJob(("x",), **words)  # type: ignore[arg-type]


def test_ranks_share_the_cores_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    job = RankJob(("x",), ranks=1000)
    assert environment(job, 1, StartDir(tmp_path), tmp_path, tmp_path, "t")["OMP_NUM_THREADS"] == "1"
    told = RankJob(("x",), env={"OMP_NUM_THREADS": "7"})
    assert environment(told, 1, StartDir(tmp_path), tmp_path, tmp_path, "t")["OMP_NUM_THREADS"] == "7"


def test_supervising_needs_no_torch() -> None:
    modules = "ups_fleet.supervise.rank_context, ups_fleet.supervise.supervisor"
    code = f"import sys, {modules}\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
