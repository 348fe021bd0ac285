"""Axes of space are matched by their names: files that hold them in another order are the same data."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from ups.data import Joined, Source, open_source, renamed
from ups.data.axis_order import in_order, order_of
from ups.definition import Definition
from ups.physics import TASKS

X, Y = (np.arange(4) + 0.5) / 4, (np.arange(6) + 0.5) / 2  # boxes of 1 and of 3
VALUES = {name: np.random.default_rng(i).standard_normal((3, 5, 4, 6)) for i, name in enumerate(("p", "vx", "vy"))}
FORCE = np.random.default_rng(9).standard_normal((3, 4, 6))


def written(path: Path, axes: str) -> Path:
    """The same data, with the axes of space in one of their two orders, and channels in that of the axes."""
    turn = (0, 1, 2, 3) if axes == "xy" else (0, 1, 3, 2)
    arrays = {name: values.transpose(turn) for name, values in VALUES.items()}
    force = FORCE.transpose([at for at in turn if at != 3] if axes == "xy" else (0, 2, 1))
    np.savez(path, **arrays, force=force, x=X, y=Y, time=np.arange(5) * 0.1)
    return path


def definition(axes: str) -> Definition:
    dims = ("sample", "time", *axes)
    fields = {"p": ("p",), "v": tuple(f"v{axis}" for axis in axes)}
    return Definition("flow", dims=dims, fields=fields, inputs={"force": ("force",)}, periodic=("x",))


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    return [open_source(written(tmp_path / f"{axes}.npz", axes), TASKS, definition(axes)) for axes in ("xy", "yx")]


def test_a_file_with_its_axes_in_another_order_is_read_as_the_same_data(sources: list[Source]) -> None:
    first, other = sources
    assert (first.task.axes[:2], other.task.axes[:2]) == (("x", "y"), ("y", "x"))
    turned = renamed(other, first.task)
    assert turned.task == first.task
    for i in range(3):
        ours, theirs = turned[i], first[i]
        np.testing.assert_array_equal(ours.values, theirs.values)
        np.testing.assert_array_equal(ours.inputs, theirs.inputs)
        assert (ours.grid.shape, ours.grid.bounds) == ((4, 6), theirs.grid.bounds)
        assert ours.grid.periodic == theirs.grid.periodic == (True, False)
    np.testing.assert_array_equal(
        turned.read_several(range(1, 3), slice(1, 3)), first.read_several(range(1, 3), slice(1, 3))
    )
    assert turned.grid_of(0) is turned.grid_of(0), "so that samples on one grid are known to be"
    assert any("its axes are y, x, and are read as x, y" in note for note in turned.notes)
    assert renamed(first, first.task) is first


def test_files_of_one_task_are_joined_by_the_names_of_their_axes(sources: list[Source], tmp_path: Path) -> None:
    joined = Joined(tmp_path, sources)
    assert len(joined) == 6
    for i in range(6):
        np.testing.assert_array_equal(joined[i].values, sources[0][i % 3].values)
        assert joined.grid_of(i).shape == (4, 6)


def test_axes_of_other_names_are_matched_by_their_places(sources: list[Source]) -> None:
    task = sources[0].task
    assert order_of(task, task) is None
    elsewhere = Definition("flow", dims=("time", "lat", "lon"), fields={"p": ("p",)})
    other = open_source(_plain(sources[0].path.with_name("p.npy")), TASKS, elsewhere).task
    assert order_of(task, other) is None
    assert in_order(task, other) is task


def test_components_of_tensors_follow_the_axes(tmp_path: Path) -> None:
    names = [a + b for a in "xyz" for b in "xyz"]
    dims, fields = ("time", "x", "y", "z", "channel"), {"s": tuple(f"s{name}" for name in names)}
    path = tmp_path / "s.npy"
    np.save(path, np.random.default_rng(0).standard_normal((3, 4, 4, 4, 9)))
    task = open_source(path, TASKS, Definition("stress", dims=dims, fields=fields)).task
    others = {"s": tuple(f"t{name}" for name in names)}
    like = open_source(path, TASKS, Definition("p", dims=("time", "z", "x", "y", "channel"), fields=others)).task
    turned = in_order(task, like)
    assert turned.axes[:3] == ("z", "x", "y")
    assert turned.channels == tuple(f"s{a}{b}" for a in "zxy" for b in "zxy")


@pytest.mark.parametrize("fields", [{}, {"w": ("u", "v")}])
def test_components_of_the_same_names_are_the_same_in_whatever_order_axes_stand(
    tmp_path: Path, fields: dict[str, tuple[str, ...]]
) -> None:
    both = np.stack([VALUES["vx"], VALUES["vy"]], -1)
    np.savez(tmp_path / "xy.npz", w=both, x=X, y=Y)
    np.savez(tmp_path / "yx.npz", w=both.swapaxes(2, 3), x=X, y=Y)
    tasks = [Definition("flow", dims=("sample", "time", *axes, "channel"), fields=fields) for axes in ("xy", "yx")]
    sources = [
        open_source(tmp_path / f"{name}.npz", TASKS, task) for name, task in zip(("xy", "yx"), tasks, strict=True)
    ]
    joined = Joined(tmp_path, sources)
    assert sources[1].task.axes[:2] == ("y", "x")
    for i in range(6):
        np.testing.assert_array_equal(joined[i].values, sources[0][i % 3].values)


def test_a_worker_process_has_equal_grids(sources: list[Source]) -> None:
    first, other = sources
    turned = renamed(other, first.task)
    copy = pickle.loads(pickle.dumps(turned))
    assert copy.grid_of(0).shape == (4, 6)
    assert copy.grid_of(0).axes is not None
    assert {copy.grid_of(0), copy.grid_of(1)} == {turned.grid_of(0)}


def _plain(path: Path) -> Path:
    np.save(path, VALUES["p"][0])
    return path
