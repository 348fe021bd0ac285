"""Finds arrays that say where points lie or how they are joined to cells; refuses those of which this is not clear."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ups.clouds import cell_volumes, corner_volumes, nearest_volumes
from ups.data.axes import TO_GRID
from ups.data.neighbours import COORDINATES, POSITIONS, is_line
from ups.data.readers.arrays import ARRAY, ArrayStore, Variable
from ups.data.source import Remarks
from ups.definition import CHANNEL, POINT, SAMPLE, TIME, Definition
from ups.types import Array, DataError, Points, counted, few

TABLES = (*POSITIONS, "points", "nodes", "vertices", "mesh_pos", "centroids", "centers", "centres")
CELLS = ("cells", "triangles", "tri", "tris", "quads", "tetrahedra", "tets", "hexahedra", "elements", "simplices")
MESHES = (*CELLS, "faces", "connectivity", "edges", "edge_index")
AXES = ("x", "y", "z")
FEWEST = 16  # points of which anything can be learnt


@dataclass(frozen=True)
class Geometry:
    """Where the points of a file lie, `table (N, n)`, and the arrays that say so by name.

    `cells`, `(M, corners)` each, are those of a mesh; `at_cells` where values lie on these and not on their corners.
    """

    path: Path
    table: Array
    cells: tuple[Array, ...]
    axes: tuple[str, ...]
    names: frozenset[str]
    at_cells: bool = False

    @property
    def count(self) -> int:
        """How many places there are for a value."""
        return sum(map(len, self.cells)) if self.at_cells else len(self.table)

    def layout(self, definition: Definition) -> Definition:
        """The definition, with the axes that fields beside points have where nobody says others."""
        return definition if definition.dims else dataclasses.replace(definition, dims=(SAMPLE, TIME, POINT, CHANNEL))

    def points(self, definition: Definition, remarks: Remarks) -> Points:
        """The points with their volumes, in the box and with the boundary that the user says; `remarks` gets what is
        wrong with a mesh."""
        periodic = tuple(axis in (definition.periodic or ()) for axis in self.axes)
        open_ends = [axis for axis, wraps in zip(self.axes, periodic, strict=True) if wraps]
        if unsaid := [axis for axis in open_ends if axis not in definition.bounds]:
            raise DataError(
                f"{self.path}: {unsaid[0]} wraps around, and nothing says where: say in the task where it begins and "
                f"ends, `bounds: {{{unsaid[0]}: [0, 1]}}`."
            )
        table, ndim = self.table, self.table.shape[1]
        remarks.problems += _faults(table, self.cells)
        sizes = [cell_volumes(table, each) for each in self.cells]
        if self.at_cells:
            table = np.concatenate([table[each].mean(1) for each in self.cells])
            remarks.notes.append("values lie on the cells of the mesh, and are learnt at their centres")
        total = float(sum(each.sum() for each in sizes))
        bounds = tuple(
            definition.bounds.get(axis, ends) for axis, ends in zip(self.axes, _box(table, total), strict=True)
        )
        outside = [
            axis
            for axis, column, (low, high) in zip(self.axes, table.T, bounds, strict=True)
            if (column < low - 1e-6 * (high - low)).any() or (column > high + 1e-6 * (high - low)).any()
        ]
        if outside:
            raise DataError(
                f"{self.path}: points lie beyond the ends that the task gives {outside[0]}; correct `bounds`."
            )
        flat = not self.cells or not total or any(each.shape[1] <= min(2, ndim - 1) for each in self.cells)
        if self.at_cells and not flat:
            return Points.at(table, periodic, bounds, np.concatenate(sizes))
        volumes = nearest_volumes(table, bounds, periodic) if flat else corner_volumes(table, self.cells)
        volumes = np.maximum(volumes, 1e-6 * volumes.mean())
        return Points.at(table, periodic, bounds, volumes, () if self.at_cells else self.cells)


def geometry_among(store: ArrayStore, variables: Sequence[Variable], definition: Definition) -> Geometry | None:
    """Where points lie, if arrays say so: a table of coordinates, or two or three columns, as long as an axis of the
    fields. None where they lie on a grid or along a line, or where the user says that fields have several axes of
    space.

    Raises:
        DataError: Points differ from sample to sample, are not finite, or cells name points that are not there.
    """
    if len(definition.space) > 1:
        return None
    held = [v for v in variables if v.is_number and v.kind == ARRAY]
    fields = [v for v in held if len(v.shape) > 1 and v.name.lower() not in (*TABLES, *MESHES)]
    cells = [v for v in held if v.name.lower() in CELLS and v.dtype.kind in "iu" and len(v.shape) == 2]
    tables = [v for v in held if v.name.lower() in TABLES]
    for v in tables:
        if len(v.shape) > 2 and 1 < v.shape[-1] <= len(AXES) and _along(fields, v.shape[-2]) and cells:
            raise DataError(
                f"{store.path}: {v.words} gives each sample, or each frame, points of its own, which ups does not read "
                "from one file yet; write each geometry to a file of its own, all in one folder."
            )
    places = sum(v.shape[0] for v in cells)
    for v in tables:
        sizes = _long(v)
        if len(sizes) == 2 and 1 < min(sizes) <= len(AXES) and max(sizes) >= FEWEST:
            table = _columns(store, v, max(sizes))
            at_cells = not _along(fields, len(table)) and _along(fields, places)
            if at_cells or _along(fields, len(table)):
                return _checked(store, table, AXES, [v], cells, at_cells)
    named = {v.name.lower(): v for v in held if v.name.lower() in COORDINATES and len(_long(v)) == 1}
    columns = [named[name] for name in COORDINATES if name in named and definition.space]
    lengths = {_long(v)[0] for v in columns}
    if 1 < len(columns) <= len(AXES) and len(lengths) == 1 and definition.space[0] not in named:
        count = lengths.pop()
        if count >= FEWEST and _along(fields, count):
            table = np.stack([_all(store, v).reshape(-1) for v in columns], 1)
            return _checked(store, table, tuple(v.name for v in columns), columns, cells, False)
    return None


def _along(fields: Sequence[Variable], count: int) -> bool:
    """Whether a field has an axis of so many places."""
    return any(count in v.shape for v in fields)


def _checked(
    store: ArrayStore,
    table: Array,
    axes: tuple[str, ...],
    places: Sequence[Variable],
    cells: Sequence[Variable],
    at_cells: bool,
) -> Geometry | None:
    """The geometry of a table and of cells, without axes along which all points lie at one place; None of a line."""
    path, names = store.path, frozenset(v.name for v in (*places, *cells))
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise DataError(f"{path}: {axes[column]} of point {row} is not a finite number; mend the points.")
    joined = []
    for v in cells:
        corners = _all(store, v).astype(np.int64)
        first = int(corners.min(initial=0)) if corners.size else 0
        if corners.size and int(corners.min()) == 1 and int(corners.max()) == len(table):
            corners, first = corners - 1, 0  # counted from 1, as MATLAB does
        if first < 0 or int(corners.max(initial=0)) >= len(table):
            wrong = first if first < 0 else int(corners.max())
            raise DataError(
                f"{path}: {v.words} names point {wrong}, and there are {len(table)}, from 0 on; mend the cells."
            )
        joined.append(corners)
    wide = [i for i in range(table.shape[1]) if np.ptp(table[:, i]) > 1e-9 * np.abs(table).max(initial=1e-300)]
    if len(wide) < 2 or (not joined and is_line(table)):
        return None
    left = tuple(axes[i] for i in wide)
    return Geometry(path, np.ascontiguousarray(table[:, wide]), tuple(joined), left, names, at_cells)


def _faults(table: Array, cells: tuple[Array, ...]) -> list[str]:
    """What is wrong with points and the cells between them, a sentence each."""
    faults = []
    _, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
    if (twice := first[counts > 1]).size:
        which = few((str(i) for i in sorted(twice.tolist())), 4)
        count = int((counts - 1).sum())
        verb = "lies" if count == 1 else "lie"
        faults.append(f"{counted(count, 'point')} {verb} where another does (beside point {which})")
    for each in cells:
        sizes = cell_volumes(table, each)
        flat = np.flatnonzero(sizes <= 1e-12 * sizes.max(initial=0.0))
        if flat.size:
            what = f"{'has' if len(flat) == 1 else 'have'} no volume (cell {few(map(str, flat.tolist()), 4)})"
            faults.append(f"{counted(len(flat), 'cell')} of {each.shape[1]} corners {what}")
    if cells:
        alone = np.setdiff1d(np.arange(len(table)), np.concatenate([each.ravel() for each in cells]))
        if alone.size:
            which = few(map(str, alone.tolist()), 4)
            faults.append(f"{counted(len(alone), 'point')} that no cell has as a corner (point {which})")
    return faults


def _box(table: Array, volume: float) -> list[tuple[float, float]]:
    """The box of points: half of the usual distance between them beyond the outermost. That distance is told from the
    `volume` of their cells, or where they have none such that as many cubes of it fill the box."""
    low, high, ndim = table.min(0), table.max(0), table.shape[1]
    width = (volume / len(table)) ** (1 / ndim) if volume else 0.0
    for _ in range(100 if not volume else 0):
        width = (math.prod(high - low + width) / len(table)) ** (1 / ndim)
    digits = 6 - math.floor(math.log10(float(max(high - low))))
    return [
        (round(float(a) - width / 2, digits) + 0.0, round(float(b) + width / 2, digits) + 0.0)
        for a, b in zip(low, high, strict=True)
    ]


def check_points(
    store: ArrayStore,
    variables: Sequence[Variable],
    space: Sequence[str],
    sizes: Mapping[str, int],
    used: Collection[str],
    placed: Collection[str],
) -> None:
    """DataError where arrays that are not `used` say that the cells of the axes in `space` are joined otherwise than
    along these, or lie otherwise, and do not say where. `placed` are the axes with coordinates of their own."""
    others = [v for v in variables if v.is_number and (v.name not in used or v.name in space)]
    if len(space) > 1:
        _check_curved(store, others, space, sizes, placed)
        return
    mesh = [v for v in others if v.name.lower() in MESHES and v.dtype.kind in "iu" and len(v.shape) == 2]
    if mesh:
        words = " and ".join(v.words for v in mesh)
        raise DataError(
            f"{store.path}: {words} joins the {sizes[space[0]]} places along {space[0]}, so it looks like a mesh, and "
            "nothing says where they lie; store their coordinates as an array `points`, a row for each."
        )


def _check_curved(
    store: ArrayStore,
    variables: Sequence[Variable],
    space: Sequence[str],
    sizes: Mapping[str, int],
    placed: Collection[str],
) -> None:
    """DataError for coordinates of each cell of a grid that is bent, and of whose axes nothing else says the place."""
    shape = [sizes[name] for name in space]
    if all(name in placed for name in space) or 1 in shape:
        return
    for v in (v for v in variables if v.name.lower() in COORDINATES and _long(v) == shape):
        values = _all(store, v).reshape(shape)
        if np.isfinite(values).all() and sum(not _constant(values, axis) for axis in range(len(shape))) > 1:
            raise DataError(
                f"{store.path}: {v.words} changes along {' and '.join(space)} together, so it looks like a curved grid "
                f"or a mesh, {TO_GRID}."
            )


def _constant(values: Array, axis: int) -> bool:
    """Whether nothing changes along an axis, beyond rounding."""
    return bool(np.ptp(values, axis).max() <= 1e-3 * np.ptp(values))


def _long(v: Variable) -> list[int]:
    return [n for n in v.shape if n != 1]


def _all(store: ArrayStore, v: Variable) -> Array:
    whole = store.read(v.key, (slice(None),) * len(v.shape)) if v.content is None else v.content
    return v.decoded(whole).astype(np.float64)


def _columns(store: ArrayStore, v: Variable, cells: int) -> Array:
    """`(cells, D)`, as which or as whose transpose a table is stored."""
    table = _all(store, v).reshape(_long(v))
    return table if len(table) == cells else table.T
