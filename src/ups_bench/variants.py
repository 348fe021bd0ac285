"""Variants of a row: all of it, its short version, trained on few trajectories, or in another precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ups.engine.train import Precision
from ups.run.config import RunConfig
from ups.types import ConfigError

SHORT_SECONDS = 20.0  # of training, in the short version of a row
SHORT_PART = 10  # one in so many of a row's samples is in its short version, but no fewer than
SHORT_LEAST = 100
FEW_TEST = 200  # trajectories that a simulator is judged on that was trained on few
Kind = Literal["full", "short", "beyond", "few", "precision"]


@dataclass(frozen=True)
class Variant:
    """How a run of a row differs from the row's own config."""

    kind: ClassVar[Kind]  # what runs of it are called in the ledger
    minutes: ClassVar[float | None] = None  # of training, where none are asked for; None: the row's own

    @property
    def words(self) -> tuple[str, ...]:
        """What tells it in the name of a run's folder."""
        return ()

    @property
    def facts(self) -> dict[str, Any]:
        """What an entry of the ledger says of it beside its kind."""
        return {}

    def changes(self, config: RunConfig) -> dict[str, Any]:  # noqa: ARG002
        """The keys, dotted, in which its config differs from that of the row."""
        return {}


@dataclass(frozen=True)
class WholeRow(Variant):
    """All of a row, as its file says. Runs of a row beyond the table are called `beyond` instead."""

    kind: ClassVar[Kind] = "full"


@dataclass(frozen=True)
class Short(Variant):
    """A part of the data, for 20 s: what `ups bench verify` runs again."""

    kind: ClassVar[Kind] = "short"
    minutes: ClassVar[float | None] = SHORT_SECONDS / 60

    @property
    def words(self) -> tuple[str, ...]:
        return ("short",)

    def changes(self, config: RunConfig) -> dict[str, Any]:
        return {
            f"data.{label}.samples": max(min(SHORT_LEAST, data.samples), data.samples // SHORT_PART)
            for label, data in config.data.items()
        }


@dataclass(frozen=True)
class Few(Variant):
    """Trained on so many trajectories; from the simulator of the run `start_from` where one is named."""

    kind: ClassVar[Kind] = "few"

    trajectories: int
    start_from: Path | None = None

    def __post_init__(self) -> None:
        if self.trajectories < 2:
            raise ConfigError(f"--trajectories is {self.trajectories}, but nothing is learnt from fewer than 2.")

    @property
    def words(self) -> tuple[str, ...]:
        begun = () if self.start_from is None else (f"from-{self.start_from.name}",)
        return (f"{self.trajectories}-trajectories", *begun)

    @property
    def facts(self) -> dict[str, Any]:
        return {"trajectories": self.trajectories}

    def changes(self, config: RunConfig) -> dict[str, Any]:
        parts = (self.trajectories, max(4, self.trajectories // 4), FEW_TEST)
        changes: dict[str, Any] = {}
        for label in config.data:
            changes[f"data.{label}.samples"] = sum(parts)
            changes[f"data.{label}.split.fractions"] = [part / sum(parts) for part in parts]
            # The first are the same whatever comes behind them; the last would be others for every number.
            changes[f"data.{label}.split.convention"] = "pdebench-first"
        return changes if self.start_from is None else {**changes, "start_from": str(self.start_from)}


@dataclass(frozen=True)
class InPrecision(Variant):
    """Every stage trained in a precision that is not the row's own."""

    kind: ClassVar[Kind] = "precision"

    precision: Precision

    @property
    def words(self) -> tuple[str, ...]:
        return (self.precision,)

    @property
    def facts(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def changes(self, config: RunConfig) -> dict[str, Any]:
        return {f"{stage}.train.precision": self.precision for stage in config.plan}


def variant_of(
    short: bool = False,
    trajectories: int | None = None,
    start_from: Path | None = None,
    precision: Precision | None = None,
) -> Variant:
    """The variant that the flags of `ups bench accuracy` ask for; ConfigError for flags that exclude each other."""
    if trajectories is not None and short:
        raise ConfigError("--short is for verifying rows, and not with --trajectories; leave one of both out.")
    if start_from is not None and trajectories is None:
        raise ConfigError("--start-from is compared with training anew on as many; add --trajectories N.")
    if precision is not None and (short or trajectories is not None):
        raise ConfigError("--precision is compared on whole rows, without --short and --trajectories; leave one out.")
    if trajectories is not None:
        return Few(trajectories, start_from)
    if precision is not None:
        return InPrecision(precision)
    return Short() if short else WholeRow()
