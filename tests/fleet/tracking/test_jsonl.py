"""The log: every line whole, nothing lost in silence, and a disk that refuses never stops a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ups.metrics_log import Jsonl


def test_every_line_is_on_disk_when_log_returns(tmp_path: Path) -> None:
    log = Jsonl(tmp_path / "new")
    for step in range(3):
        log.log(step, {"loss": 0.5 / (step + 1), "note": "ä"})
        lines = (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == step + 1
    row = json.loads(lines[-1])
    assert (row["step"], row["loss"], row["note"]) == (2, 0.5 / 3, "ä")
    log.close()


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    Jsonl(tmp_path).log(1, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    path = tmp_path / "metrics.jsonl"
    assert "NaN" not in path.read_text()
    assert {k: v for k, v in json.loads(path.read_text()).items() if k in "abc"} == {"a": None, "b": None, "c": 1.0}


def test_half_a_line_of_a_killed_run_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    log = Jsonl(tmp_path)
    log.log(3, {})
    log.log(4, {})
    lines = path.read_text().splitlines()
    assert lines.pop(1) == '{"step": 2, "lo'
    assert [json.loads(line)["step"] for line in lines] == [1, 3, 4]


def test_a_full_disk_is_said_once_and_counted(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    said: list[str] = []
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    log = Jsonl(tmp_path, said.append)
    for step in range(5):
        log.log(step, {"loss": 1.0})
    assert len(said) == 1
    assert "training goes on" in said[0]
    log.close()
    assert said[1:] == [f"{path}: 5 lines could not be written."]
