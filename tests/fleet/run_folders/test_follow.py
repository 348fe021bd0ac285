"""Curves, logs and a live view: what a resumed run took back is not drawn, and a watch ends with its run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from memory_runs import begun, ended, finished, logged
from ups.eval.learning import LearningCurve, curves_of
from ups.presence import hold
from ups.types import ConfigError, DataError
from ups.verdict import Ending
from ups_fleet.cli.runs import watch as follow_run
from ups_fleet.run_folders.follow import log_text, watch
from ups_fleet.run_folders.runs import run_at
from ups_fleet.run_folders.show import curve_lines, drawn, errors_table, facts_of


def test_a_curve_is_that_of_the_last_start_where_a_run_was_resumed(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    logged(run, "operator", (10, 20, 30, 40), (4.0, 3.0, 2.0, 1.0))
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 50, "operator/lo\n\xff\xff\n[]\n')
        file.write(b'{"step": 45, "operator/loss": 1%s}\n' % (b"0" * 400))
    logged(run, "operator", (25, 35), (9.0, 8.0))
    (curve,) = curves_of(run.metrics)
    assert curve == LearningCurve("operator", "loss", (10, 20, 25, 35), (4.0, 3.0, 9.0, 8.0))


def test_a_chart_falls_where_its_numbers_fall() -> None:
    steps = tuple(range(0, 600, 10))
    lines = drawn(LearningCurve("operator", "loss", steps, tuple(10.0 ** (-step / 200) for step in steps)), 30, 4)
    assert lines[0] == "operator: loss, 0.001122 at step 590 (least 0.001122)"
    rows = [line.partition("┤")[2] for line in lines[1:5]]
    filled = [len(row.rstrip()) for row in rows]
    assert filled == sorted(filled), "each row reaches further than the one above it"
    assert filled[-1] == 30
    assert drawn(LearningCurve("a", "b", (1,), (float("nan"),))) == ["a: b: no finite number"]
    assert len(drawn(LearningCurve("a", "b", (1, 2), (0.0, -1.0)))) == 9
    assert drawn(LearningCurve("a", "b", (27,), (0.5,))) == ["a: b, 0.5 at step 27 (least 0.5)"]


def test_show_says_what_where_and_how_it_ended(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    state, facts = facts_of(run)
    words = dict(facts)
    assert words["state"] == "finished."
    assert words["trains"] == "codec → operator on advection1d"
    assert "12 s of training" in words["took"]
    assert words["ended"].endswith("SUCCESS: done.")
    rows, problem = errors_table(run)
    assert (rows[1][0], rows[1][2], rows[1][4], problem) == ("advection1d", "0.2", "2", "")
    assert rows[0][-1] == "verdict"
    assert any(line.startswith("operator: loss") for line in curve_lines(run, 80))
    run.config.write_text("[")
    assert "cannot be read" in dict(facts_of(run)[1])["config"]
    assert state.name == "run"


def test_a_watch_shows_every_change_and_ends_with_the_run(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    handle = hold(run.lock)

    def live() -> None:
        for step in (10, 20):
            logged(run, "operator", (step,))
            end = time.monotonic() + 120
            while not any(f"step {step} of 600" in line for line in lines) and time.monotonic() < end:
                time.sleep(0.01)
        ended(run, Ending.PREEMPTED, "SIGTERM")
        os.close(handle)

    thread = threading.Thread(target=live)
    lines: list[str] = []
    thread.start()
    state = watch(run, lambda _, line: lines.append(line), pause=0.05)
    thread.join()
    assert state.word == "stopped"
    assert any("step 10 of 600 of stage operator" in line for line in lines)
    assert any("step 20 of 600" in line and "loss 0.0476" in line and "left" in line for line in lines)
    assert lines[-1] == "stopped: stopped on request at step 20 of 600 of stage operator; --resume goes on."
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(("ending", "code"), [(Ending.SUCCESS, 0), (Ending.PAUSED, 0), (Ending.OOM, 1)])
def test_a_watch_ends_as_the_command_of_the_run_did(tmp_path: Path, ending: Ending, code: int) -> None:
    run = finished(tmp_path / "run")
    ended(run, ending)
    assert follow_run(run.folder) == code


def test_logs_are_those_of_the_newest_start_and_are_followed_to_the_end(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    for attempt, text in ((1, "old\n"), (2, "one\ntwo\nthree\n")):
        run.attempt_logs(attempt).mkdir(parents=True)
        (run.attempt_logs(attempt) / "rank-0.log").write_text(text)
    assert "".join(log_text(run, 0, None, 2, False)) == "two\nthree\n"
    assert "".join(log_text(run, 0, 1, None, False)) == "old\n"
    assert "".join(log_text(run, 0, None, None, True)) == "one\ntwo\nthree\n", "a run that has ended is not waited for"
    with pytest.raises(DataError, match="no log of rank 3; its ranks are 0"):
        "".join(log_text(run, 3, None, None, False))
    with pytest.raises(ConfigError, match="no start number 9; there are 1, 2"):
        "".join(log_text(run, 0, 9, None, False))
    assert run_at(run.folder).folder == run.folder
