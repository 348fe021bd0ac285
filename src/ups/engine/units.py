"""Finds the blocks of a module (`shard_units`), compiles or recomputes them, and undoes such changes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Undo = Callable[[], None]


def units_of(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a module, for sharding and recomputation; none where it names none."""
    named: Any = getattr(module, "shard_units", list)
    return list(named())


def override(module: nn.Module, name: str, value: Any) -> Undo:
    """Set an attribute of this one module; the result puts back what was there before."""
    attributes = vars(module)
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value

    def undo() -> None:
        attributes.pop(name, None)
        attributes.update(before)

    return undo


def recompute(unit: nn.Module) -> Undo:
    """Forget a block's activations after its forward and compute them again in its backward; no name changes."""
    return override(unit, "forward", functools.partial(checkpoint, unit.forward, use_reentrant=False))


def compile_unit(unit: nn.Module) -> Undo:
    """Compile a block in place, at its first call."""
    undo = override(unit, "_compiled_call_impl", None)
    unit.compile(dynamic=False)  # a shape is worth a compilation: tables are made for it, and it hardly ever changes
    return undo


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of tuples, lists, dicts and dataclasses in which every tensor is changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(part, change) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(part, change) for part in value)
    if isinstance(value, dict):
        return {key: map_tensors(part, change) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: map_tensors(part, change) for name, part in parts.items()})
    return value
