"""netCDF files: version 4 as the HDF5 it is, with its dimension scales; version 3 by its own header."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.hdf5 import NETCDF, flavour, naming_damage, open_file
from ups.data.readers.arrays import DAMAGE, ArrayStore, Variable, Where
from ups.data.readers.assemble import open_arrays
from ups.data.readers.attributes import numbers_of, offered
from ups.data.readers.hdf5_arrays import Hdf5Store, readable, small, word
from ups.data.readers.netcdf3 import MAGIC, NetcdfVariable, places
from ups.data.source import Reader, Source
from ups.definition import Definition
from ups.files import starts_with
from ups.later import h5py
from ups.types import Array, DataError, TaskSpec

WORDS = ("axis", "units", "standard_name", "bounds", "coordinates", "dtype")
ATTRIBUTES = (*WORDS, "_FillValue", "missing_value", "scale_factor", "add_offset", "NAME", "CLASS")
DIMENSIONS = ("DIMENSION_LIST", "DIMENSION_LABELS")
# What netCDF says of a dimension that has no coordinates.
BARE = "This is a netCDF dimension but not a netCDF variable"


class ClassicStore(ArrayStore):
    """The variables of a netCDF 3 file, mapped anew at each read."""

    def __init__(self, path: Path, places: Mapping[str, NetcdfVariable]) -> None:
        super().__init__(path)
        self._places = dict(places)

    def read(self, key: str, where: Where) -> Array:
        place, whole = self._places[key], np.memmap(self.path, np.uint8, "r")
        return np.array(np.ndarray(place.shape, place.dtype, whole, place.start, place.strides)[where])


def is_netcdf(path: Path) -> bool:
    """Whether a path is a netCDF file of version 3 or 4; never raises."""
    return starts_with(path, *MAGIC) or flavour(path) == "netcdf"


def open_netcdf(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over one file, which names its axes."""
    if starts_with(path, *MAGIC):
        try:
            stored, attributes = places(path)
        except (*DAMAGE, struct.error) as error:
            raise DataError(f"{path}: its header cannot be read, the file is damaged; fetch it again.") from error
        variables = [variable(name, p.shape, p.dtype, p.dims, p.attributes) for name, p in stored.items()]
        variables += offered(attributes)
        return open_arrays(ClassicStore(path, stored), variables, definition, named=True)
    with naming_damage(path, "its header"), open_file(path) as file:
        variables = [*_variables(file), *offered(numbers_of(file))]
    return open_arrays(Hdf5Store(path), variables, definition, named=True)


def variable(
    name: str, shape: tuple[int, ...], dtype: Any, dims: tuple[str, ...], attrs: Mapping[str, Any]
) -> Variable:
    """A variable with what its attributes say of its numbers."""
    fill = [attrs[key] for key in ("_FillValue", "missing_value") if key in attrs]
    numbers = [float(x) for value in fill for x in np.ravel(value) if np.asarray(value).dtype.kind in "biuf"]
    scale, offset = (
        float(np.ravel(attrs[key])[0]) if key in attrs else 1.0 * (key == "scale_factor")
        for key in ("scale_factor", "add_offset")
    )
    words = {key: word(attrs[key]) for key in WORDS if key in attrs}
    return Variable(name, name, tuple(shape), np.dtype(dtype), dims, words, tuple(numbers), scale, offset)


def _variables(file: Any) -> Iterator[Variable]:
    """The variables of the root group with the names of their dimensions."""
    for name, node in file.items():
        shape = node.shape if isinstance(node, h5py.Dataset) else None
        if shape is None or not readable(node):
            continue
        # Asked for one by one: to list them takes longer, which is felt with a thousand files.
        there = {key for key in (*ATTRIBUTES, *DIMENSIONS) if h5py.h5a.exists(node.id, key.encode())}
        attributes = {key: node.attrs[key] for key in ATTRIBUTES if key in there}
        if word(attributes.get("NAME", "")).startswith(BARE):
            continue
        scale = word(attributes.get("CLASS", "")) == "DIMENSION_SCALE"
        dims = (name,) if scale and len(shape) == 1 else _dims(file, node, there)
        yield replace(variable(name, shape, node.dtype, dims, attributes), content=small(node))


def _dims(file: Any, node: Any, attributes: set[str]) -> tuple[str, ...]:
    """The names of the axes: of the scales that are attached to them, or their labels; otherwise ones that mean
    nothing."""
    scales: Any = node.attrs["DIMENSION_LIST"] if "DIMENSION_LIST" in attributes else [()] * node.ndim
    labels = node.attrs["DIMENSION_LABELS"] if "DIMENSION_LABELS" in attributes else [""] * node.ndim
    names = []
    for i in range(node.ndim):
        attached = h5py.h5r.get_name(scales[i][0], file.id).decode() if len(scales[i]) else word(labels[i])
        names.append(attached.rsplit("/", 1)[-1] or f"axis {i} of {node.name.strip('/')}")
    return tuple(names)


READER = Reader(is_netcdf, open_netcdf, suffixes=NETCDF)
