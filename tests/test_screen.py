"""What a person sees while something takes its time: a word at once, progress in every wait, nothing unknown."""

from __future__ import annotations

import dataclasses
import math
import re
import time

import pytest

from ups import screen
from ups.progress import Progress, TrainingProgress
from ups.screen import Saying, following, training_line, waiting


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "AT_FIRST", 0.02)
    monkeypatch.setattr(screen, "EVERY", 0.05)


@pytest.mark.usefixtures("hurried")
def test_a_wait_says_what_it_is_for_and_again_how_long_it_has_been(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""

    def until(words: str) -> None:
        nonlocal said
        end = time.monotonic() + 120
        while not re.search(words, said):
            assert time.monotonic() < end, said
            time.sleep(0.01)
            said += capsys.readouterr().err

    with waiting("reading a.h5") as change:
        until(r"^reading a\.h5\n")
        until(r"reading a\.h5 \(\d+ s so far\)")
        change("fitting a.h5")
        until(r"fitting a\.h5 \(\d+ s so far\)")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == "", "a wait that is over says nothing more"


def test_what_is_over_in_a_moment_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("reading a.h5"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("hurried")
def test_a_wait_that_fails_ends_with_its_failure() -> None:
    with pytest.raises(ValueError, match="broken"), waiting("reading a.h5"):
        raise ValueError("broken")


@pytest.mark.usefixtures("hurried")
def test_a_job_with_progress_says_first_what_it_opens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "EVERY", 600.0)
    with following("opening runs/a") as report:
        said, end = "", time.monotonic() + 120
        while not said and time.monotonic() < end:
            time.sleep(0.01)
            said = capsys.readouterr().err
        assert said == "opening runs/a\n"
        report(Progress(0, 4, "calibrating"))
        report(Progress(4, 4, "calibrating"))
        report(Progress(35, 100, "judging burgers1d", percent=True))
    rows = capsys.readouterr().err.splitlines()
    assert [rows[0], rows[2]] == ["calibrating: 0 of 4", "judging burgers1d: 35 %"]
    assert re.fullmatch(r"calibrating: 4 of 4 in \d+ s", rows[1])


def test_a_line_of_training_leaves_out_what_is_not_known_yet() -> None:
    nothing = TrainingProgress("codec", 0, 0.0, 0.0, math.inf, math.nan, math.nan, 1e-3, math.nan, 0.0, 500_000_000)
    assert training_line(nothing) == "codec:   0%  step 0  0.5 GB"
    later = dataclasses.replace(nothing, step=20, fraction=0.1, eta=9.0, loss=0.5, samples_per_second=160.0)
    assert training_line(later) == "codec:  10%  step 20  loss 0.5  160 samples/s  0.5 GB  9 s left"
    diverged = dataclasses.replace(later, loss=math.nan, score=math.inf)
    assert "loss nan  validation inf" in training_line(diverged), "what went wrong is shown"


def test_what_was_said_before_is_not_said_again_beside_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    saying = Saying()
    saying("u is not conserved")
    assert capsys.readouterr().out == "u is not conserved\n"
    assert saying.new(("u is not conserved", "u was learnt")) == ["u was learnt"]
