"""Report: the numbers of a run as records in results.json, and a page that shows and judges them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ups.eval import results, sections, trajectories, trust_sections
from ups.eval.gates import RATIO, Gate, gates_section, records_of
from ups.eval.intervals import number, strict
from ups.eval.learning import LearningCurve
from ups.eval.remarks import (
    codec_complaints,
    empty_fields,
    losses_of_old,
    means_of_few,
    quiet_fields,
    rollouts_lost,
    rollouts_outside,
)
from ups.eval.results import Cost, CurvePoint, DataFact, ResultRecord, Scored, TaskResult
from ups.eval.rollout import Evaluation
from ups.eval.scores import HEADLINE, SCORES
from ups.eval.training_facts import DrawCount, StageFact, TrialFact
from ups.eval.trajectories import PerTrajectory
from ups.pages import Page, Section
from ups.run_files import REPORT, RESULTS
from ups.types import OURS, PERSISTENCE, DataError, Table

STEP = "one-step-nrmse"


@dataclass(frozen=True)
class Report:
    """Everything a run has to show: numbers with config fingerprint, data version, seed and protocol.

    `warnings` are what a reader must know before believing a number; `notes` are what else is worth knowing; `drawn` is
    how often training drew each task, stage by stage; `trials` are those of a race of sizes; `stages` is what each
    stage took, and `learning` how it went; `phases` are the run's parts with the seconds of each; `gates` are the
    bounds it had to keep; `simulators` the SHA-256 of the files of those that were judged, by predictor.
    """

    title: str
    tasks: tuple[TaskResult, ...]
    config: str
    fingerprint: str
    seed: int
    data: tuple[DataFact, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    on: str = "on trajectories not seen in training"
    drawn: tuple[DrawCount, ...] = ()
    stages: tuple[StageFact, ...] = ()
    trials: tuple[TrialFact, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    gates: tuple[Gate, ...] = ()
    learning: tuple[LearningCurve, ...] = ()
    simulators: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _measured(self) -> list[ResultRecord]:
        """A record for every number but the gates and the times of the phases."""
        records = [
            self._record(e, p) for task in self.tasks for e in task.entries() for p in results.points_of(task, e)
        ]
        return records + [self._drawn_record(d, n, value) for d in self.drawn for n, value in d.numbers().items()]

    @property
    def records(self) -> list[ResultRecord]:
        """Every number, one record each."""
        return self.numbers + records_of(self.gates, self._measured)

    @property
    def numbers(self) -> list[ResultRecord]:
        """Every number but the gates."""
        return self._measured + [self._phase_record(name, seconds) for name, seconds in self.phases]

    def with_phases(self, phases: tuple[tuple[str, float], ...]) -> Report:
        """The same report, its times replaced; nothing is measured again."""
        return self._with(phases=phases)

    def with_gates(self, gates: tuple[Gate, ...]) -> Report:
        """The same report, its gates replaced; nothing is measured again."""
        return self._with(gates=gates)

    def _with(self, **changes: Any) -> Report:
        report = dataclasses.replace(self, **changes)
        vars(report)["_measured"] = self._measured
        return report

    def find(
        self, task: str, predictor: str, metric: str = "nrmse", mode: str = "strict", split: str = ""
    ) -> ResultRecord:
        """The one record that answers; the first split unless it is named."""
        for r in self._measured:
            if (r.task, r.predictor, r.metric, r.mode) == (task, predictor, metric, mode) and split in ("", r.split):
                return r
        raise DataError(f"the report has no {metric} ({mode}) of {predictor} on {task}.")

    def headline(self) -> Table:
        """Per task: ours with its interval, median and VRMSE, persistence, baselines, codec, one step, verdict; header
        first.

        A baseline's column says how long each of its networks was trained.
        """
        seconds: dict[str, list[float]] = {}
        for b in (b for t in self.tasks for b in t.baselines):
            seconds.setdefault(b.evaluation.predictor, []).append(b.cost.seconds)
        titles = [f"{name}, {np.mean(spent):.0f} s" for name, spent in seconds.items()]
        head = (
            "task",
            "protocol",
            *(SCORES[kind].title for kind in HEADLINE),
            PERSISTENCE,
            SCORES[RATIO].title,
            *titles,
        )
        rows = [(*head, "codec alone", SCORES[STEP].title, "verdict")]
        for task in self.tasks:
            name, ours = task.ours.evaluation.task.name, task.ours.evaluation.predictor
            mine, ratio = self.find(name, ours), self.find(name, ours, RATIO)
            others = [number(self.find(name, ours, kind).value) for kind in HEADLINE[1:]]
            have = {b.evaluation.predictor for b in task.baselines}
            cells = [number(self.find(name, other).value) if other in have else "–" for other in seconds]
            codec = number(self.find(name, "reconstruction").value) if task.reconstruction else "–"
            step = number(self.find(name, ours, STEP).value)
            still = number(self.find(name, PERSISTENCE).value)
            first = (name, mine.protocol, mine.words, *others, still, number(ratio.value))
            rows.append((*first, *cells, codec, step, task.verdict[0]))
        return tuple(rows)

    def remarks(self) -> tuple[str, ...]:
        """What there is to say beside the table: what to know before believing it, what else is worth knowing, and
        where the time went."""
        last = (sections.phases_line(self.phases),) if self.phases else ()
        drawn = [trust_sections.ensemble_line(task) for task in self.tasks if task.ensemble is not None]
        drawn += [trust_sections.errors_line(task) for task in self.tasks if task.errors is not None]
        drawn += [task.undrawn for task in self.tasks if task.undrawn]
        unseen = [s for task in self.tasks for s in task.unseen]
        return (*self._complaints(), *self.warnings, *self._of_few(), *unseen, *self.notes, *drawn, *last)

    def _complaints(self) -> list[str]:
        """What speaks against a simulator, though it may have learnt its tasks."""
        return [
            s
            for task in self.tasks
            for s in (*losses_of_old(task), *rollouts_lost(task), *rollouts_outside(task), *codec_complaints(task))
        ]

    def _of_few(self) -> list[str]:
        """Where a mean says little: of fields of zeros or quiet ones, and of errors that a few trajectories make."""
        return [s for task in self.tasks for s in (*empty_fields(task), *quiet_fields(task), *means_of_few(task))]

    def write(self, folder: Path) -> tuple[Path, Path]:
        """`report.html`, `results.json` and `trajectories.json` in `folder`, each replaced in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        path, rows = folder / RESULTS, results.rows_of(self.records)
        results.write_results(path, rows)
        trajectories.write(folder, self.per_trajectory())
        return self.page(rows).write(folder / REPORT), path

    def per_trajectory(self) -> list[PerTrajectory]:
        """The error of each predictor on each trajectory; not of the codec alone, which is shown what it predicts. A
        champion may be given fewer frames of a trajectory than ours; its errors are of the same frames."""
        rows = []
        for task in self.tasks:
            ours = dataclasses.replace(self._errors(task.ours.evaluation), verdict=task.verdict[0])
            others = [
                entry for entry in task.entries() if not any(entry is own for own in (task.ours, task.reconstruction))
            ]
            rows += [ours, *(self._errors(entry.evaluation) for entry in others)]
            if task.champion is not None:
                row = self._errors(task.champion.evaluation)
                rows.append(dataclasses.replace(row, marks=task.ours.evaluation.marks))
        return rows

    def page(self, rows: Sequence[object] = ()) -> Page:
        """The page; `rows` are the records as plain data, embedded for programs."""
        lead = f"Rollouts in physical units {self.on}, with 95 % bootstrap intervals: {self._short()}"
        foot = (
            f"Config {self.fingerprint}, seed {self.seed}. This page needs no network. results.json holds every number."
        )
        page = Page(self.title, lead, [self._headline_section()], foot, data=list(rows) or None)
        page.sections += [gates_section(self.gates)] if self.gates else []
        page.sections += [sections.task_section(task, self.find) for task in self.tasks]
        if any(task.ensemble is not None for task in self.tasks):
            page.sections.append(trust_sections.ensembles_section(self.tasks))
        if any(task.errors is not None for task in self.tasks):
            page.sections.append(trust_sections.errors_section(self.tasks))
        if any(task.search is not None for task in self.tasks):
            page.sections.append(trust_sections.search_section(self.tasks))
        if any(task.refinement is not None for task in self.tasks):
            page.sections.append(sections.refinement_section(self.tasks, self.find))
        page.sections += [sections.learning_section(self.learning)] if self.learning else []
        page.sections.append(sections.cost_section(self.tasks))
        page.sections += [sections.trials_section(self.trials)] if self.trials else []
        page.sections += [sections.stages_section(self.stages)] if self.stages else []
        page.sections += [sections.phases_section(self.phases)] if self.phases else []
        page.sections.append(sections.data_section(self.data))
        page.sections += [sections.drawn_section(self.drawn)] if self.drawn else []
        page.sections += [sections.numbers_section(self.numbers), sections.curves_section(self.numbers)]
        page.sections.append(Section("The config", code=self.config, folded=True))
        return page

    def _short(self) -> str:
        learnt = [task.verdict[0].startswith("learnt") for task in self.tasks]
        if all(task.ours.cost.steps == 0 for task in self.tasks):
            return "this simulator is UNTRAINED."
        if not all(learnt):
            return "NOT every task is learnt." if any(learnt) else "NOTHING is learnt."
        if any(task.shortfall.fields for task in self.tasks):
            return "NOT every field is learnt."
        if any(task.ours.evaluation.diverged.any() for task in self.tasks):
            return "every task is learnt, but some rollouts DIVERGE."
        if any(task.worse_drawn for task in self.tasks):
            return "every task is learnt, but ensembles are WORSE than the operator alone."
        return "every task is learnt."

    def _headline_section(self) -> Section:
        text = (
            "nRMSE: the root mean square error over the root mean square of the truth, per sample, channel and "
            "predicted frame, then averaged (mode strict); median: over samples; VRMSE, as The Well has it: over the "
            "standard deviation of the truth in space. Persistence is the forecast that nothing changes, the "
            "training mean that each cell is what it was on average in training. Codec alone: true frames encoded "
            "and decoded. One step: the first predicted frame."
        )
        judged = [f"{task.ours.evaluation.task.name}: {task.verdict[0]}." for task in self.tasks if not task.verdict[1]]
        judged += [*self._complaints(), *self.warnings, *(s for task in self.tasks for s in task.unseen)]
        verdict = "\n".join(judged) or "Every task is learnt."
        undrawn = (task.undrawn for task in self.tasks if task.undrawn)
        text = " ".join((text, *self.notes, *self._of_few(), *undrawn))
        return Section("Result", text, self._beside_means(self.headline()), verdict=verdict, good=not judged)

    def _beside_means(self, rows: Table) -> Table:
        """The table with the error of the mean of training behind that of persistence."""
        means = ["training mean", *("–" if t.mean is None else number(t.mean.evaluation.score) for t in self.tasks)]
        at = rows[0].index(PERSISTENCE) + 1
        return tuple((*row[:at], mean, *row[at:]) for row, mean in zip(rows, means, strict=True))

    def _version(self, task: str) -> str:
        return next((d.fingerprint for d in self.data if d.task == task), "unknown")

    def _errors(self, e: Evaluation) -> PerTrajectory:
        mean = strict("nrmse", e.per_sample(), e.protocol.label)
        return PerTrajectory(
            task=e.task.name,
            split=e.split,
            predictor=e.predictor,
            protocol=mean.protocol,
            value=mean.value,
            low=mean.low,
            high=mean.high,
            ids=e.ids if len(e.ids) == len(e) else tuple(map(str, range(len(e)))),
            marks=e.marks,
            nrmse=tuple(float(value) for value in e.per_sample()),
            vrmse=float(e.per_sample("vrmse").mean()),
            simulator=self.simulators.get(e.predictor, ""),
        )

    def _record(self, entry: Scored, p: CurvePoint) -> ResultRecord:
        e, m = entry.evaluation, p.number
        cost = Cost() if p.predictor == "truth" else entry.cost
        return ResultRecord(
            task=e.task.name,
            split=e.split,
            metric=m.name,
            mode=m.mode,
            protocol=m.protocol,
            predictor=p.predictor,
            axis=p.axis,
            at=p.at,
            value=m.value,
            low=m.low,
            high=m.high,
            n=m.n,
            rollout_steps=e.steps,
            steps=cost.steps,
            seconds=cost.seconds,
            params=cost.params,
            device=cost.device,
            config=self.fingerprint,
            data=self._version(e.task.name),
            seed=self.seed,
        )

    def _drawn_record(self, d: DrawCount, name: str, value: float) -> ResultRecord:
        ours = next((t.ours for t in self.tasks if t.ours.evaluation.task.name == d.task), None)
        return dataclasses.replace(
            self._of_training(ours, name, float(value)),
            task=d.task,
            split="train",
            mode="drawn",
            protocol=d.stage,
            n=d.windows,
            steps=d.of,
            data=self._version(d.task),
        )

    def _phase_record(self, name: str, seconds: float) -> ResultRecord:
        return self._of_training(self.tasks[0].ours if self.tasks else None, name, float(seconds))

    def _of_training(self, ours: Scored | None, name: str, value: float) -> ResultRecord:
        """What the training of a predictor took, and not what it predicts: a phase of it, if nothing else is said."""
        cost = ours.cost if ours else Cost()
        return ResultRecord(
            task="",
            split="",
            metric=name,
            mode="phase",
            protocol="",
            predictor=ours.evaluation.predictor if ours else OURS,
            axis="",
            at=0.0,
            value=value,
            low=value,
            high=value,
            n=1,
            rollout_steps=0,
            steps=cost.steps,
            seconds=cost.seconds,
            params=cost.params,
            device=cost.device,
            config=self.fingerprint,
            data="",
            seed=self.seed,
        )
