"""The state of a run is what its folder proves: no killed run runs, no live one is dead, no damage is a traceback."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from memory_runs import begun, ended, finished, logged
from ups.cli.app import main
from ups.presence import SILENT, LockHolder, hold, release
from ups.types import DataError
from ups.verdict import Ending
from ups_fleet.run_folders.candidate import candidates
from ups_fleet.run_folders.compare import compare
from ups_fleet.run_folders.errors import TaskError
from ups_fleet.run_folders.runs import leaderboard, run_at, runs_in, summary_of, table_of
from ups_fleet.run_folders.show import facts_of
from ups_fleet.run_folders.state import state_of


def leave_far(lock: Path, age: float) -> None:
    lock.write_text(json.dumps(asdict(replace(LockHolder.me(), host="far", boot="another", began=0.0))))
    os.utime(lock, (time.time() - age,) * 2)


def test_a_run_is_running_exactly_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    handle = hold(run.lock)
    assert state_of(run.folder).sentence == "starting, or making data."
    logged(run, "codec", (10, 20))
    logged(run, "operator", (100, 250))
    state = state_of(run.folder)
    assert (state.word, state.sentence) == ("running", "step 250 of 600 of stage operator.")
    assert (state.stage, state.step, state.of) == ("operator", 250, 600)
    os.close(handle)  # as a kill closes it
    state = state_of(run.folder)
    assert (state.word, state.resumable) == ("dead", True)
    assert state.sentence.startswith("dead at step 250 of 600 of stage operator; resumable")


def test_a_run_on_another_machine_is_dead_only_after_silence_and_how_one_knows_is_said(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    logged(run, "operator", (50,))
    run.metrics.write_text(json.dumps({"step": 50, "time": time.time() - 9999, "operator/loss": 1}) + "\n")
    leave_far(run.lock, 4)
    state = state_of(run.folder)
    assert (state.word, state.host) == ("running", "far")
    assert "on far, whose lock is not seen here (sign of life 4 s ago)" in state.sentence
    leave_far(run.lock, SILENT + 600)
    state = state_of(run.folder)
    assert state.word == "dead"
    assert "no sign of life from far for 12 min" in state.sentence
    logged(run, "operator", (60,))
    assert state_of(run.folder).word == "running", "who writes the log lives"
    run.metrics.unlink()
    handle = os.open(run.lock, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    leave_far(run.lock, SILENT + 600)
    state = state_of(run.folder)
    assert state.word == "unclear", "a filesystem may keep the lock of a machine that crashed"
    assert "far holds its lock, but its last sign of life is 12 min old" in state.sentence
    os.close(handle)


@pytest.mark.parametrize(
    ("ending", "word"),
    [
        (Ending.OOM, "failed"),
        (Ending.CRASH, "failed"),
        (Ending.PREEMPTED, "stopped"),
        (Ending.INTERRUPTED, "stopped"),
        (Ending.PAUSED, "paused"),
        (Ending.USER, "failed"),
    ],
)
def test_a_run_that_says_how_it_ended_is_believed(tmp_path: Path, ending: Ending, word: str) -> None:
    run = begun(tmp_path / "run")
    logged(run, "operator", (50,))
    ended(run, ending, "rank 1 had no memory left.")
    state = state_of(run.folder)
    assert state.word == word
    assert ("no memory left" in state.sentence) == (word in ("failed", "paused"))
    assert state.resumable == (ending != Ending.USER)
    handle = hold(run.lock)
    assert state_of(run.folder).word == "running", "an old verdict of a run that was resumed says nothing"
    release(handle)


def test_a_finished_run_has_its_errors_its_time_and_what_is_missing_of_it(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    state = state_of(run.folder)
    assert (state.word, state.sentence, state.seconds) == ("finished", "finished.", 12.0)
    assert state.error == pytest.approx(0.2)
    run.artifact("simulator").unlink()
    assert "its simulator is gone" in state_of(run.folder).sentence
    run.trajectories.unlink()
    assert "its errors are not there" in state_of(run.folder).sentence


def test_a_run_that_missed_a_gate_is_complete_and_one_that_was_judged_before_its_pause_has_its_errors(
    tmp_path: Path,
) -> None:
    for name, ending in (("missed", Ending.GATE_MISSED), ("paused", Ending.PAUSED)):
        ended(finished(tmp_path / name), ending, "nrmse is 0.2, above its gate 0.1.")
    finished(tmp_path / "well")
    states = runs_in(tmp_path, "name")
    assert [state.word for state in states] == ["gate missed", "paused", "finished"]
    assert all(state.error == pytest.approx(0.2) for state in states)
    rows, _ = leaderboard(states)
    assert [row[-1] for row in rows[1:]] == ["gate missed", "paused", ""]
    comparison = compare(candidates([tmp_path / "missed", tmp_path / "well"], frozenset(), {}))
    assert [row[2] for row in comparison.errors_table()[1:]] == ["gate missed", "finished"]
    assert comparison.unpaired == ()


def test_one_run_is_shown_with_its_curves_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished(tmp_path / "run")
    logged(run, "operator", (10, 20, 30))
    lines = []
    for words in ([], ["--no-curves"]):
        with pytest.raises(SystemExit) as left:
            main(["show", str(run.folder), *words])
        assert left.value.code == 0
        lines.append(capsys.readouterr().out.splitlines())
    assert "finished" in lines[1][1]
    assert len(lines[1]) < len(lines[0])


def test_where_a_run_died_is_known_in_every_phase(tmp_path: Path) -> None:
    run = begun(tmp_path / "a")
    assert state_of(run.folder).sentence == "dead before its first step; resumable."
    run.environment.unlink()
    assert "dead before it had begun" in state_of(run.folder).sentence
    run = begun(tmp_path / "b")
    logged(run, "operator", (600,))
    run.stages.write_text("{}")
    assert state_of(run.folder).sentence == "dead after its training, before its verdict; resumable."


def test_the_record_of_phases_says_where_a_run_is_or_was_killed(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    handle = hold(run.lock)

    def phase(name: str, event: str, **facts: float | str) -> None:
        with (run.folder / "phases.jsonl").open("a") as file:
            file.write(json.dumps({"phase": name, "part": "", "event": event, "clock": time.time(), **facts}) + "\n")

    phase("data", "begin")
    assert state_of(run.folder).sentence == "phase data."
    phase("data", "end", seconds=2.0, result="done")
    phase("train", "begin", part="codec")
    logged(run, "codec", (20,))
    phase("train", "end", part="codec", seconds=1.0, result="done")
    phase("train", "begin", part="operator")
    assert state_of(run.folder).sentence == "step 0 of 600 of stage operator.", "no row of the log tells of it yet"
    logged(run, "operator", (250,))
    assert state_of(run.folder).sentence == "step 250 of 600 of stage operator."
    checkpoint = run.checkpoints("operator") / "step-000000240"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    phase("train", "end", part="operator", seconds=9.0, result="done")
    phase("evaluate", "begin")
    assert state_of(run.folder).sentence == "phase evaluate."
    os.close(handle)
    state = state_of(run.folder)
    assert state.sentence == "dead in phase evaluate; resumable from step 240 of stage operator."
    words = dict(facts_of(run)[1])["phases"]
    assert words == "data (2.0 s), train codec (1.0 s), train operator (9.0 s), evaluate (under way)"


def test_a_run_killed_or_stopped_early_in_a_stage_is_said_to_be_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = SimpleNamespace(rank=0, step=20, phase="save")  # of the stage before
    monkeypatch.setattr("ups_fleet.run_folders.state.beats_of", lambda _: {0: last})
    run = begun(tmp_path / "run")
    logged(run, "codec", (10, 20))
    row = {"phase": "train", "part": "operator", "event": "begin", "clock": time.time()}
    run.journal.write_text(json.dumps(row) + "\n")
    dead = "dead at step 0 of 600 of stage operator; resumable from the beginning of the stage."
    assert state_of(run.folder).sentence == dead
    with run.journal.open("a") as file:
        file.write(json.dumps({**row, "event": "end", "result": "failed"}) + "\n")
    ended(run, Ending.INTERRUPTED)
    assert state_of(run.folder).sentence == "stopped on request at step 0 of 600 of stage operator; --resume goes on."


def test_damage_is_one_sentence_and_never_an_exception(tmp_path: Path) -> None:
    for name in (
        "verdict.json",
        "environment.json",
        "stages.json",
        "trajectories.json",
        "config.yaml",
        "metrics.jsonl",
    ):
        for number, content in enumerate((b"", b'{"verdict": "SUCC', b"\xff\xfe\0", b"[]", b'{"verdict": 3}')):
            run = finished(tmp_path / f"{name}-{number}")
            (run.folder / name).write_bytes(content)
        run = finished(tmp_path / f"{name}-folder")
        (run.folder / name).unlink()
        (run.folder / name).mkdir()
        run = finished(tmp_path / f"{name}-pipe")
        (run.folder / name).unlink()
        os.mkfifo(run.folder / name)
    run = finished(tmp_path / "lock-pipe")
    run.lock.unlink()
    os.mkfifo(run.lock)
    for deep in range(3):
        run = finished(tmp_path / f"deep-{deep}")
        run.verdict.write_text("[" * 100_000 if deep else '{"a":' * 100_000)
    hostile = finished(tmp_path / "a\nb\x1b[2J")
    row = {"step": 1, "time": float("inf"), "o/loss": 1}
    hostile.metrics.write_text(json.dumps(row) + "\n" + json.dumps({**row, "time": 1.0, "x\ny/loss": 1}) + "\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    states = {state.name: state for state in runs_in(tmp_path)}
    assert all(state.sentence.endswith((".", "…")) or state.sentence for state in states.values())
    assert all("\n" not in state.sentence for state in states.values())
    assert states["verdict.json-1"].word == "unclear"
    assert "verdict.json cannot be read" in states["verdict.json-1"].sentence
    assert states["lock-pipe"].word == "unreadable"
    json.dumps([state.to_dict() for state in states.values()], allow_nan=False)
    assert all("\n" not in cell for row in table_of(list(states.values())) for cell in row)


def test_folders_that_hold_no_run_are_told_from_runs_and_sweeps_are_looked_into(tmp_path: Path) -> None:
    finished(tmp_path / "sweep" / "point-1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").touch()
    (tmp_path / "file").touch()
    states = {state.name: state.word for state in runs_in(tmp_path)}
    assert states == {"sweep/point-1": "finished", "empty": "empty", "pictures": "foreign"}
    assert runs_in(tmp_path / "sweep" / "point-1")[0].word == "finished"
    with pytest.raises(DataError, match=r"did you mean .*point-1"):
        run_at(tmp_path / "sweep")
    with pytest.raises(DataError, match="no such folder"):
        runs_in(tmp_path / "nowhere")
    assert sorted(summary_of(runs_in(tmp_path)).split(", ")) == ["1 empty", "1 finished", "1 foreign"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_may_not_be_read_is_said_in_the_list(tmp_path: Path) -> None:
    finished(tmp_path / "mine")
    closed = finished(tmp_path / "closed")
    closed.folder.chmod(0o700)
    inner = finished(tmp_path / "inner")
    inner.lock.chmod(0o600)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/tmp"):
            path.chmod(0o755)
    nobody = pwd.getpwnam("nobody").pw_uid
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(nobody)
        states = {state.name: state.sentence for state in runs_in(tmp_path)}
        os.write(writer, json.dumps(states).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    states = json.loads(os.read(reader, 100_000))
    os.close(reader)
    assert states == {
        "mine": "finished.",
        "closed": "cannot be read (Permission denied).",
        "inner": "cannot be read (Permission denied).",
    }


def test_two_hundred_runs_are_listed_in_a_second_without_torch(tmp_path: Path) -> None:
    for number in range(200):
        if number % 2:
            finished(tmp_path / f"{number}")
        else:
            logged(begun(tmp_path / f"{number}"), "operator", (50, 100))
    began = time.process_time()
    states = runs_in(tmp_path, "error")
    spent = time.process_time() - began
    assert len(states) == 200
    assert len(table_of(states)) == 201
    assert [state.word for state in states[:100]] == ["finished"] * 100
    assert spent < 1.0, f"{spent:.2f} s"
    code = f"import sys; from ups.cli.app import app; app(['runs', {str(tmp_path)!r}], result_action='return_value')\n"
    code += "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


def test_a_list_of_runs_says_what_is_not_learnt_and_what_is_no_whole_rollout() -> None:
    assert TaskError("t", 0.5, 0.5, 0.5, 9, "B").briefly == "0.5 (protocol B)"
    for verdict, words in (
        ("learnt (1 of 9 rollouts diverged)", "0.5"),
        ("NOT LEARNT: no better than its mean after 9 training steps", "0.5 (not learnt)"),
        ("learnt, but not u and w: u is no better than its mean, w is", "0.5 (learnt, but not u and w)"),
    ):
        assert TaskError("t", 0.5, 0.5, 0.5, 9, "A", verdict=verdict).briefly == words
