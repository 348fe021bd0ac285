"""netCDF files: version 4 as the HDF5 it is, with its dimension scales; version 3 by its own header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.hdf5 import NETCDF, flavour, naming_damage, open_file
from ups.data.readers.arrays import DAMAGE, ArrayStore, Variable, Where
from ups.data.readers.attributes import numbers_of, offered
from ups.data.readers.conventions import NUMBERS, WORDS, numbers_in, open_conventional, unwritten, variable
from ups.data.readers.hdf5_arrays import Hdf5Store, readable, small, word
from ups.data.readers.netcdf3 import MAGIC, NetcdfVariable, places
from ups.data.source import Reader, Source
from ups.definition import Definition
from ups.files import starts_with
from ups.lazy_imports import h5py
from ups.types import Array, DataError, TaskSpec

ATTRIBUTES = (*WORDS, *NUMBERS, "NAME", "CLASS")
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
        except DAMAGE as error:
            raise DataError(f"{path}: its header cannot be read, the file is damaged; fetch it again.") from error
        variables = [
            variable(path, name, p.shape, p.dtype, p.dims, p.attributes, unwritten(p.dtype, p.attributes))
            for name, p in stored.items()
        ]
        variables += offered(attributes)
        return open_conventional(ClassicStore(path, stored), variables, definition)
    with naming_damage(path, "its header"), open_file(path) as file:
        variables = [*_variables(path, file), *offered(numbers_of(file))]
        inner = {name: held for name, node in file.items() if isinstance(node, h5py.Group) and (held := _held(node))}
    way = "`xarray.open_dataset(FILE, group='GROUP').to_netcdf('OTHER.nc')` writes one to a file of its own"
    return open_conventional(Hdf5Store(path), variables, definition, inner, way)


def _held(group: Any) -> list[str]:
    """The data sets in a group, and in groups of it."""
    held: list[str] = []
    group.visititems(lambda name, node: held.append(name) if isinstance(node, h5py.Dataset) else None)
    return held


def _variables(path: Path, file: Any) -> Iterator[Variable]:
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
        fill = _unwritten(node, attributes)
        yield replace(variable(path, name, shape, node.dtype, dims, attributes, fill), content=small(node))


def _unwritten(node: Any, attributes: Mapping[str, Any]) -> list[float]:
    """What stands where nothing was written: what the file itself says, and what the netCDF library leaves. It leaves
    a whole number only where it said so."""
    plan, dtype = node.id.get_create_plist(), node.dtype
    own = dtype.kind in "iuf" and plan.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    stated = [x for x in numbers_in(node.fillvalue) if x] if own and dtype.itemsize > 1 else []
    return [*stated, *(unwritten(dtype, attributes) if dtype.kind == "f" else ())]


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
