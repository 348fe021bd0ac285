"""Files with points and meshes: what is read, and what is wrong with it in a sentence each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.spatial import Delaunay

from ups.data import open_source
from ups.data.readers.memory import open_memory
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.definition import Definition
from ups.jobs.inspect import describe, problems
from ups.physics import TASKS
from ups.types import Array, DataError, Mesh, Points

DRAW = np.random.default_rng(0)
N = 400
TABLE = DRAW.uniform(0, 1, (N, 2))
TRIANGLES = Delaunay(TABLE).simplices


def fields(table: Array, samples: int = 4, frames: int = 5) -> Array:
    """`(N, T, points)`: waves over a plane, at any points of it."""
    phases = 0.1 * np.arange(frames) + np.arange(samples)[:, None]
    return np.sin(2 * np.pi * table[:, 0] + phases[..., None]) + np.cos(2 * np.pi * table[:, 1])


def saved(tmp_path: Path, **arrays: Any) -> Path:
    values = arrays["u"] if "u" in arrays else fields(arrays.get("points", TABLE))
    arrays = {"points": TABLE, "t": np.arange(5.0), **arrays, "u": values}
    np.savez(tmp_path / "a.npz", **arrays)
    return tmp_path / "a.npz"


def test_fields_beside_points_are_read_at_them_from_any_format(tmp_path: Path) -> None:
    source = open_source(saved(tmp_path), TASKS)
    assert source.task.domain == "points"
    assert type(source.grid) is Points
    assert source.grid.shape == (N,)
    assert source.task.axes[: source.task.ndim] == ("x", "y")
    assert np.array_equal(source.grid.table, TABLE)
    assert source.read(1).shape == (5, N, 1)
    assert np.allclose(source.read(1)[..., 0], fields(TABLE)[1])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["pos"], file["u"] = TABLE.T, fields(TABLE)[..., None].repeat(2, -1)
        file["time"] = np.arange(5.0)
    assert open_source(tmp_path / "a.h5", TASKS).read(2).shape == (5, N, 2)
    columns = {"x": TABLE[:, 0], "y": TABLE[:, 1], "u": fields(TABLE)}
    held = open_memory(columns, Definition("waves", dims=("sample", "time", "node")), {})
    assert np.array_equal(held.grid.coordinates, TABLE.T)


def test_a_mesh_is_read_with_its_cells_whose_volumes_its_points_have(tmp_path: Path) -> None:
    source = open_source(saved(tmp_path, cells=TRIANGLES), TASKS)
    assert source.task.domain == "mesh"
    assert isinstance(source.grid, Mesh)
    assert np.array_equal(source.grid.corners[0], TRIANGLES)
    assert 0.9 < source.grid.cloud.volumes.sum() < 1
    from_one = open_source(saved(tmp_path, cells=TRIANGLES + 1), TASKS).grid
    assert isinstance(from_one, Mesh)
    assert np.array_equal(from_one.corners[0], TRIANGLES)
    at_cells = open_source(saved(tmp_path, cells=TRIANGLES, u=fields(TABLE[TRIANGLES].mean(1))), TASKS)
    assert at_cells.grid.shape == (len(TRIANGLES),)
    assert np.allclose(at_cells.grid.coordinates[1], TABLE[TRIANGLES].mean(1)[:, 1])


def test_the_box_of_a_grid_in_any_order_is_that_of_the_grid(tmp_path: Path) -> None:
    at = (np.arange(20) + 0.5) / 20
    table = np.stack(np.meshgrid(at, at), -1).reshape(-1, 2)[DRAW.permutation(N)]
    grid = open_source(saved(tmp_path, points=table), TASKS).grid
    assert np.allclose(grid.bounds, ((0, 1), (0, 1)))
    assert grid.resolved == (20, 20)
    assert isinstance(grid, Points)
    assert np.allclose(grid.cloud.volumes, 1 / N)


def test_statistics_count_points_by_their_volume(tmp_path: Path) -> None:
    """Three of four points lie in the left half; the mean of what is 1 there and 0 elsewhere is a half all the same."""
    table = np.concatenate(
        [DRAW.uniform(0, 1, (3000, 2)) * [0.5, 1], DRAW.uniform(0, 1, (1000, 2)) * [0.5, 1] + [0.5, 0]]
    )
    u = (table[:, 0] < 0.5) * np.ones((4, 5, 1))
    task = Definition("waves", bounds={"x": (0.0, 1.0), "y": (0.0, 1.0)})
    source = open_source(saved(tmp_path, points=table, u=u), TASKS, task)
    statistics = Trajectories(source, source.ids, Reduction()).statistics()
    assert statistics.mean.item() == pytest.approx(0.5, abs=0.01)
    assert statistics.std.item() == pytest.approx(0.5, abs=0.01)


def test_every_second_point_alone_has_twice_the_volume(tmp_path: Path) -> None:
    source = open_source(saved(tmp_path, cells=TRIANGLES), TASKS)
    part = Trajectories(source, source.ids, Reduction(space=2))
    assert part.shape == (N // 2,)
    assert isinstance(part.grid, Points)
    assert np.array_equal(part.grid.table, TABLE[::2])
    assert part.grid.cloud.volumes.sum() == pytest.approx(source.grid.lengths[0] * source.grid.lengths[1], rel=0.05)
    assert np.allclose(part.frames([1], [0], 5)[0, ..., 0], fields(TABLE)[1][:, ::2], atol=1e-6)


def test_what_is_wrong_with_a_mesh_is_said_in_a_sentence_each(tmp_path: Path) -> None:
    cells = TRIANGLES.copy()
    cells[0] = (3, 3, 4)
    table = np.concatenate([TABLE, TABLE[:1], [[0.5, 0.5]]])
    faults = [words for _, words in problems([saved(tmp_path, points=table, cells=cells)])]
    assert faults == [
        "1 point lies where another does (beside point 0)",
        "1 cell of 3 corners has no volume (cell 0)",
        "2 points that no cell has as a corner (point 400, 401)",
    ]
    assert "PROBLEM: 1 cell of 3 corners has no volume (cell 0)" in describe(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"points": np.where(np.arange(2 * N).reshape(N, 2) == 15, np.nan, TABLE)},
            "y of point 7 is not a finite number",
        ),
        ({"cells": TRIANGLES + 5}, "names point 404, and there are 400, from 0 on; mend the cells"),
        ({"cells": TRIANGLES - 1}, "names point -1"),
        (
            {"cells": TRIANGLES, "points": np.stack([TABLE] * 4), "u": fields(TABLE)},
            "points of its own, which ups does not read from one",
        ),
        ({"cells": np.arange(6)[None]}, "are none that ups knows"),
        ({"u": fields(TABLE)[..., :300]}, "say what their axes mean|nothing says what their axes mean|does not have"),
    ],
)
def test_points_and_cells_that_cannot_be_are_refused(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        open_source(saved(tmp_path, **arrays), TASKS)


def test_an_axis_that_wraps_needs_its_ends_and_points_lie_between_them(tmp_path: Path) -> None:
    file = saved(tmp_path)
    with pytest.raises(DataError, match="x wraps around, and nothing says where"):
        open_source(file, TASKS, Definition("waves", periodic=("x",)))
    with pytest.raises(DataError, match="points lie beyond the ends that the task gives x"):
        open_source(file, TASKS, Definition("waves", bounds={"x": (0.0, 0.5)}))
    task = Definition("waves", periodic=("x",), bounds={"x": (0.0, 1.0), "y": (0.0, 1.0)})
    grid = open_source(file, TASKS, task).grid
    assert grid.periodic == (True, False)
    assert grid.bounds == ((0, 1), (0, 1))
