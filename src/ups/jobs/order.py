"""The order of a training's windows: told per epoch, and led by validation where the mix asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ups.data.loader import AHEAD
from ups.data.sampler import LEAD, Heard, Sampler
from ups.engine.loop import Trainer
from ups.engine.stage import Tracker
from ups.types import ConfigError


class Order:
    """A tracker beside another: whenever tasks have ended an epoch since the last line, it says which, the digest of
    the windows drawn in it, and which share of all steps each task has had so far."""

    def __init__(self, sampler: Sampler, stage: str, tracker: Tracker) -> None:
        self.sampler, self.stage, self.tracker = sampler, stage, tracker
        self.told: tuple[int, ...] = ()

    def log(self, step: int, values: Mapping[str, float | str]) -> None:  # noqa: ARG002
        s = self.sampler
        ended, turns = s.epochs(step), s.turns(step)
        before = self.told or ended  # what ended before this process began was told by the one before it
        self.told = ended
        rows: dict[str, float | str] = {}
        for i, name in enumerate(s.names):
            if ended[i] > before[i]:
                rows |= {f"epoch/{name}": ended[i], f"digest/{name}": s.digest(i, ended[i] - 1)}
        if rows:
            rows |= {f"share/{name}": turns[i] / step for i, name in enumerate(s.names)}
            self.tracker.log(step, {f"{self.stage}/{name}": value for name, value in rows.items()})

    def close(self) -> None:
        """The other tracker is its owner's to close."""


def listening(trainer: Trainer, sampler: Sampler, workers: int = 0) -> Callable[[], Heard]:
    """The errors of all validations so far, as the trainer's history holds them: part of every checkpoint, and the
    same on every rank."""
    ahead = trainer.config.prefetch + AHEAD * workers + 1
    if sampler.mix.policy == "error" and ahead >= LEAD:
        raise ConfigError(
            f"mix.policy is error, which allows {LEAD - 1} windows ahead, and prefetch and workers build {ahead}; "
            "lower train.prefetch or workers."
        )

    def heard() -> Heard:
        return [(int(row["step"]), _by_task(row, sampler.names)) for row in trainer.history]

    return heard


def _by_task(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    """The error of each task: the first number named after it."""
    found = {name: next((v for key, v in row.items() if key.startswith(f"{name} ")), None) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}
