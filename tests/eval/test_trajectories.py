"""trajectories.json: what was measured comes back, and a trajectory is known by what is in it."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch

from grids import grid_of
from ups.eval.report import Report
from ups.eval.results import Scored, TaskResult
from ups.eval.rollout import EvalProtocol, evaluate, persistence
from ups.eval.trajectories import PerTrajectory, mark_of, read, write
from ups.physics import TASKS
from ups.tensors import Window
from ups.types import DataError

P = EvalProtocol("A", 2)


def window(seed: int = 0, samples: int = 5) -> Window:
    task, rng = TASKS["burgers1d"], torch.Generator().manual_seed(seed)
    values = torch.randn((samples, 6, 8, 1), generator=rng)
    numbers = (torch.zeros(samples, 8, 0), torch.full((samples, 1), 0.01), torch.full((samples,), 0.1))
    return Window(
        task,
        values[:, :2],
        values[:, 2:],
        *numbers,
        grid_of(values[:, 0], (True,), (1.0,)),
        tuple(map(str, range(samples))),
    )


def test_a_mark_says_which_trajectory_and_which_question() -> None:
    marks = [mark_of(window(), i) for i in range(5)]
    assert len(set(marks)) == 5
    assert marks == [mark_of(window(), i) for i in range(5)]
    assert not set(marks) & {mark_of(window(1), i) for i in range(5)}
    shorter = dataclasses.replace(window(), targets=window().targets[:, :3])
    assert mark_of(shorter, 0) != marks[0], "fewer frames to predict are another question"
    other = dataclasses.replace(window(), params=torch.full((5, 1), 0.02))
    assert mark_of(other, 0) != marks[0]
    assert mark_of(window().rows(2, 5), 0) == marks[2], "the batch it stands in does not matter"


def test_a_report_leaves_the_error_of_every_trajectory(tmp_path: Path) -> None:
    ours = evaluate(dataclasses.replace(persistence, name="ups"), [window()], P)
    entry, still = Scored(ours), Scored(evaluate(persistence, [window()], P))
    Report("A run", (TaskResult(entry, still),), "", "f", 0, ()).write(tmp_path)
    rows = {row.predictor: row for row in read(tmp_path)}
    assert rows.keys() == {"ups", "persistence"}
    row = rows["ups"]
    assert row.nrmse == pytest.approx(ours.per_sample())
    assert row.value == pytest.approx(ours.score)
    assert row.low <= row.value <= row.high
    assert row.ids == ours.ids
    assert row.marks == rows["persistence"].marks == tuple(mark_of(window(), i) for i in range(5))
    assert row.by_mark[row.marks[1]] == row.nrmse[1]


def test_what_is_not_finite_comes_back_and_what_is_damaged_is_a_sentence(tmp_path: Path) -> None:
    row = PerTrajectory("a", "test", "ups", "A", math.inf, 0.1, math.inf, ("0",), ("m",), (math.inf,), vrmse=math.inf)
    path = write(tmp_path, [row])
    assert read(tmp_path) == [row]
    text = path.read_text()
    for damaged in (
        *(text[:-20], text.replace('["m"]', "[]"), text.replace('"A"', "[", 1), "[]", '{"rows": 3}', '{"rows": []}'),
        *(text.replace("0.1", f"1{'0' * 400}"), text.replace('"ups"', '"fno"'), re.sub(r"\[[^\[\]{}]+\]", "[]", text)),
    ):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"is damaged .* writes it again"):
            read(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="is not there; `ups evaluate"):
        read(tmp_path)
