"""The ledger: damage is named, nothing is written twice, and two that grew apart are joined."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path

import pytest
from tiny_rows import FACTS, entry

from ups.types import DataError
from ups_bench.accuracy import sentence
from ups_bench.cells import score_cell
from ups_bench.ledger import append, read, text_of
from ups_bench.verify import compared


def test_two_ledgers_that_grew_apart_are_joined_and_nothing_is_twice(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    shared, ours, theirs = entry(), entry(run="r1", seed=1), entry(run="r2", seed=2)
    append(here, [shared, ours])
    append(there, [shared, theirs, theirs])
    assert append(here, read(there)) == [theirs]
    assert append(here, read(there)) == []
    assert read(here) == [shared, ours, theirs]
    assert here.read_text().splitlines()[1:3] == text_of([shared, ours]).replace("}\n]", "},\n]").splitlines()[1:3]


def test_what_is_not_finite_comes_back(tmp_path: Path) -> None:
    bad = {**FACTS["numbers"][0], "value": float("inf"), "high": float("nan")}  # type: ignore[index,dict-item]
    append(tmp_path / "l.json", [entry(numbers=[bad])])
    (score,) = read(tmp_path / "l.json")[0].numbers
    assert (score.value, score.high) == (float("inf"), pytest.approx(float("nan"), nan_ok=True))
    json.loads((tmp_path / "l.json").read_text(), parse_constant=pytest.fail)


def _add(path: Path, number: int) -> None:
    append(path, [entry(run=f"of {number}, {i}") for i in range(3)])


def test_two_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path, fork = tmp_path / "l.json", multiprocessing.get_context("fork")
    writers = [fork.Process(target=_add, args=(path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(600)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(read(path)) == 12


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], "is damaged"),
        (lambda text: text.replace('"value": 0.1', '"value": 0.05'), "entry 2 .* is not as it was measured"),
        (lambda text: text.replace('"seed": 1,', ""), r"entry 2 is damaged \('seed': field required\)"),
        (lambda text: text.replace('"entries"', '"rows"'), "is no ledger"),
        (lambda text: "[]", "is damaged"),  # noqa: ARG005
    ],
    ids=["cut", "changed", "missing", "other", "list"],
)
def test_a_damaged_ledger_is_named_and_left_alone(damage, words: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "l.json"
    other = {**FACTS["numbers"][0], "value": 0.2}  # type: ignore[index,dict-item]
    append(path, [entry(numbers=[other]), entry(run="r1", seed=1)])
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    for attempt in (lambda: read(path), lambda: append(path, [entry(run="r9")])):
        with pytest.raises(DataError, match=f"l.json: {words}"):
            attempt()
    assert path.read_bytes() == before


def test_a_ledger_that_is_not_there_is_empty_or_missing(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == []
    with pytest.raises(DataError, match="there is no such ledger"):
        read(tmp_path / "none.json", missing=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        append(tmp_path / "file" / "l.json", [entry()])


def test_the_mean_over_several_tasks_has_no_interval_and_each_task_is_verified_by_its_own() -> None:
    number = {"predictor": "ups", "metric": "nrmse", "n": 8}
    first = {"task": "a", "value": 0.1, "low": 0.09, "high": 0.11, **number}
    second = {"task": "b", "value": 0.3, "low": 0.2, "high": 0.4, **number}
    known = entry(numbers=[first, second])
    mean = known.score()
    assert mean is not None
    assert mean.value == pytest.approx(0.2)
    assert math.isnan(mean.low)
    assert score_cell([mean], ".2f") == "0.20"
    assert "nRMSE 0.2 (mean of 2 tasks)" in sentence(known)
    assert compared(known, [known])[0]
    passed, words = compared(entry(numbers=[{**first, "value": 0.05}, {**second, "value": 0.41}]), [known])
    assert not passed, "though their mean is as before"
    assert "tiny/first, b: nRMSE 0.41 after 10 steps; an earlier run had 0.2 – 0.4: WORSE" in words
