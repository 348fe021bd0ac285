"""Scores of ensembles `(M, …)` beside the truth `(…)`: CRPS, spread against skill, coverage, rank histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ups.eval.nrmse import nrmse
from ups.eval.spectra import spectrum
from ups.later import Tensor, torch

RESOLVED = 1e-6  # of the power of a field: a wavenumber with less is not resolved


def crps(members: Tensor, truth: Tensor) -> Tensor:
    """Continuous ranked probability score at each place, `(…)`: E|x − y| − E|x − x'| / 2 over the members.

    In the units of the field; of one member it is the absolute error.
    """
    count = len(members)
    ordered = members.sort(0).values
    # Σ |x_i − x_j| over all pairs, from the order alone.
    weights = 2.0 * torch.arange(count, device=members.device, dtype=members.dtype) - count + 1
    pairs = (ordered * weights.reshape(-1, *(1,) * truth.ndim)).sum(0) * 2
    return (members - truth).abs().mean(0) - pairs / (2 * count**2)


def spread(members: Tensor) -> Tensor:
    """Standard deviation at each place, `(…)`, as an ensemble of this size should have it beside the error of its
    mean: √((M + 1) / M) times that of its members."""
    count = len(members)
    return members.var(0, correction=1).mul((count + 1) / count).sqrt()


def coverage(members: Tensor, truth: Tensor, level: float = 0.9) -> Tensor:
    """Whether the truth lies in the middle `level` of the members, at each place: 0 or 1, `(…)`."""
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], device=members.device, dtype=members.dtype)
    low, high = torch.quantile(members, edges, dim=0)
    within: Tensor = (truth >= low) & (truth <= high)
    return within.to(members.dtype)


def ranks(members: Tensor, truth: Tensor, counts_here: Tensor | None = None) -> Tensor:
    """How often the truth has each rank among the members, `(M + 1,)`, as shares; flat where they are of one kind.

    `counts_here (…)`: which places count; all, where it is None.
    """
    rank = (members < truth).sum(0)
    rank = rank.flatten() if counts_here is None else rank[counts_here.expand_as(rank)]
    counts: Tensor = torch.bincount(rank, minlength=len(members) + 1)
    shares: Tensor = counts.double() / rank.numel()
    return shares


@dataclass
class EnsembleScores:
    """What ensembles of one task are worth beside the operator alone, gathered window by window.

    CRPS and absolute error are in deviations of the data. `fine` is the power in the highest third of the resolved
    wavenumbers at the last frame, over the truth's; resolved are those up to the last one that holds a millionth of the
    truth's power.
    """

    members: int
    sums: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    histogram: list[float] = field(default_factory=list)  # of the truth's ranks, summed over samples

    def add(self, drawn: Tensor, alone: Tensor, truth: Tensor, std: Tensor, mask: Tensor | None = None) -> None:
        """Rollouts `(M, B, T, *S, C)` of the members, `(B, T, *S, C)` of the operator alone and of the truth."""
        mean, cells = drawn.mean(0), None if mask is None else mask[:, None, ..., None]

        def total(values: Tensor) -> float:
            """The sum over samples of the mean over all else; cells that do not count are left out."""
            if cells is not None:
                values = torch.where(cells, values, torch.nan)
            return float(values.flatten(1).nanmean(1).double().sum())

        fine = _fine([truth[:, -1] / std, alone[:, -1] / std, *(one[:, -1] / std for one in drawn)], mask)
        new = {
            "crps": total(crps(drawn / std, truth / std)),
            "absolute error alone": total(((alone - truth) / std).abs()),
            "spread": total((spread(drawn) / std).square()),
            "error": total(((mean - truth) / std).square()),
            "coverage": total(coverage(drawn, truth)),
            "nrmse of the mean": float(nrmse(mean, truth, mask=mask).mean((1, 2)).double().sum()),
            "nrmse alone": float(nrmse(alone, truth, mask=mask).mean((1, 2)).double().sum()),
            "fine truth": fine[0],
            "fine alone": fine[1],
            "fine members": sum(fine[2:]) / len(drawn),
        }
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in new.items()}
        shares = (ranks(drawn, truth, cells) * len(truth)).tolist()
        self.histogram = [a + b for a, b in zip(self.histogram or [0.0] * len(shares), shares, strict=True)]
        self.samples += len(truth)

    def numbers(self) -> dict[str, float]:
        """The scores by name."""
        s, n = self.sums, max(1, self.samples)
        plain = ("crps", "absolute error alone", "nrmse of the mean", "nrmse alone", "coverage")
        return {
            **{name: s[name] / n for name in plain},
            "spread over error": math.sqrt(s["spread"] / s["error"]) if s["error"] else math.inf,
            **{
                name: s[name] / s["fine truth"] if s["fine truth"] else math.inf
                for name in ("fine alone", "fine members")
            },
        }


def _fine(fields: Sequence[Tensor], mask: Tensor | None) -> list[float]:
    """Power of each of some fields `(B, *S, C)`, summed over samples and channels, in the highest third of the
    wavenumbers that the first of them, the truth, resolves."""
    if mask is not None:
        fields = [torch.where(mask.unsqueeze(-1), field, torch.zeros_like(field)) for field in fields]
    powers = [spectrum(field.cpu().numpy()).sum(-1) for field in fields]
    there = np.flatnonzero(powers[0] >= RESOLVED * powers[0].sum())
    count = int(there.max()) + 1 if len(there) else len(powers[0])
    return [float(power[count - max(1, count // 3) : count].sum()) * len(fields[0]) for power in powers]
