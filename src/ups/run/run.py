"""Run: owns config, folder, data sets, simulator and trackers; prepare → dry run → train, then its conclusion."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType

from ups.config import fingerprint, load
from ups.engine.checkpoint.manifest import newest_whole
from ups.engine.preemption import STOP
from ups.engine.ranks.dist import Dist, device_of
from ups.eval.baselines import require as require_baselines
from ups.eval.report import Report
from ups.heartbeat import Pulse
from ups.metrics_log import Jsonl
from ups.models import Simulator
from ups.models.config import FORECASTER
from ups.models.inherit import inherit, rebuilt
from ups.progress import Screen
from ups.run.allowance import Allowance, Waiting
from ups.run.check import check, new_simulator, parts_of
from ups.run.config import RunConfig, run_config
from ups.run.data.data_identity import Identity, files_of
from ups.run.data.datasets import DataSet, aligned, fetch_data, open_sets
from ups.run.data.statistics import keep_statistics, statistics_of
from ups.run.dry_run import dry_run, no_dry_run, worth_trying
from ups.run.journal import PhaseJournal, record_check
from ups.run.judging.calibrate import trust_of
from ups.run.judging.champion import Champion
from ups.run.judging.conclusion import UNCHANGED, AfterTraining, Finish, paused, require_inputs, trained
from ups.run.judging.judge import judge
from ups.run.load import load as load_simulator
from ups.run.phases import Phases
from ups.run.preflight import look_ahead, prepare_data
from ups.run.race import sized, stage_of
from ups.run.rank_place import Alone as Alone
from ups.run.rank_place import RankPlace
from ups.run.start import ANEW, Start
from ups.run.training import StageTraining, TrainedStage, learnt_in, stage_facts
from ups.run.trials import Trials, trials_in
from ups.rundir import RunDir, RunPlace
from ups.wings import Opening, around, opening


class Run:
    """A run from its folder to its report, the same in one process, in a rank and in the supervisor's hands.

    As a context it closes what it has opened.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunDir,
        screen: Screen,
        start: Start = ANEW,
    ) -> None:
        self.config, self.folder, self.screen = config, folder, screen
        self.start, self.span = start, start.span
        self.journal = PhaseJournal(folder.journal)
        self.identity, self.place = Identity(folder, screen.say, config.home), RunPlace(folder.folder)
        self.phases = Phases.since(start.began)
        if start.before[1]:
            self.phases.before(*start.before)
        self.trackers: list[Jsonl] = []  # the log, in the process that writes it
        self.simulator: Simulator | None = None  # once it is trained
        self._opened = ExitStack()

    @classmethod
    def open(
        cls,
        config: RunConfig,
        screen: Screen | None = None,
        start: Start = ANEW,
    ) -> Run:
        """A run in its folder, which this process holds; none is made for a run that could not be finished."""
        began, resume, overwrite, force = time.perf_counter(), start.resume, start.overwrite, start.force
        require_baselines(config.evaluation.baselines)
        screen, place = screen or Screen.silent(), Path(config.out) / config.name
        opened = opening(Opening(config, place, screen.say, resume=resume, overwrite=overwrite))
        fetch_data(config.data, screen.following)
        if resume and (force or RunDir(place).is_of(config)):
            RunDir(place).require_own_files()
            Identity(RunDir(place), screen.say, config.home).require_unchanged()
        require_inputs(start.span, RunDir(place))
        check(config, begun=resume)
        folder = RunDir.open(place, config, resume=resume, overwrite=overwrite, force=force)
        if folder.differences:
            screen.say(f"{place}: goes on with another config ({', '.join(folder.differences)}) and is judged anew.")
        run = cls(config, folder, screen, start)
        opened(place)
        record_check(run.journal, began, lambda words: screen.say(f"{place}: {words}"))
        return run

    @classmethod
    def join(cls, folder: Path, screen: Screen, start: Start = ANEW) -> Run:
        """The run of a folder that another process has opened, for one of its ranks."""
        place = RunDir.at(folder)
        return cls(load(run_config(), place.job), place, screen, start)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self.trackers:
            self.trackers.pop().close()
        self._opened.close()

    def carry_out(self, seat: RankPlace, *, always: bool = False) -> Finish | None:
        """This process's part of the run. Returns how the run ended on the rank that concludes it, None on others.
        `always`: the simulator is judged also where that was done before."""
        if seat.rank:
            self.journal = PhaseJournal(None)
        if not self.span.ends_before("data"):
            seat.prepared(self.prepare)
        if not self.span.ends_before("dry-run"):
            seat.pulse.beat("start")
            with Dist.start(self.config.device, self.config.dist) as dist:
                dist.control.waiting = seat.pulse.wait
                if self._to_train(dist):
                    self.dry_run(dist, seat.pulse)
                    if not self.span.ends_before("train"):
                        self.train(dist, seat.pulse, seat.limit())
        if seat.rank:
            return None
        finish = paused(self.span)
        if not self.span.ends_before("calibrate"):
            seat.pulse.beat("judge")
            with STOP.at_once("the simulator was judged"):
                finish = self._conclusion(always).carry_out()
        return finish

    def _to_train(self, dist: Dist) -> bool:
        """Whether anything is to be trained, as rank 0 sees it; all ranks must ask."""
        why = ""
        if dist.leads and not self.span.wants("train") and not self.span.wants("dry-run"):
            why = f"--from {self.span.first}"
        elif dist.leads and trained(self.folder, self.journal) and self.span.last != "dry-run":
            why = UNCHANGED
        if why := dist.gather(why)[0]:
            self.journal.skip("dry-run", why)
            for name in self.config.plan:
                self.journal.skip("train", why, name)
        return not why

    def _conclusion(self, always: bool) -> AfterTraining:
        return AfterTraining(
            config=self.config,
            folder=self.folder,
            place=self.place,
            journal=self.journal,
            span=self.span,
            seconds=self.phases,
            say=self.screen.say,
            calibrate=self.calibrate,
            judge=self.judge,
            always=always,
        )

    @cached_property
    def sets(self) -> list[DataSet]:
        """The data sets, made where no file holds them yet, and opened once."""
        place, screen = self.folder.cache("data"), self.screen
        ways = (self.config.data_from, self.config.model.simulator)
        sets = open_sets(self.config.data, place, screen.following, self._opened, screen.say, *ways)
        return sets if self.parent is None else aligned(sets, self.parent.codec.tasks, screen.say)

    @cached_property
    def parent(self) -> Simulator | None:
        """The simulator that this run goes on from."""
        return None if self.config.start_from is None else load_simulator(self.config.start_from)

    def prepare(self) -> None:
        """Make, read and measure the data, look at the machine: what is wrong is said before anything is trained."""
        device_of(self.config.device)
        done = trained(self.folder, self.journal)
        with STOP.at_once("data were made"):
            with self.phases("data"):
                prepare_data(self.journal, self.identity, lambda: self.sets, self.config, done)
            if not done:
                with self.phases("statistics"):
                    keep_statistics(self.folder, self.sets, self.identity)
        with self.phases("checks"):
            sets = [] if done else self.sets
            look_ahead(self.journal, self.span, self.start.preflight, self.config, self.folder, self.screen.say, sets)

    def dry_run(self, dist: Dist, pulse: Pulse | None = None) -> None:
        """A few real steps of every stage, unless they were taken before or training has begun."""
        stages = list(self.config.plan) if self.span.last == "dry-run" else worth_trying(self.config)
        key = [self.folder.known(), dist.world, dist.config.strategy, dist.device.type]
        with self.journal("dry-run") as mark, self.phases("dry run"):
            why = no_dry_run(self.journal, self.span, stages, key) if dist.leads else ""
            if why := dist.gather(why)[0]:
                mark.skip(why)
                return
            beat = (lambda: pulse.beat("start")) if pulse is not None else lambda: None
            facts = dry_run(self.config, stages, self.sets, self.untrained, dist, beat)
            mark.facts.update(of=key, stages=facts)

    def train(self, dist: Dist, pulse: Pulse | None = None, limit: int | None = None) -> None:
        """Train the stages of the plan one after the other on all ranks; rank 0 writes the simulator."""
        config, folder = self.config, self.folder
        facts = {"config of the run": fingerprint(config), "tasks": [data.task.name for data in self.sets]}
        dist.handshake(facts)
        digests = self.identity.agreed(dist, files_of(config, self.sets))
        if dist.leads:
            self.trackers = [Jsonl(folder.folder, self.screen.say)]
        with self.phases("build"):
            simulator = self.untrained(dist)
        training = StageTraining(
            config=config,
            folder=folder,
            place=self.place,
            sets=self.sets,
            dist=dist,
            screen=self.screen,
            identity=self.identity,
            digests=digests,
            trackers=self.trackers,
            pulse=pulse,
            limit=limit,
            traced=self.start.traced,
        )
        allowance = self._allowance(simulator)
        learnt: dict[str, TrainedStage] = {}
        later = [stage.makes for stage in config.stages.values()]
        for name, kind in config.stages.items():
            later.remove(kind.makes)
            simulator.idle = frozenset(later)
            if learnt:
                self.identity.require_unchanged_for(dist)
            if config.tune is not None and name == stage_of(config):
                with self.phases("race"):
                    simulator, training = self.raced(simulator, training, learnt)
                config = training.config
                simulator.idle = frozenset(later)
            with self.phases(f"stage {name}"), self.journal("train", name) as mark:
                if newest_whole(folder.checkpoints(name)) is not None:
                    mark.result = "resumed"
                stage = kind(simulator, config.stage(name))
                parent = self.parent
                known = parent.codec.tasks if parent is not None and kind.makes in parent.learnt else ()
                seconds = allowance.seconds(name, self.screen.say) if allowance is not None else None
                learnt[name], weights = training.learn(stage, known, seconds)
                if weights:
                    simulator.replace(kind.makes, rebuilt(simulator, kind.makes, weights).to(dist.device))
                mark.facts.update(steps=learnt[name].outcome.steps, score=learnt[name].outcome.score)
            self.phases.divide(f"stage {name}", learnt[name].outcome.phases)
            del stage
        if dist.leads:
            with self.phases("artifact"):
                self.place.require()
                self._save(simulator, learnt)
            self.simulator = simulator
        dist.barrier()

    def _allowance(self, simulator: Simulator) -> Allowance | None:
        """How long the stages may train, where the run has so many minutes for everything."""
        minutes, began = self.start.minutes, self.start.began
        if minutes is None or began is None or self.config.dist.strategy == "fsdp":
            return None
        with self.phases("timing"):
            return Allowance(self.config, Waiting.measured(self.config, simulator, self.sets), began, minutes)

    def raced(
        self, simulator: Simulator, training: StageTraining, learnt: Collection[str]
    ) -> tuple[Simulator, StageTraining]:
        """The untrained simulator of the size that wins the race, with the parts of `simulator` that stages have
        `learnt`, and how it is trained. What is decided is never decided again. All ranks must ask."""
        dist, own = training.dist, self.config.model.part(FORECASTER).size
        trials = Trials(training, self.journal, lambda config: self._resized(simulator, config, learnt, dist)).race(own)
        chosen, spent = next(trial.size for trial in trials if trial.chosen), sum(trial.share for trial in trials)
        config = sized(self.config, chosen, dist.device.type, 1 - spent)
        if chosen != own:
            self.screen.say(f"the race of sizes is won by {chosen}; the config says {own}.")
            simulator = self._resized(simulator, config, learnt, dist)
        return simulator, dataclasses.replace(training, config=config)

    def _resized(self, simulator: Simulator, config: RunConfig, learnt: Collection[str], dist: Dist) -> Simulator:
        """An untrained simulator of a config, with the parts of another that stages have `learnt`."""
        other = self.untrained(dist, config=config)
        for part in (self.config.stages[name].makes for name in learnt):
            other.replace(part, simulator.parts[part])
        other.idle = simulator.idle
        return other

    def calibrate(self) -> None:
        """Fit on validation data how far the simulator that training has left can be believed, and write it anew."""
        self.identity.require_unchanged()
        with self.phases("calibration"), Dist.alone(self.config.device) as dist:
            simulator = load_simulator(self.folder.folder)
            simulator.trust = trust_of(simulator, self.sets, dist.device, self.screen, self.config.evaluation)
            self.place.require()
            simulator.save(self.folder.artifact("simulator"))
        self.simulator = simulator

    def judge(self, champion: Champion | None = None) -> Report:
        """Judge the simulator that training has left, and that of a champion whose errors are not known."""
        self.identity.require_unchanged()
        config, learnt = self.config, learnt_in(self.folder)
        with self.phases("evaluation"), Dist.alone(self.config.device) as dist:
            simulator = self.simulator or load_simulator(self.folder.folder)
            outcomes = {name: row.outcome for name, row in learnt.items()}
            report = judge(config, simulator, self.sets, outcomes, dist.device, self.screen, champion=champion)
        self.identity.settle_exams()
        trials = trials_in(self.journal) if config.tune is not None else ()
        return dataclasses.replace(report, stages=stage_facts(config, simulator, outcomes), trials=trials)

    def untrained(self, dist: Dist, only: str = "", config: RunConfig | None = None) -> Simulator:
        """The simulator before training, of which this rank holds what it needs: for all stages, or for the one that
        makes the part `only`. `config`: with networks of another size than the run's config says.

        What is to be sharded is whole on rank 0 alone, in host memory, and without memory on the others: were it made
        on each, a machine with eight ranks would need eight times the room, and drawing each tensor where it goes
        would give other weights than one process draws. Where the plan does not train the last parts in their order,
        one that is empty would be needed before its stage fills it; then all are whole everywhere.
        """
        config, sharded = config or self.config, dist.config.strategy == "fsdp"
        made = [stage.makes for stage in config.stages.values()]
        names = parts_of(config, self.parent)
        later = made if sharded and names[-len(made) :] == made else []
        later = later[later.index(only) :] if only and later else later
        simulator = new_simulator(config, self.sets, self.parent, () if dist.leads else later)
        statistics = statistics_of(self.folder, self.sets, self.identity)
        for data in self.sets:
            simulator.learn_statistics(data.task, statistics[data.task.name])
        if self.parent is not None:
            inherit(simulator, self.parent)
        for name in (name for name in names if name not in later):
            simulator.parts[name].to(dist.device)
        return simulator

    def _save(self, simulator: Simulator, learnt: Mapping[str, TrainedStage]) -> None:
        config, folder = self.config, self.folder
        facts = {"config": folder.known(), "seed": config.seed}
        for name, row in learnt.items():
            stage = config.stages[name]
            simulator.origins[stage.makes] = {
                "provenance": {**facts, "stage": name, "steps": row.outcome.steps, "score": row.outcome.score},
                "needs": list(stage.needs),
            }
        steps = sum(row.outcome.steps for row in learnt.values())
        simulator.save(folder.artifact("simulator"), {**facts, "steps": steps, "definitions": config.definitions})
        folder.write(folder.stages, {name: row.facts() for name, row in learnt.items()})


def run_alone(
    config: RunConfig,
    screen: Screen,
    start: Start = ANEW,
) -> tuple[RunDir, Report]:
    """Carry out a whole run in this process; its folder and its report."""
    folder, finish = finish_alone(config, screen, start)
    assert finish.report is not None
    return folder, finish.report


def finish_alone(
    config: RunConfig,
    screen: Screen,
    start: Start = ANEW,
) -> tuple[RunDir, Finish]:
    """The phases of a start in this process; the folder, and how it ended."""
    return finished(Run.open(config, screen, start), Alone(), always=True)


def finished(run: Run, place: RankPlace, *, always: bool = False) -> tuple[RunDir, Finish]:
    """Carry out a run whose folder this process has opened, in the `place` of the rank that concludes it, and write
    down how it ended."""
    folder = run.folder
    with around(folder.folder, run.config, run.screen.say), folder, run:
        finish = run.carry_out(place, always=always)
        assert finish is not None
        folder.job.unlink(missing_ok=True)
        folder.succeed(finish.ending, finish.cause, stages=folder.stage_facts())
        return folder, finish
