"""Muon: makes momentum orthogonal before it moves a matrix, for all matrices of one shape at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

MOMENTUM = 0.95
# Of a quintic iteration that takes all singular values of a matrix to about one, in so many rounds.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
EPS = 1e-7
LIKE_ADAMW = 0.2  # rms of what a step of AdamW changes, over its learning rate


class Muon:
    """Moves matrices, each as `torch.optim.Muon` moves it.

    Matrices of one shape are stacked: a step takes as many kernels as there are shapes, not as there are matrices. Its
    size is that of AdamW's, so that one learning rate serves both. On a GPU matrices are turned in bf16.
    """

    def __init__(self, params: Sequence[Tensor], pulls: Sequence[float]) -> None:
        """`pulls`: the weight decay of each."""
        self.state = {p: {"momentum_buffer": torch.zeros_like(p)} for p in params}
        kinds = sorted(zip(params, pulls, strict=True), key=_kind)
        self.kinds = [(kind[2], [p for p, _ in members]) for kind, members in groupby(kinds, key=_kind)]

    @torch.no_grad()
    def step(self, lr: Tensor, ok: Tensor) -> None:
        """Move the weights by the learning rate `lr`; nothing moves where the tensor `ok` is false."""
        for pull, params in self.kinds:
            if moved := [p for p in params if p.grad is not None]:
                rate = torch.where(ok, lr, 0.0)
                change = self._turned(moved, ok).mul_(rate * (LIKE_ADAMW * math.sqrt(max(moved[0].shape))))
                if pull:
                    torch._foreach_mul_(moved, 1 - rate * pull)
                torch._foreach_sub_(moved, change.unbind())

    def _turned(self, moved: list[Tensor], ok: Tensor) -> Tensor:
        memory = [self.state[p]["momentum_buffer"] for p in moved]
        # What a step that is left out was given may not be finite.
        given = torch.where(ok, torch.stack([p.grad for p in moved if p.grad is not None]), 0.0)
        momentum = torch.stack(memory).lerp_(given, torch.where(ok, 1 - MOMENTUM, 0.0))
        torch._foreach_copy_(memory, momentum.unbind())
        return orthogonal(given.lerp_(momentum, MOMENTUM)).to(momentum.dtype)


def orthogonal(x: Tensor) -> Tensor:
    """Matrices `(N, rows, columns)` with singular values of about one instead of their own; on a GPU in bf16."""
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.flatten(1).norm(dim=1).clamp_min(EPS).reshape(-1, 1, 1)
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _kind(member: tuple[Tensor, float]) -> tuple[int, int, float]:
    rows, columns = member[0].shape
    return rows, columns, member[1]
