"""The GPU kernels of a block as operations of torch: gates, residuals, attention heads, Fourier modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ups.models.kernels.gpu_ops import Operations, alike, channel_parts, declare, no_flops, rows

# What one program may keep of a window in the memory that its threads share, where no GPU is there to be asked.
SHARED = 227 * 1024
# Larger windows and wider heads take longer to compile than they save: tokens, and tokens times channels of numbers of
# two bytes, of four, and of four whose products are exact.
LARGEST_WINDOW, LARGEST_TILES = 128, (64 * 160, 64 * 128, 64 * 64)


def window_fits(window: int, size: int, x: Tensor) -> bool:
    """Whether one program of the GPU of `x` holds a window of so many tokens with heads of `size` channels: on the way
    back queries, keys, values, what is given of each token and one more of that size on its way to another thread, and
    the weights between tokens."""
    item = 2 if torch.is_autocast_enabled("cuda") else x.element_size()
    kind = 0 if item == 2 else 2 if torch.get_float32_matmul_precision() == "highest" else 1
    if window > LARGEST_WINDOW or window * size > LARGEST_TILES[kind]:
        return False
    rows, columns = max(16, 1 << (window - 1).bit_length()), sum(channel_parts(size))
    return item * (5 * rows * columns + rows * rows) <= _shared_memory(x.device)


def _shared_memory(device: torch.device) -> int:
    if not torch.cuda.is_available():
        return SHARED
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


_shared_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]  # to a compiler, as tables are (ups.tensors)


def _block_kernels() -> Any:
    from ups.models.kernels import block_kernels

    return block_kernels


def _attention_kernels() -> Any:
    from ups.models.kernels import attention_kernels

    return attention_kernels


def _window_kernels() -> Any:
    from ups.models.kernels import window_kernels

    return window_kernels


def _wave_kernels() -> Any:
    from ups.models.kernels import wave_kernels

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


def residual_norm(
    x: Tensor, gate: Tensor, branch: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The fields of `residual` over their rms, times 1 + `scale (B, …, D)`, plus `shift (B, …, D)`; and `residual`."""
    given = (x.contiguous(), rows(gate), branch.contiguous(), bias, rows(scale), rows(shift))
    h, y = _ResidualNorm.apply(*given, eps)  # type: ignore[no-untyped-call]
    return h, y


def heads_of(qkv: Tensor, heads: int, turn: tuple[Tensor, Tensor], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys over their rms and turned, values as they are, each `(B, heads, tokens, d)`, out of `qkv (B,
    tokens, 3 · heads · d)`; `turn` are cos and sin `(tokens, d / 2)`."""
    q, k, v = torch.ops.ups.heads_of(qkv.contiguous(), *turn, heads, eps)
    return q, k, v


def window_attention(qkv: Tensor, order: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Tokens `(B, tokens, heads · d)` that attend within windows, out of `qkv (B, tokens, 3 · heads · d)`, queries and
    keys over their rms. `order` names the token at each place, window after window; `bias (1 or windows, heads, W,
    W)`, of a size that fits (`window_fits`)."""
    y: Tensor = torch.ops.ups.window_attention(qkv.contiguous(), order, bias.contiguous(), eps)
    return y


def mixed(x: Tensor, real: Tensor, imaginary: Tensor, gain: Tensor, axis: int) -> Tensor:
    """Waves `x (outer, 2, modes, inner, heads, d)`, real parts before imaginary ones, each times the first of the
    complex matrices `(waves, heads, d, d)`, and what that answers times the `gain (axes, heads · d)` along an axis, in
    float32."""
    weights = (real.contiguous(), imaginary.contiguous(), gain.contiguous())
    y: Tensor = torch.ops.ups.mixed(x.contiguous(), *weights, axis, False)
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


def _residual_norm(*given: Any) -> Any:
    return _block_kernels().residual_norm(*given)


def _residual_norm_shapes(x: Tensor, *_: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)


def _residual_norm_back(*given: Any) -> Any:
    return _block_kernels().residual_norm_back(*given)


class _ResidualNorm(torch.autograd.Function):
    """The norm of a residual sum, and the sum."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        _, gate, branch, bias, scale, _, _ = given
        h, y, factor = torch.ops.ups.residual_norm(*given)
        ctx.save_for_backward(y, scale, factor, gate, branch, bias)
        return h, y

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:
        *norm, gate, branch, bias = ctx.saved_tensors
        through = None if through is None else through.contiguous()
        if dh is not None:
            given = (dh.contiguous(), *norm, through, gate, branch, bias)
            return *torch.ops.ups.residual_norm_back(*given), None
        if through is None:
            return (None,) * 7
        return through, *torch.ops.ups.residual_back(through, gate, branch, bias), None, None, None


def _heads_shapes(qkv: Tensor, _: Any, __: Any, heads: int, ___: Any) -> Any:
    """q, k and v `(B, heads, tokens, d)`, laid out (B, tokens, heads, d), so the attention output needs no copy."""
    size = qkv.shape[-1] // (3 * heads)
    return tuple(qkv.new_empty(*qkv.shape[:2], heads, size).transpose(1, 2) for _ in range(3))


def _heads(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float) -> Any:
    q, k, v = _heads_shapes(qkv, cos, sin, heads, eps)
    _attention_kernels().split(qkv, q, k, v, cos, sin, eps)
    return q, k, v


def _heads_back(dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Any:
    return _attention_kernels().split_back(dq, dk, dv, qkv, cos, sin, eps)


def _windows(qkv: Tensor, order: Tensor, bias: Tensor, eps: float) -> Any:
    return _window_kernels().attend(qkv, order, bias, eps)


def _windows_shape(qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


def _windows_back(dy: Tensor, qkv: Tensor, order: Tensor, bias: Tensor, eps: float) -> Any:
    return _window_kernels().attend_back(dy, qkv, order, bias, eps)


def _flops_windows(qkv: Sequence[int], _: Any, bias: Sequence[int], *__: Any, **___: Any) -> int:
    return 4 * math.prod(qkv) // 3 * bias[-1]


def _flops_windows_back(_: Any, qkv: Sequence[int], *rest: Any, **__: Any) -> int:
    return _flops_windows(qkv, *rest) * 5 // 2  # as attention is counted: five products, two forwards


def _mixed(x: Tensor, real: Tensor, imaginary: Tensor, gain: Tensor, axis: int, back: bool) -> Any:
    return _wave_kernels().mix(x, real, imaginary, gain, axis, back)


def _mixed_weights(dy: Tensor, x: Tensor, real: Tensor, imaginary: Tensor, gain: Tensor, axis: int) -> Any:
    return _wave_kernels().weigh(dy, x, real, imaginary, gain, axis)


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
    *tensors, _, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gradients_of_heads(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.ups.heads_of_back(dq, dk, dv, *ctx.saved_tensors, ctx.eps), *(None,) * 4)


def _remember_windows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gradients_of_windows(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dqkv, dbias = torch.ops.ups.window_attention_back(dy.contiguous(), *ctx.saved_tensors, ctx.eps)
    return dqkv, None, dbias, None


def _remember_mixed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *tensors, ctx.axis, _ = inputs
    ctx.save_for_backward(*tensors)


def _gradients_of_mixed(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, *weights = ctx.saved_tensors
    dy = dy.contiguous()
    dx = torch.ops.ups.mixed(dy, *weights, ctx.axis, True) if ctx.needs_input_grad[0] else None
    learnt = any(ctx.needs_input_grad[1:4])
    dw = torch.ops.ups.mixed_weights(dy, x, *weights, ctx.axis) if learnt else (None,) * 3
    return dx, *dw, None, None


MATRICES = "Tensor real, Tensor imaginary, Tensor gain, int axis"
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
    "residual_norm(Tensor x, Tensor gate, Tensor branch, Tensor bias, Tensor scale, Tensor shift, float eps)"
    " -> (Tensor, Tensor, Tensor)": (_residual_norm, _residual_norm_shapes, no_flops),
    "residual_norm_back(Tensor dh, Tensor y, Tensor scale, Tensor factor, Tensor? through, Tensor gate, Tensor branch,"
    " Tensor bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)": (
        _residual_norm_back,
        alike(1, 5, 6, 7, 2, 2),
        no_flops,
    ),
    "heads_of(Tensor qkv, Tensor cos, Tensor sin, int heads, float eps) -> (Tensor, Tensor, Tensor)": (
        _heads,
        _heads_shapes,
        no_flops,
    ),
    "heads_of_back(Tensor dq, Tensor dk, Tensor dv, Tensor qkv, Tensor cos, Tensor sin, float eps) -> Tensor": (
        _heads_back,
        alike(3),
        no_flops,
    ),
    "window_attention(Tensor qkv, Tensor order, Tensor bias, float eps) -> Tensor": (
        _windows,
        _windows_shape,
        _flops_windows,
    ),
    "window_attention_back(Tensor dy, Tensor qkv, Tensor order, Tensor bias, float eps) -> (Tensor, Tensor)": (
        _windows_back,
        alike(1, 3),
        _flops_windows_back,
    ),
    f"mixed(Tensor x, {MATRICES}, bool back) -> Tensor": (_mixed, alike(0), _flops),
    f"mixed_weights(Tensor dy, Tensor x, {MATRICES}) -> (Tensor, Tensor, Tensor)": (
        _mixed_weights,
        alike(2, 3, 4),
        _flops_weights,
    ),
}
declare(
    OPERATIONS,
    {
        "gated": (_gradients_of_gate, _remember_inputs),
        "activated": (_gradients_of_activation, _remember_inputs),
        "residual": (_gradients_of_residual, _remember_residual),
        "heads_of": (_gradients_of_heads, _remember_heads),
        "window_attention": (_gradients_of_windows, _remember_windows),
        "mixed": (_gradients_of_mixed, _remember_mixed),
    },
)
