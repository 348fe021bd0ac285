"""The log: every line whole, nothing lost in silence, and a disk that refuses never stops a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ups.tracking.jsonl import Jsonl, read


def test_every_line_is_on_disk_when_log_returns(tmp_path: Path) -> None:
    log = Jsonl(tmp_path / "new" / "log.jsonl")
    for step in range(3):
        log.log(step, {"loss": 0.5 / (step + 1), "note": "ä"})
        lines = (tmp_path / "new" / "log.jsonl").read_text().splitlines()
        assert len(lines) == step + 1
    row = json.loads(lines[-1])
    assert (row["step"], row["loss"], row["note"]) == (2, 0.5 / 3, "ä")
    log.close()


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    log = Jsonl(tmp_path / "log.jsonl")
    log.log(1, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
    assert {k: v for k, v in read(tmp_path / "log.jsonl")[0].items() if k in "abc"} == {"a": None, "b": None, "c": 1.0}


def test_half_a_line_of_a_killed_run_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    log = Jsonl(path)
    log.log(3, {})
    log.log(4, {})
    assert [row["step"] for row in read(path)] == [1, 3, 4]


def test_a_full_disk_is_said_once_and_counted() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    said: list[str] = []
    log = Jsonl(Path("/dev/full"), said.append)
    for step in range(5):
        log.log(step, {"loss": 1.0})
    assert len(said) == 1
    assert "training goes on" in said[0]
    log.close()
    assert said[1:] == ["/dev/full: 5 lines could not be written."]


def test_a_folder_that_cannot_be_made_is_no_error_either(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    Jsonl(tmp_path / "file" / "log.jsonl", said.append).log(0, {})
    assert len(said) == 1


def test_a_disk_that_recovers_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    folder.write_text("in the way")
    log = Jsonl(folder / "log.jsonl", lambda sentence: None)  # noqa: ARG005
    log.log(0, {})
    folder.unlink()
    log.log(1, {})
    assert [row["step"] for row in read(folder / "log.jsonl")] == [1]
    assert log.lost == 1


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []
