"""What a run has to say: every number as a record in results.json, and a page that shows and judges them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ups.eval.metrics import Metric, over, paired
from ups.eval.rollout import Evaluation, Example
from ups.files import write_atomic
from ups.pages import Curve, Film, Page, Section, chart, film_forecast_lines, film_forecast_maps
from ups.types import DataError

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Cost:
    """What a predictor took: learnt real numbers, training steps, wall seconds of training, and where."""

    params: int = 0
    steps: int = 0
    seconds: float = 0.0
    device: str = "none"


@dataclass(frozen=True)
class Entry:
    """An evaluation and what its predictor cost; a forecast that is not learnt costs nothing."""

    evaluation: Evaluation
    cost: Cost = Cost()


@dataclass(frozen=True)
class DataFact:
    """The data of one task: where they come from, their version (a fingerprint), and how much there is."""

    task: str
    source: str
    version: str
    samples: str
    grid: str
    frames: int
    params: str


@dataclass(frozen=True)
class TaskResult:
    """One task: ours, persistence, the baselines, the codec alone, and evaluations beyond the training set-up.

    `beyond` holds zero-shot resolutions and unseen parameters; the split of each says which it is. `unseen` are
    sentences on parameters outside the trained range.
    """

    ours: Entry
    persistence: Entry
    baselines: tuple[Entry, ...] = ()
    reconstruction: Entry | None = None
    beyond: tuple[Entry, ...] = ()
    unseen: tuple[str, ...] = ()

    def entries(self) -> Iterator[Entry]:
        yield self.ours
        yield from self.baselines
        yield self.persistence
        if self.reconstruction is not None:
            yield self.reconstruction
        yield from self.beyond

    @cached_property
    def verdict(self) -> tuple[str, bool]:
        """A sentence, and whether it is a good one.

        Better means: on the same samples, with 95 % confidence, and by more than a twentieth: few samples are sure of
        very little.
        """
        mine, theirs = self.ours.evaluation, self.persistence.evaluation
        if self.ours.cost.steps == 0:
            return "UNTRAINED: no training step was taken; these numbers are those of random weights", False
        lost = int(mine.diverged.sum())
        tail = f" ({lost} of {len(mine)} rollouts diverged)" if lost else ""
        unsure = paired(mine.per_sample(), theirs.per_sample(), mine.protocol.label).high >= 0
        if unsure or mine.score > 0.95 * theirs.score:
            return f"NOT LEARNT: no better than persistence{tail}", False
        if mine.score >= 1:
            return f"NOT LEARNT: no better than predicting zero{tail}", False
        return f"learnt{tail}", not lost


@dataclass(frozen=True)
class Record:
    """One line of results.json. `steps`, `seconds` and `params` are the cost of training the predictor."""

    task: str
    split: str
    metric: str
    mode: str
    protocol: str
    predictor: str
    value: float
    low: float
    high: float
    n: int
    rollout_steps: int
    steps: int
    seconds: float
    params: int
    device: str
    config: str
    data: str
    seed: int


@dataclass(frozen=True)
class Report:
    """Everything a run has to show: numbers with config fingerprint, data version, seed and protocol."""

    title: str
    tasks: tuple[TaskResult, ...]
    config: str
    fingerprint: str
    seed: int
    data: tuple[DataFact, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def records(self) -> list[Record]:
        """Every number, one record each."""
        return [self._record(e, m) for task in self.tasks for e in task.entries() for m in _numbers(task, e)]

    def find(self, task: str, predictor: str, metric: str = "nrmse", mode: str = "strict", split: str = "") -> Record:
        """The one record that answers; the first split unless it is named."""
        for r in self.records:
            if (r.task, r.predictor, r.metric, r.mode) == (task, predictor, metric, mode) and split in ("", r.split):
                return r
        raise DataError(f"the report has no {metric} ({mode}) of {predictor} on {task}.")

    def headline(self) -> Rows:
        """Per task: ours with its interval, persistence, baselines, codec, one step ahead, verdict; header first."""
        names = list(dict.fromkeys(b.evaluation.predictor for t in self.tasks for b in t.baselines))
        head = ("task", "protocol", "nRMSE (95 % interval)", "persistence", "ours / persistence", *names)
        rows = [(*head, "codec alone", "one step", "verdict")]
        for task in self.tasks:
            name, ours = task.ours.evaluation.task.name, task.ours.evaluation.predictor
            mine, ratio = self.find(name, ours), self.find(name, ours, "nrmse-over-persistence")
            have = {b.evaluation.predictor for b in task.baselines}
            cells = [number(self.find(name, other).value) if other in have else "–" for other in names]
            codec = number(self.find(name, "reconstruction").value) if task.reconstruction else "–"
            step = number(self.find(name, ours, "one-step-nrmse").value)
            value = f"{number(mine.value)} ({number(mine.low)} – {number(mine.high)})"
            still = number(self.find(name, "persistence").value)
            rows.append((name, mine.protocol, value, still, number(ratio.value), *cells, codec, step, task.verdict[0]))
        return tuple(rows)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """`report.html` and `results.json` in `folder`, each replaced in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        results = folder / "results.json"
        rows = [{k: _encoded(v) for k, v in asdict(r).items()} for r in self.records]
        write_atomic(results, "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]\n")
        return self.page(rows).write(folder / "report.html"), results

    def page(self, rows: Sequence[object] = ()) -> Page:
        """The page; `rows` are the records as plain data, embedded for programs."""
        good = all(task.verdict[1] for task in self.tasks)
        untrained = all(task.ours.cost.steps == 0 for task in self.tasks)
        short = (
            "this simulator is UNTRAINED."
            if untrained
            else "every task is learnt."
            if good
            else "NOT every task is learnt."
        )
        lead = (
            f"Rollouts in physical units on trajectories not seen in training, with 95 % bootstrap intervals: {short}"
        )
        foot = (
            f"Config {self.fingerprint}, seed {self.seed}. This page needs no network. results.json holds every number."
        )
        page = Page(self.title, lead, [self._headline_section()], foot, data=list(rows) or None)
        page.sections += [_task_section(task) for task in self.tasks]
        page.sections += [self._cost_section(), self._data_section(), self._numbers_section()]
        page.sections.append(Section("The config", code=self.config, folded=True))
        return page

    def _headline_section(self) -> Section:
        text = (
            "nRMSE: the root mean square error over the root mean square of the truth, per sample, channel and "
            "predicted frame, then averaged (mode strict). Persistence is the forecast that nothing changes. Codec "
            "alone: true frames encoded and decoded. One step: the first predicted frame."
        )
        judged = [f"{task.ours.evaluation.task.name}: {task.verdict[0]}." for task in self.tasks if not task.verdict[1]]
        judged += [s for task in self.tasks for s in _codec_complaint(task)]
        judged += [*self.warnings, *(s for task in self.tasks for s in task.unseen)]
        good = not judged
        return Section("Result", text, self.headline(), verdict=" ".join(judged) or "Every task is learnt.", good=good)

    def _cost_section(self) -> Section:
        rows: list[tuple[str, ...]] = [("predictor", "task", "parameters", "steps", "seconds", "device")]
        for task in self.tasks:
            for entry in (task.ours, *task.baselines):
                e, c = entry.evaluation, entry.cost
                rows.append((e.predictor, e.task.name, f"{c.params:,}", f"{c.steps:,}", number(c.seconds), c.device))
        text = "What training took. A predictor that serves several tasks was trained once, for all of them together."
        return Section("Cost", text, tuple(rows))

    def _data_section(self) -> Section:
        rows: list[tuple[str, ...]] = [("task", "source", "version", "samples", "grid", "frames", "parameters")]
        rows += [(d.task, d.source, d.version, d.samples, d.grid, str(d.frames), d.params) for d in self.data]
        return Section("Data", table=tuple(rows))

    def _numbers_section(self) -> Section:
        head = ("task", "predictor", "split", "metric", "mode", "protocol", "value", "low", "high", "samples", "frames")
        rows: list[tuple[str, ...]] = [head]
        for r in self.records:
            who = (r.task, r.predictor, r.split, r.metric, r.mode, r.protocol)
            rows.append((*who, number(r.value), number(r.low), number(r.high), str(r.n), str(r.rollout_steps)))
        text = (
            "strict: per sample, predicted frames, 95 % bootstrap interval. pdebench-0.1.0: PDEBench's batch means, "
            "predicted frames. pdebench-paper: the same with the given frames counted as if predicted."
        )
        return Section("Every number", text, tuple(rows), folded=True)

    def _record(self, entry: Entry, m: Metric) -> Record:
        e, c = entry.evaluation, entry.cost
        version = next((d.version for d in self.data if d.task == e.task.name), "unknown")
        what = (e.task.name, e.split, m.name, m.mode, m.protocol, e.predictor, m.value, m.low, m.high, m.n, e.steps)
        return Record(*what, c.steps, c.seconds, c.params, c.device, self.fingerprint, version, self.seed)


def read_results(path: Path) -> list[Record]:
    """The records of a results.json."""
    try:
        rows = json.loads(path.read_text())
        return [Record(**{k: _decoded(k, v) for k, v in row.items()}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a results.json of this version ({error}); evaluate the run again.") from error


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def _numbers(task: TaskResult, entry: Entry) -> list[Metric]:
    """The metrics of an entry; a forecast on the same samples as persistence is compared with it, sample by sample."""
    e, still = entry.evaluation, task.persistence.evaluation
    found = e.metrics()
    same = (e.split, e.ids, len(e), e.steps) == (still.split, still.ids, len(still), still.steps)
    if same and e is not still and e.predictor != "reconstruction":
        mine, theirs = e.per_sample(), still.per_sample()
        found.append(over(mine, theirs, e.protocol.label, "nrmse-over-persistence"))
    return found


def _codec_complaint(task: TaskResult) -> list[str]:
    if task.reconstruction is None or task.ours.cost.steps == 0:
        return []
    codec, step = task.reconstruction.evaluation.score, task.ours.evaluation.one_step().value
    name = task.ours.evaluation.task.name
    sentence = (
        f"{name}: the codec is the bottleneck, its reconstruction error {number(codec)} exceeds the one-step error."
    )
    return [sentence] if codec > step else []


def _task_section(task: TaskResult) -> Section:
    ours = task.ours.evaluation
    words, good = task.verdict
    section = Section(f"{ours.task.title} ({ours.task.name})", verdict=words, good=good)
    section.text = f"{len(ours)} trajectories, {ours.protocol.context} given frames, {ours.steps} predicted."
    entries = (task.ours, *task.baselines, task.persistence)
    curves = []
    for entry in entries:
        e = entry.evaluation
        middle, low, high = e.against_time()
        times = np.arange(1, e.steps + 1) * float(e.dt.mean())
        curves.append(Curve(e.predictor, times, middle, low, high, dashed=entry is task.persistence))
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
    if task.beyond:
        rows = [("beyond training", "predictor", "nRMSE", "samples")]
        seen = [entry.evaluation for entry in task.beyond]
        rows += [(e.split, e.predictor, number(e.score), str(len(e))) for e in seen]
        section.table = tuple(rows)
    return section


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


def _encoded(value: object) -> object:
    """JSON has no infinity: such a number is written as a word that Python's `float` and JavaScript's `Number` read."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decoded(key: str, value: Any) -> Any:
    return float(value) if key in ("value", "low", "high", "seconds") and isinstance(value, str | int) else value
