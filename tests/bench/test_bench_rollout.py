"""`ups bench rollout`: the solver that a simulator is raced with is the coarsest that is as good as it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from small_flows import SMALL, simulator
from ups.eval.nrmse import nrmse
from ups.models import Simulator
from ups.physics import TASKS
from ups.types import ConfigError
from ups_bench.rollout import bench_rollout, race_of, solved, solver_at


@pytest.fixture
def drawing() -> Simulator:
    made = simulator(SMALL)
    made.dt[0] = 0.2
    return made.eval()


def test_the_truth_moves_as_advection_does(drawing: Simulator) -> None:
    """At speed 1 in a box of length 1 five steps of 0.2 lead back to the start."""
    race = race_of(drawing, TASKS["advection1d"], 2, torch.device("cpu"))
    assert race.steps == 10
    assert float(nrmse(race.window.targets[:, 4], race.window.context[:, 0]).max()) < 1e-5


def test_the_solver_of_the_race_is_the_coarsest_that_is_as_good(drawing: Simulator) -> None:
    race = race_of(drawing, TASKS["advection1d"], 2, torch.device("cpu"))
    cells, error, work = solver_at(race, 10.0)
    assert (cells, error <= 10.0) == (8, True)
    assert work().shape[2] == 8
    worst = nrmse(solved(race.equation, race.draw, race.times, 8, (16,))[:, 1:], race.window.targets).mean()
    assert error == pytest.approx(float(worst))
    assert solver_at(race, 0.0)[0] == 16


def test_all_ratios_are_told_and_written(drawing: Simulator, tmp_path: Path) -> None:
    lines: list[str] = []
    file = drawing.save(tmp_path / "simulator.safetensors")
    bench_rollout(file, None, 2, "cpu", 1, tmp_path / "numbers.json", lines.append)
    written = json.loads((tmp_path / "numbers.json").read_text())
    assert {"laws", "a draw", "over the own solver"} <= written["ratios"].keys()
    assert any(line.startswith("a draw") for line in lines)
    with pytest.raises(ConfigError, match="is not raced"):
        race_of(drawing, TASKS["darcy2d"], 2, torch.device("cpu"))
