"""A tiny row of `ups bench accuracy`, its run in this process, and entries of a ledger."""

from __future__ import annotations

import pytest

from ups.eval.report import Report
from ups.pages import Page
from ups.progress import Screen
from ups.run.config import RunConfig
from ups.run.run import finish_alone
from ups.run.start import Start
from ups.verdict import Ending
from ups_bench.accuracy import Way
from ups_bench.ledger import LedgerEntry, sealed
from ups_bench.rows import BenchRow

TINY = """
device: cpu
data:
  row: {task: advection1d, samples: 20, resolution: 64, device: cpu, store: {time: 20, space: 2}}
model:
  codec: {dim: 8}
  operator: {context: 2, width: 16, depth: 1, heads: 2, modes: 4}
codec: {batch: 8, train: {steps: 2}}
operator: {batch: 8, loss: {increment: 0.0}, train: {seconds: 1, validate_every: 1.0}}
evaluation: {zero_shot: [2], horizon: 2, unseen: {advection1d: [{beta: 0.7}]}, samples: 2}
"""


def in_this_process(config: RunConfig, way: Way) -> Ending:
    """Without pictures, which take longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "page", lambda self, rows=(): Page("no pictures", "", []))  # noqa: ARG005
        start = Start(resume=way == "resume", overwrite=way == "overwrite")
        return finish_alone(config, Screen.silent(), start)[1].ending


def never(config: RunConfig, way: Way) -> Ending:
    raise AssertionError((config.name, way))


FACTS = {
    "row": "tiny/first",
    "kind": "full",
    "run": "r0",
    "seed": 0,
    "minutes": 2.0,
    "protocol": "A",
    "recipe": "0123456789abcdef",
    "config": "fedcba9876543210",
    "commit": None,
    "changed": None,
    "source": "",
    "started": "2026-01-01T00:00:00+0000",
    "command": "ups bench accuracy tiny/first",
    "hardware": "a GPU",
    "device": "cuda:0",
    "cores": 16,
    "versions": {"torch": "2.11"},
    "data": [{"task": "t", "train": 8, "valid": 1, "test": 1, "grid": [64, 64], "frames": 21, "sha256": {"f": "00"}}],
    "stages": {"operator": {"steps": 10, "seconds": 120.0}},
    "predictors": {"ups": {"steps": 10, "seconds": 120.0, "params": 1000}},
    "numbers": [{"task": "t", "predictor": "ups", "metric": "nrmse", "value": 0.1, "low": 0.09, "high": 0.11, "n": 1}],
    "phases": {"data": 3.0},
    "published": {"retuned": 0.2},
}


def entry(**changes: object) -> LedgerEntry:
    return sealed({**FACTS, **changes})


def alone(row: BenchRow) -> tuple[dict[str, BenchRow], str]:
    """A row as the only one there is, and its name."""
    return {row.name: row}, row.name
