"""The line of a terminal that says where a run is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ups.run.journal import PhaseJournal
from ups.rundir import RunDir
from ups_fleet.running.live_line import LiveLine, phase_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_silent_run_says_its_phase_on_a_terminal_and_makes_room_for_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, journal = RunDir(tmp_path), PhaseJournal(RunDir(tmp_path).journal)
    assert phase_of(run) == "starting"
    journal.begin("train", "operator")
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("ups_fleet.running.live_line.EVERY", 0.0)
    monkeypatch.setattr("sys.stderr", screen)
    live = LiveLine(lambda: phase_of(run))
    live.draw()
    assert screen.getvalue() == "\r\x1b[2Kphase train operator for 0 s"
    live.before(lambda sentence: print(sentence, file=screen))("a sentence")
    assert screen.getvalue().endswith("for 0 s\r\x1b[2Ka sentence\n")
    journal.end("train", "operator", 0.0, "done", {})
    assert phase_of(run) == "going on"


def test_where_there_is_no_terminal_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("ups_fleet.running.live_line.EVERY", 0.0)
    monkeypatch.setattr("sys.stderr", screen)
    live = LiveLine(lambda: "words")
    live.draw()
    live.clear()
    assert screen.getvalue() == ""
