"""The 2-norm of a gradient, summed so that ranks holding all of it and ranks holding pieces get the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 16  # bytes; kernels sum in another order where a tensor begins elsewhere


def pieces(tensor: Tensor, count: int) -> list[Tensor]:
    """`count` pieces along the first axis, the last ones shorter or empty: what each of `count` ranks would hold."""
    chunks = list(tensor.chunk(count))
    return chunks + [tensor[:0]] * (count - len(chunks))


@torch.no_grad()
def square_sums(gradients: Sequence[Tensor], count: int) -> Tensor:
    """The sum of squares of each of `count` pieces of each gradient, `(count, gradients)`.

    A piece's number depends on its values alone, not on where it lies or what lies beside it.
    """
    cut = [part for g in gradients for part in pieces(g, count)]
    full = [_aligned(part) for part in cut if part.numel()]
    norms, nothing = iter(torch._foreach_norm(full, 2) if full else ()), gradients[0].new_zeros(())
    # Which pieces are empty the host knows: no copy from it to the device, which a CUDA graph could not hold.
    sums = torch.stack([next(norms) if part.numel() else nothing for part in cut])
    return sums.square_().view(len(gradients), count).T


def norm_of(sums: Tensor) -> Tensor:
    """The norm, from the sums `(pieces, gradients)`: over pieces in the order of ranks, then over gradients."""
    return sums.contiguous().sum(0).sum().sqrt()


def _aligned(part: Tensor) -> Tensor:
    part = part.contiguous()
    return part.clone() if part.is_cuda and part.data_ptr() % ALIGNED else part
