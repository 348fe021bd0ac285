"""Imports torch and h5py at their first use, so that commands which only read configs and tasks start fast."""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "h5py", "torch"]

if TYPE_CHECKING:
    import h5py
    import torch
    from torch import Tensor
else:

    class _Later(types.ModuleType):
        """Stands for a module until an attribute of it is asked for, and then has all of its names."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            module = importlib.import_module(self.__name__)
            self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
            return getattr(module, name)

    h5py, torch = _Later("h5py"), _Later("torch")

    class _Instances(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor)

    class Tensor(metaclass=_Instances):
        """Stands for torch.Tensor in annotations and in isinstance."""
