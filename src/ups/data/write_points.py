"""Writes trajectories on points or meshes as an HDF5 file of plain arrays, which its own reader reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ups.data.source import Source
from ups.lazy_imports import h5py
from ups.types import Points

KINDS = {2: "edges", 3: "triangles", 8: "hexahedra"}


def write_points(source: Source, path: Path) -> None:
    """Write all samples of a source: `points` and the cells between them, an array `(sample, time, point)` for each
    channel, the times, and an array for each parameter and each channel that is given."""
    grid, task = source.grid, source.task
    assert isinstance(grid, Points)
    rows = range(len(source))
    values = np.stack([source.read(i) for i in rows])
    with h5py.File(path, "w") as file:
        file["points"] = grid.table
        for cells in grid.cloud.cells:
            four = "quads" if grid.ndim == 2 else "tetrahedra"
            file[KINDS.get(cells.shape[1], four)] = cells
        for i, name in enumerate(task.channels):
            file[name] = np.ascontiguousarray(values[..., i])
        if not task.steady:
            clocks = np.stack([source.times_of(i) for i in rows])
            file["time"] = clocks[0] if (clocks == clocks[0]).all() else clocks
        for name in source.params_of(0):
            held = [source.params_of(i)[name] for i in rows]
            if all(isinstance(value, float | int) for value in held):
                file[name] = np.array(held, np.float64)
        given = np.stack([source.inputs(i) for i in rows])
        for i, name in enumerate(task.given):
            file[name] = np.ascontiguousarray(given[..., i])
