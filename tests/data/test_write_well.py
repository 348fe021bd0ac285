"""A data set in The Well's layout: written whole, as it is described there, and read by The Well's own loader."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from ups.data import Source, open_source, write_well
from ups.data.hdf5 import values_at
from ups.data.resample import Resampled
from ups.data.write_well import write_data_set, write_file
from ups.definition import Definition
from ups.types import DataError

RNG = np.random.default_rng(3)
WAKE = Definition(
    "wake",
    dims=("sample", "time", "x", "y", "channel"),
    fields={"p": ("p",), "velocity": ("u", "v"), "species": ("a", "b", "c")},
    inputs={"bed": ("bed",), "force": ("fx", "fy")},
    periodic=("y",),
    positive=("a",),
)


def arrays(n: int = 6, t: int = 5, x: int = 8, y: int = 4, **more: Any) -> dict[str, Any]:
    result = {
        "values": RNG.standard_normal((n, t, x, y, 6)).astype("f4"),
        "nu": np.linspace(1, 2, n),
        "kind": ["a"] * n,
    }
    result |= {"bed": RNG.standard_normal((n, x, y)).astype("f4"), "force": RNG.standard_normal((x, y, 2)).astype("f4")}
    result |= {"x": np.arange(x) / x, "y": np.arange(y) / y + 2, "t": np.arange(t) * np.linspace(1, 2, n)[:, None]}
    return {**result, **more}


@pytest.fixture
def wake(tmp_path: Path) -> Source:
    np.savez(tmp_path / "wake.npz", **arrays())
    return open_source(tmp_path / "wake.npz", {}, WAKE)


def parts(source: Source) -> dict[str, tuple[str, ...]]:
    return {"train": source.ids[:4], "valid": source.ids[4:5], "test": source.ids[5:]}


def test_what_is_written_and_opened_again_is_the_same(wake: Source, tmp_path: Path) -> None:
    again = open_source(write_data_set(wake, tmp_path / "out", "wake", parts(wake)), {})
    assert again.ids[0] == "train/wake_0000/000000"
    assert [name.split("/")[0] for name in again.ids] == ["train"] * 4 + ["valid", "test"]
    for key in ("fields", "inputs", "bounds", "periodic", "positive", "axes", "name", "mask"):
        assert getattr(again.task, key) == getattr(wake.task, key), key
    assert {p.name for p in again.task.parameters} == {"nu", "kind"}
    for i in range(6):
        np.testing.assert_array_equal(again.read(i), wake.read(i))
        np.testing.assert_array_equal(again.inputs(i), wake.inputs(i))
        np.testing.assert_array_equal(again.times_of(i), wake.times_of(i))
        assert again.params_of(i) == wake.params_of(i)
    assert again.notes == ("the boundary in x is not stated", "the boundary in y is PERIODIC")


def test_its_data_sets_lie_in_one_piece_so_that_windows_are_read_by_position(wake: Source, tmp_path: Path) -> None:
    path = write_data_set(wake, tmp_path / "out", "wake", parts(wake)) / "data/train/wake_0000.hdf5"
    with h5py.File(path) as file:
        for name in ("t0_fields/p", "t0_fields/a", "t1_fields/velocity", "t1_fields/force"):
            assert (file[name].chunks, file[name].dtype) == (None, np.dtype("<f4"))
            assert file[name].id.get_offset() is not None
        np.testing.assert_array_equal(
            values_at(file["t1_fields/velocity"], 2, slice(1, 3)), wake.read(2)[1:3, ..., 1:3]
        )


def test_its_statistics_are_those_of_the_training_part(wake: Source, tmp_path: Path) -> None:
    stats = yaml.safe_load((write_data_set(wake, tmp_path / "out", "wake", parts(wake)) / "stats.yaml").read_text())
    values = np.stack([wake.read(i).astype("f8") for i in range(4)])
    velocity, changes = values[..., 1:3], np.diff(values, axis=1)[..., 0]
    np.testing.assert_allclose(stats["mean"]["velocity"], velocity.mean((0, 1, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(stats["std"]["velocity"], velocity.std((0, 1, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(stats["rms"]["p"], np.sqrt(np.square(values[..., 0]).mean()), rtol=1e-6)
    np.testing.assert_allclose(stats["std_delta"]["p"], changes.std(), rtol=1e-6)
    assert set(stats["mean"]) == {"p", "velocity", "a", "b", "c", "bed", "force"}
    assert set(stats["mean_delta"]) == {"p", "velocity", "a", "b", "c"}


def test_different_grids_lengths_and_words_are_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i, more in enumerate(({}, {"x": 16}, {"t": 9}, {"kind": ["b", "b", "a"]})):
        np.savez(tmp_path / "in" / f"{i}.npz", **arrays(3, **more))
    source = open_source(tmp_path / "in", {}, WAKE)
    path = write_data_set(source, tmp_path / "out", "wake", {"train": source.ids})
    assert len(list(path.rglob("*.hdf5"))) == 4
    again = open_source(path, {})
    assert next(p for p in again.task.parameters if p.name == "kind").choices == ("a", "b")
    assert sorted(again.read(i).tobytes() for i in range(12)) == sorted(source.read(i).tobytes() for i in range(12))


def test_it_appears_whole_or_not_at_all_and_is_never_written_over_by_accident(
    wake: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = write_data_set(wake, out, "wake", {"train": wake.ids[:2]})
    with pytest.raises(DataError, match="is there already; name another with --name, or --overwrite it"):
        write_data_set(wake, out, "wake", parts(wake))
    read = type(wake.source if hasattr(wake, "source") else wake)._values

    def fails(self: Any, index: int, frames: slice) -> Any:
        if index == 3:
            raise DataError("sample 3 is damaged.")
        return read(self, index, frames)

    with monkeypatch.context() as patch:
        patch.setattr(type(wake.source if hasattr(wake, "source") else wake), "_values", fails)
        with pytest.raises(DataError, match="sample 3 is damaged"):
            write_data_set(wake, out, "wake", parts(wake), overwrite=True)
    assert [p.name for p in out.iterdir()] == ["wake"]
    assert len(open_source(first, {})) == 2
    write_data_set(wake, out, "wake", parts(wake), overwrite=True)
    assert len(open_source(first, {})) == 6
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("do not lose me")
    with pytest.raises(DataError, match="is there already; choose another --out"):
        write_data_set(wake, tmp_path, "mine", parts(wake), overwrite=True)


def test_a_disk_without_room_is_one_sentence_before_anything_is_written(
    wake: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = 4 * sum(wake.read(i).size + wake.inputs(i).size for i in range(len(wake)))
    monkeypatch.setattr(write_well.shutil, "disk_usage", lambda path: SimpleNamespace(free=values))  # noqa: ARG005
    with pytest.raises(DataError, match=r"GB free, but the data need .* make room, or choose another --out"):
        write_data_set(wake, tmp_path / "out", "wake", parts(wake))
    with pytest.raises(DataError, match="make room"):
        write_file(wake, tmp_path / "out" / "one.h5", "wake")
    assert [*(tmp_path / "out").iterdir()] == []


def test_nan_stays_where_it_is_and_is_left_out_of_the_statistics(tmp_path: Path) -> None:
    content = arrays()
    content["values"][:, :, 2:4, 1] = np.nan
    np.savez(tmp_path / "wake.npz", **content)
    source = open_source(tmp_path / "wake.npz", {}, WAKE)
    path = write_data_set(source, tmp_path / "out", "wake", parts(source))
    again = open_source(path, {})
    assert (again.task.mask, again.task.given) == ("mask", ("bed", "fx", "fy", "mask"))
    np.testing.assert_array_equal(again.inputs(5), source.inputs(5))
    np.testing.assert_array_equal(again.read(5), source.read(5))
    stats = yaml.safe_load((path / "stats.yaml").read_text())
    np.testing.assert_allclose(stats["mean"]["p"], np.nanmean(content["values"][:4, ..., 0].astype("f8")), rtol=1e-6)


def test_an_uneven_axis_is_interpolated_and_the_error_is_told(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 65) ** 1.3
    values = np.sin(2 * np.pi * (x + np.arange(4)[:, None, None] / 9 + np.arange(3)[:, None] / 5))
    np.savez(tmp_path / "a.npz", values=values, x=x)
    source = open_source(tmp_path / "a.npz", {}, Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)}))
    assert "the x axis is not uniform (steps from 0.0044" in source.problems[0]
    even = Resampled(source)
    assert even.problems == ()
    np.testing.assert_allclose(np.diff(even.grid.coordinates[0]), 1 / 64)
    exact = np.sin(2 * np.pi * (even.grid.coordinates[0] + np.arange(4)[:, None, None] / 9 + np.arange(3)[:, None] / 5))
    np.testing.assert_allclose(np.stack([even.read(i)[..., 0] for i in range(4)]), exact, atol=2e-4)
    assert 1e-8 < even.error() < 1e-3


@pytest.mark.oracle
def test_the_loader_of_the_well_reads_what_is_written(wake: Source, tmp_path: Path) -> None:
    the_well = pytest.importorskip("the_well.data")
    from the_well.data.normalization import ZScoreNormalization

    path = write_data_set(wake, tmp_path / "out", "wake", parts(wake))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = the_well.WellDataset(path=str(path), well_split_name="train", n_steps_input=2, n_steps_output=1)
        scaled = the_well.WellDataset(
            path=str(path), well_split_name="train", use_normalization=True, normalization_type=ZScoreNormalization
        )
    assert (len(loaded), loaded.metadata.n_files, loaded.metadata.spatial_resolution) == (4 * 3, 1, (8, 4))
    names = [name for rank in range(3) for name in loaded.metadata.field_names[rank]]
    assert names == ["a", "b", "c", "p", "velocity_x", "velocity_y"]
    for index in (0, 4, 11):
        sample, start = index // 3, index % 3
        item, frames = loaded[index], wake.read(sample)[..., [3, 4, 5, 0, 1, 2]]
        np.testing.assert_array_equal(item["input_fields"].numpy(), frames[start : start + 2])
        np.testing.assert_array_equal(item["output_fields"].numpy(), frames[start + 2 : start + 3])
        np.testing.assert_array_equal(item["constant_fields"].numpy(), wake.inputs(sample))
        assert item["constant_scalars"].tolist() == [wake.params_of(sample)["nu"]]
        np.testing.assert_array_equal(item["boundary_conditions"].numpy(), [[1, 1], [2, 2]])
        np.testing.assert_array_equal(item["space_grid"].numpy()[:, 0, 0], wake.grid.coordinates[0])
    assert abs(float(scaled[0]["input_fields"].mean())) < 1


def test_a_link_to_a_data_set_stays_and_the_data_set_behind_it_is_replaced(wake: Source, tmp_path: Path) -> None:
    real = write_data_set(wake, tmp_path / "disk", "wake", parts(wake))
    real.chmod(0o750)
    (tmp_path / "out").mkdir()
    link = tmp_path / "out" / "wake"
    link.symlink_to(real)
    before = real.stat().st_ino
    assert write_data_set(wake, tmp_path / "out", "wake", parts(wake), overwrite=True) == link
    assert link.is_symlink()
    assert real.stat().st_ino != before
    assert real.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in (*(tmp_path / "out").iterdir(), *(tmp_path / "disk").iterdir())] == ["wake", "wake"]
