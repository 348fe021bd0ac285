"""What a file of The Well says of itself: axes, times, fields, scalars, simulation parameters and boundaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ups.data.axes import note_uneven
from ups.data.hdf5 import dataset, values_at
from ups.data.source import Remarks
from ups.lazy_imports import h5py
from ups.types import Array, DataError, Field, counted

NUMBERS = "biuf"


@dataclass(frozen=True)
class StoredField:
    """Where a field lies. `varying` says of the axes (sample, time, one per dimension) whether it varies along each,
    `there` whether the data set has the axis at all: one that does not vary is left out or has length 1."""

    field: Field
    name: str
    varying: tuple[bool, ...]
    there: tuple[bool, ...]

    @property
    def in_time(self) -> bool:
        return self.varying[1]

    def read(self, file: Any, index: int, frames: slice, shape: tuple[int, ...]) -> Array:
        """`(T', *S, channels)`, the axes that do not vary expanded; T' is 1 for a field that is constant in time."""
        sample, time = (index if self.varying[0] else 0, frames if self.varying[1] else 0)
        stored = values_at(file[self.name], *(sample,) * self.there[0], *(time,) * self.there[1])
        steps = stored.shape[0] if self.in_time else 1
        cells = tuple(n if varies else 1 for n, varies in zip(shape, self.varying[2:], strict=True))
        channels = len(self.field.channels)
        stored = stored if stored.dtype.kind == "f" else stored.astype("f4" if stored.dtype.itemsize <= 2 else "f8")
        values = stored.reshape(steps, *cells, channels)
        return values if cells == shape else np.broadcast_to(values, (steps, *shape, channels))


def fields(file: Any, names: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[StoredField]:
    """The fields of tensor rank 0, 1 and 2, each data set's shape checked against its flags and the lengths of the
    axes (sample, time, one per dimension)."""
    for rank in range(3):
        group = file.get(f"t{rank}_fields", {})
        for name in words(group.attrs.get("field_names", list(group))) if group else ():
            node = group.get(name)
            if not isinstance(node, h5py.Dataset):
                raise DataError(f"{file.filename}: data set 't{rank}_fields/{name}' is missing; fetch the file again.")
            by_sample, by_time = bool(attribute(node, "sample_varying")), bool(attribute(node, "time_varying"))
            by_dim = tuple(bool(flag) for flag in np.atleast_1d(attribute(node, "dim_varying")))
            if len(by_dim) != len(names):
                raise DataError(
                    f"{file.filename}: dim_varying of '{name}' has {counted(len(by_dim), 'flag')} for "
                    f"{counted(len(names), 'axis')}."
                )
            varying = (by_sample, by_time, *by_dim)
            components = node.shape[node.ndim - rank :] if node.ndim >= rank else (0,) * rank
            there = _there(node.shape[: node.ndim - rank], varying)
            axes = zip(lengths, varying, there, strict=True)
            expected = [n if varies else 1 for n, varies, stored in axes if stored] + list(components)
            dataset(group, name, expected, "the axes that vary, then the components", NUMBERS)
            yield StoredField(_field(node, name, names, components), node.name, varying, there)


def _there(stored: tuple[int, ...], varying: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which axes a data set has: all that vary, and of the others those that stand in it with length 1."""
    spare, place, there = len(stored) - sum(varying), 0, []
    for varies in varying:
        present = varies or (spare > 0 and place < len(stored) and stored[place] == 1)
        spare -= present and not varies
        place += present
        there.append(bool(present))
    return tuple(there)


def _field(node: Any, name: str, axes: tuple[str, ...], components: tuple[int, ...]) -> Field:
    """A channel per component, row by row: `velocity_x`, or `stress_xy`; numbered where components are not axes. A file
    that was written here says itself what its channels are called."""
    if "ups_channels" in node.attrs:
        return Field(name, words(node.attrs["ups_channels"]), len(components))
    labels = [axes if n == len(axes) else tuple(map(str, range(n))) for n in components]
    channels = tuple("_".join(filter(None, (name, "".join(label)))) for label in itertools.product(*labels))
    return Field(name, channels, len(components))


def axis(file: Any, name: str, remarks: Remarks) -> Array:
    """Coordinates along one axis, uniform or not; where they vary, those of the first sample and time."""
    node = group_of(file, "dimensions").get(name)
    if not isinstance(node, h5py.Dataset) or node.ndim == 0 or 0 in node.shape:
        raise DataError(f"{file.filename}: data set 'dimensions/{name}' is missing or empty; fetch the file again.")
    if node.ndim > 1:
        remarks.notes.append(f"the coordinates {name} vary; those of the first sample and time are given for all")
    stored = np.asarray(node[(0,) * (node.ndim - 1)])
    steps = np.diff(stored.astype(np.float64))
    if not np.isfinite(stored).all() or not np.isfinite(steps).all() or not ((steps > 0).all() or (steps < 0).all()):
        raise DataError(f"{file.filename}: the coordinates {name} neither increase nor decrease throughout; check it.")
    note_uneven(name, stored if stored.dtype.kind == "f" else stored.astype(np.float64), remarks)
    return stored.astype(np.float64)


def times(file: Any, samples: int) -> Array:
    """`(1, T)`, or `(samples, T)` where each sample has its own times."""
    node = group_of(file, "dimensions").get("time")
    if not isinstance(node, h5py.Dataset) or 0 in node.shape or node.shape[:-1] not in ((), (1,), (samples,)):
        raise DataError(f"{file.filename}: data set 'dimensions/time' is missing or misshapen; fetch the file again.")
    return np.atleast_2d(np.asarray(node[:], np.float64))


def scalars(file: Any, samples: int, remarks: Remarks) -> dict[str, Array]:
    """Each scalar, numbers or words, as `(1,)`, or `(samples,)` where it varies; one that varies in time is left out,
    with a note."""
    group = file.get("scalars", {})
    result: dict[str, Array] = {}
    for name in words(group.attrs.get("field_names", list(group))) if group else ():
        node = group.get(name)
        if not isinstance(node, h5py.Dataset):
            remarks.problems.append(f"scalar {name} is announced but missing")
        elif node.attrs.get("time_varying", False):
            remarks.notes.append(f"scalar {name} varies in time and is not given as a parameter")
        elif node.size != (samples if node.attrs.get("sample_varying", False) else 1):
            remarks.problems.append(f"scalar {name} has {counted(node.size, 'value')} for {counted(samples, 'sample')}")
        elif node.dtype.kind not in NUMBERS and h5py.check_string_dtype(node.dtype) is None:
            remarks.problems.append(f"scalar {name} holds {node.dtype}, neither numbers nor words, and is no parameter")
        else:
            result[name] = _numbers_or_words(np.ravel(node[()]))
    return result


def _numbers_or_words(value: Array) -> Array:
    return value.astype(np.float64) if value.dtype.kind in NUMBERS else np.asarray(words(value))


def simulation_parameters(file: Any, samples: int, own: Mapping[str, Array], remarks: Remarks) -> dict[str, Array]:
    """Parameters among the root attributes: `(1,)`, or `(samples,)` where there is a value for each sample."""
    result: dict[str, Array] = {}
    for name in words(file.attrs.get("simulation_parameters", [])):
        value = np.ravel(file.attrs[name]) if name in file.attrs else np.zeros(0)
        if value.size not in (1, samples):
            remarks.notes.append(
                f"simulation parameter {name} has {counted(value.size, 'value')} for {counted(samples, 'sample')} and "
                "is not given as one"
            )
        elif name not in own:
            result[name] = _numbers_or_words(value)
        elif not _alike(own[name], stated := _numbers_or_words(value)):
            attribute, scalar = (
                f"{v:g}" if isinstance(v, float) else v for v in (stated[0].item(), own[name][0].item())
            )
            remarks.problems.append(f"attribute {name} says {attribute} but scalar {name} says {scalar}")
    return result


def _alike(a: Array, b: Array) -> bool:
    """Whether two statements of a parameter agree: as words, or as numbers to within rounding."""
    numbers = a.dtype.kind in NUMBERS and b.dtype.kind in NUMBERS
    return bool(np.allclose(a, b, rtol=1e-5)) if numbers else bool(np.all(a == b))


def boundaries(file: Any, names: tuple[str, ...], remarks: Remarks) -> tuple[bool, ...]:
    """An axis is periodic if PERIODIC is the only boundary kind stated for it."""
    kinds: dict[str, set[str]] = {name: set() for name in names}
    for node in file.get("boundary_conditions", {}).values():
        for name in words(attribute(node, "associated_dims")):
            kinds.setdefault(name, set()).add(words(attribute(node, "bc_type"))[0].upper())
    for name in names:
        stated = " and ".join(sorted(kinds[name]))
        remarks.notes.append(f"the boundary in {name} is {stated or 'not stated'}{_sides(file, name)}")
        if "PERIODIC" in kinds[name] and len(kinds[name]) > 1:
            remarks.problems.append(f"the boundary in {name} is said to be {stated}")
    return tuple(kinds[name] == {"PERIODIC"} for name in names)


def _sides(file: Any, name: str) -> str:
    """Which boundary is at which end of an axis, where their masks tell them apart."""
    ends: list[str] = []
    for node in file.get("boundary_conditions", {}).values():
        mask = node.get("mask") if isinstance(node, h5py.Group) else None
        if words(attribute(node, "associated_dims")) != (name,) or not isinstance(mask, h5py.Dataset) or mask.ndim != 1:
            continue
        low, high = bool(mask[0]), bool(mask[-1])
        if low != high:
            ends.append(f"{words(attribute(node, 'bc_type'))[0].upper()} at the {'lower' if low else 'upper'} end")
    return f" ({', '.join(ends)})" if ends else ""


def boundary_values(file: Any, samples: int) -> dict[str, Array]:
    """Numbers prescribed on a boundary that differ from sample to sample, as `<boundary>_value`."""
    result: dict[str, Array] = {}
    for name, node in file.get("boundary_conditions", {}).items():
        values = node.get("values") if isinstance(node, h5py.Group) else None
        if isinstance(values, h5py.Dataset) and values.dtype.kind in NUMBERS and values.size == samples > 1:
            result[f"{name}_value"] = np.asarray(values[()], np.float64).reshape(-1)
    return result


def boundary_masks(file: Any, names: tuple[str, ...], shape: tuple[int, ...]) -> Iterator[StoredField]:
    """Boundaries inside the domain: masks over all of its axes, each an input."""
    for name, node in file.get("boundary_conditions", {}).items():
        mask = node.get("mask") if isinstance(node, h5py.Group) else None
        if not isinstance(mask, h5py.Dataset) or len(shape) == 1 or mask.shape != shape:
            continue
        if words(attribute(node, "associated_dims")) == names and mask.dtype.kind in NUMBERS:
            flags = (False, False, *(True,) * len(shape))
            yield StoredField(Field.scalar(f"{name}_mask"), mask.name, flags, flags)


def group_of(file: Any, name: str) -> Any:
    """A group that a file of this layout must have; a DataError where it is missing."""
    node = file.get(name)
    if not isinstance(node, h5py.Group):
        raise DataError(f"{file.filename}: group '{name}' is missing; fetch the file again.")
    return node


def attribute(node: Any, name: str) -> Any:
    """An attribute that a node must have; a DataError where it is missing."""
    if name not in node.attrs:
        raise DataError(f"{node.file.filename}: attribute {name} of '{node.name}' is missing; fetch the file again.")
    return node.attrs[name]


def words(value: Any) -> tuple[str, ...]:
    """Strings, however HDF5 stored them."""
    return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(value))
