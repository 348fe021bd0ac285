"""Scores of ensembles `(M, …)` beside the truth `(…)`: CRPS, spread against skill, coverage, rank histogram."""

from __future__ import annotations

from ups.later import Tensor, torch


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


def ranks(members: Tensor, truth: Tensor) -> Tensor:
    """How often the truth has each rank among the members, `(M + 1,)`, as shares; flat where they are of one kind."""
    rank = (members < truth).sum(0).flatten()
    counts: Tensor = torch.bincount(rank, minlength=len(members) + 1)
    shares: Tensor = counts.double() / rank.numel()
    return shares
