"""Advection and Darcy flow as one balanced job: on 1, 2 and 4 ranks the losses are the same to a part in a million."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ups.cli.app import main

CONFIG = Path(__file__).parents[2] / "configs" / "advection-darcy.yaml"
SMALL = {
    "data.advection.samples": "20",
    "data.advection.resolution": "16",
    "data.advection.reduce.time": "40",
    "data.darcy.samples": "20",
    "data.darcy.resolution": "16",
    "model.operator.width": "16",
    "model.operator.depth": "1",
    "model.operator.heads": "2",
    "model.operator.per_task_layers": "true",
    "codec.batch": "8",
    "codec.train.steps": "6",
    "codec.train.log_every": "1",
    "operator.batch": "8",
    "operator.batches.darcy2d": "5",
    "operator.train.steps": "12",
    "operator.train.log_every": "1",
}


def losses(folder: Path, ranks: int) -> dict[tuple[str, int], float]:
    """By stage and step, the loss of a run on so many ranks."""
    flags = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
    with pytest.raises(SystemExit) as ended:
        main(["run", str(CONFIG), "--out", str(folder), "--name", f"r{ranks}", "--ranks", str(ranks), *flags])
    assert ended.value.code == 0
    rows = [json.loads(line) for line in (folder / f"r{ranks}" / "metrics.jsonl").read_text().splitlines()]
    return {(n, row["step"]): row[f"{n}/loss"] for row in rows for n in ("codec", "operator") if f"{n}/loss" in row}


@pytest.mark.slow
def test_a_balanced_job_of_two_tasks_has_the_same_losses_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone = losses(tmp_path, 1)
    assert len(alone) == 6 + 12
    for ranks in (2, 4):
        together = losses(tmp_path, ranks)
        assert together.keys() == alone.keys()
        for at, loss in alone.items():
            # A codec that begins next to exact has losses of 1e-4 and less: rounding of numbers of size 1 is in them.
            assert math.isclose(together[at], loss, rel_tol=1e-6, abs_tol=1e-9), f"{at} on {ranks} ranks"
    counts = json.loads((tmp_path / "r4" / "stages.json").read_text())["operator"]["drawn"]
    assert {row["task"]: row["steps"] for row in counts} == {"advection1d": 6, "darcy2d": 6}
