"""Terms of losses and scores; every function maps a batch to one value per sample, `(B,)`."""

from __future__ import annotations

from ups.lazy_imports import Tensor, torch
from ups.physics.constraints import NOTHING

# A square error, beside that of "no change", so small that none smaller is asked for.
EXACT = 1e-9


def square(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean square of each sample, in float32; of `(B, *S, C)` over the cells of `mask (B, *S)`, where one
    is given, each as many times as it says."""
    if mask is None:
        return x.float().square().flatten(1).mean(1)
    count = mask.flatten(1).sum(1).clamp_min(1) * x.shape[-1]
    if mask.is_floating_point():
        return (x.float().square() * mask.unsqueeze(-1)).flatten(1).sum(1) / count
    return without(x.float(), mask).square().flatten(1).sum(1) / count


def without(x: Tensor, mask: Tensor | None) -> Tensor:
    """`(B, *S, C)` with zeros in the cells that do not count."""
    return x if mask is None else torch.where(mask.unsqueeze(-1), x, torch.zeros_like(x))


def share(gap: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
    """Square of `gap` over that of the truth: a faint field counts as much as a strong one, as in nRMSE."""
    return square(gap, mask) / square(truth, mask).clamp_min(NOTHING)


def raised(error: Tensor, power: float) -> Tensor:
    """A square error to a power from 0 to 1, with a slope that stays finite where there is no error."""
    return error if power == 1 else (error + EXACT) ** power
