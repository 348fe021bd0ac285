"""Meshes, points and particles are not read as grids; rough fields on grids are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ups.data import open_source
from ups.data.neighbours import check_neighbours
from ups.data.readers.memory import open_memory
from ups.definition import Definition
from ups.jobs.inspect import describe, problems
from ups.jobs.recipe.data_profile import holdings
from ups.physics import EQUATIONS, TASKS
from ups.physics.random import Draw
from ups.progress import Progress
from ups.run.data.data_config import DataConfig
from ups.run.data.datasets import opened
from ups.types import Array, DataError

LINE = Definition("wake", dims=("sample", "time", "node"), fields={"u": ("u",)})
PLANE = Definition("wake", dims=("sample", "time", "x", "y"), fields={"u": ("u",)})
DRAW = np.random.default_rng(0)
# Parameters under which an equation is solved quickly; its cells are as alike.
QUICK = {"nsincom2d": {"nu": 0.05}, "cfd1d": {"eta": 0.01, "zeta": 0.01}, "cfd2d": {"eta": 0.01, "zeta": 0.01}}


def waves(x: Array, y: Array, samples: int = 4, frames: int = 12) -> Array:
    """`(N, T, …)`: waves that travel over a plane, at any points of it."""
    at = [x + 0.1 * t for t in np.arange(frames)]
    of = np.stack([np.stack([np.sin(2 * np.pi * (a + i * y)) for a in at]) for i in range(samples)])
    return of + 0.3 * np.cos(2 * np.pi * y)


def refused(tmp_path: Path, task: Definition, words: str, **arrays: Any) -> None:
    """`info`, `validate`, `init` and `run` refuse arrays in one sentence that says `words`."""
    file, described = tmp_path / "a.npz", tmp_path / "task.yaml"
    np.savez(file, **arrays)
    described.write_text(task.text())
    with pytest.raises(DataError, match=words):
        describe(file, task)
    ((_, problem),) = problems([file], task)
    assert words in problem
    with pytest.raises(DataError, match=words):
        holdings([file], str(described))
    config = DataConfig.model_validate({"file": str(file), "task": task})

    def quiet(_: Progress) -> None:
        """Not shown."""

    with pytest.raises(DataError, match=words), opened(config, tmp_path, quiet):
        pass


def passes(values: Array, task: Definition) -> None:
    source = open_memory({"u": values}, task, {})
    assert set(source.unplaced) == set(task.space)
    check_neighbours(source)


def test_the_nodes_of_a_mesh_in_any_order_are_refused_where_their_places_are_not_stored(tmp_path: Path) -> None:
    x, y = DRAW.uniform(0, 1, (2, 900))
    u, t = waves(x, y), np.arange(12.0)
    refused(tmp_path, LINE, "the 900 cells along node resemble their neighbours no more than any other", u=u, t=t)
    triangles = DRAW.integers(0, 900, (1700, 3))
    refused(tmp_path, LINE, "looks like a mesh", u=waves(np.sort(x), 0 * y), t=t, triangles=triangles)
    across = Definition("wake", dims=("sample", "time", "x"), fields={"u": ("u",)})
    refused(tmp_path, across, "the coordinates x neither increase nor decrease throughout, so it looks", u=u, t=t, x=x)


def test_particles_are_refused_also_where_they_begin_in_order(tmp_path: Path) -> None:
    rows = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), -1).reshape(-1, 2)
    moved = rows + np.cumsum(0.1 * DRAW.normal(size=(3, 9, 400, 2)), 1)
    task = Definition("sand", dims=("sample", "time", "particle", "channel"), fields={"position": ("x", "y")})
    refused(tmp_path, task, "so it looks like particles", position=moved, t=np.arange(9.0))
    cloud = DRAW.uniform(0, 1, (3, 1, 400, 2)) + np.cumsum(0.01 * DRAW.normal(size=(3, 9, 400, 2)), 1)
    refused(tmp_path, task, "so it looks like particles", position=cloud, t=np.arange(9.0))


def test_an_axis_of_what_is_no_space_is_refused(tmp_path: Path) -> None:
    """Samples that are declared as an axis of space: along the other axis neighbours are alike."""
    cells = np.arange(64) / 64
    u = np.stack([waves(cells + DRAW.uniform(), 0 * cells, 1, 12)[0] * DRAW.normal() for _ in range(100)], 1)
    task = Definition("rows", dims=("time", "x", "y"), fields={"u": ("u",)})
    refused(tmp_path, task, "the 100 cells along x resemble their neighbours no more", u=u, t=np.arange(12.0))


def test_a_curved_grid_is_refused_and_one_whose_axes_have_coordinates_is_not(tmp_path: Path) -> None:
    a, r = np.meshgrid(np.linspace(0, 2, 24), np.linspace(1, 2, 16), indexing="ij")
    task = Definition("flow", dims=("time", "i", "j"), fields={"u": ("u",)})
    u = waves(a, r, 1)[0]
    bent = {"x": r * np.cos(a), "y": r * np.sin(a)}
    refused(tmp_path, task, "so it looks like a curved grid", u=u, t=np.arange(12.0), **bent)
    np.savez(tmp_path / "placed.npz", u=u, t=np.arange(12.0), i=a[:, 0], j=r[0], **bent)
    open_source(tmp_path / "placed.npz", TASKS, task)
    np.savez(tmp_path / "straight.npz", u=u, t=np.arange(12.0), x=a, y=r)
    open_source(tmp_path / "straight.npz", TASKS, task)


def test_a_string_in_a_plane_is_a_line_and_its_points_are_no_particles(tmp_path: Path) -> None:
    at, t = np.linspace(0, 1, 64), np.arange(9.0)
    place = np.stack([np.stack((at, 0.2 * np.sin(3 * at + k)), -1) for k in t])
    task = Definition("string", dims=("time", "node", "channel"), fields={"position": ("x", "y")})
    np.savez(tmp_path / "a.npz", position=place, t=t)
    check_neighbours(open_source(tmp_path / "a.npz", TASKS, task))
    beside = Definition("string", dims=("time", "node"), fields={"u": ("u",)})
    np.savez(tmp_path / "b.npz", u=place[..., 1], t=t, x=at, y=at**2)
    check_neighbours(open_source(tmp_path / "b.npz", TASKS, beside))


def test_who_says_where_an_axis_lies_is_believed(tmp_path: Path) -> None:
    u = DRAW.normal(size=(4, 12, 256))
    np.savez(tmp_path / "a.npz", u=u, t=np.arange(12.0))
    said = Definition("noise", dims=LINE.dims, fields=LINE.fields, bounds={"node": (0.0, 1.0)})
    check_neighbours(open_source(tmp_path / "a.npz", TASKS, said))
    np.savez(tmp_path / "b.npz", u=u, t=np.arange(12.0), node=np.arange(256) / 256)
    check_neighbours(open_source(tmp_path / "b.npz", TASKS, LINE))


@pytest.mark.parametrize("name", EQUATIONS)
def test_what_any_equation_makes_is_a_grid_also_where_cells_are_left_out(name: str) -> None:
    kind = EQUATIONS[name]
    cells = {1: 128, 2: 16, 3: 8}[kind.task.ndim]
    equation = kind(**QUICK.get(name, {}))
    times = equation.times()[:: max(1, len(equation.times()) // 16)][:3]
    values = equation.simulate(Draw(0, range(4)), equation.grid(cells), times, scheme="accurate").numpy()
    axes = kind.task.axes[: kind.task.ndim]
    task = Definition("some", dims=("sample", "time", *axes, "channel"))
    for every in (1, 4):
        thinned = values[(slice(None), slice(None), *[slice(None, None, every)] * len(axes))]
        check_neighbours(open_memory({"values": thinned}, task, {}))


def test_rough_fields_are_grids() -> None:
    line = np.arange(256) / 256
    board = np.indices((32, 32)).sum(0) % 2
    spin = np.sign(DRAW.normal(size=(4, 6, 32, 32)))
    k = np.arange(1, 129)
    phases = DRAW.uniform(0, 6, (4, 6, 128))
    turbulent = (k ** (-5 / 6) * np.cos(2 * np.pi * k * line[:, None] + phases[..., None, :])).sum(-1)
    noisy = DRAW.normal(size=(4, 1, 256)) * np.array([1.0] + [0.0] * 5)[:, None] + np.exp(-((line - 0.5) ** 2) / 0.01)
    passes(turbulent, LINE)
    passes((np.arange(6)[:, None] * board.ravel()[:32] + line[:32])[None].repeat(8, 0), LINE)
    passes(noisy, LINE)
    passes(np.where(np.arange(64) > DRAW.uniform(5, 60, (4, 6, 1)), 1.0, 0.0), LINE)
    passes(spin, PLANE)
    passes(spin * board, PLANE)
    holes = np.where(DRAW.uniform(size=(256,)) < 0.3, np.nan, turbulent)
    passes(holes, LINE)
    alone = np.zeros((4, 6, 64))
    alone[:, np.arange(6), 5 * np.arange(6)] = 1
    passes(alone, LINE)
