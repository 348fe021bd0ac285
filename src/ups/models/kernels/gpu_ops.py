"""The GPU kernels of convolutions and norms as operations of torch, with gradients, shapes and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.utils.flop_counter import register_flop_formula

from ups.triton_check import runs_triton
from ups.types import Grid

LIBRARY = torch.library.Library("ups", "FRAGMENT")  # type: ignore[no-untyped-call]


def usable(x: Tensor) -> bool:
    """Whether `x` is on a GPU on which the kernels run; one that is only thought of has them."""
    return x.is_cuda and _run_on(x.device)


def _run_on(device: torch.device) -> bool:
    return detect_fake_mode() is not None or runs_triton(device)


_run_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # to a compiler, as tables are (ups.tensors)


def _conv_kernels(x: Tensor, kernel: Tensor, grid: Grid) -> Any:
    from ups.models.kernels import axis_kernels, patch_kernels

    return patch_kernels if patch_kernels.fits(x, kernel.shape[1], grid) else axis_kernels


def _norm_kernels() -> Any:
    from ups.models.kernels import norm_kernels

    return norm_kernels


# By signature: how it is computed, what shapes it gives, how many FLOPs it takes.
Operations = dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., int]]]
# By name: the gradients, and what is remembered for them.
Gradients = dict[str, tuple[Callable[..., Any], Callable[..., None]]]


def declare(operations: Operations, gradients: Gradients) -> None:
    """Make operations known to torch, as `torch.ops.ups.NAME`."""
    for signature, (compute, shapes, count) in operations.items():
        name = signature.partition("(")[0]
        LIBRARY.define(signature)  # type: ignore[no-untyped-call]
        LIBRARY.impl(name, compute, "CUDA")  # type: ignore[no-untyped-call]
        LIBRARY.impl(name, shapes, "Meta")  # type: ignore[no-untyped-call]
        register_flop_formula(getattr(torch.ops.ups, name))(count)
    for name, (back, remember) in gradients.items():
        torch.library.register_autograd(f"ups::{name}", back, setup_context=remember, lib=LIBRARY)


def axis_conv(x: Tensor, kernel: Tensor, gain: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """Σ over axes and taps of `kernel (D, taps)` times the axis's `gain (3, D)` times the tokens `x (B, *G, D)` beside
    each: around an axis that wraps, the last one repeated at a wall; an arm longer than its axis is cut.

    And `x`, twice, for two others that are made of it: what comes back from there is added on the way, not by kernels
    of its own.
    """
    y, one, two = _Conv.apply(x.contiguous(), kernel.contiguous(), gain.contiguous(), grid.shape, grid.periodic)  # type: ignore[no-untyped-call]
    return y, one, two


def field_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Fields `x (B, *G, D)` over their rms, times 1 + `scale (B, …, D)`, plus `shift (B, …, D)`; and `x`, as above."""
    y, x = _Norm.apply(x.contiguous(), rows(scale), rows(shift), eps)  # type: ignore[no-untyped-call]
    return y, x


def rows(x: Tensor) -> Tensor:
    """`(B, 1, …, D)` as rows, however far apart."""
    flat = x.reshape(len(x), -1)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def channel_parts(size: int) -> tuple[int, int]:
    """Two powers of two, from 16 on, or one and 0, that hold `size` channels with the least room to spare: kernels know
    nothing between, and 144 channels in 256 places would be half of it for nothing."""
    whole = max(16, 1 << (size - 1).bit_length())
    more = max(16, 1 << (max(1, size - whole // 2) - 1).bit_length())
    return (whole, 0) if whole // 2 + more >= whole else (whole // 2, more)


def _conv(x: Tensor, kernel: Tensor, gain: Tensor, shape: list[int], periodic: list[bool]) -> Any:
    grid = Grid(tuple(shape), tuple(periodic))
    return _conv_kernels(x, kernel, grid).forward(x, kernel, gain, grid)


def _conv_back(
    dy: Tensor, kernel: Tensor, gain: Tensor, through: list[Tensor], shape: list[int], periodic: list[bool]
) -> Any:
    grid = Grid(tuple(shape), tuple(periodic))
    return _conv_kernels(dy, kernel, grid).backward(dy, kernel, gain, through, grid)


def _conv_weights(dy: Tensor, x: Tensor, kernel: Tensor, gain: Tensor, shape: list[int], periodic: list[bool]) -> Any:
    grid = Grid(tuple(shape), tuple(periodic))
    return _conv_kernels(x, kernel, grid).backward_weight(dy, x, kernel, gain, grid)


def _norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Any:
    return _norm_kernels().forward(x, scale, shift, eps)


def _norm_back(dy: Tensor, x: Tensor, scale: Tensor, factor: Tensor, through: Tensor | None) -> Any:
    return _norm_kernels().backward(dy, x, scale, factor, through)


def _flops(x: Sequence[int], kernel: Sequence[int], *rest: Any, **__: Any) -> int:
    shape = rest[-2]
    return 2 * math.prod(x) * kernel[1] * len(shape)


def _flops_weights(_: Any, x: Sequence[int], kernel: Sequence[int], *rest: Any, **__: Any) -> int:
    return _flops(x, kernel, *rest)


def no_flops(*_: Any, **__: Any) -> int:
    """The count of an operation of which nobody counts any."""
    return 0  # only matrix products, convolutions and attention are counted


def alike(*places: int) -> Callable[..., Any]:
    """The shapes of what an operation gives: those of its arguments at some places."""

    def shapes(*args: Any) -> Any:
        made = tuple(torch.empty_like(args[place], memory_format=torch.contiguous_format) for place in places)
        return made if len(made) > 1 else made[0]

    return shapes


def _norm_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)


class _Conv(torch.autograd.Function):
    """A convolution, and twice what it is of."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, gain: Tensor, shape: tuple[int, ...], periodic: tuple[bool, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.grid = [*shape], [*periodic]
        ctx.save_for_backward(x, kernel, gain)
        return torch.ops.ups.axis_conv(x, kernel, gain, *ctx.grid), x.view_as(x), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *through: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        others = [one.contiguous() for one in through if one is not None]
        if dy is None:
            return sum(others) if others else None, *(None,) * 4  # type: ignore[return-value]
        dy, dx, dw = dy.contiguous(), None, (None, None)
        if ctx.needs_input_grad[0]:
            dx = torch.ops.ups.axis_conv_back(dy, *weights, others, *ctx.grid)
        if any(ctx.needs_input_grad[1:3]):
            dw = torch.ops.ups.axis_conv_weights(dy, x, *weights, *ctx.grid)
        return dx, *dw, None, None


class _Norm(torch.autograd.Function):
    """The norm of fields, and the fields."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        y, factor = torch.ops.ups.field_norm(x, scale, shift, eps)
        ctx.save_for_backward(x, scale, factor)
        return y, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return through, *(None,) * 3
        through = None if through is None else through.contiguous()
        return *torch.ops.ups.field_norm_back(dy.contiguous(), *ctx.saved_tensors, through), None


GRID = "int[] shape, bool[] periodic"
OPERATIONS: Operations = {
    f"axis_conv(Tensor x, Tensor kernel, Tensor gain, {GRID}) -> Tensor": (_conv, alike(0), _flops),
    f"axis_conv_back(Tensor dy, Tensor kernel, Tensor gain, Tensor[] through, {GRID}) -> Tensor": (
        _conv_back,
        alike(0),
        _flops,
    ),
    f"axis_conv_weights(Tensor dy, Tensor x, Tensor kernel, Tensor gain, {GRID}) -> (Tensor, Tensor)": (
        _conv_weights,
        alike(2, 3),
        _flops_weights,
    ),
    "field_norm(Tensor x, Tensor scale, Tensor shift, float eps) -> (Tensor, Tensor)": (_norm, _norm_shapes, no_flops),
    "field_norm_back(Tensor dy, Tensor x, Tensor scale, Tensor factor, Tensor? through) -> (Tensor, Tensor, Tensor)": (
        _norm_back,
        alike(1, 2, 2),
        no_flops,
    ),
}
declare(OPERATIONS, {})
