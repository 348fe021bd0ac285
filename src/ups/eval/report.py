"""What a run has to say: every number as a record in results.json, and a page that shows and judges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ups.eval.results import (
    Cost,
    DataFact,
    Drawn,
    Entry,
    Point,
    Record,
    TaskResult,
    points_of,
    read_results,
    rows_of,
    times_of,
    write_results,
)
from ups.eval.rollout import Evaluation, Example
from ups.pages import Curve, Film, Page, Section, chart, film_forecast_lines, film_forecast_maps
from ups.types import DataError

__all__ = ["Cost", "DataFact", "Drawn", "Entry", "Record", "Report", "Rows", "TaskResult", "number", "read_results"]

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report:
    """Everything a run has to show: numbers with config fingerprint, data version, seed and protocol.

    `warnings` are what a reader must know before believing a number; `notes` are what else is worth knowing; `drawn` is
    how often training drew each task, stage by stage.
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
    drawn: tuple[Drawn, ...] = ()

    @cached_property
    def records(self) -> list[Record]:
        """Every number, one record each."""
        found = [self._record(e, p) for task in self.tasks for e in task.entries() for p in points_of(task, e)]
        return found + [self._drawn_record(d, name, value) for d in self.drawn for name, value in d.numbers().items()]

    def find(self, task: str, predictor: str, metric: str = "nrmse", mode: str = "strict", split: str = "") -> Record:
        """The one record that answers; the first split unless it is named."""
        for r in self.records:
            if (r.task, r.predictor, r.metric, r.mode) == (task, predictor, metric, mode) and split in ("", r.split):
                return r
        raise DataError(f"the report has no {metric} ({mode}) of {predictor} on {task}.")

    def headline(self) -> Rows:
        """Per task: ours with its interval, persistence, baselines, codec, one step ahead, verdict; header first.

        A baseline's column says how long each of its networks was trained.
        """
        seconds: dict[str, list[float]] = {}
        for b in (b for t in self.tasks for b in t.baselines):
            seconds.setdefault(b.evaluation.predictor, []).append(b.cost.seconds)
        titles = [f"{name}, {np.mean(spent):.0f} s" for name, spent in seconds.items()]
        head = ("task", "protocol", "nRMSE (95 % interval)", "persistence", "ours / persistence", *titles)
        rows = [(*head, "codec alone", "one step", "verdict")]
        for task in self.tasks:
            name, ours = task.ours.evaluation.task.name, task.ours.evaluation.predictor
            mine, ratio = self.find(name, ours), self.find(name, ours, "nrmse-over-persistence")
            have = {b.evaluation.predictor for b in task.baselines}
            cells = [number(self.find(name, other).value) if other in have else "–" for other in seconds]
            codec = number(self.find(name, "reconstruction").value) if task.reconstruction else "–"
            step = number(self.find(name, ours, "one-step-nrmse").value)
            value = f"{number(mine.value)} ({number(mine.low)} – {number(mine.high)})"
            still = number(self.find(name, "persistence").value)
            rows.append((name, mine.protocol, value, still, number(ratio.value), *cells, codec, step, task.verdict[0]))
        return tuple(rows)

    def said(self) -> tuple[str, ...]:
        """What there is to say beside the table: what to know before believing it, then what else is worth knowing."""
        unseen = (s for task in self.tasks for s in task.unseen)
        complaints = (s for task in self.tasks for s in _codec_complaint(task))
        return (*complaints, *self.warnings, *unseen, *self.notes)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """`report.html` and `results.json` in `folder`, each replaced in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        results, rows = folder / "results.json", rows_of(self.records)
        write_results(results, rows)
        return self.page(rows).write(folder / "report.html"), results

    def page(self, rows: Sequence[object] = ()) -> Page:
        """The page; `rows` are the records as plain data, embedded for programs."""
        lead = f"Rollouts in physical units {self.on}, with 95 % bootstrap intervals: {self._short()}"
        foot = (
            f"Config {self.fingerprint}, seed {self.seed}. This page needs no network. results.json holds every number."
        )
        page = Page(self.title, lead, [self._headline_section()], foot, data=list(rows) or None)
        page.sections += [_task_section(self, task) for task in self.tasks]
        page.sections += [self._cost_section(), self._data_section()]
        page.sections += [self._drawn_section()] if self.drawn else []
        page.sections += [self._numbers_section(), self._curves_section()]
        page.sections.append(Section("The config", code=self.config, folded=True))
        return page

    def _short(self) -> str:
        learnt = [task.verdict[0].startswith("learnt") for task in self.tasks]
        if all(task.ours.cost.steps == 0 for task in self.tasks):
            return "this simulator is UNTRAINED."
        if not all(learnt):
            return "NOT every task is learnt." if any(learnt) else "NOTHING is learnt."
        lost = not all(task.verdict[1] for task in self.tasks)
        return "every task is learnt, but some rollouts DIVERGE." if lost else "every task is learnt."

    def _headline_section(self) -> Section:
        text = (
            "nRMSE: the root mean square error over the root mean square of the truth, per sample, channel and "
            "predicted frame, then averaged (mode strict). Persistence is the forecast that nothing changes. Codec "
            "alone: true frames encoded and decoded. One step: the first predicted frame."
        )
        judged = [f"{task.ours.evaluation.task.name}: {task.verdict[0]}." for task in self.tasks if not task.verdict[1]]
        judged += [s for task in self.tasks for s in _codec_complaint(task)]
        judged += [*self.warnings, *(s for task in self.tasks for s in task.unseen)]
        verdict = "\n".join(judged) or "Every task is learnt."
        text = " ".join((text, *self.notes))
        return Section("Result", text, self.headline(), verdict=verdict, good=not judged)

    def _cost_section(self) -> Section:
        rows: list[tuple[str, ...]] = [("predictor", "task", "parameters", "steps", "seconds", "device")]
        for task in self.tasks:
            for entry in (task.ours, *task.baselines):
                e, c = entry.evaluation, entry.cost
                spent = (f"{c.steps:,}", number(c.seconds)) if c.steps >= 0 else ("not recorded", "not recorded")
                rows.append((e.predictor, e.task.name, f"{c.params:,}", *spent, c.device))
        text = "What training took. A predictor that serves several tasks was trained once, for all of them together."
        return Section("Cost", text, tuple(rows))

    def _data_section(self) -> Section:
        rows: list[tuple[str, ...]] = [("task", "source", "version", "samples", "grid", "frames", "parameters")]
        rows += [(d.task, d.source, d.fingerprint, d.samples, d.grid, str(d.frames), d.params) for d in self.data]
        return Section("Data", table=tuple(rows))

    def _drawn_section(self) -> Section:
        head = ("stage", "task", "steps", "share of steps", "asked for", "epochs", "windows", "samples repeated")
        rows: list[tuple[str, ...]] = [head]
        for d in self.drawn:
            counts = (f"{d.steps:,}", _percent(d.share), _percent(d.asked), number(d.epochs))
            rows.append((d.stage, d.task, *counts, f"{d.windows:,}", f"{d.repeated:,}"))
        text = (
            "How often training drew each task, beside the share that the mix asked for. Every window of a task is "
            "drawn once before one is drawn again: an epoch of that task. Samples beyond its first epoch are repeated."
        )
        return Section("What was drawn", text, tuple(rows))

    def _numbers_section(self) -> Section:
        head = ("task", "predictor", "split", "metric", "mode", "protocol", "value", "low", "high", "samples", "frames")
        rows: list[tuple[str, ...]] = [head]
        for r in self.records:
            who = (r.task, r.predictor, r.split, r.metric, r.mode, r.protocol)
            if not r.axis:
                rows.append((*who, number(r.value), number(r.low), number(r.high), str(r.n), str(r.rollout_steps)))
        text = (
            "strict: per sample, predicted frames, 95 % bootstrap interval. pdebench-0.1.0: PDEBench's batch means, "
            "predicted frames. pdebench-paper: the same with the given frames counted as if predicted. drawn: what a "
            "stage of training drew, of n windows."
        )
        return Section("Every number", text, tuple(rows), folded=True)

    def _curves_section(self) -> Section:
        rows: list[tuple[str, ...]] = [("task", "predictor", "split", "metric", "along", "at", "value", "low", "high")]
        for r in self.records:
            if r.axis:
                values = (number(r.at), number(r.value), number(r.low), number(r.high))
                rows.append((r.task, r.predictor, r.split, r.metric, r.axis, *values))
        return Section("Every point of the curves", table=tuple(rows), folded=True)

    def _record(self, entry: Entry, p: Point) -> Record:
        e, c, m = entry.evaluation, entry.cost, p.metric
        version = next((d.fingerprint for d in self.data if d.task == e.task.name), "unknown")
        what = (e.task.name, e.split, m.name, m.mode, m.protocol, p.predictor, p.axis, p.at)
        found = (m.value, m.low, m.high, m.n, e.steps)
        c = Cost() if p.predictor == "truth" else c
        return Record(*what, *found, c.steps, c.seconds, c.params, c.device, self.fingerprint, version, self.seed)

    def _drawn_record(self, d: Drawn, name: str, value: float) -> Record:
        ours = next((t.ours for t in self.tasks if t.ours.evaluation.task.name == d.task), None)
        who, c = (ours.evaluation.predictor, ours.cost) if ours else ("ups", Cost())
        version = next((data.fingerprint for data in self.data if data.task == d.task), "unknown")
        what = (d.task, "train", name, "drawn", d.stage, who, "", 0.0, float(value), float(value), float(value))
        cost = (d.of, c.seconds, c.params, c.device)
        return Record(*what, d.windows, 0, *cost, self.fingerprint, version, self.seed)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def _codec_complaint(task: TaskResult) -> list[str]:
    if task.reconstruction is None or task.ours.cost.steps == 0:
        return []
    codec, step = task.reconstruction.evaluation.score, task.ours.evaluation.one_step.value
    name = task.ours.evaluation.task.name
    sentence = (
        f"{name}: the codec is the bottleneck, its reconstruction error {number(codec)} exceeds the one-step error."
    )
    return [sentence] if codec > step else []


def _task_section(report: Report, task: TaskResult) -> Section:
    ours = task.ours.evaluation
    words, good = task.verdict
    section = Section(f"{ours.task.title} ({ours.task.name})", verdict=words, good=good)
    given = f"{ours.protocol.context} given frame{'s'[: ours.protocol.context - 1]}"
    count = "1 trajectory" if len(ours) == 1 else f"{len(ours)} trajectories"
    section.text = f"{count} ({ours.split}), {given}, {ours.steps} predicted."
    if task.reconstruction is not None:
        codec, step = task.reconstruction.evaluation.score, ours.one_step.value
        section.text += (
            f" Encoding and decoding alone costs {number(codec)}; the first predicted frame, {number(step)}."
        )
    entries = (task.ours, *task.baselines, task.persistence)
    curves = []
    for entry in entries:
        e = entry.evaluation
        middle, low, high = e.against_time
        curves.append(Curve(e.predictor, times_of(e), middle, low, high, dashed=entry is task.persistence))
    picture = chart(curves, "time after the last given frame", "nRMSE")
    section.pictures.append(("Error against time, with 95 % intervals.", picture))
    waves = np.arange(ours.spectra.shape[1])[1:]
    if len(waves):
        spectra = [Curve("truth", waves, ours.spectra[0, 1:].sum(-1), dashed=True)]
        spectra += [
            Curve(e.predictor, waves, e.spectra[1, 1:].sum(-1)) for e in _with_spectra(entries[:-1], len(waves))
        ]
        picture = chart(spectra, "wavenumber", "power", log_x=True)
        section.pictures.append(("Spectrum at the last frame, mean over samples.", picture))
    section.films += [_film(ours, example) for example in ours.examples]
    section.table = _beyond(report, task)
    return section


def _beyond(report: Report, task: TaskResult) -> Rows:
    """Ours, baselines and persistence where training never was: another resolution, other parameters."""
    if not task.beyond:
        return ()
    name = task.ours.evaluation.task.name
    rows: list[tuple[str, ...]] = [("beyond training", "predictor", "nRMSE (95 % interval)", "over persistence", "n")]
    for entry in task.beyond:
        e, ratio = entry.evaluation, "–"
        found = report.find(name, e.predictor, split=e.split)
        if task.persistence_for(entry) is not None:
            ratio = number(report.find(name, e.predictor, "nrmse-over-persistence", split=e.split).value)
        value = f"{number(found.value)} ({number(found.low)} – {number(found.high)})"
        rows.append((e.split, e.predictor, value, ratio, str(len(e))))
    return tuple(rows)


def _with_spectra(entries: Sequence[Entry], waves: int) -> list[Evaluation]:
    return [e.evaluation for e in entries if e.evaluation.spectra.shape[1] == waves + 1]


def _film(ours: Evaluation, example: Example) -> Film:
    alt = f"{ours.task.title}, sample {example.id}: truth, prediction of {ours.predictor}, error"
    values = (example.truth, example.prediction)
    if ours.task.ndim > 1:
        return film_forecast_maps(*values, example.times, ours.task.channels, alt)
    cells = example.truth.shape[1]
    x = ours.task.bounds[0][0] + (np.arange(cells) + 0.5) * example.box[0] / cells
    return film_forecast_lines(*values, x, example.times, ours.task.channels, alt)
