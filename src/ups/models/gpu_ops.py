"""What GPUs do by kernels of our own, as operations of torch: their gradients, their shapes and their cost."""

from __future__ import annotations

import functools
import math
import subprocess
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.utils.flop_counter import register_flop_formula

from ups.models.grids import Space

LIBRARY = torch.library.Library("ups", "FRAGMENT")  # type: ignore[no-untyped-call]


def usable(x: Tensor) -> bool:
    """Whether `x` is on a GPU on which the kernels run; one that is only thought of has them."""
    return x.is_cuda and (detect_fake_mode() is not None or _compiles(x.device))


@functools.cache
def _compiles(device: torch.device) -> bool:
    """Tries one of them: Triton, which comes with torch, needs a C compiler on the machine."""
    if find_spec("triton") is None:
        return False
    import triton

    try:
        one = torch.ones(1, 3, 8, device=device)
        _axis_kernels().forward(one, one, Space((3,), (True,)))
    except (RuntimeError, OSError, subprocess.SubprocessError, triton.TritonError) as error:
        why = str(error).strip().splitlines()[-1][:200] if str(error).strip() else type(error).__name__
        warnings.warn(f"networks run by a library's kernels, which are slower: Triton says '{why}'.", stacklevel=2)
        return False
    return True


def _axis_kernels() -> Any:
    from ups.models import axis_kernels

    return axis_kernels


def _norm_kernels() -> Any:
    from ups.models import norm_kernels

    return norm_kernels


def _block_kernels() -> Any:
    from ups.models import block_kernels

    return block_kernels


def _attention_kernels() -> Any:
    from ups.models import attention_kernels

    return attention_kernels


def axis_conv(x: Tensor, weight: Tensor, space: Space) -> Tensor:
    """Σ over axes and taps of `weight (axes, taps, D)` times the tokens `x (B, *G, D)` beside each: around an axis that
    wraps, the last one repeated at a wall; an arm longer than its axis is cut."""
    weight = weight.float().contiguous()
    y: Tensor = torch.ops.ups.axis_conv(x.contiguous(), weight, list(space.shape), list(space.periodic))
    return y


def field_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Fields `x (B, *G, D)` over their rms, times 1 + `scale (B, …, D)`, plus `shift (B, …, D)`."""
    y: Tensor = torch.ops.ups.field_norm(x.contiguous(), _rows(scale), _rows(shift), eps)[0]
    return y


def gated(a: Tensor, b: Tensor, gate: Tensor) -> Tensor:
    """(a + b) · silu(gate), all of one shape and one type."""
    y: Tensor = torch.ops.ups.gated(a.contiguous(), b.contiguous(), gate.contiguous())
    return y


def residual(x: Tensor, gate: Tensor, branch: Tensor) -> Tensor:
    """x + gate · branch of `x, branch (B, *G, D)` and `gate (B, …, D)`."""
    y: Tensor = torch.ops.ups.residual(x.contiguous(), _rows(gate), branch.contiguous())
    return y


def heads_of(
    qkv: Tensor, heads: int, window: int, order: Tensor | None, turn: tuple[Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys over their rms, values as they are, each `(B, windows, heads, W, d)`, out of `qkv (B, tokens,
    3 · heads · d)`. `order` names the token that stands at each place, window after window; `turn` are cos and sin
    `(tokens, d / 2)` by which queries and keys are turned."""
    cos, sin = turn or (None, None)
    q, k, v = torch.ops.ups.heads_of(qkv.contiguous(), order, cos, sin, heads, window, eps)
    return q, k, v


def tokens_of(x: Tensor, order: Tensor) -> Tensor:
    """Heads in windows `(B, windows, heads, W, d)` back to tokens `(B, tokens, heads · d)` in their own order."""
    y: Tensor = torch.ops.ups.tokens_of(x, order)
    return y


def _rows(x: Tensor) -> Tensor:
    """`(B, 1, …, D)` as rows, however far apart."""
    rows = x.reshape(len(x), -1)
    return rows if rows.stride(1) == 1 else rows.contiguous()


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


def _gated(a: Tensor, b: Tensor, gate: Tensor) -> Any:
    return _block_kernels().gate(a, b, gate)


def _gated_back(dy: Tensor, a: Tensor, b: Tensor, gate: Tensor) -> Any:
    return _block_kernels().gate_back(dy, a, b, gate)


def _residual(x: Tensor, gate: Tensor, branch: Tensor) -> Any:
    return _block_kernels().residual(x, gate, branch)


def _residual_back(dy: Tensor, gate: Tensor, branch: Tensor) -> Any:
    return _block_kernels().residual_back(dy, gate, branch)


def _heads_shapes(qkv: Tensor, order: Tensor | None, _: Any, __: Any, heads: int, window: int, ___: Any) -> Any:
    """Windows and heads lie beside each other, so that they can be joined; without windows the heads of a token do, as
    attention likes it, so that what it answers are tokens again."""
    counts, size = (len(qkv), qkv.shape[1] // window), qkv.shape[-1] // (3 * heads)
    if order is not None:
        return tuple(qkv.new_empty(*counts, heads, window, size) for _ in range(3))
    return tuple(qkv.new_empty(*counts, window, heads, size).transpose(2, 3) for _ in range(3))


def _heads(qkv: Tensor, order: Any, cos: Any, sin: Any, heads: int, window: int, eps: float) -> Any:
    q, k, v = _heads_shapes(qkv, order, cos, sin, heads, window, eps)
    _attention_kernels().split(qkv, q, k, v, order, cos, sin, eps)
    return q, k, v


def _heads_back(dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, order: Any, cos: Any, sin: Any, eps: float) -> Any:
    return _attention_kernels().split_back(dq, dk, dv, qkv, order, cos, sin, eps)


def _tokens(x: Tensor, order: Tensor) -> Any:
    return _attention_kernels().join(x, order)


def _tokens_shape(x: Tensor, _: Any) -> Tensor:
    return x.new_empty(len(x), x.shape[1] * x.shape[3], x.shape[2] * x.shape[4])


def _tokens_back(dy: Tensor, order: Tensor, heads: int, window: int) -> Any:
    return _attention_kernels().join_back(dy, order, heads, window)


def _tokens_back_shape(dy: Tensor, _: Any, heads: int, window: int) -> Tensor:
    return dy.new_empty(len(dy), dy.shape[1] // window, window, heads, dy.shape[2] // heads).transpose(2, 3)


def _flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * math.prod(weight[:2])


def _flops_weight(_: Any, x: Sequence[int], weight: Sequence[int], *__: Any, **___: Any) -> int:
    return _flops(x, weight)


def _no_flops(*_: Any, **__: Any) -> int:
    return 0  # only matrix products, convolutions and attention are counted


def _alike(*places: int) -> Callable[..., Any]:
    """The shapes of what an operation gives: those of its arguments at some places."""

    def shapes(*args: Any) -> Any:
        made = tuple(torch.empty_like(args[place], memory_format=torch.contiguous_format) for place in places)
        return made if len(made) > 1 else made[0]

    return shapes


def _norm_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)


# By signature: how it is computed, what shapes it gives, how many FLOPs it takes.
GRID = "int[] shape, bool[] periodic"
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., int]]] = {
    f"axis_conv(Tensor x, Tensor weight, {GRID}) -> Tensor": (_conv, _alike(0), _flops),
    f"axis_conv_back(Tensor dy, Tensor weight, {GRID}) -> Tensor": (_conv_back, _alike(0), _flops),
    f"axis_conv_weight(Tensor dy, Tensor x, Tensor weight, {GRID}) -> Tensor": (
        _conv_weight,
        _alike(2),
        _flops_weight,
    ),
    "field_norm(Tensor x, Tensor scale, Tensor shift, float eps) -> (Tensor, Tensor)": (_norm, _norm_shapes, _no_flops),
    "field_norm_back(Tensor dy, Tensor x, Tensor scale, Tensor factor) -> (Tensor, Tensor, Tensor)": (
        _norm_back,
        _alike(1, 2, 2),
        _no_flops,
    ),
    "gated(Tensor a, Tensor b, Tensor gate) -> Tensor": (_gated, _alike(2), _no_flops),
    "gated_back(Tensor dy, Tensor a, Tensor b, Tensor gate) -> (Tensor, Tensor)": (
        _gated_back,
        _alike(1, 3),
        _no_flops,
    ),
    "residual(Tensor x, Tensor gate, Tensor branch) -> Tensor": (_residual, _alike(0), _no_flops),
    "residual_back(Tensor dy, Tensor gate, Tensor branch) -> (Tensor, Tensor)": (
        _residual_back,
        _alike(1, 2),
        _no_flops,
    ),
    "heads_of(Tensor qkv, Tensor? order, Tensor? cos, Tensor? sin, int heads, int window, float eps)"
    " -> (Tensor, Tensor, Tensor)": (_heads, _heads_shapes, _no_flops),
    "heads_of_back(Tensor dq, Tensor dk, Tensor dv, Tensor qkv, Tensor? order, Tensor? cos, Tensor? sin, float eps)"
    " -> Tensor": (_heads_back, _alike(3), _no_flops),
    "tokens_of(Tensor x, Tensor order) -> Tensor": (_tokens, _tokens_shape, _no_flops),
    "tokens_of_back(Tensor dy, Tensor order, int heads, int window) -> Tensor": (
        _tokens_back,
        _tokens_back_shape,
        _no_flops,
    ),
}
for _signature, (_compute, _shapes, _count) in OPERATIONS.items():
    _name = _signature.partition("(")[0]
    LIBRARY.define(_signature)  # type: ignore[no-untyped-call]
    LIBRARY.impl(_name, _compute, "CUDA")  # type: ignore[no-untyped-call]
    LIBRARY.impl(_name, _shapes, "Meta")  # type: ignore[no-untyped-call]
    register_flop_formula(getattr(torch.ops.ups, _name))(_count)


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


def _remember_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradients_of_gate(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d, dgate = torch.ops.ups.gated_back(dy.contiguous(), *ctx.saved_tensors)
    return d, d, dgate


def _remember_residual(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[1:])


def _gradients_of_residual(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dy = dy.contiguous()
    return (dy, *torch.ops.ups.residual_back(dy, *ctx.saved_tensors))


def _remember_heads(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    *tensors, _, _, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gradients_of_heads(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.ups.heads_of_back(dq, dk, dv, *ctx.saved_tensors, ctx.eps), *(None,) * 6)


def _remember_tokens(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, order = inputs
    ctx.sizes = x.shape[2], x.shape[3]
    ctx.save_for_backward(order)


def _gradients_of_tokens(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    return torch.ops.ups.tokens_of_back(dy.contiguous(), *ctx.saved_tensors, *ctx.sizes), None


for _name, _gradients, _remember in (
    ("axis_conv", _gradients_of_conv, _remember_conv),
    ("field_norm", _gradients_of_norm, _remember_norm),
    ("gated", _gradients_of_gate, _remember_inputs),
    ("residual", _gradients_of_residual, _remember_residual),
    ("heads_of", _gradients_of_heads, _remember_heads),
    ("tokens_of", _gradients_of_tokens, _remember_tokens),
):
    torch.library.register_autograd(f"ups::{_name}", _gradients, setup_context=_remember, lib=LIBRARY)
