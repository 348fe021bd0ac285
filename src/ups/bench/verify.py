"""`ups bench verify`: the short version of a row run again, and held against what short versions gave before."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ups.bench import ledger
from ups.bench.accuracy import Carry, carry_out, entry_of, require_gpu, require_room
from ups.bench.rows import Budget, Row
from ups.rundir import RunDir
from ups.types import ConfigError
from ups.verdict import FINISHED

PASSED, FAILED, NOT_RUN = 0, 1, 3


def bench_verify(
    row: Row, budget: Budget, file: Path, out: Path, say: Callable[[str], None], carry: Carry = carry_out
) -> int:
    """0 where the short version of a row, trained for the steps that it took before, is as good as it was; 1 where it
    is worse, and 3 where it did not come to its end."""
    known = [entry for entry in ledger.read(file) if (entry.row, entry.kind) == (row.name, "short")]
    same = [entry for entry in known if entry.recipe == row.recipe]
    if not same:
        what = f"a short version of {row.name}, but by another recipe" if known else f"no short version of {row.name}"
        raise ConfigError(f"{file}: holds {what}; measure one with `ups bench accuracy {row.name} --short`.")
    require_gpu(row, budget, say)
    last, same = same[-1], comparable(same)
    steps = {stage: training.steps for stage, training in last.stages.items()}
    budget = replace(budget, short=True, steps=steps, minutes=last.minutes, baselines=())
    config = row.run(budget, out, name=f"verify-{row.name.replace('/', '-')}")
    place = RunDir(Path(config.out) / config.name)
    require_room(config)
    ending = carry(config, "begin" if place.known() is None else "overwrite")
    if ending not in FINISHED:
        say(f"{row.name}: its short version did not come to its end ({ending.name}), so nothing is known of it.")
        return NOT_RUN
    entry = entry_of(place, row, budget, {"source": ""})
    shutil.rmtree(place.cache("data"), ignore_errors=True)
    if digests_of(entry) != digests_of(last):
        say(f"{row.name}: its data are not those of the entry to the bit, as of another device or version.")
    passed, words = compared(entry, same)
    say(words)
    return PASSED if passed else FAILED


def digests_of(entry: ledger.Entry) -> dict[str, str]:
    """Those of all files: older entries have every file at every task."""
    return {name: digest for data in entry.data for name, digest in data.sha256.items()}


def comparable(entries: Sequence[ledger.Entry]) -> list[ledger.Entry]:
    """Entries of as many minutes as the last one, and of at least half of its steps, as runs on one kind of machine
    have. Shorter trainings have larger errors, beside which anything would pass."""
    last = entries[-1]

    def steps(entry: ledger.Entry) -> int:
        return sum(training.steps for training in entry.stages.values())

    return [e for e in entries if math.isclose(e.minutes, last.minutes, rel_tol=0.01) and 2 * steps(e) >= steps(last)]


def bound_of(entries: Sequence[ledger.Entry], task: int = 0) -> float:
    """What one more seed stays below 39 times in 40, of a task by its number, by the spread of the logarithms of
    earlier ones (Student's t); -inf of fewer than three, which say too little of it."""
    seeds = {entry.seed: entry.scores()[task].value for entry in entries}
    logs = [math.log(value) for value in seeds.values() if 0 < value < math.inf]
    if len(logs) < 3:
        return -math.inf
    from scipy.special import stdtrit

    reach = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return math.exp(statistics.fmean(logs) + reach)


def compared(entry: ledger.Entry, before: Sequence[ledger.Entry]) -> tuple[bool, str]:
    """Whether a short version is no worse than earlier ones, on any of its tasks, and a sentence on each."""
    answers = [_compared(entry, before, task) for task in range(len(entry.scores()))]
    return all(passed for passed, _ in answers), " ".join(words for _, words in answers)


def _compared(entry: ledger.Entry, before: Sequence[ledger.Entry], task: int) -> tuple[bool, str]:
    scores, ours = [e.scores()[task] for e in before], entry.scores()[task]
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    runs = "an earlier run" if len(before) == 1 else f"{len(before)} earlier runs"
    what = f"{entry.row}, {ours.task}" if len(entry.scores()) > 1 else entry.row
    words = f"{what}: nRMSE {ours.value:.4g} in its short version; {runs} had {low:.4g} – {high:.4g}"
    if ours.value < low:
        return True, f"{words}: better than before; `ups bench accuracy {entry.row} --short` records it."
    if ours.value <= high:
        return True, f"{words}: as before."
    if ours.value <= (bound := bound_of(before, task)):
        return True, f"{words}: as before, by the spread of their seeds, which reaches {bound:.4g}."
    return False, f"{words}: WORSE than before."  # a nan is worse too
