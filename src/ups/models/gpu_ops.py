"""What GPUs do by kernels of our own, as operations of torch: their gradients, their shapes and their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.utils.flop_counter import register_flop_formula

from ups.models.grids import Space
from ups.triton_check import runs_triton

LIBRARY = torch.library.Library("ups", "FRAGMENT")  # type: ignore[no-untyped-call]


def usable(x: Tensor) -> bool:
    """Whether `x` is on a GPU on which the kernels run; one that is only thought of has them."""
    return x.is_cuda and _run_on(x.device)


def _run_on(device: torch.device) -> bool:
    return detect_fake_mode() is not None or runs_triton(device)


_run_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # to a compiler, as tables are (ups.tensors)


def _axis_kernels() -> Any:
    from ups.models import axis_kernels

    return axis_kernels


def _norm_kernels() -> Any:
    from ups.models import norm_kernels

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


def axis_conv(x: Tensor, weight: Tensor, space: Space) -> Tensor:
    """Σ over axes and taps of `weight (axes, taps, D)` times the tokens `x (B, *G, D)` beside each: around an axis that
    wraps, the last one repeated at a wall; an arm longer than its axis is cut."""
    weight = weight.float().contiguous()
    y: Tensor = torch.ops.ups.axis_conv(x.contiguous(), weight, list(space.shape), list(space.periodic))
    return y


def field_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Fields `x (B, *G, D)` over their rms, times 1 + `scale (B, …, D)`, plus `shift (B, …, D)`."""
    y: Tensor = torch.ops.ups.field_norm(x.contiguous(), rows(scale), rows(shift), eps)[0]
    return y


def rows(x: Tensor) -> Tensor:
    """`(B, 1, …, D)` as rows, however far apart."""
    flat = x.reshape(len(x), -1)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _conv(x: Tensor, weight: Tensor, shape: list[int], periodic: list[bool]) -> Any:
    return _axis_kernels().forward(x, weight, Space(tuple(shape), tuple(periodic)))


def _conv_back(dy: Tensor, weight: Tensor, shape: list[int], periodic: list[bool]) -> Any:
    return _axis_kernels().backward(dy, weight, Space(tuple(shape), tuple(periodic)))


def _conv_weight(dy: Tensor, x: Tensor, weight: Tensor, shape: list[int], periodic: list[bool]) -> Any:
    return _axis_kernels().backward_weight(dy, x, weight, Space(tuple(shape), tuple(periodic)))


def _norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Any:
    return _norm_kernels().forward(x, scale, shift, eps)


def _norm_back(dy: Tensor, x: Tensor, scale: Tensor, factor: Tensor) -> Any:
    return _norm_kernels().backward(dy, x, scale, factor)


def _flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * math.prod(weight[:2])


def _flops_weight(_: Any, x: Sequence[int], weight: Sequence[int], *__: Any, **___: Any) -> int:
    return _flops(x, weight)


def no_flops(*_: Any, **__: Any) -> int:
    return 0  # only matrix products, convolutions and attention are counted


def alike(*places: int) -> Callable[..., Any]:
    """The shapes of what an operation gives: those of its arguments at some places."""

    def shapes(*args: Any) -> Any:
        made = tuple(torch.empty_like(args[place], memory_format=torch.contiguous_format) for place in places)
        return made if len(made) > 1 else made[0]

    return shapes


def _norm_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)


def _remember_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, ctx.shape, ctx.periodic = inputs
    ctx.save_for_backward(x, weight)


def _gradients_of_conv(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight = ctx.saved_tensors
    dy, grid = dy.contiguous(), (ctx.shape, ctx.periodic)
    dx = torch.ops.ups.axis_conv_back(dy, weight, *grid) if ctx.needs_input_grad[0] else None
    dw = torch.ops.ups.axis_conv_weight(dy, x, weight, *grid) if ctx.needs_input_grad[1] else None
    return dx, dw, None, None


def _remember_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, scale, _, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, scale, output[1])


def _gradients_of_norm(ctx: Any, dy: Tensor, _: Any) -> tuple[Tensor, Tensor, Tensor, None]:
    x, scale, factor = ctx.saved_tensors
    return (*torch.ops.ups.field_norm_back(dy.contiguous(), x, scale, factor), None)


GRID = "int[] shape, bool[] periodic"
OPERATIONS: Operations = {
    f"axis_conv(Tensor x, Tensor weight, {GRID}) -> Tensor": (_conv, alike(0), _flops),
    f"axis_conv_back(Tensor dy, Tensor weight, {GRID}) -> Tensor": (_conv_back, alike(0), _flops),
    f"axis_conv_weight(Tensor dy, Tensor x, Tensor weight, {GRID}) -> Tensor": (
        _conv_weight,
        alike(2),
        _flops_weight,
    ),
    "field_norm(Tensor x, Tensor scale, Tensor shift, float eps) -> (Tensor, Tensor)": (_norm, _norm_shapes, no_flops),
    "field_norm_back(Tensor dy, Tensor x, Tensor scale, Tensor factor) -> (Tensor, Tensor, Tensor)": (
        _norm_back,
        alike(1, 2, 2),
        no_flops,
    ),
}
declare(
    OPERATIONS,
    {"axis_conv": (_gradients_of_conv, _remember_conv), "field_norm": (_gradients_of_norm, _remember_norm)},
)
