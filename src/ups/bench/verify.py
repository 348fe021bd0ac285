"""`ups bench verify`: the short version of a row run again, and held against what short versions gave before."""

from __future__ import annotations

import shutil
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
    last = same[-1]
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
    if [data.sha256 for data in entry.data] != [data.sha256 for data in last.data]:
        say(f"{row.name}: its data are not those of the entry to the bit, as of another device or version.")
    passed, words = compared(entry, same)
    say(words)
    return PASSED if passed else FAILED


def compared(entry: ledger.Entry, before: Sequence[ledger.Entry]) -> tuple[bool, str]:
    """Whether a short version is no worse than earlier ones, and a sentence."""
    scores = [score for e in before if (score := e.score()) is not None]
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    ours = entry.score()
    assert ours is not None
    runs = "an earlier run" if len(before) == 1 else f"{len(before)} earlier runs"
    words = f"{entry.row}: nRMSE {ours.value:.4g} in its short version; {runs} had {low:.4g} – {high:.4g}"
    if ours.value < low:
        return True, f"{words}: better than before; `ups bench accuracy {entry.row} --short` records it."
    if ours.value <= high:
        return True, f"{words}: as before."
    return False, f"{words}: WORSE than before."  # a nan is worse too
