"""RefinementScores: what iterations on the discrete equations make of predicted steady states."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ups.eval.nrmse import RolloutErrors
from ups.lazy_imports import Tensor
from ups.types import Array

MEANINGS = {
    "nrmse refined": "nRMSE after refinement",
    "residual predicted": "residual of the prediction",
    "residual refined": "residual after refinement",
    "iterations": "iterations from the prediction",
    "iterations from zero": "iterations from zero",
    "iterations saved": "iterations saved",
}


@dataclass
class RefinementScores:
    """What refinement to `tolerance` does for the predictions of one task, gathered window by window.

    Per sample: nRMSE afterwards, relative residuals before and after, iterations from the prediction and from zero, and
    how many fewer the former are.
    """

    tolerance: float
    parts: dict[str, list[Array]] = field(default_factory=dict)
    errors: RolloutErrors = field(default_factory=RolloutErrors)

    def add(self, values: dict[str, Tensor], refined: Tensor, truth: Tensor) -> None:
        """Values `(B,)` by name, residuals and iterations; refined and true states `(B, 1, *S, C)`."""
        self.errors.add(refined, truth)
        saved = values["iterations from zero"] - values["iterations"]
        for name, value in {**values, "iterations saved": saved}.items():
            self.parts.setdefault(name, []).append(value.double().cpu().numpy())

    def values(self) -> dict[str, Array]:
        """Each value of all samples, `(N,)`, by name."""
        return {"nrmse refined": self.errors.per_sample()} | {n: np.concatenate(v) for n, v in self.parts.items()}
