"""The conventions of netCDF, which Zarr follows: what the attributes of a variable say of its numbers."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.readers.arrays import ArrayStore, Variable
from ups.data.readers.assemble import open_arrays
from ups.data.readers.hdf5_arrays import word
from ups.data.source import Source
from ups.definition import Definition
from ups.types import DataError, few

WORDS = ("axis", "units", "standard_name", "bounds", "coordinates", "dtype")
RANGES = ("valid_range", "valid_min", "valid_max")
NUMBERS = ("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", *RANGES)
# What the netCDF library leaves where nothing was written; bytes have no such number, for they need all of theirs.
UNWRITTEN: dict[str, float] = {
    **dict.fromkeys(("f4", "f8"), 9.969209968386869e36),
    **{f"i{size}": 2 - 2 ** (8 * size - 1) if size == 8 else 1 - 2 ** (8 * size - 1) for size in (2, 4, 8)},
    **{f"u{size}": 2 ** (8 * size) - (2 if size == 8 else 1) for size in (2, 4, 8)},
}


def variable(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
    dims: tuple[str, ...],
    attrs: Mapping[str, Any],
    unwritten: Iterable[float] = (),
) -> Variable:
    """A variable with what its attributes say of its numbers; `unwritten` are those that stand where none was written.

    DataError for a scale or an offset that is not one number.
    """
    seen = _seen(np.dtype(dtype), word(attrs.get("_Unsigned", "")).lower())
    fill = [x for key in ("_FillValue", "missing_value") if key in attrs for x in numbers_in(attrs[key])]
    scale, offset = (
        _single(f"{path}: {k} of {name}", attrs.get(k), x) for k, x in (("scale_factor", 1.0), ("add_offset", 0.0))
    )
    return Variable(
        name,
        name,
        tuple(shape),
        seen,
        dims,
        {key: word(attrs[key]) for key in WORDS if key in attrs},
        tuple(dict.fromkeys(y for x in (*fill, *unwritten) for y in _held(x, seen))),
        scale,
        offset,
        valid=_valid(attrs),
        valid_unpacked=(scale, offset) != (1.0, 0.0) and seen.kind in "iu" and _in_floats(attrs),
    )


def numbers_in(value: Any) -> list[float]:
    """The numbers of an attribute; xarray writes a float in a Zarr store as the text of its eight bytes."""
    array = np.ravel(np.asarray(value))
    if array.dtype.kind in "biuf":
        return [x.item() for x in array]
    text = word(value)
    with suppress(binascii.Error, struct.error, ValueError):
        return [struct.unpack("<d", base64.b64decode(text, validate=True))[0]]
    with suppress(ValueError):
        return [float(text)]
    return []


def unwritten(dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> list[float]:
    """What the netCDF library leaves in a variable where nothing was written, unless its attributes say it."""
    number = UNWRITTEN.get(dtype.str[1:])
    return [] if number is None or "_FillValue" in attrs else [number]


def open_conventional(
    store: ArrayStore,
    variables: Sequence[Variable],
    definition: Definition,
    groups: Mapping[str, Sequence[str]] | None = None,
    way: str = "",
) -> Source:
    """A source over variables that name their axes. `groups` are those beside them that are not read, each with what
    it holds, and `way` is how one is read; DataError where there is nothing else."""
    words = f"its groups ({few(groups)}) are not read ({few(groups[next(iter(groups))])}); {way}" if groups else ""
    if words and not any(len(v.shape) > 1 for v in variables):
        raise DataError(f"{store.path}: holds no array with axes of space beside its groups; {words}.")
    source = open_arrays(store, variables, definition, named=True)
    limited = [v.name for v in variables if v.valid != (-math.inf, math.inf)]
    outside = f"values of {few(limited)} outside the valid range that the file states are read as NaN"
    source.notes = (*source.notes, *([outside] if limited else []), *([words] if words else []))
    return source


def _seen(dtype: np.dtype[Any], unsigned: str) -> np.dtype[Any]:
    """The number format that is meant: netCDF 3 has no whole numbers without sign, and marks them."""
    kind = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, unsigned))
    return np.dtype(f"{kind}{dtype.itemsize}") if kind else dtype


def _held(number: float, dtype: np.dtype[Any]) -> list[float]:
    """A number as a format holds it, of another sign where that is what is stored; nothing where it holds no such."""
    if dtype.kind not in "iu":
        return [number]
    if not math.isfinite(number) or number != int(number):
        return []
    span, least = 2 ** (8 * dtype.itemsize), int(np.iinfo(dtype).min)
    whole = int(number)
    return [(whole - least) % span + least] if -span // 2 <= whole < span else []


def _single(what: str, value: Any, otherwise: float) -> float:
    """The one number that an attribute is; DataError, which begins with `what`, where it is not one."""
    if value is None:
        return otherwise
    numbers = numbers_in(value)
    if len(numbers) != 1 or not math.isfinite(numbers[0]):
        says = few(map(str, numbers)) or f"'{word(value)[:40]}'"
        raise DataError(
            f"{what} is {says}, where one number is meant for all of a variable; write it unpacked, or each part with "
            "a scale of its own as a variable."
        )
    return numbers[0]


def _valid(attrs: Mapping[str, Any]) -> tuple[float, float]:
    both = numbers_in(attrs["valid_range"]) if "valid_range" in attrs else []
    least, most = (numbers_in(attrs[key]) if key in attrs else [] for key in RANGES[1:])
    low, high = both if len(both) == 2 else (least[0] if least else -math.inf, most[0] if most else math.inf)
    return (low, high) if low < high else (-math.inf, math.inf)


def _in_floats(attrs: Mapping[str, Any]) -> bool:
    """Whether the range of what is valid is stated of the numbers as they are meant, not as they are packed."""
    return any(np.asarray(attrs[key]).dtype.kind == "f" for key in RANGES if key in attrs)
