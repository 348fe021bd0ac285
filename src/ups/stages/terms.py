"""What losses and scores are made of; every function maps a batch to one value per sample, `(B,)`."""

from __future__ import annotations

from ups.later import Tensor, torch
from ups.physics.constraints import Conserved
from ups.physics.laws import laws_of
from ups.types import TaskSpec

# The mean square of a field of which "how much of it" is not asked any more.
NOTHING = 1e-6


def square(x: Tensor) -> Tensor:
    """Mean square of each sample, in float32."""
    return x.float().square().flatten(1).mean(1)


def share(gap: Tensor, truth: Tensor) -> Tensor:
    """Square of `gap` over that of the truth: a faint field counts as much as a strong one, as in nRMSE."""
    return square(gap) / square(truth).clamp_min(NOTHING)


def spectral(found: Tensor, truth: Tensor) -> Tensor:
    """Square error of the Fourier amplitudes of `(B, *S, C)`, each over its own size and the sample's mean one."""
    axes = tuple(range(1, truth.ndim - 1))
    gap = torch.fft.rfftn((found - truth).float(), dim=axes, norm="ortho").abs()
    size = torch.fft.rfftn(truth.float(), dim=axes, norm="ortho").abs()
    typical = size.mean(tuple(range(1, size.ndim)), keepdim=True).clamp_min(NOTHING)
    return square(gap / (size + typical))


def drift(found: Tensor, truth: Tensor, task: TaskSpec) -> Tensor:
    """Square gap between the integrals of predicted and true frames, over their size, summed over what is conserved."""
    total = truth.new_zeros(len(truth))
    axes = tuple(range(1, 1 + task.ndim))
    for law in laws_of(task, task.periodic):
        if isinstance(law, Conserved):
            q, p = law.density(found), law.density(truth)
            total = total + ((q - p).mean(axes) / p.abs().mean(axes).clamp_min(NOTHING)).square()
    return total


def edges(gap: Tensor, periodic: tuple[bool, ...]) -> Tensor:
    """Mean square of `(B, *S, C)` on the first and last cells of bounded axes; 0 where all axes wrap."""
    total = gap.new_zeros(len(gap))
    for axis, wraps in enumerate(periodic, start=1):
        if not wraps:
            ends = torch.stack([gap.select(axis, 0), gap.select(axis, gap.shape[axis] - 1)], 1)
            total = total + square(ends)
    return total
