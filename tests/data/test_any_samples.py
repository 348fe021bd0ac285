"""Samples that differ in length, time, grid, mask and parameters: what reaches a window is what was written."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ups.data import open_source
from ups.data.readers.memory import open_memory
from ups.data.reduction import Reduction
from ups.data.sample_blocks import SMALL, blocks_of, read_block
from ups.data.sampler import Mix, Sampler
from ups.data.source import Source, SourceFacts
from ups.data.splits import held_out, make_split
from ups.data.trajectories import Trajectories, alike, balanced
from ups.data.views import CutInTime
from ups.data.windows import Windows, whole
from ups.definition import Definition
from ups.lazy_imports import torch
from ups.types import Array, ConfigError, DataError, Field, Grid, Param, TaskSpec


class Sample(NamedTuple):
    values: Array  # (T, X, C)
    times: Array
    nu: float
    mask: Array


class Memory(Source):
    """Samples in memory, each with its own length, times, grid, mask and parameter."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples
        boxes = {len(s.mask): Grid((len(s.mask),), (True,), ((0.0, 1.0),)) for s in samples}
        self.boxes = boxes
        inputs = (Field.scalar("mask"),)
        task = TaskSpec("toy", "Toy", (Field("v", ("a", "b")),), ((0.0, 1.0),), (True,), 8, 1.0, 3, inputs=inputs)
        spec = TaskSpec(**{**task.__dict__, "parameters": (Param("nu", 1.0, "stated"),), "mask": "mask"})
        ids = tuple(str(i) for i in range(len(samples)))
        super().__init__(Path("memory"), SourceFacts(spec, {}, boxes[len(samples[0].mask)], samples[0].times, ids))

    def _values(self, index: int, frames: slice) -> Array:
        return self.samples[index].values[frames]

    def _inputs(self, index: int) -> Array:
        return self.samples[index].mask[:, None].astype(np.float32)

    def params_of(self, index: int) -> dict[str, float]:
        return {"nu": self.samples[index].nu}

    def times_of(self, index: int) -> Array:
        return self.samples[index].times

    def grid_of(self, index: int) -> Grid:
        return self.boxes[len(self.samples[index].mask)]


ALONE = type("Alone", (), {"rank": 0, "world": 1})()


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    length, cells = draw(st.integers(4, 9)), draw(st.sampled_from((4, 8)))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    kind = draw(st.sampled_from(("<f4", ">f4", "<f8", ">f8")))
    values = rng.standard_normal((length, cells, 2)).astype(kind)
    steps = rng.uniform(0.1, 0.3, length) if draw(st.booleans()) else np.full(length, rng.uniform(0.1, 0.3))
    mask = rng.random(cells) > 0.3 if draw(st.booleans()) else np.ones(cells, bool)
    mask[0] = True
    values[:, ~mask] = np.nan
    return Sample(values, np.cumsum(steps), float(rng.uniform(0.1, 1)), mask)


@settings(max_examples=25, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=5), st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_every_window_holds_what_was_written_once_per_epoch(
    written: list[Sample], context: int, targets: int, resident: bool
) -> None:
    source = Memory(written)
    parts = alike(source, source.ids, Reduction())
    for part in parts:
        part._fits = resident
    windows = Windows(parts, parts, 1, context, targets, seed=1, ranks=ALONE)
    expected = Counter((i, t) for i, s in enumerate(written) for t in range(len(s.times) - context - targets + 1))
    seen: Counter[tuple[int, int]] = Counter()
    for which in range(len(parts)):
        for number in range(len(windows.places[which])):
            window = windows.window(which, np.array([number]))
            sample = written[int(window.ids[0])]
            frames = torch.cat((window.context, window.targets), 1)[0].numpy()
            true = sample.values.astype(np.float32)
            first = next(
                t
                for t in range(len(true) - context - targets + 1)
                if np.array_equal(frames[:, sample.mask], true[t : t + context + targets, sample.mask])
            )
            seen[int(window.ids[0]), first] += 1
            assert np.isfinite(frames).all(), "what does not count is filled"
            assert window.mask is not None
            assert np.array_equal(window.mask[0].numpy(), sample.mask)
            steps = np.diff(sample.times)[first + context - 1 :][:targets]
            told = np.array([window.step(i)[0].item() for i in range(targets)])
            np.testing.assert_allclose(told, steps, rtol=1e-3)
            np.testing.assert_allclose(window.params[0].numpy(), [sample.nu], rtol=1e-6)
    assert seen == expected
    rolled = list(whole(parts, context))
    assert sorted(i for w in rolled for i in w.ids) == sorted(source.ids)
    assert all(w.targets.shape[1] == len(written[int(i)].times) - context for w in rolled for i in w.ids)


def test_statistics_are_those_of_the_cells_that_count() -> None:
    mask = np.array([True, True, False, True])
    values = np.full((5, 4, 2), 2.0)
    values[:, :, 1] = np.arange(5)[:, None]
    values[:, 2] = 1e6
    part = Trajectories(Memory([Sample(values, np.arange(5.0), 1.0, mask)]), ["0"], Reduction())
    mean, std, least, most = part.statistics()
    np.testing.assert_allclose(mean, [2.0, 2.0])
    np.testing.assert_allclose(std, [0.0, np.std(np.arange(5))], atol=1e-6)
    assert (least.tolist(), most.tolist()) == ([2.0, 0.0], [2.0, 4.0])


def test_many_small_samples_are_read_in_blocks_and_the_damaged_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((400, 3, 8)).astype(np.float32)
    source = open_memory({"u": values}, Definition(dims=("sample", "time", "x"), fields={"u": ("u",)}), {})
    rows = [i for i in range(400) if i % 3]
    reads: list[range] = []
    whole = type(source)._values_of
    monkeypatch.setattr(type(source), "_values", None)  # none is read alone
    monkeypatch.setattr(type(source), "_values_of", lambda s, some, at: reads.append(some) or whole(s, some, at))
    part = Trajectories(source, [source.ids[i] for i in rows], Reduction(time=2))
    np.testing.assert_array_equal(part.sound()._resident[..., 0], values[rows, ::2])  # type: ignore[index]
    assert reads == [range(1, 399)], "those between them are read along"
    mean, std, least, most = part.statistics()
    np.testing.assert_allclose(mean, values[rows, ::2].mean(), rtol=1e-5)
    np.testing.assert_allclose(std, values[rows, ::2].std(), rtol=1e-5)
    assert (float(least), float(most)) == (values[rows, ::2].min(), values[rows, ::2].max())
    apart = blocks_of(source, [0, 399, 1, 2], range(4), 2**15)
    assert apart == [range(0, 1), range(1, 2), range(2, 4)], "far apart or backwards: alone"
    assert blocks_of(source, [0, 1], range(2), SMALL + 1) == [range(0, 1), range(1, 2)], "large: alone"

    def one(row: int) -> Array:
        if row == 7:
            raise DataError("sample 7 cannot be read")
        return np.zeros(1)

    def several(some: range) -> Array:
        raise DataError(f"{some} cannot be read")

    assert read_block([5, 9], one, several).shape == (2, 1), "a gap that is damaged is nobody's loss"
    with pytest.raises(DataError, match="sample 7"):
        read_block([5, 7, 9], one, several)


def test_a_rare_parameter_value_is_drawn_as_often_as_a_common_one() -> None:
    params = torch.tensor([[0.5]] * 6 + [[1.0]] * 2)
    draws = balanced(params)
    assert draws is not None
    assert Counter(params[draws].flatten().tolist()) == {0.5: 6, 1.0: 6}
    assert balanced(torch.tensor([[0.1]] * 3 + [[1.0]] * 3)) is None
    assert balanced(torch.rand(100, 1)) is None, "where each has its own there is nothing to balance"


def test_each_sample_has_a_box_of_its_own_along_axes_whose_ends_the_task_does_not_say(tmp_path: Path) -> None:
    """That an axis wraps does not say how long it is."""
    for i, length in enumerate((1.0, 2.0)):
        x = (np.arange(8) + 0.5) / 8
        np.savez(tmp_path / f"{i}.npz", u=np.random.rand(3, 8, 8), x=x * length, y=x * length, t=np.arange(3))
    told = {"dims": ("time", "x", "y"), "fields": {"u": ("u",)}, "periodic": ("x",)}
    for ends, lengths in (({}, [(1.0, 1.0), (2.0, 2.0)]), ({"y": (0.0, 3.0)}, [(1.0, 3.0), (2.0, 3.0)])):
        source = open_source(tmp_path, {}, Definition("wave", bounds=ends, **told))
        parts = alike(source, source.ids, Reduction())
        assert [part.grid.lengths for part in parts] == [pytest.approx(pair) for pair in lengths]
        assert {part.grid.periodic for part in parts} == {(True, False)}


def test_the_grids_of_one_task_share_its_part_of_the_steps() -> None:
    sampler = Sampler(["a", "a", "b"], [300, 100, 50], 4, Mix(), seed=0)
    turns = np.array(sampler.turns(4096))
    np.testing.assert_allclose(turns / 4096, [0.375, 0.125, 0.5], atol=1e-3)
    assert sampler.names == ("a", "a#2", "b")


def test_a_split_has_every_parameter_value_in_every_part() -> None:
    ids, strata = [str(i) for i in range(40)], [("nu", i % 4) for i in range(40)]
    split = make_split(ids, strata=strata)
    for part in (split.train, split.valid, split.test):
        assert Counter(int(name) % 4 for name in part) == dict.fromkeys(range(4), len(part) // 4)
    rare = make_split(ids[:21], strata=[("nu", min(i, 1)) for i in range(21)])
    assert len(rare.train) + len(rare.valid) + len(rare.test) == 21


def test_values_that_are_held_out_are_for_testing_alone() -> None:
    ids, out = [str(i) for i in range(20)], [i % 5 == 0 for i in range(20)]
    split = held_out(ids, out, "seeded", (0.8, 0.1, 0.1), 0)
    assert set(split.test) == {"0", "5", "10", "15"}
    assert len(split.valid) == 1
    with pytest.raises(DataError, match="none of the 20 samples"):
        held_out(ids, [False] * 20, "seeded", (0.8, 0.1, 0.1), 0)


def test_no_start_is_trained_on_at_one_value_and_tested_at_a_value_that_is_held_out() -> None:
    ids = [f"{value}.h5/{n}" for value in "abc" for n in range(20)]
    out, starts = [name[0] == "b" for name in ids], [name[5:] for name in ids]
    split = held_out(ids, out, "seeded", (0.7, 0.1, 0.2), 0, starts)
    parts = [{name[5:] for name in part} for part in (split.train, split.valid, split.test)]
    assert [len(part) for part in parts] == [14, 2, 4]
    assert set.union(*parts) == set(starts), "each is in one part alone, and none is lost"
    assert {name[0] for name in split.test} == {"b"}
    assert {name[0] for name in split.train} == {name[0] for name in split.valid} == {"a", "c"}
    assert len(split.train) == 28
    own = held_out(ids, out, "seeded", (0.7, 0.1, 0.2), 0)
    assert (len(own.test), len(own.train) + len(own.valid)) == (20, 40), "starts of their own lose nothing"
    with pytest.raises(ConfigError, match="leave nothing for testing"):
        held_out(ids, out, "seeded", (0.9, 0.1, 0.0), 0, starts)


def test_too_few_samples_beside_values_that_are_held_out_are_blamed_on_hold_out() -> None:
    ways = ([False] * 2 + [True] * 2, "seeded", (0.8, 0.1, 0.1), 0)
    words = r"split\.hold_out: the initial states that values to hold out share with the others are 2, too few"
    with pytest.raises(DataError, match=words):
        held_out(["a/0", "a/1", "b/0", "b/1"], *ways, ["0", "1", "0", "1"])
    with pytest.raises(DataError, match=r"split\.hold_out: the samples with other values are 1, too few"):
        held_out(["0", "1", "2", "3"], [False, True, True, True], *ways[1:])


def test_a_split_in_time_puts_no_frame_in_two_parts_and_loses_none() -> None:
    mask = np.ones(4, bool)
    values = np.arange(20)[:, None, None] + np.zeros((20, 4, 2))
    source = CutInTime(Memory([Sample(values, np.arange(20.0), 1.0, mask)]), (0.75, 0.1, 0.15))
    frames = {name: source.read(i)[:, 0, 0].tolist() for i, name in enumerate(source.ids)}
    assert frames == {"0@train": list(range(15)), "0@valid": [15, 16], "0@test": [17, 18, 19]}
    assert source.times_of(2).tolist() == [17, 18, 19]
    assert source.read(0, slice(2, 9, 3))[:, 0, 0].tolist() == [2, 5, 8]
    source = CutInTime(Memory([Sample(values, np.arange(20.0), 1.0, mask)]), (0.5, 0.2, 0.3), pieces=2)
    frames = {name: source.read(i)[:, 0, 0].tolist() for i, name in enumerate(source.ids)}
    pieces = {"0@valid-1": [10, 11], "0@valid-2": [12, 13], "0@test-1": [14, 15, 16], "0@test-2": [17, 18, 19]}
    assert frames == {"0@train": list(range(10)), **pieces}
    assert set(source.parts.values()) == {"train", "valid", "test"}


def test_what_is_given_with_a_sample_is_filled_where_nothing_counts_and_must_be_finite_elsewhere() -> None:
    rng = np.random.default_rng(0)
    u, wind = rng.standard_normal((3, 5, 8)), rng.standard_normal((3, 8)).astype(np.float32)
    water = np.array([1, 1, 1, 0, 0, 0, 1, 1], np.float32)
    u[..., water == 0] = np.nan
    dims = {"u": ("sample", "time", "x"), "wind": ("sample", "x"), "water": ("sample", "x")}
    words = Definition(name="lake", fields={"u": ("u",)}, inputs={"wind": ("wind",), "water": ("water",)}, mask="water")

    def part(given: Array, mask: Array) -> Trajectories:
        source = open_memory({"u": u, "wind": given, "water": np.stack([mask] * 3)}, words, dims)
        return Trajectories(source, source.ids, Reduction()).sound()

    told = part(wind, water).inputs
    assert told[1, :, 0].tolist() == wind[1, [0, 1, 2, 2, 2, 6, 6, 7]].tolist()
    assert told[1, :, 1].tolist() == water.tolist()
    holes = np.where(water == 0, np.nan, wind), np.where(water == 0, np.nan, water)
    assert torch.equal(part(*holes).inputs, told), "as a simulator fills what it is asked with"
    wind[2, 6] = np.inf
    with pytest.raises(DataError, match="sample 000002 has given values that are not finite"):
        part(wind, water)


@pytest.mark.parametrize("nu", [np.nan, np.inf, -1e300])
def test_a_parameter_that_is_no_finite_float32_is_refused_before_anything_is_trained(nu: float) -> None:
    words = Definition(dims=("sample", "time", "x"), fields={"u": ("u",)})
    source = open_memory({"u": np.zeros((3, 4, 8)), "nu": np.array([1.0, nu, 2.0])}, words, {})
    with pytest.raises(DataError, match=r"nu is .* in a sample, but must be a finite number that float32 can hold"):
        Trajectories(source, source.ids, Reduction())


def test_trajectories_too_large_for_memory_are_read_once_to_find_what_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).standard_normal((6, 4, 8)).astype(np.float32)
    source = open_memory({"u": values}, Definition(dims=("sample", "time", "x"), fields={"u": ("u",)}), {})
    reads: list[range] = []
    whole = type(source)._values_of
    monkeypatch.setattr(type(source), "_values_of", lambda s, some, at: reads.append(some) or whole(s, some, at))
    part = Trajectories(source, source.ids, Reduction(), resident=0)
    mean = part.sound().statistics().mean
    np.testing.assert_allclose(mean, values.mean(), rtol=1e-5)
    assert reads == [range(6)]
    values[4, 2, 3] = np.nan
    bad = open_memory({"u": values}, Definition(dims=("sample", "time", "x"), fields={"u": ("u",)}), {})
    with pytest.raises(DataError, match="sample 000004 has values that are not finite"):
        Trajectories(bad, bad.ids, Reduction(), resident=0).sound()
    values[5] = np.inf
    bad = open_memory({"u": values}, Definition(dims=("sample", "time", "x"), fields={"u": ("u",)}), {})
    with pytest.raises(DataError, match="samples 000004 and 1 more have values that are not finite"):
        Trajectories(bad, bad.ids, Reduction(), resident=0).sound()
