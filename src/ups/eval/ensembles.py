"""Scores of ensembles `(M, …)` beside the truth `(…)`: CRPS, spread against skill, coverage, rank histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ups.eval.nrmse import nrmse
from ups.eval.spectra import spectrum
from ups.later import Tensor, torch
from ups.types import Array

AS_DRAWN = " as drawn"
RESOLVED = 1e-6  # of the power of a field: a wavenumber with less is not resolved


def crps(members: Tensor, truth: Tensor, fair: bool = False) -> Tensor:
    """Continuous ranked probability score at each place, `(…)`: E|x − y| − E|x − x'| / 2 over the members.

    In the units of the field; of one member it is the absolute error. `fair`: no pair counts of a member with itself,
    so that few members are not asked to be narrower than many.
    """
    count = len(members)
    ordered = members.sort(0).values
    # Σ |x_i − x_j| over all pairs, from the order alone.
    weights = 2.0 * torch.arange(count, device=members.device, dtype=members.dtype) - count + 1
    pairs = (ordered * weights.reshape(-1, *(1,) * truth.ndim)).sum(0) * 2
    return (members - truth).abs().mean(0) - pairs / (2 * count * (count - 1 if fair else count))


def spread(members: Tensor) -> Tensor:
    """Standard deviation at each place, `(…)`, as an ensemble of this size should have it beside the error of its
    mean: √((M + 1) / M) times that of its members."""
    count = len(members)
    return members.var(0, correction=1).mul((count + 1) / count).sqrt()


def interval(members: Tensor, level: float = 0.9) -> tuple[Tensor, Tensor]:
    """The ends of the interval at each place in which one more member would lie with probability `level`.

    Of M members in order one more is below the k-th with probability k / (M + 1), whatever their distribution: so the
    ends are the (M + 1) · (1 ± level) / 2-th members, between two of them by interpolation (numpy's quantile with
    `method="weibull"`). Where that lies beyond the outermost member (0.9 of fewer than 19), the gap between the two
    outermost goes on outwards.
    """
    ordered, count = members.sort(0).values, len(members)
    low = (count + 1) * (1 - level) / 2

    def at(position: float) -> Tensor:
        below = min(max(int(position), 1), count - 1)
        left, right = ordered[below - 1], ordered[below]
        ends: Tensor = left + (position - below) * (right - left)
        return ends

    return at(low), at(count + 1 - low)


def coverage(members: Tensor, truth: Tensor, level: float = 0.9) -> Tensor:
    """Whether the truth lies in the `interval` of the members, at each place: 0 or 1, `(…)`."""
    low, high = interval(members, level)
    within: Tensor = (truth >= low) & (truth <= high)
    return within.to(members.dtype)


def fitting_stretch(
    wide: Tensor, fine: Tensor, error: Tensor, limit: float, level: float = 0.9, halvings: int = 11
) -> float:
    """The factor by which the deviations of members, `wide + fine` `(M, places)`, must be stretched for the `error`
    `(places,)` of their centre to lie in their interval at the part `level` of places: found by halving between the
    inverse of `limit` and itself. `fine` shrinks with the rest, but does not grow."""
    low, high = -math.log(limit), math.log(limit)
    for _ in range(halvings):
        middle = (low + high) / 2
        factor = math.exp(middle)
        covered = coverage(factor * wide + min(factor, 1.0) * fine, error).mean().item()
        low, high = (low, middle) if covered >= level else (middle, high)
    return math.exp((low + high) / 2)


def ranks(members: Tensor, truth: Tensor, counts_here: Tensor | None = None) -> Tensor:
    """How often the truth has each rank among the members, `(M + 1,)`, as shares; flat where they are of one kind.

    `counts_here (…)`: which places count; all, where it is None.
    """
    rank = (members < truth).sum(0)
    rank = rank.flatten() if counts_here is None else rank[counts_here.expand_as(rank)]
    counts: Tensor = torch.bincount(rank, minlength=len(members) + 1)
    shares: Tensor = counts.double() / rank.numel()
    return shares


@dataclass(frozen=True)
class Fan:
    """What an ensemble says of one sample, to be drawn: its mean, spread and `bands (4, T, *S, C)`, the 5, 25, 75 and
    95 % of it; each but those `(T, *S, C)`."""

    mean: Array
    spread: Array
    bands: Array

    @classmethod
    def of(cls, members: Tensor) -> Fan:
        """Of members `(M, T, *S, C)`."""
        (low, high), (lower, upper) = interval(members), interval(members, 0.5)
        parts = (members.mean(0), members.std(0), torch.stack((low, lower, upper, high)))
        return cls(*(part.cpu().double().numpy() for part in parts))


@dataclass
class EnsembleScores:
    """What ensembles of one task are worth beside the operator alone, gathered window by window.

    CRPS, absolute error, spread and error are in deviations of the data. `fine` is the power in the highest third of
    the resolved wavenumbers at the last frame, over the truth's; resolved are those up to the last one that holds a
    millionth of the truth's power. Names that end in `AS_DRAWN` are of the members before they are stretched. `fan` is
    that of the first sample.
    """

    members: int
    sums: dict[str, float] = field(default_factory=dict)
    steps: dict[str, Array] = field(default_factory=dict)  # (T,), summed over samples
    samples: int = 0
    histograms: dict[str, Array] = field(default_factory=dict)  # of the truth's ranks, summed over samples
    fan: Fan | None = None

    def add(
        self,
        drawn: Tensor,
        alone: Tensor,
        truth: Tensor,
        std: Tensor,
        mask: Tensor | None = None,
        before: Tensor | None = None,
    ) -> None:
        """Rollouts `(M, B, T, *S, C)` of the members, `(B, T, *S, C)` of the operator alone and of the truth; `before`
        are the members before they are stretched, where that changed them."""
        mean, cells = drawn.mean(0), None if mask is None else mask[:, None, ..., None]

        def total(values: Tensor) -> Array:
            """The sum over samples of the mean over space and channels, by step; only cells that count."""
            if cells is not None:
                values = torch.where(cells, values, torch.nan)
            return np.asarray(values.flatten(2).nanmean(2).double().sum(0).cpu().numpy())

        steps = {
            "crps": total(crps(drawn / std, truth / std)),
            "absolute error alone": total(((alone - truth) / std).abs()),
            "spread": total((spread(drawn) / std).square()),
            "error": total(((mean - truth) / std).square()),
            "nrmse of the mean": nrmse(mean, truth, mask=mask).mean(2).double().sum(0).cpu().numpy(),
            "nrmse alone": nrmse(alone, truth, mask=mask).mean(2).double().sum(0).cpu().numpy(),
            "coverage": total(coverage(drawn, truth)),
        }
        histograms = {"": ranks(drawn, truth, cells)}
        both = [*drawn]
        if before is not None:
            steps[f"spread{AS_DRAWN}"] = total((spread(before) / std).square())
            steps[f"coverage{AS_DRAWN}"] = total(coverage(before, truth))
            steps[f"crps{AS_DRAWN}"] = total(crps(before / std, truth / std))
            errors = nrmse(before.mean(0), truth, mask=mask).mean(2)
            steps[f"nrmse of the mean{AS_DRAWN}"] = errors.double().sum(0).cpu().numpy()
            histograms[AS_DRAWN] = ranks(before, truth, cells)
            both += [*before]
        fine = _fine([truth[:, -1] / std, alone[:, -1] / std, *(one[:, -1] / std for one in both)], mask)
        count = len(drawn)
        new = {"fine truth": fine[0], "fine alone": fine[1], "fine members": sum(fine[2 : 2 + count]) / count}
        if before is not None:
            new[f"fine members{AS_DRAWN}"] = sum(fine[2 + count :]) / len(before)
        self.fan = self.fan or Fan.of(drawn[:, 0])
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in new.items()}
        self.steps = {name: self.steps.get(name, 0.0) + value for name, value in steps.items()}
        for name, shares in histograms.items():
            self.histograms[name] = self.histograms.get(name, 0.0) + shares.cpu().numpy() * len(truth)
        self.samples += len(truth)

    def curves(self) -> dict[str, Array]:
        """Scores at each step, by name, `(T,)`: spread and error as roots of their mean squares."""
        means = {name: total / max(1, self.samples) for name, total in self.steps.items()}
        return {name: np.sqrt(v) if name.startswith(("spread", "error")) else v for name, v in means.items()}

    def shares(self) -> dict[str, Array]:
        """How often the truth has each rank, over an even share, `(M + 1,)`; by "" and `AS_DRAWN`."""
        return {name: total * len(total) / max(1, self.samples) for name, total in self.histograms.items()}

    def numbers(self) -> dict[str, float]:
        """The scores by name, over whole rollouts."""
        s, means = self.sums, {name: float(total.mean()) for name, total in self.steps.items()}
        plain = {n: v / max(1, self.samples) for n, v in means.items() if not n.startswith(("spread", "error"))}
        wide = [name for name in means if name.startswith("spread")]
        return {
            **plain,
            **{
                name.replace("spread", "spread over error"): math.sqrt(means[name] / means["error"])
                if means["error"]
                else math.inf
                for name in wide
            },
            **{name: s[name] / s["fine truth"] if s["fine truth"] else math.inf for name in s if name != "fine truth"},
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
