"""Makes the cells of tables: which runs belong together, their numbers and ratios as text, and their commands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from ups.types import OURS
from ups_bench.ledger import LedgerEntry, Score
from ups_bench.rows import BenchRow

BESIDE = re.compile(r"beside (\w+) other runs? on the GPU")  # the usual note


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(entries: Sequence[LedgerEntry], row: BenchRow) -> list[LedgerEntry]:
    """The whole runs of a row that tables show; of a row of the accuracy table those of at least half its config's
    minutes, for what less time buys is another table's."""
    return runs_shown(entries, row, "beyond") if row.beyond else runs_shown(entries, row, minutes=row.minutes / 2)


def runs_shown(
    entries: Sequence[LedgerEntry], row: BenchRow, kind: str = "full", minutes: float = 0.0
) -> list[LedgerEntry]:
    """The runs of a row that tables show, of at least so many minutes, by seed. They are by the recipe and on the
    hardware of the newest; of several budgets that with the most seeds, then the longest; of each seed the newest run.
    The program may have changed between them, as it will have for whoever repeats one. Nothing is picked by its error:
    who picks by the test error deceives himself."""
    known = [e for e in entries if (e.row, e.kind) == (row.name, kind) and e.minutes >= minutes]
    alike = _of_as_many_steps(by_newest_recipe(sorted(known, key=lambda entry: entry.started)))
    budgets: dict[float, dict[int, LedgerEntry]] = {}
    own = [entry for entry in alike if entry.hardware == alike[-1].hardware]
    for entry in sorted(own, key=lambda entry: not entry.by_steps):  # of one seed the clock's goes before one by steps
        budgets.setdefault(entry.minutes, {})[entry.seed] = entry
    runs = max(budgets.items(), key=lambda budget: (len(budget[1]), budget[0]), default=(0.0, {}))[1]
    return [runs[seed] for seed in sorted(runs)]


def _of_as_many_steps(runs: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The runs whose minutes say how long they were: all by the clock, and of those by steps some.

    A run by steps stays if a run by the clock of as many minutes, on the same hardware, took as many steps to a
    twentieth. Where there is none by the clock, those stay that took as many as most on the hardware of the newest.
    """

    def like(entry: LedgerEntry, other: LedgerEntry) -> bool:
        steps = steps_of(other)
        return entry.hardware == other.hardware and abs(steps_of(entry) - steps) <= steps / 20

    def beside(entry: LedgerEntry) -> list[LedgerEntry]:
        same = [other for other in runs if other.minutes == entry.minutes]
        own = [other for other in reversed(same) if other.hardware == same[-1].hardware]
        usual = max(own, key=lambda one: sum(like(other, one) for other in own))  # the newest of those it is said of
        return [other for other in same if not other.by_steps] or [usual]

    return [e for e in runs if not e.by_steps or any(like(e, other) for other in beside(e))]


def steps_of(entry: LedgerEntry) -> int:
    """The steps of all stages of a run."""
    return sum(stage.steps for stage in entry.stages.values())


def timed_steps(row: BenchRow, entry: LedgerEntry) -> int | None:
    """The steps of the one stage of a row that is trained by the clock; None if the entry has no such stage."""
    stage = entry.stages.get(row.timed or "")
    return None if stage is None else stage.steps


def program(entry: LedgerEntry) -> str | None:
    """The hash of the sources of a run, or else its commit: one that changes documents alone is the same program."""
    return entry.source or entry.commit


def ratio_with_caveats(ratio: str, runs: Sequence[LedgerEntry]) -> str:
    """A ratio of several runs with a remark where their programs or hardware differ; a dash where their recipes do."""
    if len({run.recipe for run in runs}) > 1:
        return "– (different recipes)"
    unlike = ["programs"] if len({program(run) for run in runs}) > 1 else []
    unlike += ["hardware"] if len({run.hardware for run in runs}) > 1 else []
    return f"{ratio} (different {' and '.join(unlike)})" if unlike else ratio


def commits(runs: Sequence[LedgerEntry]) -> str:
    """The commits of the code that made runs, in words, each once; empty where none is known."""
    known = dict.fromkeys(run.commit[:7] for run in runs if run.commit)
    return f"commit{'s' * (len(known) > 1)} {', '.join(known)}" if known else ""


def circumstances(runs: Sequence[LedgerEntry]) -> str:
    """The notes of runs, each once; those that differ only in beside how many others they ran are one."""
    notes = list(dict.fromkeys(run.note for run in runs if run.note))
    counts = [match[1] for note in notes if (match := BESIDE.fullmatch(note))]
    if len(counts) > 1:
        rest = [note for note in notes if not BESIDE.fullmatch(note)]
        notes = [f"beside {' or '.join(counts)} other runs on the GPU", *rest]
    return ", ".join(notes)


def score_cell(scores: Sequence[Score], style: str = ".2e", bar: float = math.inf) -> str:
    """The cell of a table for a number of one or several seeds: their mean, and from the least to the greatest end of
    their intervals, where they have any. Bold where the mean is above the bar."""
    if not scores:
        return "not run"
    mean = mean_of(scores)
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    words = [] if math.isnan(low) else [f"{low:{style}} – {high:{style}}"]
    words += [f"{len(scores)} seeds"] if len(scores) > 1 else []
    value = f"{mean:{style}}" if mean <= bar else f"**{mean:{style}}**"
    return f"{value} ({', '.join(words)})" if words else value


def joined(scores: Sequence[Score]) -> Score:
    """Numbers of several seeds as one: their mean, with the union of their intervals."""
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    return scores[0].model_copy(update={"value": mean_of(scores), "low": low, "high": high})


def mean_of(scores: Sequence[Score]) -> float:
    """The mean of numbers of several seeds."""
    return sum(score.value for score in scores) / len(scores)


def by_newest_recipe(runs: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The runs by the recipe of the newest: older ones would say what a recipe is worth, not what time is."""
    last = max(runs, key=lambda entry: entry.started, default=None)
    return [entry for entry in runs if last is not None and entry.recipe == last.recipe]


def ratio_of(above: Score, below: Score) -> str:
    """One number over another of other runs, from the least to the most that their intervals allow."""
    ends = above.low / below.high, above.high / below.low
    return f"{above.value / below.value:.2f} ({ends[0]:.2f} – {ends[1]:.2f})"


def command_of(row: BenchRow, runs: Sequence[LedgerEntry], by_steps: bool = False) -> str:
    """What measures a row again, for as long or for the steps of the first seed, with as many seeds and beside the
    same; and whether that is what was measured."""
    baselines = [name for name in ("fno", "uno") if all(name in run.predictors for run in runs)]
    steps = timed_steps(row, runs[0]) if by_steps else None
    precision = f" --precision {runs[0].precision}" if runs[0].precision is not None else ""
    return f"`{row.command(runs[0].minutes, len(runs), baselines, steps)}{precision}`{older(row, runs)}"


def older(row: BenchRow, runs: Sequence[LedgerEntry]) -> str:
    """A remark where runs are of other settings than the row has now, so that its command measures something else."""
    return " (older settings)" if any(run.recipe != row.recipe for run in runs) else ""


def splits_of(runs: Sequence[LedgerEntry], metric: str) -> list[tuple[str, str]]:
    """Task and split of each number of a name, in the order in which they were judged."""
    return list(dict.fromkeys((s.task, s.split) for s in runs[0].numbers if s.metric == metric))


def scores_of(runs: Sequence[LedgerEntry], task: str, split: str, metric: str, predictor: str = OURS) -> list[Score]:
    """One number of a predictor, as each of the runs has it."""
    key = (task, split, metric, predictor)
    return [s for run in runs for s in run.numbers if (s.task, s.split, s.metric, s.predictor) == key]


def table_of(
    header: Sequence[str],
    rows: Mapping[str, BenchRow],
    entries: Sequence[LedgerEntry],
    asks: Callable[[BenchRow], object],
    lines_of: Callable[[BenchRow, list[LedgerEntry]], Iterator[tuple[str, ...]]],
) -> str:
    """A table of the rows that `asks` is true of.

    Args:
        header: The first line.
        rows: All rows by name.
        entries: The ledger.
        asks: Which rows have a line.
        lines_of: What a row's runs say: lines without the row's name and the command to measure it, which are added. A
            row without runs gets the command alone.
    """
    lines: list[tuple[str, ...]] = []
    for row in (row for row in rows.values() if asks(row)):
        name, runs = f"`{row.name}`", shown(entries, row)
        lines += [(name, *line, command_of(row, runs)) for line in (lines_of(row, runs) if runs else ())]
        if not runs:
            blank = ["–"] * (len(header) - 3)
            lines.append((name, "not measured yet", *blank, f"`{row.command(row.minutes)}`"))
    return markdown(header, _once(lines))


def _once(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Lines with their last cell, a command, replaced by `the same` where the line before has it too."""
    pairs = zip(lines, [("",), *lines], strict=False)
    return [(*line[:-1], "the same") if line[-1] == before[-1] else line for line, before in pairs]
