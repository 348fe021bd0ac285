"""Run: owns config, folder, data sets, simulator and trackers; prepare → train → calibrate → judge → report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ups.config import fingerprint, load
from ups.data.splits import PARTS
from ups.engine.preemption import STOP
from ups.engine.ranks.dist import Dist, device_of
from ups.engine.train import Outcome
from ups.eval.baselines import require as require_baselines
from ups.eval.report import Report
from ups.eval.results import StageFact, rows_of, write_results
from ups.heartbeat import Pulse
from ups.models import Simulator
from ups.models.inherit import inherit, rebuilt
from ups.run.calibrate import trust_of
from ups.run.check import check, new_simulator, parts_of
from ups.run.config import RunConfig, run_config
from ups.run.data_identity import Identity, files_of
from ups.run.datasets import DataSet, Screen, aligned, open_sets
from ups.run.judge import judge
from ups.run.load import load as load_simulator
from ups.run.phases import Phases
from ups.run.statistics import keep_statistics, statistics_of
from ups.run.training import Learnt, Training
from ups.rundir import Place, RunDir
from ups.tracking import Jsonl, mirrored
from ups.tracking import require as require_trackers


class Seat(Protocol):
    """Which process of a run this one is."""

    @property
    def rank(self) -> int: ...
    @property
    def pulse(self) -> Pulse: ...
    def limit(self) -> int | None: ...  # the largest microbatch that an earlier start has found to fit
    def prepared(self, prepare: Callable[[], None]) -> None: ...  # one process prepares, the others wait for it


class Alone:
    """The only process of a run, without a supervisor."""

    rank = 0

    def __init__(self) -> None:
        self.pulse = Pulse(None, 0)

    def limit(self) -> int | None:
        return None

    def prepared(self, prepare: Callable[[], None]) -> None:
        prepare()


class Run:
    """A run from its folder to its report, the same in one process, in a rank and in the supervisor's hands.

    As a context it closes what it has opened.
    """

    def __init__(self, config: RunConfig, folder: RunDir, screen: Screen) -> None:
        self.config, self.folder, self.screen = config, folder, screen
        self.identity, self.place = Identity(folder, screen.say), Place(folder.folder)
        self.phases = Phases.of_this_process()
        self.trackers: list[Jsonl] = []  # the log, in the process that writes it
        self.simulator: Simulator | None = None  # once it is trained
        self._opened = ExitStack()

    @classmethod
    def open(
        cls, config: RunConfig, screen: Screen | None = None, *, resume: bool = False, overwrite: bool = False
    ) -> Run:
        """A run in its folder, which this process holds; none is made for a run that could not be finished."""
        require_baselines(config.evaluation.baselines)
        screen, place = screen or Screen.silent(), Path(config.out) / config.name
        require_trackers(config.tracking, screen.say)
        if resume and RunDir(place).is_of(config):
            RunDir(place).require_own_files()
            Identity(RunDir(place), screen.say).require_unchanged()
        check(config)
        return cls(config, RunDir.open(place, config, resume=resume, overwrite=overwrite), screen)

    @classmethod
    def join(cls, folder: Path, screen: Screen) -> Run:
        """The run of a folder that a supervisor holds, for one of its ranks."""
        place = RunDir.at(folder)
        return cls(load(run_config(), place.job), place, screen)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self.trackers:
            self.trackers.pop().close()
        self._opened.close()

    def carry_out(self, seat: Seat) -> Report | None:
        """This process's part of the whole; the report, for the one that wrote it."""
        seat.prepared(self.prepare)
        seat.pulse.beat("start")
        with Dist.start(self.config.device, self.config.dist) as dist:
            dist.control.waiting = seat.pulse.wait
            self.train(dist, seat.pulse, seat.limit())
        if seat.rank:
            return None
        seat.pulse.beat("judge")
        with STOP.at_once("the simulator was judged"):
            self.calibrate()
            return self.report(self.judge())

    @cached_property
    def sets(self) -> list[DataSet]:
        """The data sets, made where no file holds them yet, and opened once."""
        place, screen = self.folder.cache("data"), self.screen
        sets = open_sets(self.config.data, place, screen.following, self._opened, screen.say)
        return sets if self.parent is None else aligned(sets, self.parent.codec.tasks)

    @cached_property
    def parent(self) -> Simulator | None:
        """The simulator that this run goes on from."""
        return None if self.config.start_from is None else load_simulator(self.config.start_from)

    def prepare(self) -> None:
        """Make and read the data, and measure them: what is wrong with them is said now, before anything is trained."""
        device_of(self.config.device)
        with STOP.at_once("data were made"):
            with self.phases("data"):
                self.identity.require_unchanged()
                self.identity.settle(files_of(self.config, self.sets))
                for data in self.sets:
                    for part in (part for name in PARTS for part in data.parts(name)):
                        part.sound()
            with self.phases("statistics"):
                keep_statistics(self.folder, self.sets, self.identity)

    def train(self, dist: Dist, pulse: Pulse | None = None, limit: int | None = None) -> None:
        """Train the stages of the plan one after the other on all ranks; rank 0 writes the simulator."""
        config, folder = self.config, self.folder
        facts = {"config of the run": fingerprint(config), "data": [data.fact().version for data in self.sets]}
        dist.handshake(facts)
        digests = self.identity.agreed(dist, files_of(config, self.sets))
        if dist.leads:
            self.trackers = [Jsonl(folder.folder, self.screen.say)]
        with self.phases("build"):
            simulator = self.untrained(dist)
        training = Training(
            config,
            folder,
            self.place,
            self.sets,
            dist,
            self.screen,
            self.identity,
            digests,
            self.trackers,
            pulse,
            limit,
        )
        learnt: dict[str, Learnt] = {}
        later = [stage.makes for stage in config.stages.values()]
        for name, kind in config.stages.items():
            later.remove(kind.makes)
            simulator.idle = frozenset(later)
            if learnt:
                self.identity.require_unchanged_for(dist)
            with self.phases(f"stage {name}"):
                stage = kind(simulator, config.stage(name))
                parent = self.parent
                known = parent.codec.tasks if parent is not None and kind.makes in parent.learnt else ()
                learnt[name], weights = training.learn(stage, known)
                if weights:
                    simulator.replace(kind.makes, rebuilt(simulator, kind.makes, weights).to(dist.device))
            self.phases.divide(f"stage {name}", learnt[name].outcome.phases)
            del stage
        if dist.leads:
            with self.phases("artifact"):
                self.place.require()
                self._save(simulator, learnt)
            self.simulator = simulator
        dist.barrier()

    def calibrate(self) -> None:
        """Fit on validation data how far the simulator that training has left can be believed, and write it anew."""
        self.identity.require_unchanged()
        with self.phases("calibration"), Dist.alone(self.config.device) as dist:
            simulator = load_simulator(self.folder.folder)
            simulator.trust = trust_of(simulator, self.sets, dist.device, self.screen.say)
            self.place.require()
            simulator.save(self.folder.artifact("simulator"))
        self.simulator = simulator

    def judge(self) -> Report:
        """Judge the simulator that training has left."""
        self.identity.require_unchanged()
        learnt = {name: Learnt.of(facts) for name, facts in self.folder.read(self.folder.stages).items()}
        with self.phases("evaluation"), Dist.alone(self.config.device) as dist:
            simulator = self.simulator or load_simulator(self.folder.folder)
            outcomes = {name: row.outcome for name, row in learnt.items()}
            report = judge(self.config, simulator, self.sets, outcomes, dist.device, self.screen)
        self.identity.settle_exams()
        return dataclasses.replace(report, stages=self._stages(simulator, outcomes))

    def report(self, report: Report) -> Report:
        """Write what was judged as a page and as numbers, and where the time went; the report with all of it."""
        self.place.require()
        with self.phases("report"):
            report.with_phases(self.phases.rows()).write(self.folder.folder)
        report = report.with_phases(self.phases.rows())
        write_results(self.folder.results, rows_of(report.records))
        self.folder.write(self.folder.phases, self.phases.seconds)
        self.place.require()
        return report

    def _stages(self, simulator: Simulator, outcomes: Mapping[str, Outcome]) -> tuple[StageFact, ...]:
        """What each stage took, whatever stages there were."""
        facts = []
        for name, o in outcomes.items():
            part = simulator.parts[self.config.stages[name].makes]
            facts.append(StageFact(name, sum(p.numel() for p in part.parameters()), o.steps, o.seconds, o.score))
        return tuple(facts)

    def untrained(self, dist: Dist) -> Simulator:
        """The simulator before training, of which this rank holds what it needs.

        What is to be sharded is whole on rank 0 alone, in host memory, and without memory on the others: were it made
        on each, a machine with eight ranks would need eight times the room, and drawing each tensor where it goes
        would give other weights than one process draws. Where the plan does not train the last parts in their order,
        one that is empty would be needed before its stage fills it; then all are whole everywhere.
        """
        config, sharded = self.config, dist.config.strategy == "fsdp"
        made = [stage.makes for stage in config.stages.values()]
        names = parts_of(config, self.parent)
        later = made if sharded and names[-len(made) :] == made else []
        simulator = new_simulator(config, self.sets, self.parent, () if dist.leads else later)
        statistics = statistics_of(self.folder, self.sets, self.identity)
        for data in self.sets:
            simulator.learn_statistics(data.task, statistics[data.task.name])
        if self.parent is not None:
            inherit(simulator, self.parent)
        for name in (name for name in names if name not in later):
            simulator.parts[name].to(dist.device)
        return simulator

    def _save(self, simulator: Simulator, learnt: Mapping[str, Learnt]) -> None:
        config, folder = self.config, self.folder
        facts = {"config": folder.known(), "seed": config.seed}
        for name, row in learnt.items():
            stage = config.stages[name]
            simulator.origins[stage.makes] = {
                "provenance": {**facts, "stage": name, "steps": row.outcome.steps, "score": row.outcome.score},
                "needs": list(stage.needs),
            }
        steps = sum(row.outcome.steps for row in learnt.values())
        simulator.save(folder.artifact("simulator"), {**facts, "steps": steps})
        folder.write(folder.stages, {name: row.facts() for name, row in learnt.items()})


def run_alone(
    config: RunConfig,
    screen: Screen,
    *,
    resume: bool = False,
    overwrite: bool = False,
    before: tuple[str, float] = ("data", 0.0),
) -> tuple[RunDir, Report]:
    """The whole of a run in this process; its folder and its report. `before` it something took so many seconds."""
    run = Run.open(config, screen, resume=resume, overwrite=overwrite)
    run.phases.before(*before)
    with mirrored(run.folder.folder, config.tracking, screen.say), run.folder, run:
        report = run.carry_out(Alone())
        assert report is not None
        run.folder.succeed(stages=run.folder.read(run.folder.stages))
        return run.folder, report
