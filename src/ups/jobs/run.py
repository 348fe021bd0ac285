"""A run: data → codec → operator → evaluation → report, in one folder that explains itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from ups.config import fingerprint
from ups.data.windows import Windows
from ups.engine.checkpoint import Checkpoints
from ups.engine.dist import Dist
from ups.engine.loop import Stage, Trainer
from ups.engine.train import Outcome
from ups.eval.report import Report
from ups.jobs.judge import judge
from ups.jobs.sets import DataSet, Screen, opened, windows_of
from ups.jobs.settings import RunConfig, StageConfig
from ups.models import Simulator, build
from ups.rundir import RunDir
from ups.stages import CodecStage, OperatorStage
from ups.tracking.jsonl import Jsonl
from ups.types import ConfigError


def run(config: RunConfig, screen: Screen, *, resume: bool = False, overwrite: bool = False) -> tuple[RunDir, Report]:
    """Make or open the data, train the stages, judge the result, write the report."""
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    folder = RunDir.open(Path(config.out) / config.name, config, resume=resume, overwrite=overwrite)
    with folder, Dist.start(config.device) as dist, ExitStack() as stack:
        place = folder.cache("data")
        sets = [stack.enter_context(opened(data, place, screen.following)) for data in config.data.values()]
        simulator = fresh(config, sets)
        trackers = [Jsonl(folder.metrics, screen.say)]
        budget: dict[str, Outcome] = {}
        stages: list[tuple[Stage, StageConfig]] = [
            (CodecStage(simulator.codec, config.codec.loss), config.codec),
            (OperatorStage(simulator, config.operator.loss), config.operator),
        ]
        for stage, settings in stages:
            simulator.codec.requires_grad_(stage.name == "codec")
            windows = windows_of(config, sets, settings)
            if stage.name == "operator":
                _fit_increments(simulator, windows, dist.device)
            store = Checkpoints(folder.checkpoints(stage.name), say=screen.say)
            budget[stage.name] = Trainer(settings.train, stage, windows, dist, store, trackers, screen.watch).fit()
        simulator.save(folder.artifact("simulator"), {"config": fingerprint(config), "seed": config.seed})
        report = judge(config, simulator, sets, budget, dist.device, screen)
        report.write(folder.folder)
        folder.succeed(stages={name: outcome.facts() for name, outcome in budget.items()})
        return folder, report


def fresh(config: RunConfig, sets: Sequence[DataSet]) -> Simulator:
    """A simulator with new weights that knows the statistics of its training data."""
    parts = [data.part("train") for data in sets]
    tasks = [part.task for part in parts]
    grids = {part.task.name: part.shape for part in parts}
    model = config.model
    simulator = build(tasks, model.codec, model.operator, model.simulator, grids, config.seed)
    for part in parts:
        simulator.codec.fit_statistics(part.task, *part.statistics())
        simulator.operator.fit_ranges(part.task.name, part.params.amin(0), part.params.amax(0))
        simulator.fit_dt(part.task, part.dt, part.dt)
    return simulator


@torch.no_grad()
def _fit_increments(simulator: Simulator, windows: Windows, device: torch.device) -> None:
    """Tell the operator how much the tokens of each task change in one step, from one batch of each."""
    simulator.to(device)
    for i, part in enumerate(windows.train):
        window = windows.batch(i).to(device)
        ahead = simulator.codec.encode(window.targets[:, 0], part.task, window.periodic).z
        change = ahead - simulator.codec.encode(window.state, part.task, window.periodic).z
        simulator.operator.fit_increments(part.task.name, change.square().mean().sqrt())
