"""Scores of ensembles `(M, …)` beside the truth `(…)`: CRPS, spread against skill, coverage, rank histogram."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ups.eval.intervals import quantiles, resampled_means
from ups.eval.nrmse import RolloutErrors, over_cells
from ups.eval.spectra import spectrum
from ups.lazy_imports import Tensor, torch
from ups.types import Array

AS_DRAWN = " as drawn"
RESOLVED = 1e-6  # of the power of a field: a wavenumber with less is not resolved


def crps(members: Tensor, truth: Tensor, fair: bool = False) -> Tensor:
    """Continuous ranked probability score at each place, `(…)`: E|x − y| − E|x − x'| / 2 over the members.

    In the units of the field; of one member it is the absolute error. `fair`: no pair counts of a member with itself,
    so that few members are not asked to be narrower than many.
    """
    return (members - truth).abs().mean(0) - half_distance(members, fair)


def half_distance(members: Tensor, fair: bool = False) -> Tensor:
    """Half the mean distance of two members at each place, `(…)`, from their order alone: that of the k-th counts
    2 k − M − 1 times in the sum over all pairs."""
    count, ordered = len(members), members.sort(0).values
    weights = 2.0 * torch.arange(count, device=members.device, dtype=members.dtype) - count + 1
    pairs: Tensor = (ordered * weights.reshape(-1, *(1,) * (members.ndim - 1))).sum(0)
    return pairs / (count * (count - 1 if fair else count))


def stretched_crps(members: Tensor, truth: Tensor, factors: Sequence[float]) -> Iterator[Tensor]:
    """The CRPS at each place, `(…)`, of members whose deviations from their mean are multiplied by each factor."""
    mean = members.mean(0)
    deviations, error, apart = members - mean, truth - mean, half_distance(members)
    for factor in factors:
        yield (factor * deviations - error).abs().mean(0) - factor * apart


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
    outermost goes on outwards; numpy stops there.
    """
    ordered, count = members.sort(0).values, len(members)
    low = (count + 1) * (1 - level) / 2

    def at(position: float) -> Tensor:
        below = min(max(int(position), 1), count - 1)
        left, right = ordered[below - 1], ordered[below]
        ends: Tensor = left + (position - below) * (right - left)
        return ends

    return at(low), at(count + 1 - low)


def coverage(members: Tensor, truth: Tensor) -> Tensor:
    """Whether the truth lies in the 90 % `interval` of the members, at each place: 0 or 1, `(…)`."""
    low, high = interval(members)
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


@dataclass(frozen=True)
class Fan:
    """What an ensemble says of one sample, to be drawn: its mean, spread and `bands (4, T, *S, C)`, the 5, 25, 75 and
    95 % of it; each but those `(T, *S, C)`."""

    mean: Array
    spread: Array
    bands: Array

    @classmethod
    def of(cls, members: Tensor) -> Fan:
        """The fan of members `(M, T, *S, C)`."""
        (low, high), (lower, upper) = interval(members), interval(members, 0.5)
        parts = (members.mean(0), spread(members), torch.stack((low, lower, upper, high)))
        return cls(*(part.cpu().double().numpy() for part in parts))


@dataclass
class EnsembleScores:
    """What ensembles of one task are worth beside the operator alone, gathered window by window.

    CRPS, absolute error, spread and error are in deviations of the data. `fine` is the power in the highest third of
    the resolved wavenumbers at the last frame, over the truth's; resolved are those up to the last one that holds a
    millionth of the truth's power. Names that end in `AS_DRAWN` are of the members before they are stretched; where
    nothing stretches them, `numbers` have CRPS and coverage twice. `fan` is that of the first sample.
    """

    members: int
    steps: dict[str, list[Array]] = field(default_factory=dict)  # (B, T) of each window; spread and error as squares
    usual: Sequence[float] | None = None  # sizes of channels in training, as of `RolloutErrors`
    errors: defaultdict[str, RolloutErrors] = field(default_factory=lambda: defaultdict(RolloutErrors))
    last: dict[str, list[Array]] = field(default_factory=dict)  # (B, wavenumbers) of each window: power at the end
    histograms: dict[str, Array] = field(default_factory=dict)  # of the truth's ranks, summed over samples
    fan: Fan | None = None

    def __post_init__(self) -> None:
        self.errors.default_factory = partial(RolloutErrors, usual=self.usual)

    def add(
        self,
        drawn: Tensor,
        alone: Tensor,
        truth: Tensor,
        std: Tensor,
        mask: Tensor | None = None,
        before: Tensor | None = None,
        plain: Tensor | None = None,
    ) -> None:
        """Rollouts `(M, B, T, *S, C)` of the members, `(B, T, *S, C)` of the operator alone and of the truth; `before`
        are the members before they are stretched, where that changed them; `plain` is the answer without draws."""
        cells = None if mask is None else mask[:, None, ..., None]
        drawings = {"": drawn} if before is None else {"": drawn, AS_DRAWN: before}
        answers = {"alone": alone, "without draws": alone if plain is None else plain}
        new = {f"absolute error {who}": ((answer - truth) / std).abs() for who, answer in answers.items()}
        self.errors["nrmse alone"].add(alone, truth, mask)
        last = {"fine truth": truth[None], "fine alone": alone[None]}
        for kind, members in drawings.items():
            new[f"crps{kind}"] = crps(members / std, truth / std)
            new[f"spread{kind}"] = spread(members / std).square()
            new[f"error{kind}"] = ((members.mean(0) - truth) / std).square()
            new[f"coverage{kind}"] = coverage(members, truth)
            self.errors[f"nrmse of the mean{kind}"].add(members.mean(0), truth, mask)
            last[f"fine members{kind}"] = members
            shares = ranks(members, truth, cells).cpu().numpy()
            self.histograms[kind] = self.histograms.get(kind, 0.0) + shares * len(truth)
        for name, values in new.items():
            self.steps.setdefault(name, []).append(_numpy(over_cells(values, mask).mean(2)))
        for name, rollouts in last.items():
            powers = [_spectra(one[:, -1] / std, mask) for one in rollouts]
            self.last.setdefault(name, []).append(np.mean(powers, 0))
        self.fan = self.fan or Fan.of(drawn[:, 0])

    @property
    def samples(self) -> int:
        return sum(len(rows) for rows in next(iter(self.steps.values()), []))

    def curves(self) -> dict[str, Array]:
        """Scores at each step, by name, `(T,)`: spread and error as roots of their mean squares."""
        return {name: _rooted(name, table.mean(0)) for name, table in self._tables().items()}

    def curve_ends(self) -> dict[str, tuple[Array, Array]]:
        """The 95 % intervals of `curves`, over samples: lower and upper ends, each `(T,)`."""
        means = {name: resampled_means(table.T) for name, table in self._tables().items()}
        return {name: quantiles(_rooted(name, rows)) for name, rows in means.items()}

    def shares(self) -> dict[str, Array]:
        """How often the truth has each rank, over an even share, `(M + 1,)`; by "" and `AS_DRAWN`."""
        return {name: total * len(total) / max(1, self.samples) for name, total in self.histograms.items()}

    @property
    def calibrated(self) -> bool:
        """Whether the members were stretched."""
        return AS_DRAWN in self.histograms

    @property
    def worse(self) -> bool:
        """Whether they know less than the operator alone, whose CRPS is its absolute error."""
        numbers = self.numbers()
        return not numbers["crps"] <= numbers["absolute error alone"]

    def numbers(self) -> dict[str, float]:
        """The scores by name, over whole rollouts."""
        return {name: float(value) for name, value in _scores({n: v.mean() for n, v in self._rows().items()}).items()}

    def ends(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each of the `numbers`, over samples."""
        rows = self._rows()
        means = dict(zip(rows, resampled_means(np.stack(list(rows.values()))), strict=True))
        ends = {name: quantiles(values[None]) for name, values in _scores(means).items()}
        return {name: (float(low[0]), float(high[0])) for name, (low, high) in ends.items()}

    def _rows(self) -> dict[str, Array]:
        """What the scores are made of, of each sample `(N,)`."""
        return {name: table.mean(1) for name, table in self._tables().items()} | self._fine()

    def _tables(self) -> dict[str, Array]:
        """What is known of each sample at each step, `(N, T)`."""
        windows = self.steps | {name: errors.by_step() for name, errors in self.errors.items()}
        return {name: np.concatenate(rows) for name, rows in windows.items()}

    def _fine(self) -> dict[str, Array]:
        """Power of each sample in the highest third of the wavenumbers that the truth of all of them resolves, `(N,)`;
        a coarser grid has none in those it does not hold."""
        most = max(spectra.shape[1] for rows in self.last.values() for spectra in rows)
        whole = {
            name: np.concatenate([np.pad(s, ((0, 0), (0, most - s.shape[1]))) for s in rows])
            for name, rows in self.last.items()
        }
        band = _finest(whole["fine truth"].mean(0))
        return {name: spectra[:, band].sum(1) for name, spectra in whole.items()}


def _scores(means: Mapping[str, Array]) -> dict[str, Array]:
    """The scores by name from means over samples, each of any shape."""
    scores = {}
    for name, value in means.items():
        if name.startswith("spread"):
            error = means[name.replace("spread", "error")]
            scores[name.replace("spread", "spread over error")] = np.sqrt(_over(value, error))
        elif name.startswith("fine"):
            scores[name] = _over(value, means["fine truth"])
        elif not name.startswith("error"):
            scores[name] = value
    del scores["fine truth"]
    for name in ("crps", "coverage"):
        scores.setdefault(f"{name}{AS_DRAWN}", scores[name])
    return scores


def _rooted(name: str, means: Array) -> Array:
    return np.sqrt(means) if name.startswith(("spread", "error")) else means


def _over(value: Array, whole: Array) -> Array:
    """A ratio; infinite over nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(whole == 0, np.inf, value / whole))


def _numpy(values: Tensor) -> Array:
    return np.asarray(values.double().cpu().numpy())


def _spectra(field: Tensor, mask: Tensor | None) -> Array:
    """Power of a field `(B, *S, C)` by sample and wavenumber, summed over channels; cells that do not count are 0."""
    if mask is not None:
        field = torch.where(mask.unsqueeze(-1), field, torch.zeros_like(field))
    return np.stack([spectrum(sample[None]).sum(-1) for sample in field.cpu().numpy()])


def _finest(power: Array) -> slice:
    """The highest third of the wavenumbers that are resolved, by their power `(wavenumbers,)`."""
    there = np.flatnonzero(power >= RESOLVED * power.sum())
    count = int(there.max()) + 1 if len(there) else len(power)
    return slice(count - max(1, count // 3), count)
