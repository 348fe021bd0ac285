"""Compares one simulator trained on many rows of the table with those rows alone, as a table and in sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ups.physics import EQUATIONS
from ups.physics.solver import Equation
from ups.run.data.params import files_of
from ups.run.judging.eval_sets import labels_of
from ups.types import OURS, counted
from ups_bench.cells import by_newest_recipe, mean_of, older, runs_shown, score_cell, scores_of, table_of
from ups_bench.ledger import LedgerEntry, Score
from ups_bench.rows import BenchRow

GRID = re.compile(r", [\d ×]+ cells.*")  # in the name of a split


@dataclass(frozen=True)
class ManyPart:
    """One set of parameters of a simulator for many, beside the row of the table that is trained on this set alone."""

    where: str  # the name of that row; task and split where there is none
    scores: list[Score]  # its errors
    best: float | None  # the best published error of that row
    known: list[LedgerEntry]  # the runs of that row
    drawn: float  # the part of the steps that drew it
    minutes: float  # the same part of the minutes
    other_frames: bool = False  # whether the runs alone are given another number of true frames
    remark: str = ""  # on the runs alone

    @property
    def alone(self) -> list[Score]:
        """The errors of the row alone."""
        return [score for entry in self.known if (score := entry.score()) is not None]

    @property
    def alone_words(self) -> str:
        """The errors of the row alone, in words."""
        return score_cell(self.alone) + self.remark if self.alone else "not measured"

    @property
    def over_alone(self) -> list[Score]:
        """The errors over the mean of the row alone, from the least to the most that both intervals allow; none where
        either is not measured."""
        if not self.alone:
            return []
        mean, low, high = mean_of(self.alone), min(s.low for s in self.alone), max(s.high for s in self.alone)
        return [
            s.model_copy(update={"value": s.value / mean, "low": s.low / high, "high": s.high / low})
            for s in self.scores
        ]

    @property
    def same_minutes(self) -> bool:
        """Whether the row alone was trained for as many minutes as this part had of the training of all, to 1 %."""
        return bool(self.known) and math.isclose(self.known[0].minutes, self.minutes, rel_tol=0.01)


def parts_of(
    rows: Mapping[str, BenchRow], row: BenchRow, runs: Sequence[LedgerEntry], entries: Sequence[LedgerEntry]
) -> list[ManyPart]:
    """Every set of parameters of a row beyond the table, as its runs have it."""
    parts, shares = [], shares_of(row, runs[0])
    for task, split, solved in sets_of(row):
        drawn = shares.get(task, 0.0) / judged_apart(runs[0], task)
        minutes = runs[0].minutes * drawn
        name, known = alone(rows, entries, solved, minutes)
        where, best = (f"`{name}`", rows[name].published.best) if name else (f"`{task}`, {split}", None)
        remark = older(rows[name], known) if known else ""
        # Of a steady task no frame is given, whatever the other tasks of the run are.
        others = bool(known) and known[0].protocol != runs[0].protocol and not solved.task.steady
        parts.append(
            ManyPart(where, scores_of(runs, task, split, "nrmse"), best, known, drawn, minutes, others, remark)
        )
    return parts


def shares_of(row: BenchRow, run: LedgerEntry) -> dict[str, float]:
    """The part of the steps of a run that drew each task, over all stages that had a choice; where that is not known,
    what the row's mix asks for."""
    stages = [stage for stage in run.stages.values() if stage.drawn]
    if stages:
        total = sum(stage.steps for stage in stages)
        names = dict.fromkeys(name for stage in stages for name in stage.drawn)
        return {name: sum(s.steps * s.drawn.get(name, 0.0) for s in stages) / total for name in names}
    tasks = list(dict.fromkeys(task for task, _, _ in sets_of(row)))
    weights = row.config.mix.numbers(tasks, [1] * len(tasks))
    return {task: weight / sum(weights) for task, weight in zip(tasks, weights, strict=True)}


def judged_apart(run: LedgerEntry, task: str) -> int:
    """How many sets of parameters a run has of a task. Sets with as many windows are drawn equally often."""
    splits = {s.split for s in run.numbers if (s.task, s.metric, s.predictor) == (task, "nrmse", OURS)}
    return max(1, len({GRID.sub("", split) for split in splits if split.startswith("test, ")} - {"test"}))


def many_table(rows: Mapping[str, BenchRow], beyond: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """A sentence on each row beyond the table that trains many of its rows at once, and a table of these beside the
    rows trained alone."""
    header = ("row", "of the table", "one for all", "published FNO", "alone", "ratio", "training", "command")

    def lines(row: BenchRow, runs: list[LedgerEntry]) -> Iterator[tuple[str, ...]]:
        for part in parts_of(rows, row, runs, entries):
            known, ratio = part.known, "–"
            if part.over_alone:
                ratio = score_cell(part.over_alone, ".2f") + " (other frames given)" * part.other_frames
            spent = f"{100 * part.drawn:.2g} % of the steps, {part.minutes:.2g} min" if part.drawn else "–"
            spent += f"; alone {known[0].minutes:g} min" if known else ""
            words = score_cell(part.scores, bar=part.best or math.inf), "–" if part.best is None else f"{part.best:.2e}"
            yield part.where, *words, part.alone_words, ratio, spent

    summary = "".join(f"- {sentence}\n" for sentence in sentences(rows, beyond, entries))
    table = table_of(header, beyond, entries, lambda row: row.config.evaluation.apart, lines)
    return f"{summary}\n" * bool(summary) + table


def sentences(
    rows: Mapping[str, BenchRow], beyond: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]
) -> list[str]:
    """What the table says of each simulator for many, in a sentence."""
    lines = []
    for row in (row for row in beyond.values() if row.config.evaluation.apart):
        if runs := runs_shown(entries, row, "beyond"):
            parts, spent = parts_of(rows, row, runs, entries), runs[0].predictors[OURS]
            judged = [part for part in parts if part.scores]
            good = sum(part.best is not None and mean_of(part.scores) <= part.best for part in judged)
            size = f"one network of {spent.params / 1e6:.1f} million numbers"
            words = f"`{row.name}`, {size}, {runs[0].minutes:g} min of training ({counted(spent.steps, 'step')}): of "
            words += f"{len(parts)} rows {len(judged)} are judged, and {good} at or below the published FNO"
            words += f"{_ratios_to_rows_alone(judged)}{older(row, runs)}."
            lines.append(words)
    return lines


def _ratios_to_rows_alone(parts: Sequence[ManyPart]) -> str:
    """The end of a sentence: the least and the greatest ratio to the errors of rows alone, of the parts whose row alone
    was trained for the same minutes and is given the same frames. Empty where there is none."""
    like = [part for part in parts if part.same_minutes and part.over_alone and not part.other_frames]
    ratios = [mean_of(part.over_alone) for part in like]
    of = f"; beside rows alone that were trained as long as their part of the steps, {counted(len(ratios), 'row')},"
    return f"{of} they have {_ends(ratios)} times the error" if ratios else ""


def _ends(values: Sequence[float]) -> str:
    """Least and greatest value in words; one of them where both read alike."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def sets_of(row: BenchRow) -> list[tuple[str, str, Equation]]:
    """Task, split and equation of each set of parameters of a row, as `evaluation.apart` judges them."""
    equations: dict[str, list[Equation]] = {}
    for data in row.config.data.values():
        kind = EQUATIONS[data.equation or ""]
        equations.setdefault(data.definition.name, []).extend(f.equation(kind) for f in files_of(data.params))
    return [
        (task, label, solved)
        for task, sets in equations.items()
        for solved, label in zip(sets, labels_of([s.params() for s in sets]) if sets[1:] else ["test"], strict=True)
    ]


def alone(
    rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry], solved: Equation, minutes: float
) -> tuple[str, list[LedgerEntry]]:
    """The name of the row of the table with this equation, and of its runs by the newest recipe those of about so
    many minutes; where it was not drawn, those that the table shows."""
    for row in rows.values():
        if [own for _, _, own in sets_of(row)] == [solved]:
            known = by_newest_recipe([e for e in entries if (e.row, e.kind) == (row.name, "full")])
            apart = {e.run: abs(math.log(e.minutes / minutes)) if minutes else 0.0 for e in known}
            return row.name, runs_shown([e for e in known if apart[e.run] <= min(apart.values())], row)
    return "", []
