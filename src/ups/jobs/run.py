"""A run: data → codec → operator → evaluation → report, in one folder that explains itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ups.config import dump, fingerprint
from ups.data import Source, open_source
from ups.data.splits import Split, make_split
from ups.data.windows import Trajectories, Windows, whole
from ups.engine.checkpoint import Checkpoints
from ups.engine.dist import Dist
from ups.engine.loop import Stage, Trainer
from ups.engine.train import Outcome, Progress
from ups.eval.baselines import BaselineConfig, NeuralOpBaseline
from ups.eval.report import Cost, DataFact, Entry, Report, TaskResult
from ups.eval.rollout import EvalProtocol, evaluate, persistence, protocol, reconstruct
from ups.jobs.generate import Report as Following
from ups.jobs.generate import generate
from ups.jobs.settings import DataConfig, GenerateConfig, RunConfig, StageConfig
from ups.models import Simulator, build
from ups.physics import TASKS
from ups.rundir import RunDir
from ups.stages import CodecStage, OperatorStage
from ups.stages.operator import condition_of
from ups.tensors import Window
from ups.tracking.jsonl import Jsonl
from ups.types import ConfigError

Say = Callable[[str], None]
Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Screen:
    """Where a run shows what it does: sentences, the making of data, the progress of training."""

    say: Say
    following: Following
    watch: Watch


@dataclass
class DataSet:
    """One task's trajectories, cut in three."""

    config: DataConfig
    source: Source
    split: Split

    def part(self, name: str) -> Trajectories:
        return Trajectories(self.source, self.split.part(name), self.config.reduce)

    def fact(self) -> DataFact:
        made = self.source.attributes().get("ups_identity")
        version = str(made) if made is not None else f"{self.source.path.stat().st_size} bytes"
        counts = f"{len(self.split.train)} / {len(self.split.valid)} / {len(self.split.test)}"
        grid = " × ".join(str(n // self.config.reduce.space) for n in self.source.domain.shape)
        params = ", ".join(f"{k} = {v}" for k, v in self.source.params.items())
        frames = len(self.source.times[self.config.reduce.start :: self.config.reduce.time])
        return DataFact(self.source.task.name, self.source.path.name, version, counts, grid, frames, params)


class SimulatorPredictor:
    """A simulator as a predictor."""

    name = "ups"

    def __init__(self, simulator: Simulator, device: torch.device) -> None:
        self.simulator, self.device = simulator.to(device).eval(), device

    @torch.no_grad()
    def predict(self, window: Window, steps: int) -> torch.Tensor:
        window = window.to(self.device)
        return self.simulator.simulate(window.context, steps, condition_of(window)).cpu()

    @torch.no_grad()
    def coded(self, frames: torch.Tensor, window: Window) -> torch.Tensor:
        """Frames `(B, *S, C)` through the codec alone."""
        state = self.simulator.codec.encode(frames.to(self.device), window.task, window.periodic)
        return self.simulator.codec.decode(state, window.task, tuple(frames.shape[1:-1])).cpu()


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
            windows = _windows(config, sets, settings)
            if stage.name == "operator":
                _fit_increments(simulator, windows, dist.device)
            store = Checkpoints(folder.checkpoints(stage.name), say=screen.say)
            budget[stage.name] = Trainer(settings.train, stage, windows, dist, store, trackers, screen.watch).fit()
        simulator.save(folder.artifact("simulator"), {"config": fingerprint(config), "seed": config.seed})
        report = judge(config, simulator, sets, budget, dist.device, screen)
        report.write(folder.folder)
        folder.succeed(stages={name: outcome.facts() for name, outcome in budget.items()})
        return folder, report


@contextmanager
def opened(data: DataConfig, folder: Path, following: Following) -> Iterator[DataSet]:
    """The data set of a config, its file made first where the config names none."""
    if data.file:
        path = Path(data.file)
    else:
        keys = set(GenerateConfig.model_fields)
        path = generate(GenerateConfig.model_validate(data.model_dump(include=keys)), folder, following)
    with open_source(path, TASKS, data.task if data.file else None) as source:
        yield DataSet(data, source, make_split(source.ids, data.split.convention, data.split.fractions, data.seed))


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


def _windows(config: RunConfig, sets: Sequence[DataSet], settings: StageConfig) -> Windows:
    train, valid = ([data.part(name) for data in sets] for name in ("train", "valid"))
    context = config.model.operator.context
    return Windows(train, valid, settings.batch, context, settings.unroll, config.seed)


@torch.no_grad()
def _fit_increments(simulator: Simulator, windows: Windows, device: torch.device) -> None:
    """Tell the operator how much the tokens of each task change in one step, from one batch of each."""
    simulator.to(device)
    for i, part in enumerate(windows.train):
        window = windows.batch(i).to(device)
        ahead = simulator.codec.encode(window.targets[:, 0], part.task, window.periodic).z
        change = ahead - simulator.codec.encode(window.state, part.task, window.periodic).z
        simulator.operator.fit_increments(part.task.name, change.square().mean().sqrt())


def judge(
    config: RunConfig,
    simulator: Simulator,
    sets: Sequence[DataSet],
    budget: Mapping[str, Outcome],
    device: torch.device,
    screen: Screen,
) -> Report:
    """Whole rollouts on the test part of every task, beside persistence and the baselines asked for."""
    asked = protocol(config.evaluation.protocol, config.model.operator.context)
    numbers = sum(p.numel() for p in simulator.parameters())
    seconds, steps = sum(o.seconds for o in budget.values()), sum(o.steps for o in budget.values())
    cost = Cost(numbers, steps, seconds, str(device))
    ours = SimulatorPredictor(simulator, device)
    results = []
    for data in sets:
        test = data.part("test")

        def windows(test: Trajectories = test) -> Iterator[Window]:
            return whole([test], asked.context)

        results.append(
            TaskResult(
                ours=Entry(evaluate(ours, windows(), asked), cost),
                persistence=Entry(evaluate(persistence, windows(), asked)),
                baselines=tuple(
                    _baseline(kind, config, data, windows, asked, seconds / len(sets), screen)
                    for kind in config.evaluation.baselines
                ),
                reconstruction=Entry(reconstruct(ours.coded, windows(), asked), cost),
            )
        )
    facts = tuple(data.fact() for data in sets)
    return Report(config.name, tuple(results), dump(config), fingerprint(config), config.seed, facts)


def _baseline(
    kind: Literal["fno", "uno"],
    config: RunConfig,
    data: DataSet,
    windows: Callable[[], Iterator[Window]],
    asked: EvalProtocol,
    seconds: float,
    screen: Screen,
) -> Entry:
    """A network of neuraloperator trained on one task for the same time, judged on the same windows."""
    network = NeuralOpBaseline(data.source.task, asked.context, BaselineConfig(kind=kind))
    batches = _windows(config, [data], config.operator)
    network.fit(whole(batches.train, asked.context))
    train = dataclasses.replace(config.operator.train, steps=None, seconds=max(seconds, 1.0), lr=1e-3)
    with Dist.start(config.device) as dist:
        outcome = Trainer(train, network, batches, dist, report=screen.watch).fit()
        evaluation = evaluate(network.to("cpu"), windows(), asked)
    return Entry(evaluation, Cost(network.parameter_count, outcome.steps, outcome.seconds, str(dist.device)))
