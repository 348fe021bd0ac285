"""`ups bench verify`: runs a row again, in short or whole, and compares it with earlier runs of that row."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ups.rundir import RunDir
from ups.types import OURS, ConfigError, counted
from ups.verdict import FINISHED
from ups_bench import ledger
from ups_bench.accuracy import Carry, carry_out, entry_of, require_gpu, require_room
from ups_bench.cells import shown, steps_of, timed_steps
from ups_bench.rows import BenchRow, RowBudget, check_budget, chosen
from ups_bench.seeds import LEAST, SeedSpread, further_seed, spread_of
from ups_bench.variants import Short

MOST = 2.0  # times the end of the interval that the spread of seeds may excuse
PASSED, FAILED, NOT_RUN = 0, 1, 3
BETTER = "better than before"


def bench_verify(
    rows: Mapping[str, BenchRow],
    name: str,
    budget: RowBudget,
    file: Path,
    out: Path,
    say: Callable[[str], None],
    carry: Carry = carry_out,
) -> int:
    """0 where one of the rows, or its short version where the budget says so, trained for the steps that it took
    before, is as good as it was; 1 where it is worse, and 3 where it did not come to its end."""
    (row,) = chosen(rows, (name,), False)
    check_budget(budget, 1)
    short = isinstance(budget.variant, Short)
    last, same = earlier(row, budget, file)
    require_gpu(row, budget, say)
    steps = {stage: training.steps for stage, training in last.stages.items()}
    budget = replace(budget, steps=steps, minutes=last.minutes, baselines=())
    which = "short" if short else "whole"
    config = row.run(budget, out, name=f"verify-{row.name.replace('/', '-')}-{which}-seed{budget.seed}")
    place = RunDir(Path(config.out) / config.name)
    require_room(config)
    ending = carry(config, "begin" if place.known() is None else "overwrite")
    if ending not in FINISHED:
        what = "its short version" if short else "the run"
        say(f"{row.name}: {what} did not come to its end ({ending.name}), so nothing is known of it.")
        return NOT_RUN
    entry = entry_of(place, row, budget, {"source": ""})
    shutil.rmtree(place.cache("data"), ignore_errors=True)
    if digests_of(entry) != digests_of(last):
        say(f"{row.name}: its data are not those of the entry to the bit, as of another device or version.")
    spread = None if short or row.beyond else spread_of(rows, ledger.read(file))
    passed, words = compared(entry, same, spread)
    again = f"ups bench accuracy {row.name} --short --seed {budget.seed}"
    again = again if short else row.command(last.minutes, steps=timed_steps(row, last), seed=budget.seed)
    say(f"{words} `{again}` records it." if passed and BETTER in words else words)
    return PASSED if passed else FAILED


def earlier(row: BenchRow, budget: RowBudget, file: Path) -> tuple[ledger.LedgerEntry, list[ledger.LedgerEntry]]:
    """The run whose steps are taken again, and all that it is held against: of whole rows those of the tables. A
    ConfigError where there is none by today's recipe."""
    what, again, short = "whole run", row.command(row.minutes), isinstance(budget.variant, Short)
    if short:
        what, again = "short version", f"ups bench accuracy {row.name} --short"
    known = [entry for entry in ledger.read(file) if (entry.row, entry.kind) == (row.name, row.kind(budget))]
    same = [entry for entry in known if entry.recipe == row.recipe]
    runs = comparable(same) if short else shown(same, row)
    if not runs:
        which = f"a {what} of {row.name}, but by another recipe" if known else f"no {what} of {row.name}"
        which = f"no {what} of {row.name} of half its minutes" if same else which
        raise ConfigError(f"{file}: holds {which}; measure one with `{again}`.")
    return runs[-1] if short else runs[0], runs


def digests_of(entry: ledger.LedgerEntry) -> dict[str, str]:
    """The SHA-256 of every file of an entry, by name, of whatever task: older entries list all files for each task."""
    return {name: digest for data in entry.data for name, digest in data.sha256.items()}


def comparable(entries: Sequence[ledger.LedgerEntry]) -> list[ledger.LedgerEntry]:
    """Entries of as many minutes as the last one, and of at least half of the most steps in these, as runs on one kind
    of machine have. Shorter trainings have larger errors, beside which anything would pass."""
    same = [entry for entry in entries if math.isclose(entry.minutes, entries[-1].minutes, rel_tol=0.01)]
    return [entry for entry in same if 2 * steps_of(entry) >= max(map(steps_of, same))]


def compared(
    entry: ledger.LedgerEntry, before: Sequence[ledger.LedgerEntry], spread: SeedSpread | None = None
) -> tuple[bool, str]:
    """Whether a run is no worse than earlier ones, on any of its tasks, and a sentence on each. `spread`: of seeds,
    where the earlier ones are too few to have one."""
    answers = [_compared(entry, before, spread, task) for task in range(len(entry.scores()))]
    return all(passed for passed, _ in answers), " ".join(words for _, words in answers)


def _compared(
    entry: ledger.LedgerEntry, before: Sequence[ledger.LedgerEntry], spread: SeedSpread | None, task: int
) -> tuple[bool, str]:
    scores, ours = [e.scores()[task] for e in before], entry.scores()[task]
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    runs = "an earlier run" if len(before) == 1 else f"{len(before)} earlier runs"
    what = f"{entry.row}, {ours.task}" if len(entry.scores()) > 1 else entry.row
    how = "in its short version" if entry.kind == "short" else f"after {counted(entry.predictors[OURS].steps, 'step')}"
    words = f"{what}: nRMSE {ours.value:.4g} {how}; {runs} had {low:.4g} – {high:.4g}"
    if ours.value < low:
        return True, f"{words}: {BETTER}."
    if ours.value <= high:
        return True, f"{words}: as before."
    seeds = {e.seed: score.value for e, score in zip(before, scores, strict=True)}
    span = further_seed(seeds.values(), spread)
    bound = min(span[1], MOST * high) if span is not None else -math.inf
    if ours.value <= bound:
        whose = "their seeds" if len(seeds) >= LEAST else "the seeds of other rows"
        return True, f"{words}: as before, by the spread of {whose}, which reaches {bound:.4g}."
    return False, f"{words}: WORSE than before."  # a nan is worse too
