"""The ledger of measured accuracy: entries with all that they depend on, only ever appended to, merged by content."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ups.config import Config
from ups.files import has_its_sum, sum_of, write_named
from ups.parsing import encoded, read_record
from ups.types import OURS, DataError
from ups_bench.rows import PublishedNumber
from ups_bench.variants import Kind

LEDGER = Path("benchmarks/accuracy.json")
ABOUT = "Written by `ups bench accuracy`: a line for each run, never changed afterwards (docs/howto-benchmarks.md)."
# Keys that older entries lack.
LATER: dict[str, Any] = {
    "split": "test",
    "trajectories": None,
    "start_from": None,
    "precision": None,
    "by_steps": False,
    "validation": None,
    "drawn": {},
}
REMEDY = "take a copy of it, for example from git, and merge what is new into that with `ups bench merge`"


class Score(Config):
    """A number of results.json over whole rollouts, with its 95 % interval over `n` samples: on the test part, or on
    another that `split` names."""

    task: str
    split: str = LATER["split"]
    predictor: str
    metric: str
    value: float
    low: float
    high: float
    n: int


class Spent(Config):
    """Steps and seconds of training."""

    steps: int
    seconds: float


class LedgerStage(Spent):
    """What a stage took, and the error on validation trajectories of the weights that were kept: what the settings of a
    row are chosen by, for its test part is to choose nothing. `drawn`: of several tasks the part of its steps that drew
    each."""

    validation: float | None = LATER["validation"]
    drawn: dict[str, float] = LATER["drawn"]


class LedgerTraining(Spent):
    """What a predictor took, and how many numbers of it are learnt; one that was not learnt took nothing."""

    params: int


class LedgerData(Config):
    """The data of a task: how many trajectories, of what size, and what each file holds."""

    task: str
    train: int
    valid: int
    test: int
    grid: tuple[int, ...]
    frames: int
    sha256: dict[str, str]


class LedgerEntry(Config):
    """One run of a row. `kind`: full, short for its short version, beyond for a row beyond the table, few for one that
    was trained on so many `trajectories`, anew or from the simulator of the run `start_from`, precision for one of
    another `precision` than its own; `by_steps`: for so many steps, whatever the clock said. `run` tells it from
    any other. `recipe` is the fingerprint of the row's config, `config` that of the run, with its seed and minutes;
    `source` that of the program's own files, where it is known; `changed` whether the repository differed from
    `commit`; `note` what else to know of it. `sum` is the SHA-256 of all the rest."""

    row: str
    kind: Kind
    run: str
    seed: int
    minutes: float
    protocol: str
    recipe: str
    config: str
    commit: str | None
    changed: bool | None
    source: str
    started: str
    command: str
    hardware: str
    device: str
    cores: int
    versions: dict[str, str]
    data: tuple[LedgerData, ...]
    stages: dict[str, LedgerStage]
    predictors: dict[str, LedgerTraining]
    numbers: tuple[Score, ...]
    phases: dict[str, float]
    published: PublishedNumber
    note: str = ""
    trajectories: int | None = LATER["trajectories"]
    start_from: str | None = LATER["start_from"]
    precision: str | None = LATER["precision"]
    by_steps: bool = LATER["by_steps"]
    sum: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells entries apart: two with equal keys say the same of one run."""
        numbers = json.dumps([list(vars(score).values()) for score in self.numbers])  # as text: a nan is not itself
        return self.row, self.kind, self.run, numbers

    @property
    def label(self) -> str:
        """Which it is, in words."""
        return f"{self.row}, {self.kind}, seed {self.seed}, {self.minutes:g} min, of {self.started}"

    def scores(self, predictor: str = OURS, metric: str = "nrmse") -> list[Score]:
        """A number of it on the test part, of each task."""
        return [s for s in self.numbers if (s.predictor, s.metric, s.split) == (predictor, metric, "test")]

    def score(self, predictor: str = OURS, metric: str = "nrmse") -> Score | None:
        """A number on the test part; of several tasks their mean, without an interval: the mean of ends is none."""
        scores = self.scores(predictor, metric)
        if len(scores) <= 1:
            return scores[0] if scores else None
        mean = sum(s.value for s in scores) / len(scores)
        return scores[0].model_copy(update={"task": "", "value": mean, "low": math.nan, "high": math.nan})


def sealed(facts: Mapping[str, Any]) -> LedgerEntry:
    """An entry with its sum."""
    entry = LedgerEntry.model_validate({**facts, "sum": ""})
    return entry.model_copy(update={"sum": sum_of(_plain(entry))})


def read(path: Path, *, missing: bool = True) -> list[LedgerEntry]:
    """The entries of a ledger in their order; of one that is not there none, unless it must be (`missing` false)."""
    try:
        record = read_record(path)
        rows = record["entries"]
        if not isinstance(rows, list):
            raise ValueError("its entries are no list")
    except FileNotFoundError:
        if missing:
            return []
        raise DataError(f"{path}: there is no such ledger; check the path.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
    except KeyError:
        raise DataError(
            f"{path}: is no ledger of `ups bench accuracy` (it has no 'entries'); check the path."
        ) from None
    except ValueError as error:
        raise DataError(f"{path}: is damaged ({error}); {REMEDY}.") from None
    return [_entry(path, number, row) for number, row in enumerate(rows, start=1)]


def _entry(path: Path, number: int, row: Any) -> LedgerEntry:
    try:
        entry = LedgerEntry.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the entry"
        raise DataError(f"{path}: entry {number} is damaged ('{where}': {first['msg'].lower()}); {REMEDY}.") from None
    if not has_its_sum(row):
        raise DataError(f"{path}: entry {number} ({entry.label}) is not as it was measured; {REMEDY}.")
    return entry


def append(path: Path, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Add entries to a ledger, those that it has already left out; those that were added. One process at a time."""
    with _alone(path):
        known = read(path)
        keys = {entry.key for entry in known}
        new = [entry for entry in {entry.key: entry for entry in entries}.values() if entry.key not in keys]
        if new or not path.exists():
            write_named(path, text_of([*known, *new]), "name another --ledger")
    return new


def text_of(entries: Sequence[LedgerEntry]) -> str:
    """A ledger as its file holds it: a line for each entry, so that two that grew apart are joined line by line."""
    lines = ",\n".join(json.dumps(_plain(entry), ensure_ascii=False, allow_nan=False) for entry in entries)
    return f'{{"about": {json.dumps(ABOUT)}, "entries": [\n{lines}\n]}}\n'


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the folder of a ledger, so that no other process appends in between."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); name another --ledger.") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _plain(value: Any) -> Any:
    """An entry, or a part of one, as results.json would hold it. Keys that were added later are left out where they
    have their default, so that older entries keep their sums."""
    if isinstance(value, Config):
        values = vars(value).items()
        return _plain({key: inner for key, inner in values if key not in LATER or inner != LATER[key]})
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else encoded(value)
