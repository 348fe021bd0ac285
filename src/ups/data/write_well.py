"""Writes any source as a data set of The Well, whole or not at all: `data/{train,valid,test}/*.hdf5`, `stats.yaml`."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.data.source import BLOCK_BYTES, Source
from ups.data.well_statistics import Moments, stats_text
from ups.definition import definition_of
from ups.files import check_file_size, no_room, sync
from ups.lazy_imports import h5py
from ups.types import Array, DataError, Field, Grid, Params, TaskSpec
from ups.version import __version__

FILE_BYTES = 2**30
HEAD_BYTES = 2**16  # what a file holds beside its values, at most, but for times and coordinates


@dataclass(frozen=True)
class WellFile:
    """One file: its samples, which share grid, box, length and words among their parameters."""

    part: str
    name: str
    rows: tuple[int, ...]


def write_data_set(
    source: Source,
    folder: Path,
    name: str,
    parts: Mapping[str, Sequence[str]],
    overwrite: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> Path:
    """Write `folder/name` with the samples of `parts`, ids by split; the path of the data set.

    It appears whole or not at all. One that is there is an error, unless `overwrite` is set: then it is replaced, in
    its own place if `folder/name` is a symlink, and keeps the mode of its folder. `report` is told how many samples of
    how many are written.
    """
    place = folder / name
    target = Path(os.path.realpath(place))
    folder = target.parent
    if target.exists() and not (overwrite and (target / "data").is_dir()):
        remedy = "name another with --name, or --overwrite it" if (target / "data").is_dir() else "choose another --out"
        raise DataError(f"{place}: is there already; {remedy}.")
    files = [file for part, ids in parts.items() for file in _files(source, name, part, ids)]
    _check_room(source, folder, files)
    draft = folder / f".{target.name}.{uuid.uuid4().hex[:8]}"
    moments: dict[str, Moments] = {}
    total, done = sum(len(file.rows) for file in files), 0
    counted = "train" if parts.get("train") else next(iter(parts))
    try:
        for file in files:
            path = draft / "data" / file.part / f"{file.name}.hdf5"
            path.parent.mkdir(parents=True, exist_ok=True)
            for _ in _write(source, path, name, file, moments if file.part == counted else None):
                done += 1
                report(done, total)
            sync(path)
        (draft / "stats.yaml").write_text(stats_text(moments))
        sync(draft / "stats.yaml")
        _publish(draft, target)
    except OSError as error:
        raise DataError(f"{place}: cannot be written ({error.strerror or error}); choose another --out.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def write_file(source: Source, path: Path, name: str) -> None:
    """All samples of a source, of one grid and length, as one file of The Well at `path`."""
    file = WellFile("", path.stem, tuple(range(len(source))))
    _check_room(source, path.parent, [file])
    for _ in _write(source, path, name, file, None):
        pass


def _publish(draft: Path, target: Path) -> None:
    """Give the data set its name in one step; the one that had it goes only then."""
    aside = draft.with_name(f"{draft.name}.old")
    if target.exists():
        draft.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(target, aside)
    os.replace(draft, target)
    sync(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _check_room(source: Source, folder: Path, files: Sequence[WellFile]) -> None:
    sizes = [HEAD_BYTES + sum(_size(source, row) for row in file.rows) for file in files]
    check_room(folder, sum(sizes), max(sizes, default=0))


def check_room(folder: Path, need: int, largest: int) -> None:
    """DataError where a folder cannot hold so many bytes, or no file so many of them as the `largest` is to have. HDF5
    itself ends the process where a disk is full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise DataError(f"{folder}: cannot be written to ({error.strerror}); choose another --out.") from None
    if need > free:
        raise DataError(
            f"{folder}: has {free / 1e9:.3g} GB free, but the data need {need / 1e9:.3g} GB; make room, or choose "
            "another --out."
        ) from no_room()
    check_file_size(folder, largest, "write fewer samples")


def _size(source: Source, row: int) -> int:
    return bytes_of(source.task, source.grid_of(row).shape, len(source.times_of(row)))


def bytes_of(task: TaskSpec, shape: Sequence[int], frames: int) -> int:
    """Bytes of one sample in float32."""
    return 4 * math.prod(shape) * (frames * len(task.channels) + len(task.given))


def _files(source: Source, name: str, part: str, ids: Sequence[str]) -> Iterator[WellFile]:
    """The files of one split, each of at most FILE_BYTES or of one sample."""
    place = {sample: i for i, sample in enumerate(source.ids)}
    groups: dict[Any, list[int]] = {}
    for row in (place[sample] for sample in ids):
        grid, params = source.grid_of(row), source.params_of(row)
        words = tuple((key, value) for key, value in sorted(params.items()) if isinstance(value, str))
        key = (*(axis.tobytes() for axis in grid.coordinates), grid.bounds, grid.periodic)
        groups.setdefault((key, len(source.times_of(row)), words, frozenset(params)), []).append(row)
    number = 0
    for rows in groups.values():
        most = max(1, FILE_BYTES // _size(source, rows[0]))
        for first in range(0, len(rows), most):
            yield WellFile(part, f"{name}_{number:04d}", tuple(rows[first : first + most]))
            number += 1


def _write(source: Source, path: Path, name: str, file: WellFile, moments: dict[str, Moments] | None) -> Iterator[int]:
    """Write one file and yield each of its rows once it is in it."""
    first, rows = file.rows[0], file.rows
    grid, spec = source.grid_of(first), source.task
    frames, axes = len(source.times_of(first)), spec.axes[: grid.ndim]
    with h5py.File(path, "w", libver=("earliest", "v110")) as out:
        _head(out, name, spec, grid, [source.params_of(row) for row in rows])
        _dimensions(out, axes, grid, [source.times_of(row) for row in rows])
        values = _data_sets(out, spec.fields, (len(rows), frames, *grid.shape), grid.ndim, moving=True)
        inputs = _data_sets(out, spec.inputs, (len(rows), *grid.shape), grid.ndim, moving=False)
        for rank in range(3):
            group = out.require_group(f"t{rank}_fields")
            group.attrs["field_names"] = _words([*group])
        for i, row in enumerate(rows):
            for start, piece in _pieces(source, row, grid):
                if not spec.mask and not np.isfinite(piece).all():
                    raise DataError(
                        f"{source.path}: sample {source.ids[row]} has values that are not finite, and no mask that "
                        "excludes them; add `mask: mask` to the task if they are NaN in fixed places, or mend them."
                    )
                for node, at in values:
                    node[i, start : start + len(piece)] = piece[..., at].reshape(len(piece), *node.shape[2:])
                    _measure(moments, node, piece[..., at], start, changing=True)
            given = source.inputs(row).astype(np.float32)
            for node, at in inputs:
                node[i] = given[..., at].reshape(node.shape[1:])
                _measure(moments, node, given[None, ..., at], 0, changing=False)
            yield row


def _pieces(source: Source, row: int, grid: Grid) -> Iterator[tuple[int, Array]]:
    """The frames of a sample in pieces of at most 64 MiB, with the number of the first."""
    frame = 8 * int(np.prod(grid.shape)) * len(source.task.channels)
    step = max(1, BLOCK_BYTES // frame)
    for start in range(0, len(source.times_of(row)), step):
        yield start, source.read(row, slice(start, start + step)).astype(np.float32)


def _measure(moments: dict[str, Moments] | None, node: Any, values: Array, start: int, changing: bool) -> None:
    if moments is not None:
        key = node.name.rsplit("/", 1)[-1]
        shape = node.shape[node.ndim - int(node.name[2]) :]
        moments.setdefault(key, Moments(values.shape[-1], shape, changing)).add(values, start)


def _data_sets(
    out: Any, fields: Sequence[Field], lengths: tuple[int, ...], ndim: int, moving: bool
) -> list[tuple[Any, list[int]]]:
    """A contiguous data set per tensor and per scalar channel, and which channels of the task each holds."""
    result, first = [], 0
    for field in fields:
        places = list(range(first, first + len(field.channels)))
        first += len(places)
        whole = field.rank > 0 and len(places) == ndim**field.rank
        for name, at in [(field.name, places)] if whole else zip(field.channels, ([p] for p in places), strict=True):
            rank = field.rank if whole else 0
            node = out.require_group(f"t{rank}_fields").create_dataset(name, (*lengths, *(ndim,) * rank), "<f4")
            node.attrs.update({"sample_varying": True, "time_varying": moving, "dim_varying": [True] * ndim})
            node.attrs["ups_channels"] = [field.channels[i - places[0]] for i in at]
            result.append((node, at))
    return result


def _head(out: Any, name: str, spec: TaskSpec, grid: Grid, params: Sequence[Params]) -> None:
    """Root attributes, parameters and boundaries."""
    axes = spec.axes[: grid.ndim]
    definition = definition_of(dataclasses.replace(spec, name=name, bounds=grid.bounds, periodic=grid.periodic))
    columns = {key: [sample[key] for sample in params] for key in params[0]}
    constant = {key: values[0] for key, values in columns.items() if len(set(values)) == 1}
    out.attrs.update({"dataset_name": name, "grid_type": "cartesian", "n_spatial_dims": grid.ndim})
    out.attrs.update({"n_trajectories": len(params), "simulation_parameters": _words(list(constant)), **constant})
    out.attrs.update({"ups_definition": json.dumps(definition.plain()), "ups_version": __version__})
    scalars = out.create_group("scalars")
    numbers = {key: values for key, values in columns.items() if not isinstance(values[0], str)}
    scalars.attrs["field_names"] = _words(list(numbers))
    for key, values in numbers.items():
        scalars[key] = np.float64(values[0]) if key in constant else np.asarray(values, np.float64)
        scalars[key].attrs.update({"sample_varying": key not in constant, "time_varying": False})
    boundaries = out.create_group("boundary_conditions")
    for axis, n, wraps in zip(axes, grid.shape, grid.periodic, strict=True):
        if wraps:
            group = boundaries.create_group(f"{axis}_periodic")
            group["mask"] = np.isin(np.arange(n), (0, n - 1))
            group.attrs.update({"associated_dims": _words([axis]), "associated_fields": _words([])})
            group.attrs.update({"bc_type": "PERIODIC", "sample_varying": False, "time_varying": False})


def _dimensions(out: Any, axes: Sequence[str], grid: Grid, times: Sequence[Array]) -> None:
    group = out.create_group("dimensions")
    group.attrs["spatial_dims"] = _words(axes)
    same = all(np.array_equal(t, times[0]) for t in times)
    group["time"] = np.asarray(times[0] if same else np.stack(times), np.float64)
    group["time"].attrs.update({"sample_varying": not same})
    for axis, coordinates in zip(axes, grid.coordinates, strict=True):
        group[axis] = np.asarray(coordinates, np.float64)
        group[axis].attrs.update({"sample_varying": False, "time_varying": False})


def _words(names: Sequence[str]) -> Array:
    return np.array(list(names), dtype=h5py.string_dtype())
