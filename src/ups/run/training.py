"""Trains one stage of a run: measures what it needs of the data, builds its windows, and trains it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ups.data.loader import AHEAD, loaded
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.loop import Trainer
from ups.engine.profile import Traced
from ups.engine.randomness import seed_of
from ups.engine.ranks.dist import Dist
from ups.engine.stage import Tracker
from ups.engine.state import TrainingState
from ups.engine.train import Outcome, TrainConfig
from ups.eval.report import Report
from ups.eval.training_facts import DrawCount, StageFact
from ups.heartbeat import Pulse
from ups.models import Simulator
from ups.progress import Screen
from ups.run.config import RunConfig
from ups.run.data.caches import encoded_parts
from ups.run.data.data_identity import Digests, IdentifiedStore, Identity
from ups.run.data.datasets import DataSet
from ups.run.order import OrderTracker, ProvenBatches, drawn, fit_stage, validations_of, windows_of
from ups.rundir import RunDir, RunPlace
from ups.stages import Stage
from ups.types import DataError


@dataclass(frozen=True)
class TrainedStage:
    """How the training of a stage went, and how often it drew each task."""

    outcome: Outcome
    drawn: tuple[DrawCount, ...]

    def facts(self) -> dict[str, Any]:
        """All of it, fit for JSON."""
        return {**self.outcome.facts(), "drawn": [asdict(row) for row in self.drawn]}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> TrainedStage:
        """The inverse of `facts`."""
        outcome = {key: value for key, value in facts.items() if key != "drawn"}
        return cls(Outcome(**outcome), tuple(DrawCount(**row) for row in facts.get("drawn", ())))


def learnt_in(folder: RunDir) -> dict[str, TrainedStage]:
    """How the training of each stage went, as the folder of a run says; a DataError where it does not."""
    try:
        return {name: TrainedStage.of(facts) for name, facts in folder.read(folder.stages).items()}
    except (TypeError, AttributeError) as error:
        raise DataError(f"{folder.stages}: is damaged ({error}); --resume the run to write it again.") from None


def stage_facts(config: RunConfig, simulator: Simulator, outcomes: Mapping[str, Outcome]) -> tuple[StageFact, ...]:
    """What each stage took, whatever stages there were."""
    facts = []
    for name, o in outcomes.items():
        part = simulator.parts[config.stages[name].makes]
        facts.append(StageFact(name, sum(p.numel() for p in part.parameters()), o.steps, o.seconds, o.score))
    return tuple(facts)


def with_training(report: Report, folder: RunDir, config: RunConfig, simulator: Simulator) -> Report:
    """A report with what the run recorded of its stages and its phases, as its own report has it."""
    with suppress(DataError):  # it is not there, or damaged
        outcomes = {name: row.outcome for name, row in learnt_in(folder).items()}
        report = replace(report, stages=stage_facts(config, simulator, outcomes))
    if folder.phases.is_file():
        phases = folder.read(folder.phases)
        if not isinstance(phases, dict) or not all(isinstance(seconds, int | float) for seconds in phases.values()):
            raise DataError(f"{folder.phases}: is not what a run writes; move it away, and the page does without it.")
        report = report.with_phases(tuple(phases.items()))
    return report


@dataclass(frozen=True)
class StageTraining:
    """What all stages of a run are trained with."""

    config: RunConfig
    folder: RunDir
    place: RunPlace  # of the folder
    sets: Sequence[DataSet]
    dist: Dist
    screen: Screen
    identity: Identity
    digests: Digests  # what the data files hold, as all ranks have found it
    trackers: Sequence[Tracker] = ()
    pulse: Pulse | None = None
    traced: int = 0  # steps of which each rank leaves a trace
    limit: int | None = None  # the largest microbatch that an earlier start of this run has found to fit in memory
    apart: Path | None = None  # where the checkpoints of a trial are kept, not among those of the run

    def learn(
        self, stage: Stage, inherited: Collection[str] = (), seconds: float | None = None
    ) -> tuple[TrainedStage, dict[str, Tensor]]:
        """Train a stage; how it went, and where its part was sharded the weights that it has learnt.

        `inherited` are the tasks that its part knew before. `seconds` are those of training, where they are not as its
        config says. All ranks must call this.
        """
        config, dist, name = self.config, self.dist, stage.name
        settings = config.stage(name)
        sets = [data for data in self.sets if stage.learns(data.task)]
        fit_stage(stage, config, sets, dist.device, inherited)
        encoded = encoded_parts(config, self.folder, sets, stage, dist, self.screen, self.pulse)
        state, ahead = TrainingState(), settings.train.prefetch + AHEAD * settings.workers + 1
        validations = validations_of(state, [data.task.name for data in sets], config.mix, ahead)
        windows = windows_of(config, sets, settings, dist, encoded, validations)
        dist.handshake({f"{name} {fact}": value for fact, value in windows.sampler.facts().items()})
        copied = config.second_copy if self.apart is None else None
        second = None if copied is None else self.folder.copies(Path(copied), name)
        place = (self.apart or self.folder.checkpoints(name), dist.rank, dist.world, dist.saver)
        say = self.screen.say
        store = CheckpointStore(*place, say=say, second=second)

        def require_unchanged() -> None:
            if dist.leads:
                self.place.require()
                self.identity.require_unchanged("files")
                for part in encoded:
                    part.require_unchanged()

        with loaded(windows, settings.workers) as built:
            trainer = Trainer(
                seeded(config, name, seconds),
                stage,
                ProvenBatches(built, windows, dist, name, self.trackers),
                dist,
                IdentifiedStore(store, self.digests, say, require_unchanged),
                [*self.trackers, *(OrderTracker(windows.sampler, name, t) for t in self.trackers)],
                self.screen.watch,
                self.pulse,
                limit=self.limit,
                state=state,
                traced=Traced(self.traced, self.folder.profile),
            )
            outcome = trainer.fit()
        learnt = TrainedStage(outcome, tuple(drawn(windows.sampler, name, outcome.steps)))
        if dist.config.strategy != "fsdp":
            trainer.release()
            return learnt, {}
        return learnt, trainer.weights(dist.leads or name != config.plan[-1])


def seeded(config: RunConfig, stage: str, seconds: float | None = None) -> TrainConfig:
    """How a stage is trained, with draws that follow from the run's seed and are no other stage's or run's; for so many
    `seconds` where they are given."""
    train = config.stage(stage).train
    train = train if seconds is None else replace(train, seconds=seconds)
    return replace(train, seed=seed_of(f"{config.seed}|{train.seed}|{stage}".encode()))
