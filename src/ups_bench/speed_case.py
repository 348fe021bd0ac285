"""What `ups bench speed` trains: the operator of configs/base-h200.yaml, and large ones; small ones on a processor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ups.config import load
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.heartbeat import Pulse
from ups.run.check import new_simulator
from ups.run.config import RunConfig, run_config
from ups.run.data.outlines import Outline, outlines
from ups.stages import OperatorStage
from ups.tensors import Window
from ups_bench.engine import SameBatch
from ups_bench.rows import home
from ups_bench.turns import TurnSpread

CONFIG = "configs/burgers1d-h200.yaml"


@dataclass(frozen=True)
class Sizes:
    """How much is timed on one kind of device."""

    changes: Mapping[str, Any]  # to CONFIG
    rounds: int
    block: int  # steps that are timed as one
    networks: Mapping[str, Mapping[str, Any]]  # the large operators by core
    cells: int  # along each axis of the large ones' grid
    batch: int  # of the large ones at most
    matrix: int  # rows of the square matrices whose products are the limit
    precision: str  # of the large ones


SIZES = {
    "cuda": Sizes({}, 6, 20, {"transformer": {"size": "large"}, "unet": {"size": "large"}}, 128, 64, 8192, "bf16"),
    # Only to show that all of it runs: nothing that is timed here says anything of a GPU.
    "cpu": Sizes(
        {
            "data.burgers.samples": 40,
            "data.burgers.resolution": 256,
            "model.operator.width": 32,
            "model.operator.depth": 2,
            "operator.batch": 4,
            "operator.train.log_every": 5,
        },
        2,
        2,
        {core: {"width": 32, "depth": 2, "heads": 2, "levels": 1} for core in ("transformer", "unet")},
        32,
        4,
        256,
        "fp32",
    ),
}


@dataclass
class SpeedNumbers:
    """Numbers of a measurement, fit for JSON: ratios with their spread, rates, and where the time of a step goes."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    rates: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)
    what: dict[str, Any] = field(default_factory=dict)  # that was measured: sizes

    def row(self, name: str, ratio: TurnSpread, seen: str) -> None:
        self.rows.append({"name": name, "ratio": ratio.median, "low": ratio.low, "high": ratio.high, "seen": seen})

    def missing(self, name: str, why: str) -> None:
        """A ratio that cannot be measured here."""
        self.rows.append({"name": name, "why": why})

    def add(self, other: SpeedNumbers) -> None:
        self.rows += other.rows
        self.rates |= other.rates
        self.kernels |= other.kernels
        self.what |= other.what


@dataclass(frozen=True)
class SpeedCase:
    """A run of which the operator is trained on random numbers; no data of it are ever made."""

    config: RunConfig
    outline: Outline
    sizes: Sizes

    @property
    def batch(self) -> int:
        return self.config.stage("operator").batch

    def window(self, samples: int, device: torch.device, targets: int = 1) -> Window:
        with device:
            return self.outline.window(samples, self.config.looks_back(self.outline.task), targets)

    def stage(self, device: torch.device) -> OperatorStage:
        settings: Any = self.config.stage("operator")
        stage = OperatorStage(new_simulator(self.config, [self.outline]).to(device), settings)
        stage.fit(self.window(8, device))
        return stage

    def trainer(
        self,
        dist: Dist,
        pulse: Pulse | None = None,
        batch: int | None = None,
        stage: OperatorStage | None = None,
        **changes: Any,
    ) -> Trainer:
        """A trainer with `batch` samples on each rank, by default as many as the config's batch has."""
        size, stage = batch or self.batch, stage or self.stage(dist.device)
        endless = {"steps": 10**6, "seconds": None, "validate_every": 0, "checkpoint_seconds": None}
        train = dataclasses.replace(self.config.stage("operator").train, **{**endless, **changes})
        return Trainer(train, stage, SameBatch(self.window(size, dist.device), size * dist.world), dist, pulse=pulse)

    def words(self) -> str:
        cells = "×".join(map(str, self.outline.shape))
        return f"{self.outline.task.name}, {cells} cells, {self.config.context} frames given"


def small_case(kind: str) -> SpeedCase:
    """The operator of CONFIG and its data."""
    config = load(run_config(), home() / CONFIG, SIZES[kind].changes)
    return SpeedCase(config, outlines(config)[0], SIZES[kind])


def large_case(kind: str, core: str) -> SpeedCase:
    """A large operator with attention on a 2D task of two fields in tokens of 4 × 4 cells."""
    sizes = SIZES[kind]
    settings = {
        "name": "large",
        "data": {"large": {"task": "reacdiff2d", "samples": 64, "resolution": sizes.cells}},
        "model": {"codec": {"dim": 32}, "operator": {"core": core, "mixing": "attention", **sizes.networks[core]}},
        "operator": {
            "batch": sizes.batch,
            "loss": {"increment": 0.0},
            "train": {"steps": 1, "precision": sizes.precision},
        },
    }
    config = run_config().model_validate(settings)
    return SpeedCase(config, outlines(config)[0], sizes)
