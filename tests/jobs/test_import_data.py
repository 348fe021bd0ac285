"""`ups data import`, and what `info` and `validate` say of data that are not PDEBench's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from ups.cli.app import main
from ups.data import open_source
from ups.definition import Definition, definition_from
from ups.jobs.import_data import import_data
from ups.jobs.inspect import describe, notes, problems
from ups.physics import TASKS
from ups.run.data.data_config import DataConfig
from ups.run.data.datasets import open_sets
from ups.types import ConfigError, DataError

RNG = np.random.default_rng(7)
TASK = {
    "name": "wake",
    "dims": ["time", "x", "y", "channel"],
    "fields": {"velocity": ["u", "v"]},
    "periodic": ["x"],
    "datasets": {"re": "re"},
}


def samples(folder: Path, count: int = 10, **more: Any) -> Path:
    """A folder of arrays, one file a sample, and wake.yaml beside it."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        values = RNG.standard_normal((6, 8, 16, 2)).astype("f4")
        values[:, 2:4, 5] = np.nan
        content = {"values": values, "x": np.arange(8.0), "y": np.arange(16.0) / 2, "re": 100.0 * (1 + i % 2), **more}
        np.savez(folder / f"{i:02d}.npz", **content)
    (folder.parent / "wake.yaml").write_text(yaml.safe_dump(TASK))
    return folder


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return int(ended.value.code or 0)


def test_a_folder_of_arrays_becomes_a_data_set_whose_path_is_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, task = samples(tmp_path / "in"), tmp_path / "wake.yaml"
    assert run("data", "import", folder, "--task", task, "--out", tmp_path, "--split", "0.6,0.2,0.2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["train 6, valid 2, test 2", str(tmp_path / "wake")]
    source, again = open_source(folder, TASKS, definition_from(str(task))), open_source(lines[-1], TASKS)
    assert again.task.fields == source.task.fields
    assert {again.params_of(i)["re"] for i in range(6, 8)} == {100.0, 200.0}, "every part has all parameters"
    rows = {source.read(i).tobytes(): i for i in range(10)}
    for i in range(10):
        row = rows[again.read(i).tobytes()]
        np.testing.assert_array_equal(again.inputs(i), source.inputs(row))
        assert again.params_of(i) == source.params_of(row)
    assert run("data", "import", folder, "--task", task, "--out", tmp_path) == 2
    assert "is there already; name another with --name, or --overwrite it" in capsys.readouterr().err
    assert run("data", "import", lines[-1], "--out", tmp_path, "--name", "copy") == 0
    copied = open_source(tmp_path / "copy", TASKS)
    assert [i.split("/")[0] for i in copied.ids] == [i.split("/")[0] for i in again.ids], "a given split is kept"


def test_an_uneven_axis_is_refused_unless_it_is_resampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.linspace(0, 1, 33) ** 1.2
    values = np.sin(2 * np.pi * (x + np.arange(8)[:, None, None] / 8 + np.arange(4)[:, None] / 9))
    np.savez(tmp_path / "a.npz", u=values, x=x)
    (tmp_path / "a.yaml").write_text("dims: [sample, time, x]\nfields: {u: [u]}\n")
    words = ("data", "import", tmp_path / "a.npz", "--task", tmp_path / "a.yaml", "--out", tmp_path / "out")
    assert run(*words) == 2
    assert "the cells along x are not equally wide" in capsys.readouterr().err
    assert run(*words, "--resample") == 0
    assert "resampled to uniform axes; back on its own axes it differs by" in capsys.readouterr().out
    np.testing.assert_allclose(np.diff(open_source(tmp_path / "out" / "a", TASKS).grid.coordinates[0]), 1 / 32)


def test_info_ends_with_a_task_that_can_be_edited_and_used(tmp_path: Path) -> None:
    folder = samples(tmp_path / "in")
    text = describe(folder, definition_from(str(tmp_path / "wake.yaml")))
    assert "each sample has its own re, among 100, " in text
    printed = text[text.index("\nname: ") :]
    assert yaml.safe_load(printed)["fields"] == {"velocity": ["u", "v"]}
    (tmp_path / "mine.yaml").write_text(printed)
    again = open_source(folder, TASKS, definition_from(str(tmp_path / "mine.yaml")))
    first = open_source(folder, TASKS, definition_from(str(tmp_path / "wake.yaml")))
    assert again.task == first.task
    assert describe(folder, definition_from(str(tmp_path / "mine.yaml"))) == text


def test_the_printed_task_of_a_built_in_equation_can_be_used_too(tmp_path: Path) -> None:
    path = tmp_path / "1D_Burgers_Sols_Nu0.01.hdf5"
    x, t = (np.arange(32) + 0.5) / 32, np.arange(13) * 0.05
    with h5py.File(path, "w") as file:
        file["tensor"] = np.sin(2 * np.pi * (x - t[:12, None] + np.arange(3)[:, None, None] / 3)).astype("f4")
        file["x-coordinate"], file["t-coordinate"] = x.astype("f4"), t.astype("f4")
    text = describe(path)
    (tmp_path / "mine.yaml").write_text(text[text.index("\nname: ") :])
    assert "equation: burgers1d" in text
    assert describe(path, definition_from(str(tmp_path / "mine.yaml"))) == text


def test_a_definition_is_a_name_or_a_file_and_a_wrong_key_is_one_sentence(tmp_path: Path) -> None:
    assert definition_from("burgers1d") == Definition(name="burgers1d")
    (tmp_path / "flow.yaml").write_text("dims: [time, x]\nfields: {u: [u]}\nbounds: {x: [0, 1]}\n")
    flow = definition_from(str(tmp_path / "flow.yaml"))
    assert flow == Definition("flow", dims=("time", "x"), fields={"u": ("u",)}, bounds={"x": (0.0, 1.0)})
    assert Definition.from_plain(flow.plain()) == flow
    (tmp_path / "flow.yaml").write_text("dimensions: [time, x]\n")
    with pytest.raises(ConfigError, match=r"flow\.yaml.*dimensions"):
        definition_from(str(tmp_path / "flow.yaml"))
    with pytest.raises(ConfigError, match="there is no such"):
        definition_from("nowhere/flow.yaml")


def test_validate_finds_what_is_wrong_and_notes_what_differs(tmp_path: Path) -> None:
    folder, task = samples(tmp_path / "in", 4), Definition.from_plain(TASK)
    assert problems([folder], task) == []
    values = RNG.standard_normal((5, 4, 12, 2)).astype("f4")
    np.savez(folder / "other.npz", values=values, x=np.arange(4.0), y=np.arange(12.0), t=np.arange(5) / 4, re=1.0)
    assert problems([folder], task) == []
    said = "; ".join(text for _, text in notes([folder], task))
    for part in (
        "2 grids: 4 × 12, 8 × 16",
        "from 5 to 6 frames",
        "from 0.25 to 1",
        "axes of 4, 12 cells are no multiple",
    ):
        assert part in said
    wandering = np.array(values)
    wandering[0, 1, 1] = wandering[3, 2, 2] = np.nan
    np.savez(tmp_path / "nan.npz", values=wandering, t=[0, 1, 2, 4, 5], x=[0.0, 1, 2, 5], re=1.0)
    found = [text for _, text in problems([tmp_path / "nan.npz"], task)]
    assert any("NaN that moves in time in 1 sample" in text for text in found)
    assert not any("the times are not uniform" in text for text in found)
    assert any("the times are not uniform" in text for _, text in notes([tmp_path / "nan.npz"], task))
    assert any("the x axis is not uniform (steps from 1 to 3)" in text for text in found)


def test_validate_takes_several_paths_and_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, task = samples(tmp_path / "in", 4), tmp_path / "wake.yaml"
    np.savez(tmp_path / "twin.npz", **np.load(folder / "00.npz"))
    assert run("data", "validate", folder, tmp_path / "twin.npz", "--task", task, "--params", "re=5") == 1
    assert "trajectories in more than one place: 1 pair" in capsys.readouterr().out
    assert run("data", "validate", folder, "--task", task, "--params", "re") == 2
    assert "--params has 're', but must be NAME=VALUE pairs" in capsys.readouterr().err


def test_an_import_says_that_float32_loses_what_a_field_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "a.npz", p=1e12 + 600 * RNG.normal(size=(10, 4, 8)), dt=0.1)
    (tmp_path / "a.yaml").write_text("name: a\ndims: [sample, time, x]\nfields: {p: [p]}\n")
    words = ("data", "import", tmp_path / "a.npz", "--task", tmp_path / "a.yaml", "--out", tmp_path / "o")
    assert run(*words) == 0
    assert "PROBLEM: p varies by " in capsys.readouterr().out


def test_one_long_trajectory_is_cut_in_time_and_a_run_takes_what_import_writes(tmp_path: Path) -> None:
    """Uneven cells too, which a config sends to `ups data import`."""
    task = Definition("wave", dims=("time", "x"), fields={"u": ("u",)})
    x, t = np.sort(np.append(RNG.uniform(0, 1, 30), [0.0, 1.0])), 0.1 * np.arange(60)
    np.savez(tmp_path / "a.npz", u=np.sin(2 * np.pi * (x - 0.05 * t[:, None])), x=x, t=t)
    path, remarks = import_data([tmp_path / "a.npz"], task, tmp_path / "out", lambda _: None, resample=True)
    assert "train 1, valid 1, test 1" in remarks
    assert any("cut in time" in words for words in remarks)
    with open_source(path, TASKS) as source:
        times = [source.times_of(i) for i in range(3)]
        assert [len(each) for each in times] == [48, 6, 6]
        assert [name.partition("/")[0] for name in source.ids] == ["train", "valid", "test"]
        np.testing.assert_allclose(np.concatenate(times), t, rtol=1e-6)
    entry = DataConfig.model_validate({"file": str(path)})
    with ExitStack() as stack:
        (waves,) = open_sets({"a": entry}, tmp_path, lambda _: None, stack)
        assert [len(waves.first.split.part(part)) for part in ("train", "valid", "test")] == [1, 1, 1]
    np.savez(tmp_path / "b.npz", u=np.sin(x + t[:8, None]), x=np.arange(32.0), t=t[:8])
    with pytest.raises(DataError, match="1 trajectory of 8 frames can be divided neither"):
        import_data([tmp_path / "b.npz"], task, tmp_path / "other", lambda _: None)


def test_that_nothing_carries_states_along_is_kept_though_the_equation_says_otherwise(tmp_path: Path) -> None:
    np.savez(tmp_path / "u.npz", u=RNG.standard_normal((4, 5, 16)), beta=np.arange(4.0))
    said = {"equation": "advection1d", "dims": ["sample", "time", "x"], "fields": {"u": ["u"]}, "periodic": ["x"]}
    for name, more, kept in (("as_known", {}, ("beta",)), ("not_so", {"advected_by": []}, ())):
        (tmp_path / "t.yaml").write_text(yaml.safe_dump({"name": name, **said, **more}))
        assert run("data", "import", tmp_path / "u.npz", "--task", tmp_path / "t.yaml", "--out", tmp_path) == 0
        with open_source(tmp_path / name, TASKS) as source:
            assert source.task.dynamics.advected_by == kept
        again = Definition.from_plain(definition_from(str(tmp_path / "t.yaml")).plain())
        assert again.advected_by == (() if more else None)
