"""Tables for a spreadsheet: a header that grows, rows that stay, half a line cut off."""

from __future__ import annotations

import csv
from pathlib import Path

from ups.tracking.csv import Csv


def rows(path: Path) -> list[dict[str, str | None]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_per_stage_whose_columns_grow_at_the_end(tmp_path: Path) -> None:
    log = Csv(tmp_path)
    log.log(1, {"codec/loss": 0.5})
    log.log(2, {"codec/loss": 0.25, "codec/note": 'a "b", c\nd', "operator/loss": 7.0})
    log.log(3, {"codec/loss": 0.125, "free": 1.0})
    header, *lines = (tmp_path / "csv" / "codec.csv").read_text().splitlines()
    assert header == "step,time,loss,note"
    assert len(lines) == 3
    found = rows(tmp_path / "csv" / "codec.csv")
    assert [(row["step"], row["loss"], row["note"]) for row in found] == [
        ("1", "0.5", None),
        ("2", "0.25", 'a "b", c d'),
        ("3", "0.125", ""),
    ]
    assert rows(tmp_path / "csv" / "operator.csv")[0]["loss"] == "7.0"
    assert rows(tmp_path / "csv" / "run.csv")[0]["free"] == "1.0"


def test_half_a_line_is_cut_off_and_a_resumed_run_goes_on_below(tmp_path: Path) -> None:
    path = tmp_path / "csv" / "codec.csv"
    path.parent.mkdir()
    path.write_text("step,time,loss\n1,now,0.5\n2,now,0.1")
    Csv(tmp_path).log(2, {"codec/loss": 0.125, "codec/rate": 3})
    assert [(row["step"], row["loss"], row["rate"]) for row in rows(path)] == [("1", "0.5", None), ("2", "0.125", "3")]
