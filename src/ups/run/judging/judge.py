"""Judges a simulator by whole rollouts on unseen trajectories, beside persistence and baselines."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from ups.config import fingerprint, shown
from ups.data.windows import whole
from ups.engine.loop import Trainer
from ups.engine.ranks.dist import Dist
from ups.engine.train import Outcome, RivalTrainConfig
from ups.eval.baselines import BASELINES, notes_on
from ups.eval.error_estimates import ErrorScores
from ups.eval.learning import curves_of
from ups.eval.report import Report
from ups.eval.results import BEFORE, Cost, DataFact, Scored, TaskResult
from ups.eval.rollout import EvalProtocol, ModulePredictor, Predictor, evaluate, persistence, protocol, reconstruct
from ups.models import Simulator
from ups.models.calibration import doubt_of_draws
from ups.models.config import FORECASTER
from ups.progress import Progress, Screen, reporting
from ups.run.config import RunConfig
from ups.run.data.data_identity import Identity
from ups.run.data.datasets import DataSet
from ups.run.judging.ancestors import seen_before
from ups.run.judging.calibrate import usual_of
from ups.run.judging.champion import Champion, digest_of
from ups.run.judging.eval_sets import EvalSet, by_length, exams, outside_of
from ups.run.judging.extra_scores import ScoredSimulator, refinement_scores, search_scores, trust_scores
from ups.run.judging.long_rollouts import long_rollouts
from ups.run.judging.rival_plan import RivalPlan
from ups.run.judging.rollout_watch import RolloutWatch
from ups.run.judging.training_mean import training_mean
from ups.run.load import load
from ups.run.order import drawn_in, windows_of
from ups.rundir import RunDir
from ups.stages import STAGES
from ups.tensors import Window, numeric_params
from ups.types import CHAMPION, OURS, TaskSpec, counted

# Percent of the judging of a task that is done after rollouts, the codec alone, ensembles and estimates of errors.
ROLLOUTS, CODEC, TRUST, ALL = 35, 40, 95, 100


def predictor_of(simulator: Simulator, device: torch.device, name: str = OURS) -> ModulePredictor:
    """A simulator as a predictor."""
    return ModulePredictor(name, device, simulator.to(device).eval().simulate)


@dataclass
class Judge:
    """Judges a simulator, persistence and the baselines alike, on every set of trajectories."""

    config: RunConfig
    simulator: Simulator
    cost: Cost
    device: torch.device
    screen: Screen
    baselines: Sequence[str] = ()
    champion: Champion | None = None  # a run that ours is held against
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plans: dict[str, RivalPlan] = field(default_factory=dict)  # of baselines that are solved for, on the present task

    def __post_init__(self) -> None:
        plain = predictor_of(self.simulator, self.device)
        self.watch = RolloutWatch(plain.function, self.simulator)
        self.ours = dataclasses.replace(plain, function=self.watch)

    @property
    def protocol(self) -> EvalProtocol:
        """How the trajectories are judged: the frames given, and how many follow them."""
        return protocol(self.config.evaluation.protocol, self.config.evaluation.given_to(self.simulator.context))

    def protocol_of(self, task: TaskSpec) -> EvalProtocol:
        """The same for one task: of a user's own, quiet frames are compared with the training data."""
        return dataclasses.replace(self.protocol, usual=usual_of(self.simulator, task))

    @property
    def seconds(self) -> float:
        """What a baseline is trained for: the whole training of ours, shared among the tasks."""
        return max(self.cost.seconds / len(self.simulator.tasks), 1.0)

    def task(self, exam: EvalSet, data: DataSet | None = None, beyond: Iterable[EvalSet | str] = ()) -> TaskResult:
        """One task on `exam`, then on what lies `beyond`; baselines are trained on the training part of `data`."""
        self._show(exam, 0)
        kinds = [] if data is None else [kind for kind in self.baselines if BASELINES[kind].applies(data.task)]
        rivals = [*self._before(exam), *(self._rival(kind, data, exam) for kind in kinds if data is not None)]
        self.watch.taken(), self.watch.taken_left()  # of exams before this one
        self.watch.estimating(exam.part.task, self.device)
        with reporting(lambda share: self._show(exam, ROLLOUTS * share)):
            main, *others = self._entries(exam, rivals)
        laws, left, estimates = self.watch.taken(), self.watch.taken_left(), self.watch.taken_estimates()
        mean = None if data is None else training_mean(data.parts("train"), exam.part.shape)
        self._show(exam, ROLLOUTS)
        rules = self.protocol_of(exam.part.task)
        coded = reconstruct(self._coded, self.device, self._windows(exam), rules, exam.split)
        subject = ScoredSimulator(
            self.simulator, exam, partial(self._windows, exam), rules, self.config.evaluation, self.device
        )
        known = None if estimates is None else ErrorScores.of(estimates, main.evaluation.errors.over_channels("nrmse"))
        ensemble, errors = trust_scores(
            subject,
            self.ours.at_once,
            known,
            lambda done: self._show(exam, CODEC + (TRUST - CODEC) * done / len(exam.part)),
        )
        self._show(exam, TRUST)
        search, refinement = search_scores(subject), refinement_scores(subject, self.warnings.append)
        self._show(exam, ALL)
        further, unseen = list[Scored](), list(exam.outside)
        for more in beyond:
            if isinstance(more, str):
                self.warnings.append(more)
                continue
            further += self._entries(more, rivals, examples=0)
            unseen += more.outside
        return TaskResult(
            ours=main,
            persistence=others[-1],
            mean=None if mean is None else Scored(evaluate(mean, self._windows(exam), rules, exam.split, 0)),
            baselines=tuple(others[:-1]),
            reconstruction=Scored(coded, self.cost),
            beyond=tuple(further),
            unseen=tuple(dict.fromkeys(unseen)),
            trained={} if data is None else data.values(),
            ensemble=ensemble,
            undrawn=doubt_of_draws(self.simulator, exam.part.task) if self.config.evaluation.ensemble else "",
            errors=errors,
            search=search,
            refinement=refinement,
            laws=laws,
            left_range_at=left,
            champion=self._champion(exam, main),
            long=long_rollouts(self.ours, rivals, self._windows(exam), self.config.evaluation, exam.count),
        )

    def report(self, title: str, results: Sequence[TaskResult], facts: Sequence[DataFact], on: str) -> Report:
        """The results with all that a reader needs to judge them."""
        c = self.config
        return Report(
            title=title,
            tasks=tuple(results),
            config=shown(c),
            fingerprint=fingerprint(c),
            seed=c.seed,
            data=tuple(facts),
            warnings=tuple(self.warnings),
            notes=(*notes_on(self.baselines, self.seconds, self.cost.seconds, len(self.simulator.tasks)), *self.notes),
            on=on,
        )

    def _show(self, exam: EvalSet, done: float) -> None:
        """How far the judging of one task is, in percent."""
        self.screen.following(Progress(min(done, ALL), ALL, f"judging {exam.part.task.name}", percent=True))

    def _coded(self, window: Window, steps: int) -> Tensor:
        """The true frames through the codec alone."""
        codec, grid = self.simulator.codec, tuple(window.targets.shape[2:-1])
        states = (codec.encode(window.targets[:, t], window.task, window.grid) for t in range(steps))
        return torch.stack([codec.decode(state, window.task, grid) for state in states], 1)

    def _windows(self, exam: EvalSet, cells: int = 0) -> Iterator[Window]:
        parts, frames, cut = (exam.part, *exam.more), exam.frames, exam.cut
        lengths = {int(length) for part in parts for length in part.lengths}
        if frames is None and not exam.part.task.steady and len(lengths) > 1:
            frames, cut = min((length for length in lengths if length > self.protocol.context), default=None), True
        return whole(parts, self.protocol.context, cells=cells, frames=frames, cut=cut)

    def _entries(self, exam: EvalSet, rivals: Sequence[tuple[Predictor, Cost]], examples: int = 1) -> list[Scored]:
        """Ours, the rivals, persistence."""
        judged: list[tuple[Predictor, Cost]] = [(self.ours, self.cost), *rivals, (persistence, Cost())]
        scored, rules = [], self.protocol_of(exam.part.task)
        for who, cost in judged:
            plan, windows = self.plans.get(who.name), self._windows(exam)
            windows = windows if plan is None else plan.of_all(windows, exam.count)
            shown = examples if who is self.ours else 0
            scored.append(Scored(evaluate(who, windows, rules, exam.split, shown), cost))
        return scored

    def _before(self, exam: EvalSet) -> list[tuple[Predictor, Cost]]:
        """The simulator that was started from, where it knew the task: has it been forgotten?"""
        if self.config.start_from is None:
            return []
        old = load(self.config.start_from)
        return [(predictor_of(old, self.device, BEFORE), Cost())] if _knows(old, exam.part.task) else []

    def _champion(self, exam: EvalSet, ours: Scored) -> Scored | None:
        """The champion's simulator on the same trajectories, where it was not judged on them and knows the task."""
        task = exam.part.task
        if self.champion is None or self.champion.was_judged_on(task.name, ours.evaluation.marks):
            return None
        other = load(self.champion.folder)
        if not _knows(other, task) or other.context > self.protocol.context:
            return None
        who = predictor_of(other, self.device, CHAMPION)
        own = dataclasses.replace(self.protocol_of(task), context=self.config.evaluation.given_to(other.context))
        return Scored(evaluate(who, self._windows(exam), own, exam.split, 0), Cost())

    def _rival(self, kind: str, data: DataSet, exam: EvalSet) -> tuple[Predictor, Cost]:
        """A baseline of one task."""
        return self._solved(kind, data, exam) if BASELINES[kind].solved else self._trained(kind, data)

    def _solved(self, kind: str, data: DataSet, exam: EvalSet) -> tuple[Predictor, Cost]:
        """A baseline that is solved for, from as little of the data as its plan says."""
        given, length, cells = self.protocol.context, int(exam.part.lengths.max()), math.prod(exam.part.shape)
        frames, seconds = max(1, length - given), planned_seconds(self.config) / len(self.simulator.tasks)
        plan = RivalPlan.of(data.task, cells, given, frames, exam.count, seconds)
        self.plans[kind] = plan
        if plan.judged < exam.count:
            few = f"{plan.judged} of {counted(exam.count, 'trajectory')}"
            self.notes.append(f"{data.task.name}: {kind} is judged on {few}, so that it costs little.")
        began = time.perf_counter()
        model = BASELINES[kind].untrained(data.task, plan.context, self.cost.params, self.config.seed)
        model.fit(plan.windows(data.parts("train")), plan.windows_to_choose(data.parts("valid")))
        cost = Cost(model.parameter_count, 0, time.perf_counter() - began, "cpu")
        model.module.to(self.device).eval()
        return ModulePredictor(model.name, self.device, model.predict), cost

    def _trained(self, kind: str, data: DataSet) -> tuple[Predictor, Cost]:
        """A baseline of as many parameters trained on one task, for as long and by its own recipe."""
        given = self.protocol.context  # all true frames that there are before a rollout, though ours may look at fewer
        network = BASELINES[kind].untrained(data.task, given, self.cost.params, self.config.seed)
        alone, settings = Dist(device=self.device), self.config.forecasting
        batches = windows_of(self.config, [data], settings, alone, context=given)
        network.fit(whole(batches.train, given))
        ours = {**vars(settings.train), "optimizer": "adamw", "compile": False, "steps": None, "seconds": self.seconds}
        train = RivalTrainConfig(**{**ours, **network.recipe})
        outcome = Trainer(train, network, batches, alone, report=self.screen.watch).fit()
        cost = Cost(network.parameter_count, outcome.steps, outcome.seconds, str(self.device))
        network.module.to(self.device).eval()
        return ModulePredictor(network.name, self.device, network.predict), cost


def judge(
    config: RunConfig,
    simulator: Simulator,
    sets: Sequence[DataSet],
    budget: Mapping[str, Outcome],
    device: torch.device,
    screen: Screen,
    split: str = "test",
    champion: Champion | None = None,
) -> Report:
    """Whole rollouts on one part of every task, and what the config asks beyond it."""
    cost = cost_of(simulator, {name: (o.steps, o.seconds) for name, o in budget.items()}, str(device))
    folder = RunDir(Path(config.out) / config.name)
    return judged(
        Judge(config, simulator, cost, device, screen, config.evaluation.baselines, champion), sets, folder, split
    )


def judged(judge: Judge, sets: Sequence[DataSet], folder: RunDir, split: str) -> Report:
    """The report on one part of the run's own data, and what its config asks beyond it."""
    config, results = judge.config, []
    known = {data.task.name for data in sets}
    for name in config.evaluation.unseen:
        if name not in known:
            judge.warnings.append(f"evaluation.unseen names {name}, of which this run has no data; it was left out.")
    with ExitStack() as stack:
        for data in sets:
            beyond = exams(config, data, judge.simulator, folder.cache("beyond"), judge.screen, stack)
            (main, *others), notes = by_length(data.parts(split), split, judge.protocol.context)
            main = dataclasses.replace(main, outside=tuple(outside_of(judge.simulator, data.parts(split))))
            judge.warnings += notes
            results.append(judge.task(main, data, chain(others, beyond if split == "test" else ())))
    on, seen = seen_before(config, sets, split, judge.screen.following)
    judge.warnings += seen
    digests = Identity(folder, judge.screen.say, config.home).by_path()
    report = judge.report(config.name, results, [data.fact(digests) for data in sets], on=on)
    simulators = {OURS: digest_of(folder), CHAMPION: judge.champion.simulator if judge.champion is not None else ""}
    learning = tuple(curves_of(folder.metrics))
    return dataclasses.replace(report, drawn=drawn_in(folder, known), learning=learning, simulators=simulators)


def _knows(simulator: Simulator, task: TaskSpec) -> bool:
    """Whether a simulator was trained on the task with the same channels, inputs and parameters."""
    own = simulator.codec.tasks.get(task.name)
    if own is None:
        return False
    return (own.channels, own.given, numeric_params(own)) == (task.channels, task.given, numeric_params(task))


def planned_seconds(config: RunConfig) -> float:
    """The seconds of training that a config asks for, of all stages together; those trained by steps count as none."""
    return sum(config.stage(name).train.seconds or 0.0 for name in config.plan)


def cost_of(simulator: Simulator, spent: Mapping[str, tuple[int, float]], device: str) -> Cost:
    """What a simulator took, given the steps and seconds of each stage; no step counts while it predicts nothing."""
    numbers = sum(p.numel() for p in simulator.parameters())
    idle = any(STAGES[name].makes == FORECASTER and not steps for name, (steps, _) in spent.items() if name in STAGES)
    steps = 0 if idle else sum(steps for steps, _ in spent.values())
    return Cost(numbers, steps, sum(seconds for _, seconds in spent.values()), device)
