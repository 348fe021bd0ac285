"""MATLAB's .mat files: versions 4 to 7 through scipy, 7.3 as the HDF5 it is; axes in MATLAB's order."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.hdf5 import flavour, naming_damage, open_file
from ups.data.readers.arrays import ArrayStore, Kept, Variable, Where, naming_fault
from ups.data.readers.assemble import complex_values, open_arrays
from ups.data.readers.hdf5_arrays import Hdf5Store, is_complex, small
from ups.data.readers.matlab_packed import check_packed
from ups.data.source import Reader, Source, check_claim
from ups.definition import Definition
from ups.files import starts_with
from ups.lazy_imports import h5py
from ups.types import Array, DataError, TaskSpec

LONGEST_NAME = 64  # bytes of a variable's, with the zero behind it
# How version 4 stores a matrix, by the last two digits of its first number: the format, then full, text or sparse.
KINDS_4 = {10 * number + kind for number in range(6) for kind in range(3)}
# Number formats by MATLAB's names for them; other classes (char, cell, struct) are left alone.
CLASSES = {
    **{"double": "f8", "single": "f4", "logical": "?"},
    **{f"{sign}int{8 * n}": f"{sign[:1] or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)},
}


class MatlabStore(ArrayStore):
    """The arrays of a file up to version 7, which are compressed: each is kept in memory once read."""

    def __init__(self, path: Path, imaginary: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(path)
        self._imaginary = imaginary  # of those that are packed, what is complex

    def read(self, key: str, where: Where) -> Array:
        return np.array(Kept.get(self.path, key, lambda: self._load(key))[where])

    def _load(self, key: str) -> Array:
        from scipy.io import loadmat

        if key in self._imaginary:
            raise _complex(self.path, key, self._imaginary[key])
        values: Array = loadmat(self.path, variable_names=[key])[key]
        if values.dtype.kind == "c":  # which the list of variables does not say
            raise _complex(self.path, key, values.shape)
        return values


def _complex(path: Path, key: str, shape: tuple[int, ...]) -> DataError:
    return complex_values(path, f"{key} ({' × '.join(map(str, shape))})")


def is_matlab(path: Path) -> bool:
    """Whether a file begins as MATLAB's do; never raises."""
    return starts_with(path, b"MATLAB 5.0 MAT-file") or flavour(path) == "matlab" or _is_version_4(path)


def _is_version_4(path: Path) -> bool:
    """Whether a file begins as those of version 4 do: with numbers that tell how a matrix is stored, its rows and
    columns, whether it is complex, and the length of its name; and with this name."""
    try:
        with open(path, "rb", buffering=0) as file:
            beginning = file.read(20 + LONGEST_NAME)
    except (OSError, ValueError):
        return False
    for order, machine in (("<", 0), (">", 1000)):
        if len(beginning) > 20:
            kind, rows, columns, imaginary, length = struct.unpack(f"{order}5i", beginning[:20])
            name = beginning[20:][: max(length - 1, 0)]
            known = kind - machine in KINDS_4 and min(rows, columns) >= 0 and imaginary in (0, 1)
            if known and len(name) == length - 1 and re.fullmatch(rb"[A-Za-z]\w*", name):
                return True
    return False


def open_matlab(path: Path, tasks: Mapping[str, TaskSpec], definition: Definition) -> Source:  # noqa: ARG001
    """A source over one file; its variables are called as in MATLAB."""
    if flavour(path) == "matlab":
        with naming_damage(path, "its header"), open_file(path) as file:
            variables = [v for name, node in file.items() if (v := _variable(name, node)) is not None]
        return open_arrays(Hdf5Store(path, backwards=True), variables, definition)
    from scipy.io import whosmat

    with naming_fault(path, "its header"):
        imaginary = check_packed(path)
        listed = whosmat(path)
    variables = [
        Variable(name, name, tuple(shape), np.dtype(CLASSES[kind])) for name, shape, kind in listed if kind in CLASSES
    ]
    check_claim(path, sum(v.dtype.itemsize * math.prod(v.shape) for v in variables), path.stat().st_size)
    return open_arrays(MatlabStore(path, imaginary), variables, definition)


def _variable(name: str, node: Any) -> Variable | None:
    """A numeric variable of a version 7.3 file; None for any other."""
    if not isinstance(node, h5py.Dataset) or "MATLAB_empty" in node.attrs:
        return None
    kind = node.attrs.get("MATLAB_class", b"double")
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if kind not in CLASSES or (node.dtype.kind not in "biuf" and not is_complex(node)):
        return None
    content = small(node)
    dtype = np.dtype("?") if kind == "logical" else np.dtype("c16") if is_complex(node) else node.dtype
    return Variable(name, name, node.shape[::-1], dtype, content=None if content is None else content.T)


READER = Reader(is_matlab, open_matlab, suffixes=(".mat",))
