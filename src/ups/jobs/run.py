"""A run: data → codec → operator → evaluation → report, in one folder that explains itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ups.config import fingerprint
from ups.data.loader import loaded
from ups.data.windows import spread
from ups.engine.dist import Dist
from ups.engine.loop import Trainer
from ups.engine.stage import Tracker
from ups.engine.train import Outcome
from ups.engine.vault import Vault
from ups.eval.baselines import require
from ups.eval.report import Report
from ups.heartbeat import Pulse
from ups.jobs.cache import encoded_parts
from ups.jobs.judge import judge
from ups.jobs.load import load
from ups.jobs.order import Order, listening
from ups.jobs.sets import DataSet, Screen, opened, windows_of
from ups.jobs.settings import RunConfig, StageConfig
from ups.models import Simulator, build
from ups.models.inherit import inherit
from ups.rundir import RunDir
from ups.stages import CodecStage, OperatorStage
from ups.tracking.jsonl import Jsonl
from ups.types import ConfigError


@dataclass(frozen=True)
class Plan:
    """One stage of a run: its object, made around a simulator, and how it is trained."""

    make: Callable[[Simulator, RunConfig], CodecStage | OperatorStage]
    settings: Callable[[RunConfig], StageConfig]


# In the order in which they are learnt; each is a part of the simulator of the same name.
STAGES: dict[str, Plan] = {
    "codec": Plan(lambda simulator, c: CodecStage(simulator.codec, c.codec.loss), lambda c: c.codec),
    "operator": Plan(lambda simulator, c: OperatorStage(simulator, c.operator.loss), lambda c: c.operator),
}


def run(config: RunConfig, screen: Screen, *, resume: bool = False, overwrite: bool = False) -> tuple[RunDir, Report]:
    """Make or open the data, train the stages, judge the result, write the report; all in this process."""
    folder = open_run(config, resume=resume, overwrite=overwrite)
    with folder:
        prepare(config, folder, screen)
        with Dist.start(config.device, config.dist) as dist:
            train(config, folder, screen, dist)
        report = assess(config, folder, screen)
        folder.succeed(stages=folder.read(folder.stages))
        return folder, report


def open_run(config: RunConfig, *, resume: bool = False, overwrite: bool = False) -> RunDir:
    """The run's folder, held by this process until it is closed."""
    if not config.data:
        raise ConfigError("the config names no data; add a data set under `data:`.")
    if config.evaluation.baselines:
        require()
    known = {data.task for data in config.data.values()}
    for task in config.evaluation.unseen:
        if task not in known:
            raise ConfigError(f"evaluation.unseen names {task}, which no data set holds; it is one of {sorted(known)}.")
    return RunDir.open(Path(config.out) / config.name, config, resume=resume, overwrite=overwrite)


def prepare(config: RunConfig, folder: RunDir, screen: Screen) -> None:
    """Make the data that no file holds yet, and open all of them once: what is wrong with them is said now."""
    with ExitStack() as stack:
        for data in config.data.values():
            stack.enter_context(opened(data, folder.cache("data"), screen.following))


def train(
    config: RunConfig,
    folder: RunDir,
    screen: Screen,
    dist: Dist,
    pulse: Pulse | None = None,
    limit: int | None = None,
) -> None:
    """Train the stages one after the other on all ranks; rank 0 writes what each learnt, and the simulator.

    `limit` is the largest microbatch that an earlier start of this run has found to fit in memory.
    """
    with ExitStack() as stack:
        place = folder.cache("data")
        sets = [stack.enter_context(opened(data, place, screen.following)) for data in config.data.values()]
        dist.handshake({"config of the run": fingerprint(config), "data": [data.fact().version for data in sets]})
        trackers = [Jsonl(folder.metrics, screen.say)] if dist.leads else []
        learnt: dict[str, Tensor] = {}
        outcomes: dict[str, Outcome] = {}
        for name, plan in STAGES.items():
            simulator, settings = fresh(config, sets, learnt), plan.settings(config)
            stage = plan.make(simulator.to(dist.device), config)
            _fit(stage, config, sets, settings, dist)
            encoded = encoded_parts(config, folder, sets, stage, dist, screen, pulse)
            windows = windows_of(config, sets, settings, dist, encoded)
            dist.handshake({f"{name} {fact}": value for fact, value in windows.sampler.facts().items()})
            store = Vault(folder.checkpoints(name), dist.rank, dist.world, dist.saver, say=screen.say)
            batches = stack.enter_context(loaded(windows, settings.workers))
            told: list[Tracker] = [*trackers, *(Order(windows.sampler, name, tracker) for tracker in trackers)]
            trainer = Trainer(settings.train, stage, batches, dist, store, told, screen.watch, pulse, limit=limit)
            windows.sampler.heard = listening(trainer, windows.sampler, settings.workers)
            outcomes[name] = trainer.fit()
            learnt |= {f"{name}.{key}": value for key, value in trainer.weights().items()}
        if dist.leads:
            facts = {"config": fingerprint(config), "seed": config.seed, "steps": outcomes["operator"].steps}
            fresh(config, sets, learnt).save(folder.artifact("simulator"), facts)
            folder.write(folder.stages, {name: outcome.facts() for name, outcome in outcomes.items()})
        dist.barrier()


def assess(config: RunConfig, folder: RunDir, screen: Screen) -> Report:
    """Judge the simulator that training left, and write the report."""
    outcomes = {name: Outcome(**facts) for name, facts in folder.read(folder.stages).items()}
    with ExitStack() as stack, Dist.alone(config.device) as dist:
        place = folder.cache("data")
        sets = [stack.enter_context(opened(data, place, screen.following)) for data in config.data.values()]
        simulator = Simulator.load(folder.artifact("simulator"), dist.device)
        report = judge(config, simulator, sets, outcomes, dist.device, screen)
        report.write(folder.folder)
    return report


def fresh(config: RunConfig, sets: Sequence[DataSet], learnt: Mapping[str, Tensor]) -> Simulator:
    """A simulator that knows the statistics of its training data; its weights are new, or those `learnt` so far."""
    parts = [data.part("train") for data in sets]
    tasks = [part.task for part in parts]
    grids = {part.task.name: part.shape for part in parts}
    model = config.model
    simulator = build(tasks, model.codec, model.operator, model.simulator, grids, config.seed)
    for part in parts:
        simulator.codec.fit_statistics(part.task, *part.statistics())
        if part.task.inputs:
            given = part.inputs.flatten(0, -2)
            simulator.operator.fit_inputs(part.task.name, given.mean(0), given.std(0))
        simulator.operator.fit_ranges(part.task.name, part.params.amin(0), part.params.amax(0))
        simulator.fit_dt(part.task, part.dt, part.dt)
    if config.start_from is not None:
        inherit(simulator, load(config.start_from))
    simulator.load_state_dict({**simulator.state_dict(), **learnt}, strict=True)
    return simulator


def _fit(
    stage: CodecStage | OperatorStage, config: RunConfig, sets: Sequence[DataSet], settings: StageConfig, dist: Dist
) -> None:
    """Tell a stage how much its tasks change in one step, from windows of all over each, the same on every rank.

    What a simulator to start from was told stays: its answers are in units of that.
    """
    known = load(config.start_from).codec.tasks if config.start_from is not None else {}
    kept = {name: value.clone() for name, value in stage.module.state_dict().items()}
    for data in sets:
        stage.fit(spread(data.part("train"), config.model.operator.context, settings.unroll).to(dist.device))
    if "scale" in kept and isinstance(stage, OperatorStage):
        for name in known:
            if name in stage.operator.conditioner.index:
                row = stage.operator.conditioner.index[name]
                stage.operator.scale[row] = kept["scale"][row]
