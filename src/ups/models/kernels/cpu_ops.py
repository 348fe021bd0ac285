"""Faster operations for CPUs, equal to torch's up to rounding: convolution, GELU, products, Fourier mixing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ups.models.grids import pad_axis
from ups.types import Grid


class _AxisConv(torch.autograd.Function):
    """`axis_conv` as one multiplication and addition of the whole field for each tap, forwards and backwards: torch's
    gradient of a depthwise convolution takes sixteen times as long as the convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        ctx.save_for_backward(x, weight)
        half = weight.shape[1] // 2
        y = x * weight[:, half].sum(0)
        for axis, tap, beside in _taps(x, half, grid):
            y.addcmul_(beside, weight[axis, tap])
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        half, grid = weight.shape[1] // 2, ctx.grid
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = dy * weight[:, half].sum(0)
            for axis in range(grid.ndim):
                _add_arms(dx, dy, weight[axis], axis + 1, grid)
        if ctx.needs_input_grad[1]:
            dweight = torch.zeros_like(weight)
            dweight[:, half] = (dy * x).flatten(0, -2).sum(0)
            for axis, tap, beside in _taps(x, half, grid):
                dweight[axis, tap] = (dy * beside).flatten(0, -2).sum(0)
        return dx, dweight, None


def _taps(x: Tensor, half: int, grid: Grid) -> Any:
    """For each tap but the middle ones: its axis, its number, and `x (B, *G, D)` as seen through it. An arm that is
    longer than its axis is cut: it would wrap more than once."""
    for axis, (n, wraps) in enumerate(zip(grid.shape, grid.periodic, strict=True)):
        reach = min(half, n)
        padded = pad_axis(x, axis + 1, reach, reach, wraps)
        for step in range(-reach, reach + 1):
            if step:
                yield axis, half + step, padded.narrow(axis + 1, reach + step, n)


def _add_arms(dx: Tensor, dy: Tensor, weight: Tensor, dim: int, grid: Grid) -> None:
    """Add to `dx` what came through the taps `weight (taps, D)` along `dim`, those in the middle apart."""
    n, half = dx.shape[dim], len(weight) // 2
    reach = min(half, n)
    shape = list(dx.shape)
    shape[dim] += 2 * reach
    padded = dx.new_zeros(shape)
    for step in range(-reach, reach + 1):
        if step:
            padded.narrow(dim, reach + step, n).addcmul_(dy, weight[half + step])
    low, high = padded.narrow(dim, 0, reach), padded.narrow(dim, reach + n, reach)
    dx += padded.narrow(dim, reach, n)
    if grid.periodic[dim - 1]:
        dx.narrow(dim, n - reach, reach).add_(low)
        dx.narrow(dim, 0, reach).add_(high)
    else:
        dx.narrow(dim, 0, 1).add_(low.sum(dim, keepdim=True))
        dx.narrow(dim, n - 1, 1).add_(high.sum(dim, keepdim=True))


def axis_conv(x: Tensor, weight: Tensor, grid: Grid) -> Tensor:
    """Σ over axes and taps of `weight (axes, taps, D)` times the tokens `x (B, *G, D)` beside each: around an axis that
    wraps, the last one repeated at a wall; an arm longer than its axis is cut."""
    y: Tensor = _AxisConv.apply(x, weight.to(x.dtype), grid)  # type: ignore[no-untyped-call]
    return y


class _Gelu(torch.autograd.Function):
    """x Φ(x); the slope is kept, which torch works out number by number on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        below = torch.erf(x * 0.5**0.5).add_(1).mul_(0.5)
        ctx.save_for_backward(x, torch.exp(x * x * -0.5).mul_(x).mul_(1 / math.sqrt(2 * math.pi)).add_(below))
        return below.mul_(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x: Tensor
        slope: Tensor
        x, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated again, and the kept slope cannot be
            slope = torch.special.ndtr(x) + x * torch.exp(x * x * -0.5) / math.sqrt(2 * math.pi)
        return dy * slope


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), of the normal distribution."""
    if not (x.is_cpu and x.dtype == torch.float32 and x.requires_grad and torch.is_grad_enabled()):
        return functional.gelu(x)
    y: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Products(torch.autograd.Function):
    """`bmm`, whose gradient turns the small matrices first: products with a turned view take six times as long."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(rows, matrices)
        return torch.bmm(rows, matrices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        rows, matrices = ctx.saved_tensors
        return torch.bmm(gradient, matrices.mT.contiguous()), torch.bmm(rows.mT, gradient)


def products(rows: Tensor, matrices: Tensor) -> Tensor:
    """Many rows times a small matrix each, `(K, R, I)` times `(K, I, J)`."""
    y: Tensor = _Products.apply(rows, matrices)  # type: ignore[no-untyped-call]
    return y


def mix_waves(
    x: Tensor, axis: int, tables: tuple[Tensor, Tensor], matrices: tuple[Tensor, Tensor], *, sines: bool
) -> Tensor:
    """`x (B, *G, D)` along `axis`, read and written by the tables of `FourierMixing`, its waves mixed by the real and
    imaginary part of complex `matrices (modes, heads, D / heads, D / heads)`. Without `sines` none are read.

    The axis and the heads lie outermost meanwhile, so that each product is a single one, or one a wave and head.
    """
    analysis, synthesis = tables
    modes, heads, size, _ = matrices[0].shape
    before, n, after = math.prod(x.shape[: axis + 1]), x.shape[axis + 1], math.prod(x.shape[axis + 2 : -1])
    flat = x.reshape(before, n, after, heads, size).permute(1, 3, 0, 2, 4).reshape(n, -1)
    real, imaginary = (m.flatten(0, 1) for m in matrices)
    weights = torch.cat((real, imaginary), -1)  # of cosines; a product for each wave is slow, so there is one for all
    waves = torch.mm(analysis if sines else analysis[:modes], flat).view(-1, modes * heads, before * after, size)
    if sines:
        weights = torch.cat((weights, torch.cat((-imaginary, real), -1)), 1)
        rows = waves.permute(1, 2, 0, 3).flatten(2)
    else:
        rows = waves[0]
    mixed = torch.unflatten(products(rows, weights), -1, (2, size)).permute(2, 0, 1, 3).reshape(2 * modes, -1)
    y = torch.mm(synthesis, mixed)
    return y.view(n, heads, before, after, size).permute(2, 0, 3, 1, 4).reshape(x.shape)
