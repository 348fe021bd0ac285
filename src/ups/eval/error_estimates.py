"""Scores of estimates of error beside the true errors: do they rank alike, and how far off are they."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ups.eval.nrmse import RolloutErrors
from ups.lazy_imports import Tensor
from ups.types import Array

FEW = 4  # samples, under which a rank correlation says nothing


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's: that of the ranks of two rows of numbers; NaN where one of them is the same throughout."""
    ranks = np.stack([_ranks(values) for values in (a, b)])
    if len(a) < 2 or not ranks.std(1).all():
        return float("nan")
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: Array) -> Array:
    """The ranks of values, from 1 on; equal values share the mean of theirs."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (sizes.cumsum() - (sizes - 1) / 2)[group]
    return ranks


@dataclass
class ErrorScores:
    """Estimated and true relative errors `(B, T)` of rollouts of one task, gathered window by window."""

    estimates: list[Array] = field(default_factory=list)
    errors: RolloutErrors = field(default_factory=RolloutErrors)

    @classmethod
    def of(cls, estimated: Array, errors: Array) -> ErrorScores:
        """Those of estimates and of the nRMSE of the same rollouts, each `(N, T)`."""
        return cls([np.nan_to_num(estimated, nan=np.inf, posinf=np.inf)], RolloutErrors([errors[..., None]]))

    def add(self, estimated: Tensor, predicted: Tensor, truth: Tensor, mask: Tensor | None = None) -> None:
        """Estimates of rollouts `(B, T, *S, C)`; what is no number is as bad as can be."""
        self.estimates.append(np.nan_to_num(estimated.double().cpu().numpy(), nan=np.inf, posinf=np.inf))
        self.errors.add(predicted, truth, mask)

    @property
    def table(self) -> tuple[Array, Array]:
        """All estimates and all errors, each `(N, T)`."""
        return np.concatenate(self.estimates), np.concatenate(self.errors.by_step())

    @property
    def samples(self) -> int:
        return len(self.errors)

    def curves(self) -> dict[str, Array]:
        """Medians over samples at each step, `(T,)`, and the rank correlation there."""
        estimated, errors = self.table
        return {
            "estimated error": np.median(estimated, 0),
            "true error": np.median(errors, 0),
            "rank correlation": np.array([rank_correlation(*pair) for pair in zip(estimated.T, errors.T, strict=True)]),
        }

    def numbers(self) -> dict[str, float]:
        """The rank correlation over samples and steps, its mean at fixed steps (NaN for fewer than 4 samples), and the
        factor by which an estimate is usually off, up or down."""
        estimated, errors = self.table
        sound = np.isfinite(estimated) & np.isfinite(errors) & (estimated > 0) & (errors > 0)
        off = np.abs(np.log(estimated[sound]) - np.log(errors[sound]))
        at_steps = self.curves()["rank correlation"] if self.samples >= FEW else np.array([np.nan])
        known = at_steps[np.isfinite(at_steps)]
        return {
            "rank correlation": rank_correlation(estimated.ravel(), errors.ravel()),
            "rank correlation at a step": float(known.mean()) if len(known) else float("nan"),
            "usual factor": float(np.exp(np.median(off))) if len(off) else float("inf"),
        }

    def ends(self) -> dict[str, tuple[float, float]]:
        """Rank correlations and medians are given without intervals."""
        return {}

    def curve_ends(self) -> dict[str, tuple[Array, Array]]:
        """As `ends`."""
        return {}
