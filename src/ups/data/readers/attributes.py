"""Finds parameters among the attributes of a file: numbers that are stored beside the arrays."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ups.data.hdf5 import DAMAGE
from ups.data.readers.array_dims import axes_that_fit
from ups.data.readers.arrays import OFFERED, PARAMETER, Variable
from ups.data.source import Remarks
from ups.definition import SAMPLE
from ups.lazy_imports import h5py
from ups.types import Array

# What libraries and conventions write by themselves.
LIBRARIES = re.compile(
    r"^(_|ups_|geospatial_|time_coverage_|nco_|grib_|matlab_|openpmd)|(^|_)(version|date)(_|$)"
    r"|^(handler_number|set_number|writes|scale_factor|add_offset|missing_value|valid_min|valid_max)$",
    re.IGNORECASE,
)


def offered(attributes: Mapping[str, Any], place: str = "") -> list[Variable]:
    """The single numbers among the attributes of a file, or of a group in it, that somebody has put there: parameters
    where the task or other files ask for them."""
    plain = {name: value for name, value in attributes.items() if isinstance(value, int | float | np.ndarray)}
    own = {name: np.asarray(value) for name, value in plain.items() if not LIBRARIES.search(name)}
    single = {name: value for name, value in own.items() if value.dtype.kind in "iuf" and value.size == 1}
    return [number(name, value, place, OFFERED) for name, value in single.items() if np.isfinite(value).all()]


def stated_beside(
    variables: Sequence[Variable], arrays: Sequence[Variable], taken: Collection[str], remarks: Remarks
) -> list[Variable]:
    """The variables that are parameters whatever they are called, with their axes; arrays have the names in `taken`."""
    samples = next((n for v in arrays for name, n in zip(v.dims, v.shape, strict=True) if name == SAMPLE), 1)
    chosen: dict[str, Variable] = {}
    for v in (v for v in variables if v.kind == PARAMETER):
        dims = axes_that_fit(v.shape, [(SAMPLE,), ()], {SAMPLE: samples}, loose=True)
        other = chosen.get(v.name)
        if v.name in taken:
            remarks.notes.append(f"attribute {v.key} is not used: an array is called so")
        elif dims is None:
            remarks.notes.append(f"array {v.words} is not used: it is neither one value nor one per sample")
        elif other is None:
            chosen[v.name] = dataclasses.replace(v, dims=dims)
        elif not _same(v, other):
            remarks.notes.append(f"attribute {v.key} is not used: {other.key} is called so too, with another value")
    return list(chosen.values())


def number(name: str, value: Array, place: str, kind: str) -> Variable:
    """An attribute as what lies beside the arrays of a file."""
    key = f"{place}/{name}" if place else name
    return Variable(name, key, (), value.dtype, content=value.reshape(()), kind=kind)


def numbers_of(node: Any) -> dict[str, Array]:
    """The attributes of an HDF5 object that are single numbers; others are not looked at, whatever they are."""
    result: dict[str, Array] = {}
    for name in _names(node):
        with suppress(*DAMAGE):
            attribute = node.attrs.get_id(name)
            if attribute.dtype.kind in "iuf" and attribute.shape is not None and math.prod(attribute.shape) == 1:
                result[name] = np.asarray(node.attrs[name])
    return result


def _names(node: Any) -> Iterator[str]:
    return iter(node.attrs) if h5py.h5a.get_num_attrs(node.id) else iter(())


def _same(one: Variable, other: Variable) -> bool:
    """Whether two numbers that are stored beside arrays are the same."""
    return one.content is not None and other.content is not None and np.array_equal(one.content, other.content)
