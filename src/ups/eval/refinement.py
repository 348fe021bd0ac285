"""RefinementScores: what iterations on the discrete equations make of predicted steady states."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

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
    """Of one task, per sample: nRMSE after refinement to `tolerance`, relative residuals before and after, iterations
    from the prediction, from zero, and how many fewer the former are. Gathered window by window."""

    tolerance: float
    parts: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, values: dict[str, Array]) -> None:
        """Values `(B,)` by name, all of MEANINGS but the iterations saved."""
        saved = values["iterations from zero"] - values["iterations"]
        for name, value in {**values, "iterations saved": saved}.items():
            self.parts.setdefault(name, []).append(np.asarray(value, np.float64))

    def values(self) -> dict[str, Array]:
        """Each value of all samples, `(N,)`, by name."""
        return {name: np.concatenate(self.parts[name]) for name in MEANINGS}
