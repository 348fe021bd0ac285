"""The rows of the accuracy table: a config each, what is published of it, and how it is run for so many minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ups.config import Config, fingerprint, load
from ups.parsing import read_record
from ups.run.config import RunConfig, run_config
from ups.types import ConfigError, check_known
from ups_bench.variants import Kind, Variant, WholeRow

ROWS, PUBLISHED = Path("configs/rows"), Path("benchmarks/published.yaml")
BEYOND = Path("configs/beyond")  # rows of what lies beyond the table
DEFAULTS = Path(__file__).with_name("defaults.json")  # values of keys that rows leave out, as entries were measured by
BASE = "base"  # how the names of files begin that rows are based on


class PublishedNumber(Config):
    """What others have reached on a row, as nRMSE by its protocol."""

    paper: float | None = None
    """PDEBench's own FNO."""
    retuned: float | None = None
    """That FNO, trained again with care for hours."""
    low: float | None = None
    """Of the 95 % interval of that."""
    high: float | None = None
    """Of the 95 % interval of that."""
    note: str = ""
    """What to know before comparing."""

    @property
    def best(self) -> float | None:
        """The lesser error of the two."""
        known = [value for value in (self.paper, self.retuned) if value is not None]
        return min(known) if known else None


class PublishedTable(Config):
    """The file of them."""

    rows: dict[str, PublishedNumber]


@dataclass(frozen=True)
class RowBudget:
    """How a row is run: minutes of training (the variant's or its own by default), from which seed, on which device
    (its own by default), beside which baselines, and in which variant. `steps`: so many, of the stage that is trained
    by the clock or of each that is named; minutes then only say beside which runs it stands."""

    minutes: float | None = None
    seed: int = 0
    device: str | None = None
    baselines: tuple[str, ...] = ()
    steps: int | Mapping[str, int] | None = None
    variant: Variant = field(default_factory=WholeRow)


@dataclass(frozen=True)
class BenchRow:
    """A row: its name is the path of its config below the folder of rows, without the ending."""

    name: str
    path: Path
    published: PublishedNumber = field(default_factory=PublishedNumber)

    @cached_property
    def config(self) -> RunConfig:
        """The config of its file."""
        return load(run_config(), self.path)

    @cached_property
    def recipe(self) -> str:
        """The fingerprint of what its file says, the same whatever the seed, the minutes and the machine, and whatever
        keys a config may have that it does not name, as long as these mean what `DEFAULTS` says."""
        return fingerprint(self.config, self.path, defaults())

    @property
    def minutes(self) -> float:
        """Minutes of training, as its file says; stages that are trained by steps are not counted."""
        seconds = sum(self._seconds().values())
        if not seconds:
            raise ConfigError(
                f"{self.path}: no stage has a budget in seconds, so no minutes can be shared out; add one."
            )
        return seconds / 60

    @property
    def beyond(self) -> bool:
        """Whether it lies beyond the table: in the folder `beyond`."""
        return self.name.startswith(f"{BEYOND.name}/")

    def kind(self, budget: RowBudget) -> Kind:
        """What a run of it is called in the ledger."""
        return "beyond" if self.beyond and isinstance(budget.variant, WholeRow) else budget.variant.kind

    def run(self, budget: RowBudget, out: Path, name: str = "") -> RunConfig:
        """The config of one run of it. Minutes are shared among the stages as its file shares them."""
        minutes, own = self.minutes_of(budget), self.minutes
        changes: dict[str, Any] = {"out": str(out), "seed": budget.seed, "name": name or self.folder_name(budget)}
        for stage, seconds in self._seconds().items():
            changes[f"{stage}.train.seconds"] = seconds * minutes / own
        for stage, steps in self.steps_of(budget).items():
            changes |= {f"{stage}.train.seconds": None, f"{stage}.train.steps": steps}
        changes["evaluation.baselines"] = list(budget.baselines)  # whatever stands beside other runs
        if budget.device is not None:
            changes["device"] = budget.device
            changes |= {f"data.{label}.device": budget.device for label in self.config.data}
        return load(run_config(), self.path, {**changes, **budget.variant.changes(self.config)})

    def minutes_of(self, budget: RowBudget) -> float:
        """The minutes of training that a budget means for it."""
        if budget.minutes is not None:
            return budget.minutes
        return self.minutes if budget.variant.minutes is None else budget.variant.minutes

    def folder_name(self, budget: RowBudget) -> str:
        """The name of a run of it, other ones for other seeds, minutes and versions."""
        words = [*self.name.split("/"), *budget.baselines, *budget.variant.words, f"{self.minutes_of(budget):g}min"]
        return "-".join([*words, *(f"{steps}steps" for steps in self.steps_of(budget).values()), f"seed{budget.seed}"])

    def command(
        self,
        minutes: float,
        seeds: int = 1,
        baselines: Sequence[str] = (),
        steps: int | None = None,
        seed: int = 0,
    ) -> str:
        """What measures it again."""
        words = ["ups bench accuracy", self.name, f"--minutes {minutes:g}"]
        words += [f"--steps {steps}"] if steps else []
        words += [f"--seeds {seeds}"] if seeds > 1 else []
        words += [f"--seed {seed}"] if seed else []
        return " ".join([*words, *(f"--{name}" for name in baselines)])

    def steps_of(self, budget: RowBudget) -> dict[str, int]:
        """The stages that take so many steps, whatever the clock says, with these."""
        if not isinstance(budget.steps, int):
            return dict(budget.steps or {})
        if self.timed is None:
            which = " and ".join(self._seconds()) or "no stage"
            raise ConfigError(f"{self.path}: trains {which} by the clock, and --steps is for one stage; leave it out.")
        return {self.timed: budget.steps}

    @property
    def timed(self) -> str | None:
        """The only stage that is trained by the clock; None where there are several, or none."""
        names = list(self._seconds())
        return names[0] if len(names) == 1 else None

    def _seconds(self) -> dict[str, float]:
        plan = {stage: self.config.stage(stage).train for stage in self.config.plan}
        return {stage: train.seconds for stage, train in plan.items() if train.seconds is not None and not train.steps}


@cache
def defaults() -> dict[str, Any]:
    """What keys mean that rows leave out, by dotted key. A default that becomes another changes every recipe; a new key
    is added with the value by which it changes nothing."""
    return read_record(DEFAULTS)


def home() -> Path:
    """The folder that rows, ledger and documents lie in: the current one, or the repository of this program."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout if not ROWS.is_dir() and (checkout / ROWS).is_dir() else Path()


def rows_in(folder: Path, published: Path | None = None) -> dict[str, BenchRow]:
    """The rows of a folder by name, in the order of the file of published numbers, then of their names."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder of rows; run the command in the repository, or name one.")
    known = load(PublishedTable, published).rows if published is not None and published.is_file() else {}
    paths = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    names = [name for name, path in paths.items() if not path.name.startswith(BASE)]
    if not names:
        raise ConfigError(f"{folder}: holds no row, which is a YAML file like those of {ROWS}; name another folder.")
    order = [*(name for name in known if name in names), *(name for name in names if name not in known)]
    return {name: BenchRow(name, paths[name], known.get(name, PublishedNumber())) for name in order}


def known_rows(folder: Path | None = None) -> dict[str, BenchRow]:
    """The rows of a folder; by default those of the table, and those beyond it as `beyond/NAME`."""
    return rows_in(folder) if folder is not None else {**rows_in(home() / ROWS, home() / PUBLISHED), **beyond(home())}


def beyond(place: Path) -> dict[str, BenchRow]:
    """The rows beyond the table, of a repository."""
    rows = (replace(row, name=f"{BEYOND.name}/{row.name}") for row in rows_in(place / BEYOND).values())
    return {row.name: row for row in rows}


def chosen(rows: Mapping[str, BenchRow], names: Sequence[str], every: bool) -> list[BenchRow]:
    """The rows that were asked for, each once."""
    if every and names:
        raise ConfigError(f"--all is every row, and {names[0]} is one of them; leave one of both out.")
    if not every and not names:
        raise ConfigError(f"no row was named; name some, or all of them with --all: {', '.join(rows)}.")
    check_known("row", names, rows)
    return [row for row in rows.values() if not row.beyond] if every else [rows[name] for name in dict.fromkeys(names)]


def check_budget(budget: RowBudget, seeds: int) -> None:
    """ConfigError for minutes or seeds that are no budget."""
    if budget.minutes is not None and not (0 < budget.minutes < math.inf):
        raise ConfigError(f"--minutes is {budget.minutes:g}, but must be above 0.")
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}, but at least one run is made; write 1 or more.")
    if budget.seed < 0:
        raise ConfigError(f"--seed is {budget.seed}, but must be at least 0.")
    if isinstance(budget.steps, int):
        if budget.steps < 1:
            raise ConfigError(f"--steps is {budget.steps}, but nothing is learnt in fewer than 1.")
        if not isinstance(budget.variant, WholeRow):
            raise ConfigError("--steps is for whole rows, not with --short, --trajectories, --precision; leave it out.")
