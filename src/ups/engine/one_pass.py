"""AdamW for large weights on a GPU: update, clipping and average in one pass over memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from ups.triton_check import runs_triton

# Numbers of a tensor from which it pays: smaller ones are moved by torch, many at a launch.
LARGE = 1 << 18
EPS = 1e-8  # as torch's AdamW has it


class OnePass:
    """AdamW of large tensors, with the state and the results of torch's, to round-off: betas and learning rate are
    float32 there or float64, by the version of torch.

    A step reads weights, gradients, moments and averages once and writes all but the gradients. It decides nothing on
    the host, so that it can be part of a CUDA graph.
    """

    def __init__(self, members: Mapping[str, tuple[Tensor, float]], betas: tuple[float, float]) -> None:
        """`members`: by name a parameter and its weight decay."""
        self.members, self.betas = dict(members), betas
        self.grad_scale: Tensor | None = None  # what the gradients of the next step are divided by
        self.state = {
            p: {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for p, _ in self.members.values()
        }

    @staticmethod
    def takes(p: Tensor) -> bool:
        """Whether a tensor is moved here: a large parameter of float32, whole and in one piece, on a GPU on which our
        kernels run. Pieces of one are moved by torch, whatever their size."""
        whole = type(p) is nn.Parameter and p.is_cuda and p.dtype == torch.float32 and p.is_contiguous()
        return whole and p.numel() >= LARGE and runs_triton(p.device)

    @torch.no_grad()
    def step(
        self, ok: Tensor, lr: Tensor, averages: Mapping[str, Tensor] | None, weight: Tensor | None
    ) -> Collection[str]:
        """Move those that have a gradient, and their averages by `weight`, if `ok`; returns the names whose average was
        updated in the same pass."""
        from ups.engine.step_kernels import adamw

        scale, self.grad_scale = self.grad_scale, None
        moved = {name: (p, pull) for name, (p, pull) in self.members.items() if p.grad is not None}
        if averages is not None and not all(_like(averages[name], p) for name, (p, _) in moved.items()):
            averages = None
        live = ok.float()
        share = None if weight is None or averages is None else weight * live
        for decay in sorted({pull for _, pull in moved.values()}):
            names = [name for name, (_, pull) in moved.items() if pull == decay]
            params = [moved[name][0] for name in names]
            gradients = [p.grad.contiguous() for p in params if p.grad is not None]
            beside = None if averages is None else [averages[name] for name in names]
            moments = [self.state[p] for p in params]
            adamw(params, gradients, moments, beside, live, scale, lr, share, self.betas, EPS, decay)
            torch.autograd.graph.increment_version(params)  # as operations of torch do that change a tensor
        if moved:
            # By a list: a single number on a GPU would be read by the processor, which a capture forbids.
            torch._foreach_add_([self.state[p]["step"] for p, _ in moved.values()], [live] * len(moved))
        return () if averages is None else moved.keys()


def _like(average: Tensor, p: Tensor) -> bool:
    return type(average) is Tensor and average.dtype == p.dtype and average.is_contiguous()
