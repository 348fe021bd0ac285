"""Run folders made up for trackers: rows, products and an ending, without a training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ups.metrics_log import Jsonl
from ups.rundir import RunDir
from ups.verdict import Ending, Verdict
from ups_fleet.tracking.delivery import write_settings
from ups_fleet.tracking.settings import TrackingConfig

ID = "0123456789ab"
CONFIG = {"name": "shown", "seed": 3, "operator": {"train": {"lr": 1e-3}}}


def made_up(folder: Path, names: Iterable[str], **settings: Any) -> RunDir:
    """The folder of a run that has begun."""
    run = RunDir(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run.config.write_text(json.dumps(CONFIG))
    run.environment.write_text(json.dumps({"run": ID, "fingerprint": "f", "versions": {"torch": "9.9"}}))
    write_settings(folder, TrackingConfig.model_validate({"to": list(names), **settings}))
    return run


def log(run: RunDir, steps: Iterable[int], stage: str = "codec", factor: float = 1.0, **values: float | str) -> None:
    """Rows as a training writes them: a loss at every step, and a validation beside every second one."""
    rows = Jsonl(run.folder)
    for step in steps:
        rows.log(step, {f"{stage}/loss": factor * step, **{f"{stage}/{name}": value for name, value in values.items()}})
        if step % 2 == 0:
            rows.log(step, {f"{stage}/validation/score": -factor * step})
    rows.close()


def end(run: RunDir, ending: Ending, products: bool = True) -> None:
    """What a run leaves behind when it ends."""
    if products:
        run.report.write_text("<html>the report</html>")
        numbers = {"task": "burgers1d", "split": "test", "axis": "", "predictor": "ups", "mode": "strict"}
        run.results.write_text(json.dumps([{**numbers, "metric": "nrmse", "value": 0.125}]))
        run.stages.write_text(json.dumps({"codec": {"score": 0.5, "steps": 8, "seconds": 1.5}}))
        run.artifact("simulator").parent.mkdir(exist_ok=True)
        run.artifact("simulator").write_bytes(b"weights")
    Verdict(ending, "because.", time="then").write(run.verdict)


def curve(steps: Iterable[int], factor: float = 1.0) -> list[tuple[int, float]]:
    return [(step, factor * step) for step in steps]


def labels() -> Mapping[str, Any]:
    return {"project": "burgers", "group": "sweep-3", "job_type": "train", "tags": ["a", "b"], "notes": "a try"}
