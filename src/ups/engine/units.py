"""The blocks a module names (`shard_units`), and changes to a module that can be undone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
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
    unit.compile()
    return undo
