"""Fixes the order in which gradients add up at blocks, so that sharding does not change the bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ups.engine.units import Undo, map_tensors, override


class _Join(torch.autograd.Function):
    """The identity, as one node: what flows back into a block's inputs is summed here before it goes on.

    FSDP2 puts such a node before every block. Where a tensor goes to a block and elsewhere too (a skip connection), the
    node makes g + (a + b) of (g + a) + b: other bits. With this node in both, replicated and sharded agree.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        return gradients


def fix_gradient_order(module: nn.Module, units: Iterable[nn.Module]) -> list[Undo]:
    """Put a node before each of `units`, before the module itself and before its `entries`; no name changes."""
    undo: list[Undo] = []
    for unit in (*units, module):
        if unit._compiled_call_impl is None:  # a compiled block adds up as its compiler likes
            undo.append(unit.register_forward_pre_hook(_before, with_kwargs=True).remove)
    return undo + [override(module, entry, _joined(getattr(module, entry))) for entry in getattr(module, "entries", ())]


def _before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = joined((args, kwargs))
    return arguments


def _joined(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = joined((args, kwargs))
        return method(*args, **kwargs)

    return run


def joined(value: Any) -> Any:
    """`value` with every tensor in it that needs a gradient led through one node."""
    tensors: list[Tensor] = []
    if not torch.is_grad_enabled():
        return value

    def collect(tensor: Tensor) -> Tensor:
        tensors.extend([tensor] if tensor.requires_grad else [])
        return tensor

    map_tensors(value, collect)
    if not tensors:
        return value
    results: Iterator[Tensor] = iter(_Join.apply(*tensors))  # type: ignore[no-untyped-call]
    return map_tensors(value, lambda tensor: next(results) if tensor.requires_grad else tensor)
