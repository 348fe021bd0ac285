"""Tables besides accuracy: finer grids, parameters in between, long rollouts, many tasks, few data, compute."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from ups.engine.train import Precision
from ups.files import writing
from ups.pages import Curve, chart
from ups.run.judging.eval_sets import cells_of
from ups.types import OURS
from ups_bench.beyond import OVER_GRID, OVER_NEIGHBOURS
from ups_bench.cells import (
    by_newest_recipe,
    circumstances,
    command_of,
    joined,
    markdown,
    older,
    ratio_of,
    ratio_with_caveats,
    runs_shown,
    score_cell,
    scores_of,
    splits_of,
    table_of,
)
from ups_bench.ledger import LedgerEntry
from ups_bench.many import many_table
from ups_bench.rows import BenchRow

BARS: dict[float, float] = {2: 1.5, 4: 2.5}  # of an error on a grid so many times as fine, over that on the trained one
BETWEEN = 1.5  # of an error between trained parameters, over its neighbours'
PICTURE = Path("docs/images/compute.png")
SPENT = "ups bench accuracy burgers1d/nu0.01 --minutes 1 --fno"
PRECISE = "ups bench accuracy burgers1d/nu0.01 --precision bf16 --minutes 0.5 --seeds 3"
FEW = "ups bench accuracy burgers1d/nu0.01 --trajectories 16 --minutes 0.5"


def tables_beyond(
    rows: Mapping[str, BenchRow], beyond: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]
) -> dict[str, str]:
    """Every table of this file, by name."""
    return {
        "resolution": resolution_table(beyond, entries),
        "between": between_table(beyond, entries),
        "horizon": horizon_table(beyond, entries),
        "many": many_table(rows, beyond, entries),
        "few": few_table(rows, entries),
        "compute": compute_table(rows, entries),
        "precision": precision_table(rows, entries),
    }


def resolution_table(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """Errors on finer grids than the trained one, over those on that one."""
    header = ("row", "judged on", "error", "over that on the trained grid", "bar", "the FNO's ratio", "command")

    def lines(row: BenchRow, runs: list[LedgerEntry]) -> Iterator[tuple[str, ...]]:
        grids = {data.task: data.grid for data in runs[0].data}
        judged = {(task, split): _finer(split, grids.get(task, ())) for task, split in splits_of(runs, OVER_GRID)}
        for task, grid in grids.items():  # what was asked for and could not be judged is not left out
            for factor in row.config.evaluation.zero_shot:
                if (task, factor) not in {(known, f) for (known, _), f in judged.items()}:
                    judged[task, f"test, {cells_of([n * factor for n in grid])} (zero-shot)"] = factor
        for (task, split), times in judged.items():
            where = f"`{task}`, {split}" if len(grids) > 1 else split
            yield where, *_beside_bar(runs, task, split, OVER_GRID, BARS.get(times, math.inf))

    return table_of(header, rows, entries, lambda row: row.config.evaluation.zero_shot, lines)


def _finer(split: str, grid: Sequence[int]) -> float:
    """How many times as fine as a trained grid that of a split is, by the cells in its name; nan where it is not."""
    cells = [int(number) for number in re.findall(r"\d+", split.rpartition(", ")[2])]
    ratios = {n / trained for n, trained in zip(cells, grid, strict=True)} if len(cells) == len(grid) else set()
    return ratios.pop() if len(ratios) == 1 else math.nan


def between_table(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """Errors at parameters between trained ones, over the mean of their neighbours'."""
    header = ("row", "judged at", "error", "over its neighbours'", "bar", "the FNO's ratio", "command")

    def lines(_: BenchRow, runs: list[LedgerEntry]) -> Iterator[tuple[str, ...]]:
        for task, split in splits_of(runs, OVER_NEIGHBOURS):
            at = split.split(", ", 1)[1].partition(" (")[0]
            yield (at, *_beside_bar(runs, task, split, OVER_NEIGHBOURS, BETWEEN))

    return table_of(header, rows, entries, lambda row: row.config.evaluation.unseen, lines)


def _beside_bar(runs: Sequence[LedgerEntry], task: str, split: str, metric: str, bar: float) -> tuple[str, ...]:
    """An error on a split, its ratio by name, the bar of that, and the FNO's."""
    ours, fno = (
        score_cell(scores_of(runs, task, split, metric, who), ".2f", b) for who, b in ((OURS, bar), ("fno", math.inf))
    )
    return score_cell(scores_of(runs, task, split, "nrmse")), ours, f"≤ {bar:g}" if bar < math.inf else "–", fno


def horizon_table(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """Rollouts many times as long as the trained ones: how large they become, and how they keep their laws."""
    header = ("row", "task", "bounded", "largest size over the truth's", "laws broken by", "the FNO's", "command")

    def lines(row: BenchRow, runs: list[LedgerEntry]) -> Iterator[tuple[str, ...]]:
        times = f"{row.config.evaluation.horizon}x"
        for task in dict.fromkeys(s.task for s in runs[0].numbers if s.metric == f"{times} size"):
            (bounded, size), fno = (_growth(runs, task, times, who) for who in (OURS, "fno"))
            prefix, own = f"{times} law ", [s for s in runs[0].numbers if (s.task, s.predictor) == (task, OURS)]
            laws = [f"{s.metric.removeprefix(prefix)} {s.value:.1e}" for s in own if s.metric.startswith(prefix)]
            words = (bounded, size, "; ".join(laws) or "it has none", "not run" if not fno[0] else ", ".join(fno))
            yield (f"`{task}`, {times[:-1]} times", *words)

    return table_of(header, rows, entries, lambda row: row.config.evaluation.horizon, lines)


def _growth(runs: Sequence[LedgerEntry], task: str, times: str, predictor: str) -> tuple[str, str]:
    """Whether the long rollouts of a predictor stay bounded, and how large they become; nothing where it has none."""
    shares = scores_of(runs, task, "test", f"{times} bounded", predictor)
    if not shares:
        return "", ""
    least = min(s.value for s in shares)
    bounded = "yes" if least == 1 else f"**no**: {100 * least:.1f} % of {shares[0].n}"
    return bounded, score_cell(scores_of(runs, task, "test", f"{times} size", predictor), ".3g")


def few_table(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """Training further on few trajectories of a task that was never seen, beside training anew on as many."""
    header = ("row", "trajectories", "trained further", "trained anew", "anew / further", "training")
    groups: dict[tuple[str, int, float], dict[str, list[LedgerEntry]]] = {}
    for entry in sorted((e for e in entries if e.kind == "few"), key=lambda e: e.started):
        by_source = groups.setdefault((entry.row, entry.trajectories or 0, entry.minutes), {})
        by_source.setdefault(entry.start_from or "", []).append(entry)
    if not groups:
        return f"Not measured yet: `{FEW}`, and again with `--start-from runs/bench/beyond-three-1d-4min-seed0`.\n"
    lines = []
    for (row, count, minutes), by_source in sorted(groups.items()):
        anew = _newest(by_source.pop("", []))
        for source, runs in sorted(by_source.items()) or [("", [])]:
            further = _newest(runs)
            scores = [[s for run in known if (s := run.score()) is not None] for known in (further, anew)]
            ratio = "–"
            if all(scores):
                ratio = ratio_with_caveats(ratio_of(joined(scores[1]), joined(scores[0])), [*anew, *further])
            spent = f"{minutes:g} min" + (f", from `{source}`" if source else "")
            spent += older(rows[row], [*further, *anew]) if row in rows else ""
            lines.append((f"`{row}`", str(count), *map(score_cell, scores), ratio, spent))
    return markdown(header, lines)


def _newest(runs: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The runs by the recipe of the newest, only the last of each seed, in their order."""
    return [*{run.seed: run for run in by_newest_recipe(runs)}.values()]


def precision_table(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """Rows trained in other precisions than their own for the same time, over those of fp32."""
    header = ("row", "precision", "error", "over fp32's", "steps", "training", "command")
    lines: list[tuple[str, ...]] = []
    for row in rows.values():
        of = [e for e in entries if e.kind == "precision"]
        runs = {p: runs_shown([e for e in of if e.precision == p], row, "precision") for p in get_args(Precision)}
        for precision, known in runs.items():
            if known:
                plain = [entry for entry in runs["fp32"] if entry.minutes == known[0].minutes]
                ratio = "–"
                if _mean(plain):
                    ratio = ratio_with_caveats(f"{_mean(known) / _mean(plain):.2f}", [*known, *plain])
                steps = sum(entry.predictors[OURS].steps for entry in known) / len(known)
                spent = ", ".join(filter(None, (f"{known[0].minutes:g} min", circumstances(known))))
                scores = [score for entry in known if (score := entry.score()) is not None]
                words = (f"`{row.name}`", precision, score_cell(scores), ratio, f"{steps:.0f}", spent)
                lines.append((*words, command_of(row, known)))
    return markdown(header, lines) if lines else f"Not measured yet: `{PRECISE}`, and again with fp32.\n"


def _mean(runs: Sequence[LedgerEntry]) -> float:
    """The mean error of runs; 0 where there are none."""
    values = [score.value for run in runs if (score := run.score()) is not None]
    return sum(values) / len(values) if values else 0.0


def spent(entries: Sequence[LedgerEntry]) -> dict[str, list[LedgerEntry]]:
    """The newest full run of each budget by the newest recipe, of rows that were measured with several, by row, the
    least budget first. Those with a note are left out: minutes on a GPU that others use too are no measure of what was
    computed."""
    by_row: dict[str, list[LedgerEntry]] = {}
    timed = (e for e in entries if e.kind == "full" and not e.note and not e.by_steps)
    for entry in sorted(timed, key=lambda e: e.started):
        by_row.setdefault(entry.row, []).append(entry)
    budgets = {row: {run.minutes: run for run in by_newest_recipe(runs)} for row, runs in sorted(by_row.items())}
    return {row: [runs[m] for m in sorted(runs)] for row, runs in budgets.items() if len(runs) > 1}


def quick_sentences(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> list[str]:
    """What the least of several budgets is worth, of each row that has them."""
    lines = []
    for name, (first, *_) in spent(entries).items():
        best = rows[name].published.best if name in rows else None
        if best is not None and (ours := first.score()) is not None:
            seconds = first.predictors[OURS].seconds
            words = f"{seconds:.0f} s of training leave {ours.value / best:.2f} of the published FNO's error"
            lines.append(f"`{name}`: {words}{older(rows[name], [first])}.")
    return lines


def compute_table(rows: Mapping[str, BenchRow], entries: Sequence[LedgerEntry]) -> str:
    """Error against seconds of training, ours and the FNO's."""
    lines = []
    for name, runs in spent(entries).items():
        for run in runs if name in rows else ():
            ours, fno = (score_cell([s] if (s := run.score(who)) else []) for who in (OURS, "fno"))
            lines.append((f"`{name}`", f"{run.minutes:g}", ours, fno, command_of(rows[name], [run])))
    if not lines:
        return f"No row is measured with several budgets yet: `{SPENT}`, and again with other minutes.\n"
    summary = "".join(f"- {sentence}\n" for sentence in quick_sentences(rows, entries))
    picture = f"\n![Error against seconds of training](images/{PICTURE.name})\n"
    return f"{summary}\n" * bool(summary) + markdown(("row", "minutes", "ours", "FNO", "command"), lines) + picture


def draw(path: Path, entries: Sequence[LedgerEntry]) -> None:
    """Draw error against seconds of training, where there is anything to show."""
    curves = []
    for row, runs in spent(entries).items():
        for who in (OURS, "fno"):
            known = [(run.predictors[who].seconds, s) for run in runs if (s := run.score(who)) is not None]
            points = np.array([(seconds, s.value, s.low, s.high) for seconds, s in known]).reshape(-1, 4)
            if len(points):
                curves.append(Curve(f"{row}, {'ours' if who == OURS else 'FNO'}", *points.T))
    if curves:
        picture = chart(curves, "seconds of training", "nRMSE", log_x=True)
        with writing(path, "run the command in the repository") as beside:
            beside.write_bytes(base64.b64decode(picture.partition(",")[2]))
