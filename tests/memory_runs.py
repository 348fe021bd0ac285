"""Folders that look like runs, written in milliseconds: with the files that a run leaves, in its own formats."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ups.eval.intervals import strict
from ups.eval.trajectories import PerTrajectory, write
from ups.rundir import RunDir
from ups.verdict import Ending, Verdict

SETTINGS: dict[str, Any] = {
    "seed": 0,
    "plan": ["codec", "operator"],
    "data": {"a": {"task": "advection1d"}},
    "codec": {"batch": 4, "train": {"steps": 20, "seconds": None, "lr": 1e-3}},
    "operator": {"batch": 4, "train": {"steps": 600, "seconds": None, "lr": 1e-3}},
}


def begun(folder: Path, **changes: Any) -> RunDir:
    """A run that has its folder and nothing else; changes of its settings with __ for dots."""
    folder.mkdir(parents=True)
    settings = json.loads(json.dumps({"name": folder.name, **SETTINGS}))
    for key, value in changes.items():
        group, *names = key.split("__")
        node = settings
        for name in names:
            node, group = node.setdefault(group, {}), name
        node[group] = value
    run = RunDir(folder)
    run.config.write_text(yaml.safe_dump(settings, sort_keys=False))
    facts = {"fingerprint": "f" * 16, "run": "r", "started": "2026-01-01T00:00:00+0000", "device": "cpu"}
    run.environment.write_text(json.dumps(facts))
    run.lock.touch()
    return run


def logged(run: RunDir, stage: str, steps: Sequence[int], losses: Sequence[float] | None = None) -> None:
    """Rows of its log."""
    with run.metrics.open("a") as file:
        for step, loss in zip(steps, losses or [1 / (1 + step) for step in steps], strict=True):
            row = {
                "step": step,
                "time": round(time.time(), 3),
                f"{stage}/loss": loss,
                f"{stage}/samples_per_second": 9.0,
            }
            file.write(json.dumps(row) + "\n")


def ended(run: RunDir, ending: Ending, cause: str = "done.") -> None:
    Verdict(ending, cause).write(run.verdict)


def judged(run: RunDir, errors: Mapping[str, Any], exam: str = "x") -> None:
    """Errors of every trajectory, by task; `exam` tells trajectories of one test part from those of another."""
    rows = []
    for task, values in errors.items():
        for predictor, scale in (("ups", 1.0), ("persistence", 10.0)):
            values = np.asarray(values) * scale
            mean, names = strict("nrmse", values, "A"), tuple(map(str, range(len(values))))
            marks = tuple(f"{task}-{exam}-{name}" for name in names)
            what = (task, "test", predictor, "A", mean.value, mean.low, mean.high)
            rows.append(PerTrajectory(*what, names, marks, tuple(map(float, values))))
    write(run.folder, rows)


def validated(run: RunDir, errors: Mapping[str, float]) -> None:
    """What its stages took, and the validation errors of its operator."""
    history = [{"step": 600, "loss": 0.1, **{f"{task} nRMSE": value for task, value in errors.items()}}]
    operator = {"seconds": 10.0, "best_step": 600, "history": history}
    run.stages.write_text(json.dumps({"codec": {"seconds": 2.0}, "operator": operator}))


def finished(folder: Path, errors: Mapping[str, Any] | None = None, exam: str = "x", **changes: Any) -> RunDir:
    """A run that has ended well, with its errors, which are the same on validation and test trajectories."""
    run = begun(folder, **changes)
    logged(run, "codec", (10, 20))
    logged(run, "operator", (200, 400, 600))
    run.artifact("simulator").parent.mkdir()
    run.artifact("simulator").touch()
    errors = {"advection1d": [0.1, 0.2, 0.3, 0.2]} if errors is None else errors
    validated(run, {task: float(np.mean(values)) for task, values in errors.items()})
    judged(run, errors, exam)
    ended(run, Ending.SUCCESS)
    return run
