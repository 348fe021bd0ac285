"""A run: data → codec → operator → evaluation → report, in one folder that explains itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from ups.config import fingerprint
from ups.data.loader import loaded
from ups.data.windows import spread
from ups.engine.dist import Dist, device_of
from ups.engine.loop import Trainer
from ups.engine.stage import Tracker
from ups.engine.train import Outcome
from ups.engine.vault import Vault
from ups.eval.baselines import require
from ups.eval.report import Drawn, Report
from ups.heartbeat import Pulse
from ups.jobs.cache import encoded_parts
from ups.jobs.judge import judge
from ups.jobs.load import load
from ups.jobs.order import Order, Proven, drawn, listening
from ups.jobs.plan import check
from ups.jobs.sets import DataSet, Screen, opened, windows_of
from ups.jobs.settings import RunConfig, StageConfig
from ups.models import Simulator, build
from ups.models.inherit import inherit
from ups.rundir import RunDir
from ups.stages import CodecStage, OperatorStage
from ups.tracking.jsonl import Jsonl


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
LAST = list(STAGES)[-1]


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
    """The run's folder, held by this process until it is closed; none is made for a run that could not be finished."""
    if config.evaluation.baselines:
        require()
    check(config)
    return RunDir.open(Path(config.out) / config.name, config, resume=resume, overwrite=overwrite)


def prepare(config: RunConfig, folder: RunDir, screen: Screen) -> None:
    """Make the data that no file holds yet, and open all of them once: what is wrong with them is said now."""
    device_of(config.device)
    with ExitStack() as stack:
        for data in config.data.values():
            # The other parts are read before the first step, this one only after the last.
            stack.enter_context(opened(data, folder.cache("data"), screen.following)).part("test")


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
        rows: dict[str, list[Drawn]] = {}
        for name, plan in STAGES.items():
            settings, stage = plan.settings(config), staged(name, config, sets, learnt, dist)
            _fit(stage, config, sets, settings, dist)
            encoded = encoded_parts(config, folder, sets, stage, dist, screen, pulse)
            windows = windows_of(config, sets, settings, dist, encoded)
            dist.handshake({f"{name} {fact}": value for fact, value in windows.sampler.facts().items()})
            store = Vault(folder.checkpoints(name), dist.rank, dist.world, dist.saver, say=screen.say)
            built = stack.enter_context(loaded(windows, settings.workers))
            batches = Proven(built, windows, dist, name, trackers)
            told: list[Tracker] = [*trackers, *(Order(windows.sampler, name, tracker) for tracker in trackers)]
            trainer = Trainer(settings.train, stage, batches, dist, store, told, screen.watch, pulse, limit=limit)
            batches.trainer = trainer
            windows.sampler.validations = listening(trainer, windows.sampler, settings.workers)
            outcomes[name] = trainer.fit()
            rows[name] = drawn(windows.sampler, name, outcomes[name].steps)
            learnt |= {f"{name}.{key}": value for key, value in trainer.weights(dist.leads or name != LAST).items()}
        if dist.leads:
            facts = {"config": fingerprint(config), "seed": config.seed, "steps": outcomes["operator"].steps}
            fresh(config, sets, learnt).save(folder.artifact("simulator"), facts)
            kept = {name: {**o.facts(), "drawn": [asdict(row) for row in rows[name]]} for name, o in outcomes.items()}
            folder.write(folder.stages, kept)
        dist.barrier()


def assess(config: RunConfig, folder: RunDir, screen: Screen) -> Report:
    """Judge the simulator that training left, and write the report."""
    kept = folder.read(folder.stages)
    outcomes = {n: Outcome(**{k: v for k, v in facts.items() if k != "drawn"}) for n, facts in kept.items()}
    with ExitStack() as stack, Dist.alone(config.device) as dist:
        place = folder.cache("data")
        sets = [stack.enter_context(opened(data, place, screen.following)) for data in config.data.values()]
        simulator = Simulator.load(folder.artifact("simulator"), dist.device)
        report = judge(config, simulator, sets, outcomes, dist.device, screen)
        report.write(folder.folder)
    return report


def staged(
    name: str, config: RunConfig, sets: Sequence[DataSet], learnt: Mapping[str, Tensor], dist: Dist
) -> CodecStage | OperatorStage:
    """The stage of that name around a simulator, of which this rank holds what it needs.

    Earlier parts are whole on the device. What is to be sharded is whole on rank 0 alone, in host memory, and without
    memory on the others: were it made on each, a machine with eight ranks would need eight times the room, and drawing
    each tensor where it goes would give other weights than one process draws.
    """
    parts, sharded = list(STAGES), dist.config.strategy == "fsdp"
    before, rest = parts[: parts.index(name)], parts[parts.index(name) :]
    simulator = fresh(config, sets, learnt, rest if sharded and not dist.leads else ())
    for part in before if sharded else parts:
        getattr(simulator, part).to(dist.device)
    return STAGES[name].make(simulator, config)


def fresh(
    config: RunConfig, sets: Sequence[DataSet], learnt: Mapping[str, Tensor], empty: Collection[str] = ()
) -> Simulator:
    """A simulator that knows the statistics of its training data; its weights are new, or those `learnt` so far.

    The parts named in `empty` have shapes and no memory.
    """
    parts = [data.part("train") for data in sets]
    tasks = [part.task for part in parts]
    grids = {part.task.name: part.shape for part in parts}
    model = config.model
    simulator = build(tasks, model.codec, model.operator, model.simulator, grids, config.seed, empty)
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
    """Tell an operator how much its tasks change in one step, from windows of all over each, the same on every rank.

    What a simulator to start from was told stays: its answers are in units of that.
    """
    if not isinstance(stage, OperatorStage):
        return
    operator, known = stage.operator, load(config.start_from).codec.tasks if config.start_from is not None else {}
    for data in sets:
        part = data.part("train")
        row = operator.conditioner.index[part.task.name]
        kept = operator.scale[row].clone()
        stage.fit(spread(part, config.model.operator.context, settings.unroll).to(dist.device))
        if part.task.name in known:
            operator.scale[row] = kept
