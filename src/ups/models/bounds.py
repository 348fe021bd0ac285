"""Refuses an artifact whose header asks for a far larger model than its weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

# A module may register a tensor more than once while it is made, and hold modules that have none.
TENSORS, MODULES = 4, 40


@contextmanager
def no_larger_than(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While it lasts, modules that this thread makes may have about as many tensors as there are; ValueError at the
    first one beyond. To be used on `meta`, where a tensor takes no memory, however large it is."""
    left = {"tensors": TENSORS * (len(tensors) + 8), "modules": MODULES * (len(tensors) + 8)}
    here = threading.get_ident()

    def count(kind: str, value: object) -> None:
        if value is not None and threading.get_ident() == here:
            left[kind] -= 1
            if left[kind] < 0:
                raise ValueError(f"it describes a model of far more than the {len(tensors)} tensors that are there")

    def tensor(_module: nn.Module, _name: str, value: Any) -> None:
        count("tensors", value)

    def module(_module: nn.Module, _name: str, value: Any) -> None:
        count("modules", value)

    with ExitStack() as stack:
        stack.callback(register_module_parameter_registration_hook(tensor).remove)
        stack.callback(register_module_buffer_registration_hook(tensor).remove)
        stack.callback(register_module_module_registration_hook(module).remove)
        yield


def check_shapes(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """ValueError where a model, which may be on `meta`, has other tensors than these."""
    wanted = {name: list(value.shape) for name, value in module.state_dict().items()}
    there = {name: list(value.shape) for name, value in tensors.items()}
    for name in (*wanted, *there):
        if wanted.get(name) != there.get(name):
            raise ValueError(f"{name} is {there.get(name, 'missing')}, and {wanted.get(name, 'missing')} in the model")
