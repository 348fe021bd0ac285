"""TrainingState: the numbers of a training that a checkpoint keeps; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from pydantic import TypeAdapter


@dataclass
class TrainingState:
    """The numbers that a checkpoint keeps beside the tensors. They are equal on every rank.

    Whoever needs to know where a training is (the loop, a sampler led by validation errors) is given this object, and
    the loop alone changes it.
    """

    step: int = 0
    """Steps taken."""
    samples: int = 0
    """Samples trained on."""
    validations: int = 0
    """Validations behind, of those that come at parts of the budget."""
    best_step: int = 0
    """The step of the best score."""
    recovered: int = 0
    """Attempts that ran out of memory and were repeated."""
    mended: list[int] = field(default_factory=list)
    """Ranks that have taken over what the others held, because theirs had come to differ."""
    microbatch: int | None = None
    """Most samples in memory at once; None: a rank's share of the batch."""
    score: float = math.inf
    """The best validation score; lower is better."""
    last_score: float = math.nan
    """Of the last validation."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One row per validation."""
    seconds: float = 0.0
    """Of training in all processes so far, by rank 0's clock at the last vote: what budgets are held against."""
    validation_seconds: float = 0.0
    """Of the last validation, by rank 0's clock, where it was timed; else 0."""

    def scored(self, score: float, first: bool) -> bool:
        """Note the score of a validation at this step; whether it is the best, as the `first` always is."""
        self.last_score, best = score, first or score < self.score
        if best:
            self.score, self.best_step = score if math.isfinite(score) else math.inf, self.step
        return best

    def take_at_most(self, *sizes: int | None) -> None:
        """Keep the microbatch within these, where they are given."""
        self.microbatch = min((n for n in (self.microbatch, *sizes) if n is not None), default=None)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take over what a checkpoint says. KeyError or ValueError if that is not all of it, or is nonsense."""
        known = {name: values[name] for name in vars(self)}
        kinds = get_type_hints(TrainingState)
        for name, value in known.items():
            TypeAdapter(kinds[name]).validate_python(value, strict=True)
        vars(self).update(known)
