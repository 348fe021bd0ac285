"""GPU kernels of an AdamW step: clipping, update and average of the weights in one pass over memory."""

# Several tensors a launch, whose addresses are arguments: nothing is copied to the GPU, so that a graph can hold it.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TOGETHER = 8  # tensors of a launch, at most
BLOCK = 1024  # numbers of a program


@triton.jit
def _left_over(share, count):
    """1 − share^count of a share that is given by its binary logarithm, in float64: where the share is near to one,
    float32 would lose digits."""
    return 1.0 - tl.exp2(count.to(tl.float64) * tl.full((), share, tl.float64))


@triton.jit
def _numbers(
    p, g, m, v, s, count, size, scale, lr, weight,
    B1: tl.constexpr, B2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, EPS: tl.constexpr, PULL: tl.constexpr,
    SCALED: tl.constexpr, AVERAGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The numbers of a tensor that fall to this program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < size
    rate = tl.load(lr)
    step = tl.load(count) + 1.0
    pace = (rate.to(tl.float64) / _left_over(LOG1, step)).to(tl.float32)
    spread = tl.sqrt(_left_over(LOG2, step)).to(tl.float32)
    theta = tl.load(p + at, mask=live, other=0.0)
    given = tl.load(g + at, mask=live, other=0.0).to(tl.float32)
    mean = tl.load(m + at, mask=live, other=0.0)
    square = tl.load(v + at, mask=live, other=0.0)
    average = theta
    if AVERAGED:
        average = tl.load(s + at, mask=live, other=0.0)
    if SCALED:
        given = tl.div_rn(given, tl.zeros_like(given) + tl.load(scale))
    if PULL != 0.0:
        theta -= rate * PULL * theta
    mean = B1 * mean + (1.0 - B1) * given
    square = B2 * square + (1.0 - B2) * given * given
    theta -= tl.div_rn(pace * mean, tl.div_rn(tl.sqrt_rn(square), tl.zeros_like(square) + spread) + EPS)
    tl.store(p + at, theta, mask=live)
    tl.store(m + at, mean, mask=live)
    tl.store(v + at, square, mask=live)
    if AVERAGED:
        tl.store(s + at, average - tl.load(weight) * (average - theta), mask=live)


@triton.jit
def _adamw(
    ps, gs, ms, vs, averages, counts, sizes, ok, scale, lr, weight,
    B1: tl.constexpr, B2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, EPS: tl.constexpr, PULL: tl.constexpr,
    SCALED: tl.constexpr, AVERAGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Several tensors, each a row of programs, as many as the largest needs; nothing where not `ok`."""
    if tl.load(ok) != 0.0:
        for i in tl.static_range(len(ps)):
            if (tl.program_id(1) == i) & (tl.program_id(0).to(tl.int64) * BLOCK < sizes[i]):
                _numbers(
                    ps[i], gs[i], ms[i], vs[i], averages[i], counts[i], sizes[i], scale, lr, weight,
                    B1, B2, LOG1, LOG2, EPS, PULL, SCALED, AVERAGED, BLOCK,
                )  # fmt: skip


def adamw(
    params: list[Tensor],
    gradients: list[Tensor],
    moments: list[dict[str, Tensor]],
    averages: list[Tensor] | None,
    ok: Tensor,
    scale: Tensor | None,
    lr: Tensor,
    weight: Tensor | None,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """Move tensors of float32 that lie in one piece, given their gradients over `scale`; and the averages towards them
    by `weight`. `moments` are exp_avg, exp_avg_sq and step, of which the last stays as it is; all numbers that may
    change from step to step are tensors. `ok` is 1 or 0: then nothing moves."""
    # Those of a launch are of like size, and lie alike: of each pattern of addresses there is a kernel.
    order = sorted(range(len(params)), key=lambda i: (gradients[i].data_ptr() % 16, -params[i].numel()))
    flags = (scale is not None, averages is not None, BLOCK)
    words = (*betas, *(math.log2(max(beta, 1e-300)) for beta in betas), eps, decay)
    numbers = (ok, ok if scale is None else scale, lr, ok if weight is None else weight)
    with torch.cuda.device_of(params[0]):
        for first in range(0, len(order), TOGETHER):
            mine = order[first : first + TOGETHER]
            ps, gs = (tuple(many[i] for i in mine) for many in (params, gradients))
            ms, vs, counts = (tuple(moments[i][k] for i in mine) for k in ("exp_avg", "exp_avg_sq", "step"))
            ss = ps if averages is None else tuple(averages[i] for i in mine)
            sizes = tuple(p.numel() for p in ps)
            programs = (triton.cdiv(max(sizes), BLOCK), len(mine))
            _adamw[programs](ps, gs, ms, vs, ss, counts, sizes, *numbers, *words, *flags)
