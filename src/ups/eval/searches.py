"""Scores of searches: error against what they cost, and whether what looks least wrong is so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ups.eval.error_estimates import rank_correlation
from ups.eval.intervals import intervals
from ups.eval.nrmse import RolloutErrors
from ups.lazy_imports import Tensor
from ups.types import Array

WORTH = 0.3  # the rank correlation below which choosing is not worth its cost


@dataclass
class SearchScores:
    """Searches of one task by their budgets, gathered window by window.

    A budget is the evaluations of networks in one step, of a trajectory: about so many calls of the operator.
    `correlations` are those, over the options of a step, of how wrong they look with how wrong they are.
    """

    errors: defaultdict[int, RolloutErrors] = field(default_factory=lambda: defaultdict(RolloutErrors))  # by budget
    correlations: list[float] = field(default_factory=list)
    usual: Sequence[float] | None = None  # sizes of channels in training, as of `RolloutErrors`

    def __post_init__(self) -> None:
        self.errors.default_factory = partial(RolloutErrors, usual=self.usual)

    def add(self, budget: int, rollouts: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        """Rollouts `(B, T, *S, C)` of one budget."""
        self.errors[budget].add(rollouts, truth, mask)

    def watch(self, looks: Tensor, frames: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        """Options `(O, B, *S, C)` of a step, and how wrong they look `(O, B)`; the truth is `(B, *S, C)`."""
        options, wrong = frames.movedim(0, 1), RolloutErrors(usual=self.usual)
        wrong.add(options, truth.unsqueeze(1).expand_as(options), mask)
        for guess, error in zip(looks.double().cpu().numpy().T, wrong.by_step()[0], strict=True):
            if np.isfinite(error).all():
                self.correlations.append(rank_correlation(guess, error))

    @property
    def samples(self) -> int:
        return len(next(iter(self.errors.values()), ()))

    @property
    def correlation(self) -> float:
        """The mean over samples and steps; NaN where nothing told options apart."""
        known = np.array(self.correlations)[np.isfinite(self.correlations)]
        return float(known.mean()) if len(known) else float("nan")

    @property
    def worth_it(self) -> bool:
        return self.correlation >= WORTH

    def curves(self) -> dict[str, Array]:
        """Nothing of it is told step by step."""
        return {}

    def by_budget(self) -> dict[int, float]:
        """The mean error of each budget, from the smallest on."""
        return {budget: float(self.errors[budget].per_sample().mean()) for budget in sorted(self.errors)}

    def numbers(self) -> dict[str, float]:
        """The scores by name."""
        return {"rank correlation": self.correlation} | {f"nrmse at {n} calls": e for n, e in self.by_budget().items()}

    def ends(self) -> dict[str, tuple[float, float]]:
        """The 95 % intervals of the errors, over samples; the rank correlation has none."""
        rows = {f"nrmse at {n} calls": self.errors[n].per_sample() for n in sorted(self.errors)}
        if not rows:
            return {}
        ends = zip(rows, *intervals(np.stack(list(rows.values()))), strict=True)
        return {name: (float(low), float(high)) for name, low, high in ends}

    def curve_ends(self) -> dict[str, tuple[Array, Array]]:
        """As `curves`."""
        return {}
