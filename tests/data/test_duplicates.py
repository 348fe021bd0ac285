"""Trajectories cut in time and pieces of one simulation are told by their frames; what many share by chance is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ups.data import Source, open_source
from ups.data.duplicates import ends_of, links, pieces, scattered
from ups.definition import Definition
from ups.physics import TASKS

NOISE = Definition("noise", dims=("sample", "time", "x"), fields={"h": ("h",)}, periodic=("x",))
DRIVEN = replace(NOISE, inputs={"f": ("f",)})


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def stored(path: Path, values: np.ndarray, task: Definition = NOISE, **more: np.ndarray) -> Source:
    """`(N, T, X)` as a source."""
    t, x = np.arange(values.shape[1]) * 0.1, np.arange(values.shape[2]) / 8
    np.savez(path, h=values, t=t, x=x, **more)
    return open_source(path, TASKS, task)


def told(new: Source, old: Source) -> tuple[list[int], list[int]]:
    cut, onward = pieces(ends_of(new), ends_of(old))
    return [each.row for each in cut], [each.row for each in onward]


@pytest.mark.parametrize("frames", [slice(0, 20), slice(5, None), slice(0, None, 2), slice(1, None, 2)])
def test_trajectories_cut_in_time_are_told_in_another_format_too(tmp_path: Path, frames: slice) -> None:
    known = noise(4, 26, 8)
    mixed = np.concatenate([known[2:, frames], noise(1, 26, 8, seed=1)[:, frames]])
    old, new = stored(tmp_path / "old.npz", known), stored(tmp_path / "new.npz", mixed.astype(">f8"))
    assert not {each.whole for each in ends_of(new)} & {each.whole for each in ends_of(old)}
    assert told(new, old) == ([0, 1], [])


def test_what_goes_on_from_the_end_is_told_from_what_is_cut(tmp_path: Path) -> None:
    long = noise(2, 31, 8)
    old, new = stored(tmp_path / "a.npz", long[:, :11]), stored(tmp_path / "b.npz", long[:, 10:21])
    assert told(new, old) == ([], [0, 1])
    assert told(old, new) == ([0, 1], []), "what was trained on comes after it"
    assert told(stored(tmp_path / "c.npz", long[:, 20:]), old) == ([], [])


def test_channels_in_another_order_make_no_other_trajectory(tmp_path: Path) -> None:
    known, drive = {name: noise(3, 12, 8, seed=i) for i, name in enumerate("hq")}, noise(2, 3, 8)
    np.savez(tmp_path / "a.npz", **known, f=drive[0], a=drive[1])
    inputs = {"f": ("f",), "a": ("a",)}
    old = replace(NOISE, fields={"h": ("h",), "q": ("q",)}, inputs=inputs, dt=0.1)
    new = replace(NOISE, fields={"q": ("q",), "h": ("h",)}, inputs=dict(reversed(inputs.items())), dt=0.1)
    one, other = (ends_of(open_source(tmp_path / "a.npz", TASKS, task)) for task in (old, new))
    assert [(e.whole, e.given) for e in one] == [(e.whole, e.given) for e in other]


def test_what_stands_in_cells_that_do_not_count_makes_no_other_trajectory(tmp_path: Path) -> None:
    known = noise(3, 12, 8)
    known[..., 5:] = np.nan
    old = stored(tmp_path / "old.npz", known)
    masked = replace(NOISE, inputs={"mask": ("mask",)}, mask="mask")
    counts = np.broadcast_to(np.arange(8) < 5, (3, 8)).astype("f4")
    new = stored(tmp_path / "new.npz", np.nan_to_num(known, nan=7.0)[:, :6], masked, mask=counts)
    assert told(new, old) == ([0, 1, 2], [])
    other = stored(tmp_path / "other.npz", np.where(np.arange(8) < 4, known, np.nan)[:, :6])
    assert told(other, old) == ([], []), "another mask is another state"


def test_the_same_initial_state_under_other_conditions_is_no_piece(tmp_path: Path) -> None:
    known, other = noise(3, 12, 8), noise(3, 12, 8, seed=1)
    other[:, 0] = known[:, 0]
    nu = np.array([0.1, 0.2, 0.3])
    old = stored(tmp_path / "old.npz", known, nu=nu)
    assert told(stored(tmp_path / "new.npz", other, nu=nu * 2), old) == ([], [])
    assert told(stored(tmp_path / "same.npz", other[:, :6], nu=nu.astype("f4")), old) == ([0, 1, 2], [])
    force = noise(3, 8, seed=2)
    old = stored(tmp_path / "driven.npz", known, DRIVEN, f=force)
    assert told(stored(tmp_path / "another.npz", other, DRIVEN, f=force + 1), old) == ([], [])
    assert told(stored(tmp_path / "alike.npz", known[:, :6], DRIVEN, f=force), old) == ([0, 1, 2], [])


def test_what_many_have_by_chance_is_no_sign(tmp_path: Path) -> None:
    def source(name: str, seed: int, first: Sequence[float] | float, last: Sequence[float] | float, at: int) -> Source:
        values = noise(3, 12, 8, seed=seed)
        values[:, 0], values[:, at:] = first, last
        return stored(tmp_path / name, values)

    profile = noise(8, seed=9)
    assert told(source("a.npz", 0, 0.0, 1.0, 11), source("b.npz", 1, 0.0, 1.0, 11)) == ([], []), "uniform"
    assert told(source("c.npz", 0, 0.0, profile, 10), source("d.npz", 1, 0.0, profile, 11)) == ([], []), "steady"
    many, further = source("e.npz", 0, profile, 1.0, 11), source("f.npz", 1, profile, 1.0, 11)
    assert told(further, many) == ([], []), "an initial state from which trajectories go different ways"
    assert links(ends_of(source("g.npz", 0, 1.0, 1.0, 11))) == []
    assert links([*ends_of(source("h.npz", 0, profile, 0.0, 11)), *ends_of(source("i.npz", 1, 1.0, profile, 9))]) == []


def test_pieces_of_one_simulation_are_linked_in_their_order(tmp_path: Path) -> None:
    long = noise(1, 41, 8)
    order = [3, 0, 2, 1]
    known = ends_of(stored(tmp_path / "a.npz", np.concatenate([long[:, 10 * i : 10 * i + 11] for i in order])))
    assert {(order[one.row], order[later.row]) for one, later in links(known)} == {(0, 1), (1, 2), (2, 3)}
    (sentence,) = scattered(known)
    assert sentence.startswith("3 trajectories begin with the last frame of another (such as a.npz:")
    assert "split: {time: [0.75, 0.1, 0.15]}" in sentence
    branches = noise(3, 11, 8, seed=1)
    branches[1:, 0] = branches[0, -1]
    assert links(ends_of(stored(tmp_path / "b.npz", branches))) == [], "several that begin there are no next piece"
