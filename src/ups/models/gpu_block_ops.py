"""What GPUs do by kernels of our own inside a block, as operations of torch: gates, residuals, heads, waves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ups.models.gpu_ops import Operations, alike, declare, no_flops, rows


def _block_kernels() -> Any:
    from ups.models import block_kernels

    return block_kernels


def _attention_kernels() -> Any:
    from ups.models import attention_kernels

    return attention_kernels


def _wave_kernels() -> Any:
    from ups.models import wave_kernels

    return wave_kernels


def gated(a: Tensor, b: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    """(a + b) · silu(gate + bias), all but the bias of one shape and one type."""
    y: Tensor = torch.ops.ups.gated(a.contiguous(), b.contiguous(), gate.contiguous(), bias)
    return y


def activated(x: Tensor, bias: Tensor) -> Tensor:
    """GELU of `x`, to which a matrix product has added the bias; its gradient comes from here."""
    y: Tensor = torch.ops.ups.activated(x.contiguous(), bias)
    return y


def residual(x: Tensor, gate: Tensor, branch: Tensor, bias: Tensor) -> Tensor:
    """x + gate · (branch + bias) of `x, branch (B, *G, D)` and `gate (B, …, D)`."""
    y: Tensor = torch.ops.ups.residual(x.contiguous(), rows(gate), branch.contiguous(), bias)
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


def mixed(x: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """Waves `x (outer, 2, modes, inner, heads, d)`, real parts before imaginary ones, each times a complex matrix
    `(modes, heads, d, d)`, in float32."""
    y: Tensor = torch.ops.ups.mixed(x.contiguous(), real.contiguous(), imaginary.contiguous(), False)
    return y


def _gated(a: Tensor, b: Tensor, gate: Tensor, bias: Tensor) -> Any:
    return _block_kernels().gate(a, b, gate, bias)


def _gated_back(dy: Tensor, a: Tensor, b: Tensor, gate: Tensor, bias: Tensor) -> Any:
    return _block_kernels().gate_back(dy, a, b, gate, bias)


def _activated(x: Tensor, bias: Tensor) -> Any:  # noqa: ARG001
    return functional.gelu(x)


def _activated_back(dy: Tensor, x: Tensor, bias: Tensor) -> Any:
    return _block_kernels().activate_back(dy, x, bias)


def _residual(x: Tensor, gate: Tensor, branch: Tensor, bias: Tensor) -> Any:
    return _block_kernels().residual(x, gate, branch, bias)


def _residual_back(dy: Tensor, gate: Tensor, branch: Tensor, bias: Tensor) -> Any:
    return _block_kernels().residual_back(dy, gate, branch, bias)


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


def _mixed(x: Tensor, real: Tensor, imaginary: Tensor, back: bool) -> Any:
    return _wave_kernels().mix(x, real, imaginary, back)


def _mixed_weights(dy: Tensor, x: Tensor) -> Any:
    return _wave_kernels().weigh(dy, x)


def _mixed_weights_shapes(_: Any, x: Tensor) -> Any:
    _, _, modes, _, heads, size = x.shape
    return tuple(x.new_empty(modes, heads, size, size) for _ in range(2))


def _flops(x: Sequence[int], *_: Any, **__: Any) -> int:
    return 4 * math.prod(x) * x[-1]


def _flops_weights(_: Any, x: Sequence[int], *__: Any, **___: Any) -> int:
    return _flops(x)


def _remember_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradients_of_gate(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d, dgate, dbias = torch.ops.ups.gated_back(dy.contiguous(), *ctx.saved_tensors)
    return d, d, dgate, dbias


def _gradients_of_activation(ctx: Any, dy: Tensor) -> Any:
    return torch.ops.ups.activated_back(dy.contiguous(), *ctx.saved_tensors)


def _remember_residual(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[1:])


def _gradients_of_residual(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
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


def _remember_mixed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:3])


def _gradients_of_mixed(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, real, imaginary = ctx.saved_tensors
    dy = dy.contiguous()
    dx = torch.ops.ups.mixed(dy, real, imaginary, True) if ctx.needs_input_grad[0] else None
    return dx, *torch.ops.ups.mixed_weights(dy, x), None


OPERATIONS: Operations = {
    "gated(Tensor a, Tensor b, Tensor gate, Tensor bias) -> Tensor": (_gated, alike(2), no_flops),
    "gated_back(Tensor dy, Tensor a, Tensor b, Tensor gate, Tensor bias) -> (Tensor, Tensor, Tensor)": (
        _gated_back,
        alike(1, 3, 4),
        no_flops,
    ),
    "activated(Tensor x, Tensor bias) -> Tensor": (_activated, alike(0), no_flops),
    "activated_back(Tensor dy, Tensor x, Tensor bias) -> (Tensor, Tensor)": (_activated_back, alike(1, 2), no_flops),
    "residual(Tensor x, Tensor gate, Tensor branch, Tensor bias) -> Tensor": (_residual, alike(0), no_flops),
    "residual_back(Tensor dy, Tensor gate, Tensor branch, Tensor bias) -> (Tensor, Tensor, Tensor)": (
        _residual_back,
        alike(1, 2, 3),
        no_flops,
    ),
    "heads_of(Tensor qkv, Tensor? order, Tensor? cos, Tensor? sin, int heads, int window, float eps)"
    " -> (Tensor, Tensor, Tensor)": (_heads, _heads_shapes, no_flops),
    "heads_of_back(Tensor dq, Tensor dk, Tensor dv, Tensor qkv, Tensor? order, Tensor? cos, Tensor? sin, float eps)"
    " -> Tensor": (_heads_back, alike(3), no_flops),
    "tokens_of(Tensor x, Tensor order) -> Tensor": (_tokens, _tokens_shape, no_flops),
    "tokens_of_back(Tensor dy, Tensor order, int heads, int window) -> Tensor": (
        _tokens_back,
        _tokens_back_shape,
        no_flops,
    ),
    "mixed(Tensor x, Tensor real, Tensor imaginary, bool back) -> Tensor": (_mixed, alike(0), _flops),
    "mixed_weights(Tensor dy, Tensor x) -> (Tensor, Tensor)": (_mixed_weights, _mixed_weights_shapes, _flops_weights),
}
declare(
    OPERATIONS,
    {
        "gated": (_gradients_of_gate, _remember_inputs),
        "activated": (_gradients_of_activation, _remember_inputs),
        "residual": (_gradients_of_residual, _remember_residual),
        "heads_of": (_gradients_of_heads, _remember_heads),
        "tokens_of": (_gradients_of_tokens, _remember_tokens),
        "mixed": (_gradients_of_mixed, _remember_mixed),
    },
)
