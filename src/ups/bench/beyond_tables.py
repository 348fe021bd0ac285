"""The tables beyond that of accuracy: finer grids, parameters between, long rollouts, many tasks, few data, compute."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from ups.bench.beyond import OVER_GRID, OVER_NEIGHBOURS
from ups.bench.cells import by_newest_recipe, cell, circumstances, command_of, fair, markdown, newest, ratio_of
from ups.bench.ledger import Entry, Score
from ups.bench.rows import Row
from ups.engine.train import Precision
from ups.files import writing
from ups.pages import Curve, chart
from ups.physics import EQUATIONS
from ups.physics.solver import Equation
from ups.run.exams import cells_of, labels_of
from ups.run.params import files_of

BARS = {2: 1.5, 4: 2.5}  # of an error on a grid so many times as fine, over that on the trained one
BETWEEN = 1.5  # of an error between trained parameters, over its neighbours'
PICTURE = Path("docs/images/compute.png")
SPENT = "ups bench accuracy burgers1d/nu0.01 --minutes 1 --fno"
PRECISE = "ups bench accuracy burgers1d/nu0.01 --precision bf16 --minutes 0.5 --seeds 3"
FEW = "ups bench accuracy burgers1d/nu0.01 --trajectories 16 --minutes 0.5"


def tables_beyond(rows: Mapping[str, Row], beyond: Mapping[str, Row], entries: Sequence[Entry]) -> dict[str, str]:
    """Every table of this file, by name."""
    return {
        "resolution": resolution_table(beyond, entries),
        "between": between_table(beyond, entries),
        "horizon": horizon_table(beyond, entries),
        "many": many_table(rows, beyond, entries),
        "few": few_table(entries),
        "compute": compute_table(rows, entries),
        "precision": precision_table(rows, entries),
    }


def _splits(runs: Sequence[Entry], metric: str) -> list[tuple[str, str]]:
    """Task and split of each number of a name, in the order in which they were judged."""
    return list(dict.fromkeys((s.task, s.split) for s in runs[0].numbers if s.metric == metric))


def _found(runs: Sequence[Entry], task: str, split: str, metric: str, predictor: str = "ups") -> list[Score]:
    key = (task, split, metric, predictor)
    return [s for run in runs for s in run.numbers if (s.task, s.split, s.metric, s.predictor) == key]


def _table(
    header: Sequence[str],
    rows: Mapping[str, Row],
    entries: Sequence[Entry],
    asks: Callable[[Row], object],
    lines_of: Callable[[Row, list[Entry]], Iterator[tuple[str, ...]]],
) -> str:
    """Of the rows that ask for something: what their newest runs say, without the row and the command, which stand
    around each line; or how to measure it."""
    lines: list[tuple[str, ...]] = []
    for row in (row for row in rows.values() if asks(row)):
        name, runs = f"`{row.name}`", newest(entries, row, "beyond")
        lines += [(name, *line, command_of(row, runs)) for line in (lines_of(row, runs) if runs else ())]
        if not runs:
            blank = ["–"] * (len(header) - 3)
            lines.append((name, "not measured yet", *blank, f"`{row.command(row.minutes)}`"))
    return markdown(header, _once(lines))


def resolution_table(rows: Mapping[str, Row], entries: Sequence[Entry]) -> str:
    """Errors on finer grids than the trained one, over those on that one."""
    header = ("row", "judged on", "error", "over that on the trained grid", "bar", "the FNO's ratio", "command")

    def lines(row: Row, runs: list[Entry]) -> Iterator[tuple[str, ...]]:
        grids = {data.task: data.grid for data in runs[0].data}
        judged = {(task, split): _finer(split, grids.get(task, ())) for task, split in _splits(runs, OVER_GRID)}
        for task, grid in grids.items():  # what was asked for and could not be judged is not left out
            for factor in row.config.evaluation.zero_shot:
                if (task, factor) not in {(known, f) for (known, _), f in judged.items()}:
                    judged[task, f"test, {cells_of([n * factor for n in grid])} (zero-shot)"] = factor
        for (task, split), factor in judged.items():
            where = f"`{task}`, {split}" if len(grids) > 1 else split
            yield where, *_beside_bar(runs, task, split, OVER_GRID, BARS.get(factor, math.inf))

    return _table(header, rows, entries, lambda row: row.config.evaluation.zero_shot, lines)


def _finer(split: str, grid: Sequence[int]) -> float:
    """How many times as fine as a trained grid that of a split is, by the cells in its name; nan where it is not."""
    cells = [int(number) for number in re.findall(r"\d+", split.rpartition(", ")[2])]
    ratios = {n / trained for n, trained in zip(cells, grid, strict=True)} if len(cells) == len(grid) else set()
    return ratios.pop() if len(ratios) == 1 else math.nan


def between_table(rows: Mapping[str, Row], entries: Sequence[Entry]) -> str:
    """Errors at parameters between trained ones, over the mean of their neighbours'."""
    header = ("row", "judged at", "error", "over its neighbours'", "bar", "the FNO's ratio", "command")

    def lines(_: Row, runs: list[Entry]) -> Iterator[tuple[str, ...]]:
        for task, split in _splits(runs, OVER_NEIGHBOURS):
            at = split.split(", ", 1)[1].partition(" (")[0]
            yield (at, *_beside_bar(runs, task, split, OVER_NEIGHBOURS, BETWEEN))

    return _table(header, rows, entries, lambda row: row.config.evaluation.unseen, lines)


def _beside_bar(runs: Sequence[Entry], task: str, split: str, metric: str, bar: float) -> tuple[str, ...]:
    """An error on a split, its ratio by name, the bar of that, and the FNO's."""
    ours, fno = (cell(_found(runs, task, split, metric, who), ".2f", b) for who, b in (("ups", bar), ("fno", math.inf)))
    return cell(_found(runs, task, split, "nrmse")), ours, f"≤ {bar:g}" if bar < math.inf else "–", fno


def horizon_table(rows: Mapping[str, Row], entries: Sequence[Entry]) -> str:
    """Rollouts many times as long as the trained ones: how large they become, and how they keep their laws."""
    header = ("row", "task", "bounded", "largest size over the truth's", "laws broken by", "the FNO's", "command")

    def lines(row: Row, runs: list[Entry]) -> Iterator[tuple[str, ...]]:
        times = f"{row.config.evaluation.horizon}x"
        for task in dict.fromkeys(s.task for s in runs[0].numbers if s.metric == f"{times} size"):
            (kept, size), fno = (_growth(runs, task, times, who) for who in ("ups", "fno"))
            prefix, own = f"{times} law ", [s for s in runs[0].numbers if (s.task, s.predictor) == (task, "ups")]
            laws = [f"{s.metric.removeprefix(prefix)} {s.value:.1e}" for s in own if s.metric.startswith(prefix)]
            words = (kept, size, "; ".join(laws) or "it has none", "not run" if not fno[0] else ", ".join(fno))
            yield (f"`{task}`, {times[:-1]} times", *words)

    return _table(header, rows, entries, lambda row: row.config.evaluation.horizon, lines)


def _growth(runs: Sequence[Entry], task: str, times: str, predictor: str) -> tuple[str, str]:
    """Whether the long rollouts of a predictor stay bounded, and how large they become; nothing where it has none."""
    shares = _found(runs, task, "test", f"{times} bounded", predictor)
    if not shares:
        return "", ""
    least = min(s.value for s in shares)
    bounded = "yes" if least == 1 else f"**no**: {100 * least:.1f} % of {shares[0].n}"
    return bounded, cell(_found(runs, task, "test", f"{times} size", predictor), ".3g")


def many_table(rows: Mapping[str, Row], beyond: Mapping[str, Row], entries: Sequence[Entry]) -> str:
    """One simulator for many rows of the table, beside those that were trained for each alone."""
    header = ("row", "of the table", "one for all", "published FNO", "alone", "ratio", "training", "command")

    def lines(row: Row, runs: list[Entry]) -> Iterator[tuple[str, ...]]:
        sets = sets_of(row)
        share = runs[0].minutes / len(sets)
        for task, split, solved in sets:
            scores = _found(runs, task, split, "nrmse")
            name, known = alone(rows, entries, solved, share)
            own = [score for entry in known if (score := entry.score()) is not None]
            ratio = "–"
            if own and scores:
                mean = sum(s.value for s in own) / len(own)
                parts = [
                    s.model_copy(update={k: getattr(s, k) / mean for k in ("value", "low", "high")}) for s in scores
                ]
                ratio = cell(parts, ".2f") + (" (other frames given)" if known[0].protocol != runs[0].protocol else "")
            spent = f"{share:.3g} min a set" + (f"; alone {known[0].minutes:g} min" if known else "")
            where = f"`{name}`" if name else f"`{task}`, {split}"
            best = rows[name].published.best if name else None
            words = cell(scores, bar=best or math.inf), "–" if best is None else f"{best:.2e}"
            yield where, *words, cell(own) if own else "not measured", ratio, spent

    return _table(header, beyond, entries, lambda row: row.config.evaluation.apart, lines)


def sets_of(row: Row) -> list[tuple[str, str, Equation]]:
    """Task, split and equation of each set of parameters of a row, as `evaluation.apart` judges them."""
    found: dict[str, list[Equation]] = {}
    for data in row.config.data.values():
        kind = EQUATIONS[data.equation or ""]
        found.setdefault(data.definition.name, []).extend(f.equation(kind) for f in files_of(data.params))
    return [
        (task, label, solved)
        for task, sets in found.items()
        for solved, label in zip(sets, labels_of([s.params() for s in sets]) if sets[1:] else ["test"], strict=True)
    ]


def alone(
    rows: Mapping[str, Row], entries: Sequence[Entry], solved: Equation, minutes: float
) -> tuple[str, list[Entry]]:
    """The name of the row of the table with this equation, and of its runs by the newest recipe those of about so
    many minutes."""
    for row in rows.values():
        if [own for _, _, own in sets_of(row)] == [solved]:
            known = by_newest_recipe([e for e in entries if (e.row, e.kind) == (row.name, "full")])
            near = min((abs(math.log(entry.minutes / minutes)) for entry in known), default=0.0)
            return row.name, newest([e for e in known if abs(math.log(e.minutes / minutes)) <= near], row)
    return "", []


def few_table(entries: Sequence[Entry]) -> str:
    """Training further on few trajectories of a task that was never seen, beside training anew on as many."""
    header = ("row", "trajectories", "trained further", "trained anew", "anew / further", "training")
    groups: dict[tuple[str, int, float], dict[bool, Entry]] = {}
    for entry in sorted((e for e in entries if e.kind == "few"), key=lambda e: e.started):
        groups.setdefault((entry.row, entry.trajectories or 0, entry.minutes), {})[entry.start_from is not None] = entry
    if not groups:
        return f"Not measured yet: `{FEW}`, and again with `--start-from runs/bench/beyond-three-1d-4min-seed0`.\n"
    lines = []
    for (row, count, minutes), pair in sorted(groups.items()):
        further, anew = ([s] if known and (s := known.score()) else [] for known in (pair.get(True), pair.get(False)))
        ratio = fair(ratio_of(anew[0], further[0]), pair[False], pair[True]) if further and anew else "–"
        source = f", from `{pair[True].start_from}`" if True in pair else ""
        lines.append((f"`{row}`", str(count), cell(further), cell(anew), ratio, f"{minutes:g} min{source}"))
    return markdown(header, lines)


def precision_table(rows: Mapping[str, Row], entries: Sequence[Entry]) -> str:
    """Rows trained in other precisions than their own for the same time, over those of fp32."""
    header = ("row", "precision", "error", "over fp32's", "steps", "training", "command")
    lines: list[tuple[str, ...]] = []
    for row in rows.values():
        of = [e for e in entries if e.kind == "precision"]
        runs = {p: newest([e for e in of if e.precision == p], row, "precision") for p in get_args(Precision)}
        for precision, known in runs.items():
            if known:
                plain = [entry for entry in runs["fp32"] if entry.minutes == known[0].minutes]
                ratio = fair(f"{_mean(known) / _mean(plain):.2f}", known[0], plain[0]) if _mean(plain) else "–"
                steps = sum(entry.predictors["ups"].steps for entry in known) / len(known)
                spent = ", ".join(filter(None, (f"{known[0].minutes:g} min", circumstances(known))))
                command = f"`{row.command(known[0].minutes, len(known))} --precision {precision}`"
                scores = [score for entry in known if (score := entry.score()) is not None]
                lines.append((f"`{row.name}`", precision, cell(scores), ratio, f"{steps:.0f}", spent, command))
    return markdown(header, lines) if lines else f"Not measured yet: `{PRECISE}`, and again with fp32.\n"


def _mean(runs: Sequence[Entry]) -> float:
    """Of their errors; 0 where there are none."""
    values = [score.value for run in runs if (score := run.score()) is not None]
    return sum(values) / len(values) if values else 0.0


def spent(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The newest full run of each budget by the newest recipe, of rows that were measured with several, by row, the
    least budget first. Those with a note are left out: minutes on a GPU that others use too are no measure of what was
    computed."""
    found: dict[str, list[Entry]] = {}
    for entry in sorted((e for e in entries if e.kind == "full" and not e.note), key=lambda e: e.started):
        found.setdefault(entry.row, []).append(entry)
    budgets = {row: {run.minutes: run for run in by_newest_recipe(runs)} for row, runs in sorted(found.items())}
    return {row: [runs[m] for m in sorted(runs)] for row, runs in budgets.items() if len(runs) > 1}


def compute_table(rows: Mapping[str, Row], entries: Sequence[Entry]) -> str:
    """Error against seconds of training, ours and the FNO's."""
    lines = []
    for name, runs in spent(entries).items():
        for run in runs if name in rows else ():
            ours, fno = (cell([s] if (s := run.score(who)) else []) for who in ("ups", "fno"))
            lines.append((f"`{name}`", f"{run.minutes:g}", ours, fno, command_of(rows[name], [run])))
    if not lines:
        return f"No row is measured with several budgets yet: `{SPENT}`, and again with other minutes.\n"
    picture = f"\n![Error against seconds of training](images/{PICTURE.name})\n"
    return markdown(("row", "minutes", "ours", "FNO", "command"), lines) + picture


def draw(path: Path, entries: Sequence[Entry]) -> None:
    """The same as a picture, where there is anything to show."""
    curves = []
    for row, runs in spent(entries).items():
        for who in ("ups", "fno"):
            known = [(run.predictors[who].seconds, s) for run in runs if (s := run.score(who)) is not None]
            points = np.array([(seconds, s.value, s.low, s.high) for seconds, s in known]).reshape(-1, 4)
            if len(points):
                curves.append(Curve(f"{row}, {'ours' if who == 'ups' else 'FNO'}", *points.T))
    if curves:
        picture = chart(curves, "seconds of training", "nRMSE", log_x=True)
        with writing(path, "run the command in the repository") as beside:
            beside.write_bytes(base64.b64decode(picture.partition(",")[2]))


def _once(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Lines whose last cell, a command, is said once where it serves several in a row."""
    pairs = zip(lines, [("",), *lines], strict=False)
    return [(*line[:-1], "the same") if line[-1] == before[-1] else line for line, before in pairs]
