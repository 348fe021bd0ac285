"""Arrays in memory as trajectories: numpy, torch, xarray, or a dict of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.readers.arrays import PARAMETER, ArrayStore, Variable, Where, is_small
from ups.data.readers.assemble import open_arrays
from ups.data.source import Source
from ups.definition import Definition
from ups.masks import unmasked
from ups.types import Array, ConfigError

WHERE = Path("the data")  # what errors call arrays that lie in no file


class MemoryStore(ArrayStore):
    """The arrays of a dict, read as those of a file are."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__(WHERE)
        self._arrays = dict(arrays)

    def read(self, key: str, where: Where) -> Array:
        return np.array(self._arrays[key][where])


def open_memory(
    arrays: Mapping[str, Any],
    definition: Definition,
    dims: Mapping[str, tuple[str, ...]],
    params: Mapping[str, Array] | None = None,
) -> Source:
    """A source over arrays in memory.

    Args:
        arrays: numpy, torch, xarray or lists of numbers, by name.
        definition: What the user says of the task; it names the axes of arrays that `dims` does not.
        dims: The names of each array's axes, where they are known.
        params: Further arrays that are parameters: one value, or one per sample.

    Raises:
        ConfigError, DataError: Something is no array of numbers, or the definition does not fit the arrays.
    """
    held = {name: array_of(value, name) for name, value in arrays.items()}
    variables = [
        Variable(name, name, a.shape, a.dtype, tuple(dims.get(name, ())), content=a if is_small(a.shape) else None)
        for name, a in held.items()
    ]
    variables += [Variable(k, k, v.shape, v.dtype, content=v, kind=PARAMETER) for k, v in (params or {}).items()]
    source = open_arrays(MemoryStore(held), variables, definition, named=bool(dims))
    source.unnamed = {name: key for name, key in source.unnamed.items() if name not in (params or {})}
    return source


def array_of(value: Any, name: str) -> Array:
    """Any kind of array as numpy's; ConfigError where it holds no numbers or words."""
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    plain = unmasked(getattr(value, "values", value))
    try:
        array = np.asarray(plain)
    except ValueError:
        raise ConfigError(
            f"{name} is a list of arrays of different shapes, which make no array; give all of one shape, or write "
            "each trajectory to a file of its own, and ups.fit('FOLDER', data__data__task='my.yaml') reads them."
        ) from None
    if array.dtype.hasobject:
        raise ConfigError(f"{name} is no array of numbers; give numpy, torch, xarray or a list of numbers.")
    return array
