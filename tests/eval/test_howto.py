"""docs/howto-add-a-metric.md: its blocks run as they are written, and one entry is all that a metric takes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from grids import grid_of
from ups.eval import metrics
from ups.eval.report import Report
from ups.eval.results import Cost, DataFact, Scored, TaskResult, read_results
from ups.eval.rollout import EvalProtocol, ModulePredictor, evaluate, persistence
from ups.physics import TASKS
from ups.tensors import Window

PAGE = Path(__file__).parents[2] / "docs" / "howto-add-a-metric.md"


def test_the_metric_of_the_page_is_in_the_results_and_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    namespace = dict(vars(metrics))
    exec(function, namespace)
    ((name, metric),) = eval(f"{{{line}}}", namespace).items()
    monkeypatch.setitem(metrics.METRICS, name, metric)

    values = 1 + torch.rand(3, 5, 16, 1, generator=torch.Generator().manual_seed(0))
    ids = ("0", "1", "2")
    facts = (
        torch.zeros(3, 16, 0),
        torch.zeros(3, 1),
        torch.full((3,), 0.1),
        grid_of(values[:, 0], (True,), (1.0,)),
        ids,
    )
    window = Window(TASKS["burgers1d"], values[:, :2], values[:, 2:], *facts)
    double = ModulePredictor("ups", "cpu", lambda _, steps: 2 * values[:, 2 : 2 + steps])
    given = EvalProtocol("A", 2)
    ours, still = (Scored(evaluate(who, [window], given), Cost(1, 1, 1.0)) for who in (double, persistence))
    data = (DataFact("burgers1d", "a.hdf5", "v1", "3", "16", 5, ""),)
    page, results = Report("run", (TaskResult(ours, still),), "a: 1\n", "f00d", 0, data).write(tmp_path)
    records = [r for r in read_results(results) if (r.metric, r.predictor) == (name, "ups")]
    assert [r.mode for r in records] == ["strict", "pdebench-0.1.0", "pdebench-paper"]
    assert [r.value for r in records] == pytest.approx([3.0, 3.0, 3.0 * 3 / 5]), "four times the energy"
    assert metric.meaning in page.read_text()
    broken = np.full((1, 1, 8, 1), np.nan)
    assert np.isinf(metrics.measure(broken, np.ones((1, 1, 8, 1))).per_sample(name))
