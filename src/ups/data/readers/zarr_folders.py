"""Zarr stores in xarray's layout, versions 2 and 3, through the package `zarr` where it is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.readers.arrays import Store, Variable, Where, naming_fault
from ups.data.readers.assemble import open_arrays
from ups.data.readers.netcdf import variable
from ups.data.source import Reader, Source
from ups.definition import Definition
from ups.types import Array, DataError, TaskSpec

MARKS = ("zarr.json", ".zgroup", ".zmetadata")


class ZarrStore(Store):
    """The arrays of one store, which each process opens for itself at its first read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._opened: tuple[Any, int] | None = None

    def read(self, key: str, where: Where) -> Array:
        opened = self._opened
        if opened is None or opened[1] != os.getpid():
            opened = self._opened = (_group(self.path), os.getpid())
        return np.asarray(opened[0][key][where])

    def close(self) -> None:
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def is_zarr(path: Path) -> bool:
    """Whether a path is a folder with the metadata of a Zarr group; never raises."""
    return any(os.path.isfile(os.path.join(path, mark)) for mark in MARKS)


def open_zarr(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over one store, which names its axes."""
    if importlib.util.find_spec("zarr") is None:
        raise DataError(
            f"{path}: is a Zarr store, which needs a package that is not installed; "
            "`pip install 'universal-physics-stack[formats]'` brings it."
        )
    with naming_fault(path, "its metadata"):
        variables = list(_variables(_group(path)))
    return open_arrays(ZarrStore(path), variables, definition, named=True)


def _group(path: Path) -> Any:
    import zarr

    return zarr.open_group(str(path), mode="r")


def _variables(group: Any) -> Iterator[Variable]:
    for name, array in group.arrays():
        attributes = dict(array.attrs)
        dims = getattr(array.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
        names = tuple(str(dim) for dim in dims) if dims else tuple(f"axis {i} of {name}" for i in range(array.ndim))
        # xarray writes the fill value of floats in code, which only ever means NaN.
        numbers = {
            key: value for key, value in attributes.items() if not (key == "_FillValue" and isinstance(value, str))
        }
        yield variable(name, array.shape, array.dtype, names, numbers)


READER = Reader(is_zarr, open_zarr, suffixes=(".zarr",))
