"""Reading the log: whole lines from any place, and of what was taken twice the later."""

from __future__ import annotations

import math
from pathlib import Path

from shown_runs import log, made_up

from ups_fleet.tracking.log_reader import LogReader, LogRow, Overruled, holding_rows, whole_lines


def test_lines_come_once_whole_and_from_any_place(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = LogReader(path)
    assert reader.read() == []
    path.write_bytes(b'{"step": 1, "time": 2.5, "codec/loss": null, "note": "x"}\n{"step": 2, "ti')
    (row,) = reader.read()
    assert (row.number, row.step, row.time, row.stage) == (0, 1, 2.5, "codec")
    assert math.isnan(row.values["codec/loss"])  # type: ignore[arg-type]
    assert row.by_stage()["run"] == {"note": "x"}
    assert reader.read() == []
    assert whole_lines(path) == reader.position
    with path.open("ab") as file:
        file.write(b'\n[1]\n{"step": "\xff"}\n{"step": 7, "time": 3, "codec/loss": 1}\n')
    (row,) = reader.read()
    assert (row.number, row.step) == (4, 7)
    assert [r.step for r in LogReader(path, reader.position, 5).read()] == []
    assert whole_lines(path) == path.stat().st_size
    assert whole_lines(tmp_path / "none") == 0


def held(path: Path) -> list[LogRow]:
    overruled, rows = Overruled(), list(LogReader(path).all())
    for row in rows:
        overruled.add(row)
    return holding_rows(rows, overruled.holding())


def test_a_resumed_run_overrules_the_steps_it_takes_again_and_keeps_the_others(tmp_path: Path) -> None:
    run = made_up(tmp_path, [])
    log(run, range(1, 9))
    log(run, [1, 2], stage="operator")
    log(run, range(5, 11), factor=10.0)  # from a checkpoint of step 4
    values = {(row.stage, row.step, *row.values) for row in held(run.metrics)}
    assert len(values) == len(held(run.metrics))
    losses = {row.step: row.values["codec/loss"] for row in held(run.metrics) if "codec/loss" in row.values}
    assert losses == {**{n: float(n) for n in range(1, 5)}, **{n: 10.0 * n for n in range(5, 11)}}
    scores = {row.step: v for row in held(run.metrics) for n, v in row.values.items() if n == "codec/validation/score"}
    assert scores == {2: -2.0, 4: -4.0, 6: -60.0, 8: -80.0, 10: -100.0}
    assert [row.step for row in held(run.metrics) if row.stage == "operator"] == [1, 2, 2]


def test_a_note_at_the_checkpoint_takes_back_only_what_came_after_it(tmp_path: Path) -> None:
    run = made_up(tmp_path, [])
    log(run, range(1, 9))
    log(run, [4], note="goes on from step 4")  # with its loss, the later is true; the validation at 4 still holds
    rows = held(run.metrics)
    assert [(row.step, *row.values) for row in rows if row.step >= 4] == [
        (4, "codec/validation/score"),
        (4, "codec/loss", "codec/note"),
        (4, "codec/validation/score"),
    ][1:]
    assert max(row.step for row in rows) == 4
