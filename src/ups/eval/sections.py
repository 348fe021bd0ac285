"""The parts of a report's page: tables, charts and films, each made of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from ups.eval.batches import Example
from ups.eval.by_parameter import by_channel, by_parameter, varied
from ups.eval.ensembles import Fan
from ups.eval.intervals import Number, number
from ups.eval.learning import SCORE, LearningCurve
from ups.eval.metrics import METRICS
from ups.eval.refinement import MEANINGS
from ups.eval.remarks import percent
from ups.eval.results import DataFact, ResultRecord, Scored, TaskResult, times_of
from ups.eval.rollout import Evaluation
from ups.eval.scores import SCORES
from ups.eval.training_facts import DrawCount, StageFact, TrialFact
from ups.pages import Curve, Film, Section, chart, film_forecast_lines, film_forecast_maps
from ups.pages.rasters import Raster
from ups.types import Array, Points, Table, counted

DEPARTS = 2  # times the truth's power, or as many times less, from which a spectrum departs
FAINT = 1e-9  # share of the power of all wavenumbers, under which one does not count


def spectrum_remark(truth: Array, predicted: Array) -> str:
    """Where the power of a prediction departs from the truth's, wavenumber 1 first; what next to nothing of it is in
    does not count."""
    counted = truth > FAINT * truth.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(counted, predicted / truth, 1.0)
    away = np.flatnonzero((ratio < 1 / DEPARTS) | (ratio > DEPARTS) | ~np.isfinite(ratio))
    if not len(away):
        return f"At no wavenumber does the prediction's power depart from the truth's by more than {DEPARTS} times."
    first, share = int(away[0]), truth[away].sum() / truth.sum()
    how = "less than half of" if ratio[first] < 1 else "more than twice"
    return (
        f"From wavenumber {first + 1} on the prediction departs: it holds {how} the truth's power there. Of "
        f"all of the truth's power, {percent(share)} is at wavenumbers where it departs."
    )


def learning_section(curves: Sequence[LearningCurve]) -> Section:
    """Loss and validation of every stage, step by step."""
    section = Section("Learning curves", "The loss of training, and what its validations found, stage by stage.")
    for stage in dict.fromkeys(curve.stage for curve in curves):
        lines = [
            Curve("validation score" if c.name == SCORE else c.name, np.array(c.steps, float), np.array(c.values))
            for c in curves
            if c.stage == stage
        ]
        section.pictures.append((f"Stage {stage}.", chart(lines, "step", "loss and score")))
    return section


def task_section(task: TaskResult, find: Callable[..., ResultRecord]) -> Section:
    """One task: its verdict, error against time, spectrum, films, and a table of what else was judged."""
    ours = task.ours.evaluation
    words, good = task.verdict
    name, title = ours.task.name, ours.task.title
    section = Section(name if title == name else f"{title} ({name})", verdict=words, good=good)
    section.text = _what(ours)
    if task.reconstruction is not None:
        codec, step = task.reconstruction.evaluation.score, ours.one_step.value
        section.text += (
            f" Encoding and decoding alone costs {number(codec)}; the first predicted frame, {number(step)}."
        )
    if by := [n for n in by_channel(ours) if n.name.startswith("nrmse of ")]:
        words = ", ".join(f"{n.name.removeprefix('nrmse of ')} {number(n.value)}" for n in by)
        section.text += f" nRMSE of each channel: {words}."
    entries = (task.ours, *task.baselines, task.persistence)
    idle = () if task.mean is None else (task.mean,)
    section.pictures += [] if ours.task.steady else [_against_time(task, (*entries, *idle))]
    waves = np.arange(ours.spectra.shape[1])[1:]
    if len(waves):
        spectra = [Curve("truth", waves, ours.spectra[0, 1:].sum(-1), dashed=True)]
        shown = [entry.evaluation for entry in entries[:-1]]
        alike = [e for e in shown if e.spectra.shape[1] == ours.spectra.shape[1]]
        spectra += [Curve(e.predictor, waves, e.spectra[1, 1:].sum(-1)) for e in alike]
        picture = chart(spectra, "wavenumber", "power", log_x=True)
        remark = spectrum_remark(ours.spectra[0, 1:].sum(-1), ours.spectra[1, 1:].sum(-1))
        where = "Spectrum" if ours.task.steady else "Spectrum at the last frame"
        section.pictures.append((f"{where}, mean over samples. {remark}", picture))
    section.pictures += [_against(task, name) for name in varied([e.evaluation for e in _ours(task)])]
    fans = [task.ensemble.fan if task.ensemble is not None else None]  # of the first sample alone
    section.films += [_film(ours, *shown) for shown in zip_longest(ours.examples, fans[: len(ours.examples)])]
    section.table = _beyond(task, find)
    return section


def _what(ours: Evaluation) -> str:
    """How much was judged, and what was given for it."""
    if ours.task.steady:
        return f"{counted(len(ours), 'steady state')} ({ours.split}), predicted from their inputs."
    given = counted(ours.protocol.context, "given frame")
    count = counted(len(ours), "trajectory")
    return f"{count} ({ours.split}), {given}, {ours.steps} predicted."


def _against_time(task: TaskResult, entries: Sequence[Scored]) -> tuple[str, str]:
    """A caption, and the error of each predictor against time."""
    curves, ours = [], task.ours.evaluation
    for entry in entries:
        e = entry.evaluation
        curves.append(
            Curve(e.predictor, times_of(e), *e.against_time, dashed=entry is task.persistence or entry is task.mean)
        )
    uneven = float(np.ptp(ours.dt)) > 1e-3 * float(np.max(ours.dt))
    label = "time after the last given frame" + (" (steps differ: frames, at their mean time)" if uneven else "")
    return "Error against time, with 95 % intervals.", chart(curves, label, "nRMSE")


def refinement_section(tasks: Sequence[TaskResult], find: Callable[..., ResultRecord]) -> Section:
    """Steady states refined by iterations on their discrete equations, beside the same solver from zero."""
    rows: list[tuple[str, ...]] = [("task", "tolerance", "nRMSE predicted", *MEANINGS.values())]
    for task in tasks:
        if task.refinement is not None:
            e = task.ours.evaluation
            cells = (find(e.task.name, e.predictor, name).words for name in ("nrmse", *MEANINGS))
            rows.append((e.task.name, f"{task.refinement.tolerance:g}", *cells))
    text = (
        "The prediction as the start of preconditioned conjugate gradients on the equations of the accurate scheme, "
        "until the relative residual of each sample is below the tolerance. A residual weighs what is rough far more "
        "than an error does: a good prediction may have a larger one than zero, whose residual is 1. Where the data "
        "were made by another scheme, the error after refinement is the distance between the two."
    )
    return Section("Refinement", text, tuple(rows))


def cost_section(tasks: Sequence[TaskResult]) -> Section:
    """What each predictor took to train."""
    rows: list[tuple[str, ...]] = [("predictor", "task", "parameters", "steps", "seconds", "device")]
    for task in tasks:
        for entry in (task.ours, *task.baselines):
            e, c = entry.evaluation, entry.cost
            spent = (f"{c.steps:,}", number(c.seconds)) if c.steps >= 0 else ("not recorded", "not recorded")
            rows.append((e.predictor, e.task.name, f"{c.params:,}", *spent, c.device))
    text = "What training took. A predictor that serves several tasks was trained once, for all of them together."
    return Section("Cost", text, tuple(rows))


def trials_section(trials: Sequence[TrialFact]) -> Section:
    """The race of sizes before the training."""
    rows: list[tuple[str, ...]] = [("size", "share of the budget", "steps", "seconds", "validation error", "")]
    rows += [
        (t.size, f"{t.share:.1%}", f"{t.steps:,}", number(t.seconds), number(t.error), "chosen" if t.chosen else "")
        for t in trials
    ]
    text = "Short trainings of several sizes on these data, before the long one. Test data have no part in the choice."
    return Section("The race of sizes", text, tuple(rows))


def stages_section(stages: Sequence[StageFact]) -> Section:
    """What each stage of the training took, and how far it came."""
    rows: list[tuple[str, ...]] = [("stage", "parameters", "steps", "seconds", "best score")]
    rows += [(s.name, f"{s.params:,}", f"{s.steps:,}", number(s.seconds), number(s.score)) for s in stages]
    text = "The training of ours, stage by stage. The best score is that of the validation that chose its weights."
    return Section("Cost of each stage", text, tuple(rows))


def phases_section(phases: Sequence[tuple[str, float]]) -> Section:
    """The seconds of a run by what it was doing."""
    total = sum(seconds for _, seconds in phases)
    rows: list[tuple[str, ...]] = [("phase", "seconds", "share")]
    rows += [(name, number(seconds), percent(seconds / total if total else 0.0)) for name, seconds in phases]
    return Section("Where the time went", f"{number(total)} seconds in all.", tuple(rows))


def phases_line(phases: Sequence[tuple[str, float]]) -> str:
    """The seconds of a run by phase in one line for the terminal, without those that took less than a hundredth."""
    total = sum(seconds for _, seconds in phases)
    parts = [f"{name} {seconds:.1f} s" for name, seconds in phases if seconds >= total / 100]
    return f"Where the time went: {', '.join(parts)}; {total:.1f} s in all."


def data_section(data: Sequence[DataFact]) -> Section:
    """The data of each task."""
    rows: list[tuple[str, ...]] = [("task", "source", "version", "samples", "grid", "frames", "parameters")]
    rows += [(d.task, d.source, d.fingerprint, d.samples, d.grid, str(d.frames), d.params) for d in data]
    return Section("Data", table=tuple(rows))


def drawn_section(drawn: Sequence[DrawCount]) -> Section:
    """How often each stage of training drew each task."""
    head = ("stage", "task", "steps", "share of steps", "asked for", "epochs", "windows", "samples repeated")
    rows: list[tuple[str, ...]] = [head]
    for d in drawn:
        counts = (f"{d.steps:,}", percent(d.share), percent(d.asked), number(d.epochs))
        rows.append((d.stage, d.task, *counts, f"{d.windows:,}", f"{d.repeated:,}"))
    text = (
        "How often training drew each task, beside the share that the mix asked for. Every window of a task is "
        "drawn once before one is drawn again: an epoch of that task. Samples beyond its first epoch are repeated."
    )
    return Section("What was drawn", text, tuple(rows))


def numbers_section(records: Sequence[ResultRecord]) -> Section:
    """Every record that is no point of a curve."""
    head = ("task", "predictor", "split", "metric", "mode", "protocol", "value", "low", "high", "samples", "frames")
    rows: list[tuple[str, ...]] = [head]
    for r in records:
        if not r.axis:
            what = (r.task, r.predictor, r.split, r.metric, r.mode, r.protocol)
            rows.append((*what, number(r.value), number(r.low), number(r.high), str(r.n), str(r.rollout_steps)))
    meanings = "; ".join(f"{name}: {metric.meaning}" for name, metric in METRICS.items())
    kinds = "; ".join(f"{name}: {kind.meaning}" for name, kind in SCORES.items() if name not in METRICS)
    text = (
        "strict: per sample, predicted frames, 95 % bootstrap interval. pdebench-0.1.0: PDEBench's batch means, "
        "predicted frames. pdebench-paper: the same with the given frames counted as if predicted. verdict: 1 where a "
        "task, or a field of several, is learnt, else 0. drawn: what a "
        f"stage of training drew, of n windows. phase: seconds of the run. The metrics: {meanings}. Made of "
        f"them: {kinds}."
    )
    return Section("Every number", text, tuple(rows), folded=True)


def curves_section(records: Sequence[ResultRecord]) -> Section:
    """Every record that is a point of a curve."""
    rows: list[tuple[str, ...]] = [("task", "predictor", "split", "metric", "along", "at", "value", "low", "high")]
    for r in records:
        if r.axis:
            values = (number(r.at), number(r.value), number(r.low), number(r.high))
            rows.append((r.task, r.predictor, r.split, r.metric, r.axis, *values))
    return Section("Every point of the curves", table=tuple(rows), folded=True)


def _beyond(task: TaskResult, find: Callable[..., ResultRecord]) -> Table:
    """Ours, baselines and persistence on what else was judged: trajectories of other lengths and grids than most have,
    another resolution, other parameters."""
    if not task.beyond:
        return ()
    name = task.ours.evaluation.task.name
    rows: list[tuple[str, ...]] = [("judged also on", "predictor", SCORES["nrmse"].title, "over persistence", "n")]
    for entry in task.beyond:
        e, ratio = entry.evaluation, "–"
        if task.persistence_for(entry) is not None:
            ratio = number(find(name, e.predictor, "nrmse-over-persistence", split=e.split).value)
        rows.append((e.split, e.predictor, find(name, e.predictor, split=e.split).words, ratio, str(len(e))))
    return tuple(rows)


def _ours(task: TaskResult) -> list[Scored]:
    """All evaluations of our predictor: on the trained set-up, and beyond it."""
    who = task.ours.evaluation.predictor
    return [task.ours, *(entry for entry in task.beyond if entry.evaluation.predictor == who)]


def _against(task: TaskResult, name: str) -> tuple[str, str]:
    """A caption, and the error against one parameter: at trained values, at unseen ones, and that of persistence."""
    who, still = task.ours.evaluation.predictor, task.persistence.evaluation
    lines: dict[str, list[tuple[float, Number]]] = {f"{who}, trained values": [], f"{who}, unseen values": []}
    for entry in _ours(task):
        curve = by_parameter([entry.evaluation], name)
        trained = task.was_trained(name, curve.values)
        for at, score, seen in zip(curve.values, curve.numbers, trained, strict=True):
            # Other grids are judged beside the main one: only what is new there has a place here.
            if seen and entry is not task.ours:
                continue
            lines[f"{who}, {'trained' if seen else 'unseen'} values"].append((float(at), score))
    reference = by_parameter([still], name)
    lines[still.predictor] = [(float(x), n) for x, n in zip(reference.values, reference.numbers, strict=True)]
    curves = []
    for label, points in lines.items():
        if points:
            x, y, low, high = np.array(sorted((at, n.value, n.low, n.high) for at, n in points)).T
            curves.append(Curve(label, x, y, low, high, dashed=label == still.predictor))
    least, most = (f(float(f(curve.x)) for curve in curves) for f in (min, max))
    picture = chart(curves, name, "nRMSE", log_x=least > 0 and most > 20 * least)
    return f"Error against {name}, with 95 % intervals.", picture


def _film(ours: Evaluation, example: Example, fan: Fan | None) -> Film:
    who = f"prediction of {ours.predictor}" if fan is None else f"mean and spread of an ensemble of {ours.predictor}"
    alt = f"{ours.task.title}, sample {example.id}: truth, {who}, error"
    alt += "" if example.mask is None else "; cells that do not count are grey"
    values = (example.truth, example.prediction if fan is None else fan.mean)
    times, channels = example.times, ours.task.channels
    if ours.task.ndim > 1:
        wide, mask = None if fan is None else fan.spread, example.mask
        lows = [low for low, _ in ours.task.bounds]
        x, y = ((low, low + length) for low, length in zip(lows[:2], example.grid.lengths[:2], strict=True))
        if isinstance(example.grid, Points):
            raster = Raster.of(example.grid)
            truth, ahead = map(raster.image, values)
            values, mask, (x, y) = (truth, ahead), raster.mask, example.grid.bounds[:2]
            wide = None if wide is None else raster.image(wide)
        return film_forecast_maps(*values, times, channels, alt, mask=mask, spread=wide, bounds=(x, y))
    cells = example.truth.shape[1]
    x = ours.task.bounds[0][0] + (np.arange(cells) + 0.5) * example.grid.lengths[0] / cells
    bands = None if fan is None else fan.bands
    return film_forecast_lines(*values, x, times, channels, alt, mask=example.mask, bands=bands)
