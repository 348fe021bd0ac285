"""Refuses arrays whose coordinates say that they lie on a mesh, at points or on a curved grid, not on a uniform one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ups.data.axes import TO_GRID
from ups.data.neighbours import COORDINATES, POSITIONS, is_line
from ups.data.readers.arrays import ArrayStore, Variable
from ups.types import Array, DataError

TABLES = (*POSITIONS, "points", "nodes", "vertices", "mesh_pos", "centroids", "centers", "centres")
MESHES = (
    *("cells", "triangles", "tri", "tris", "tetrahedra", "tets", "elements", "faces", "simplices", "connectivity"),
    *("edges", "edge_index"),
)


def check_points(
    store: ArrayStore,
    variables: Sequence[Variable],
    space: Sequence[str],
    sizes: Mapping[str, int],
    used: Collection[str],
    placed: Collection[str],
) -> None:
    """DataError where arrays that are not `used` say that the cells of the axes in `space` are joined otherwise than
    along these, or lie otherwise. `placed` are the axes with coordinates of their own."""
    others = [v for v in variables if v.is_number and (v.name not in used or v.name in space)]
    if len(space) > 1:
        _check_curved(store, others, space, sizes, placed)
        return
    cells = sizes[space[0]]
    mesh = [v for v in others if v.name.lower() in MESHES and v.dtype.kind in "iu" and len(v.shape) == 2]
    tables = [v for v in others if v.name.lower() in TABLES and _long(v) in ([cells, 2], [cells, 3], [2, cells])]
    single = [v for v in others if v.name.lower() in COORDINATES and _long(v) == [cells]]
    columns = [_all(store, v).reshape(-1) for v in single] if len(single) > 1 else []
    points = [np.stack(columns, 1)] if columns else [_columns(store, v, cells) for v in tables]
    if mesh or any(not is_line(each[np.isfinite(each).all(1)]) for each in points):
        words = " and ".join(v.words for v in (mesh or (single if columns else tables)))
        says = "joins cells" if mesh else f"say where each of the {cells} cells along {space[0]} lies: not on a line"
        what = "a mesh" if mesh else "a mesh or a cloud of points"
        raise DataError(f"{store.path}: {words} {says}, so it looks like {what}, {TO_GRID}.")


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
