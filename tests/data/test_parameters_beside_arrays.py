"""Parameters that are stored beside arrays: attributes, arrays called like an axis, and what contradicts the times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import netcdf_file

import ups
from ups.data import Source, open_source, open_together, renamed
from ups.data.splits import given_split
from ups.definition import Definition
from ups.jobs.inspect import describe
from ups.physics import TASKS
from ups.types import ConfigError, DataError

ONE = Definition("flow", dims=("time", "x"), fields={"u": ("u",)})
MANY = Definition("flow", dims=("sample", "time", "x"), fields={"u": ("u",)})
ALIASES = ("c", "n", "b", "t", "x", "batch", "component", "sample", "B", "N", "T", "X")
U = np.random.default_rng(0).random((4, 3, 8))
T = np.arange(3.0)


def opened(path: Path, task: Definition, **arrays: Any) -> Source:
    np.savez(path / "a.npz", **arrays)
    return open_source(path / "a.npz", TASKS, task)


def file_with(path: Path, **attributes: Any) -> Any:
    file = h5py.File(path, "w")
    file["u"], file["t"] = U[0], T
    file.attrs.update(attributes)
    return file


def classic(path: Path, **attributes: Any) -> None:
    with netcdf_file(path, "w") as file:
        for name, n in (("time", 3), ("x", 8)):
            file.createDimension(name, n)
        file.createVariable("u", "f8", ("time", "x"))[:] = U[0]
        for name, value in attributes.items():
            setattr(file, name, value)


def zarr_store(path: Path, **attributes: Any) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path), mode="w")
    group.attrs.update(attributes)
    array = group.create_array("u", shape=(3, 8), dtype="f8")
    array[:] = U[0]
    array.attrs["_ARRAY_DIMENSIONS"] = ["time", "x"]


def test_a_number_among_the_attributes_of_a_trajectory_is_a_parameter_unless_it_tells_trajectories_apart(
    tmp_path: Path,
) -> None:
    own = [name for name in ALIASES if name != "sample"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(8.0)
        for i in range(2):
            group = file.create_group(f"traj_{i}")
            group["u"], group["time"] = U[i], T
            group.attrs.update({name: i + k for k, name in enumerate(ALIASES)})
            group.attrs.update({"seed": i, "u": 3.0})
            group.create_group("made/by").attrs["gamma"] = 0.5
            group.create_group("made/from").attrs["gamma"] = 0.5 + i
    with open_source(tmp_path / "a.h5", TASKS, ONE) as source:
        assert source.params_of(1) == {**{name: 1.0 + ALIASES.index(name) for name in own}, "gamma": 0.5}
        for words in (
            "not used (sample, seed), for they tell runs apart; `datasets: {sample: sample}`",
            "attribute u is not used: an array is called so",
            "attribute made/from/gamma is not used: made/by/gamma is called so too, with another value",
        ):
            assert any(words in note for note in source.notes), (words, source.notes)
        assert (source.grid.coordinates[0][7], source.times.tolist()) == (7.0, [0.0, 1.0, 2.0])
    datasets = {"speed": "c", "rate": "made/by/gamma", "seed": "seed"}
    speed = Definition(**{**vars(ONE), "datasets": datasets, "ignore": ["b", "made/from/gamma", "none"]})
    with open_source(tmp_path / "a.h5", TASKS, speed) as source:
        params = source.params_of(1)
        assert (params["speed"], params["rate"], params["seed"]) == (1.0, 0.5, 1.0)
        assert not {"c", "gamma", "b"} & set(params)
        assert "nothing is called none, which the task ignores" in source.notes
    no_axis = Definition(**{**vars(ONE), "datasets": {"x": "c"}})
    with pytest.raises(DataError, match="has no array 'c', where the task looks for x"):
        open_source(tmp_path / "a.h5", TASKS, no_axis)


@pytest.mark.parametrize("suffix", ["h5", "nc", "zarr"])
def test_numbers_of_whole_files_are_parameters_where_they_differ_or_are_asked_for_and_else_noted(
    tmp_path: Path, suffix: str
) -> None:
    whole = {"g": 9.75, "_hidden": 1, "format_version": 2, "who": "me"}
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(3):
        attributes = {"c": 1.0 + i, **whole, **({"partly": 5.0 * i} if i else {}), "seed": 7 * i}
        path = folder / f"{i}.{suffix}"
        if suffix == "h5":
            file_with(path, **attributes).close()
        else:
            (classic if suffix == "nc" else zarr_store)(path, **attributes)
    task = ONE if suffix == "h5" else Definition("flow")
    with open_source(folder, TASKS, task) as source:
        assert [source.params_of(i) for i in range(3)] == [{"c": 1.0 + i} for i in range(3)]
        assert [p.name for p in source.task.parameters] == ["c"]
        notes = "\n".join(source.all_notes)
        for words in (
            "(seed), for it tells runs apart; `datasets: {seed: seed}` in the task makes seed a parameter",
            "(partly), for not all files have it",
            "(g), for it is the same in all files or tells runs apart; `datasets: {g: g}` in the task",
        ):
            assert f"numbers among the attributes are not used {words}" in notes
        assert "of the numbers among the attributes c is a parameter; `ignore: [c]` in the task leaves it out" in notes
        assert not any(word in notes for word in ("_hidden", "version", "who", "(c)", "partly: partly"))
        with open_source(folder / f"1.{suffix}", TASKS, task) as lone:
            assert (
                "not used (c, g, partly, seed), for they are the same in all files or tell runs apart; `datasets: {c:"
                in lone.all_notes[-1]
            )
            assert lone.params_of(0) == {}
            assert renamed(lone, source.task).params_of(0) == {"c": 2.0}, "as it is put to what was trained on all"
    with open_source(folder, TASKS, Definition(**{**vars(task), "ignore": ("c", "g", "seed")})) as source:
        assert source.params_of(2) == {}
        assert [note for note in source.all_notes if "attributes" in note] == [
            "numbers among the attributes are not used (partly), for not all files have it"
        ]
    asked = Definition(**{**vars(task), "datasets": {"gravity": "g"}})
    with open_source(folder / f"1.{suffix}", TASKS, asked) as source:
        assert source.params_of(0) == {"gravity": 9.75}
    with open_source(folder / f"1.{suffix}", TASKS, Definition(**{**vars(task), "parameters": {"g": 1.0}})) as source:
        assert source.params_of(0) == {"g": 1.0}
        assert "(c, partly, seed)" in source.all_notes[-1]


def test_numbers_of_a_group_beside_hold_for_the_file_and_those_of_a_data_set_are_noted(tmp_path: Path) -> None:
    for i in range(2):
        with file_with(tmp_path / f"{i}.h5") as file:
            file.create_group("params").attrs["nu"] = 0.1 * i
            file["u"].attrs.update({"rho": 1.0, "scale_factor": 1.0, "units": "m"})
    with open_source(tmp_path, TASKS, ONE) as source:
        assert [source.params_of(i) for i in range(2)] == [{"nu": 0.0}, {"nu": 0.1}]
        note, _ = [note for note in source.notes if "attributes" in note]
        assert note.startswith("numbers among the attributes of u are not used (rho); to be parameters, write them as")
    with open_source(tmp_path / "1.h5", TASKS, Definition(**{**vars(ONE), "datasets": {"nu": "params/nu"}})) as source:
        assert source.params_of(0) == {"nu": 0.1}


def test_a_parameter_of_the_equation_is_taken_from_the_attributes_of_a_file(tmp_path: Path) -> None:
    file_with(tmp_path / "a.h5", nu=0.25).close()
    task = Definition(**{**vars(ONE), "equation": "burgers1d", "datasets": {"u": "u"}})
    with open_source(tmp_path / "a.h5", TASKS, task) as source:
        assert source.params_of(0)["nu"] == 0.25
        assert not any("attributes" in note for note in source.notes)


@pytest.mark.parametrize("name", [*ALIASES, "time"])
@pytest.mark.parametrize("values", [2.5, [1.0, 3.0, 2.0, 5.0]])
def test_what_stands_under_params_is_a_parameter_whatever_it_is_called(name: str, values: Any) -> None:
    data = ups.Data(U, ["sample", "time", "x"], {"t": T, "x": np.arange(8.0)}, {name: values})
    assert [data.source().params_of(i)[name] for i in range(4)] == np.broadcast_to(values, 4).tolist()
    assert data.source().times.tolist() == T.tolist()


@pytest.mark.parametrize("name", ["sample", "trajectory", "batch"])
@pytest.mark.parametrize("values", [[12, 40, 7, 3], [0, 0, 1, 1], ["a", "b", "a", "c"], 3])
def test_whole_numbers_and_words_called_samples_by_a_whole_word_name_them(
    tmp_path: Path, name: str, values: Any
) -> None:
    source = opened(tmp_path, MANY, u=U, t=T, **{name: values})
    assert source.params_of(1) == {}
    assert f"array {name} (" in source.notes[0]
    assert "numbers the samples and is no parameter" in source.notes[0]


def test_what_the_user_gives_twice_is_refused_and_what_a_file_ignores_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="k is among the arrays and under params; give it once"):
        ups.Data({"u": U, "k": np.arange(4)}, ["sample", "time", "x"], params={"k": [5, 6, 7, 8]}).source()
    assert opened(tmp_path, MANY, u=U, t=T, k=np.arange(4.0)).params_of(1) == {"k": 1.0}
    without = Definition(**{**vars(MANY), "ignore": ["k"]})
    with open_source(tmp_path / "a.npz", TASKS, without) as source:
        assert (source.params_of(1), any("k" in note.split() for note in source.notes)) == ({}, False)


@pytest.mark.parametrize("name", ["b", "B", "n", "N"])
def test_an_array_called_like_samples_is_a_parameter_unless_it_counts_them(tmp_path: Path, name: str) -> None:
    values = [0.5, 0.25, 2.0, 1.0]
    assert opened(tmp_path, MANY, u=U, t=T, **{name: values}).params_of(1) == {name: 0.25}
    for value in (1.5, 2.0, "wall"):
        assert opened(tmp_path, MANY, u=U, t=T, **{name: value}).params_of(1) == {name: value}
    assert opened(tmp_path, MANY, u=U, t=T, **{name: [True, False, True, False]}).params_of(1) == {name: 0.0}
    counted = opened(tmp_path, MANY, u=U, t=T, **{name: np.arange(4), "sample": 3})
    assert counted.params_of(1) == {}
    assert (
        f"array {name} (4) numbers the samples and is no parameter; `datasets: {{OTHER: {name}}}`" in counted.notes[0]
    )
    named = open_source(tmp_path / "a.npz", TASKS, Definition(**{**vars(MANY), "datasets": {"mode": name}}))
    assert named.params_of(1) == {"mode": 1.0}


def test_a_temperature_beside_the_times_is_a_parameter_and_one_that_may_be_the_times_is_asked_about(
    tmp_path: Path,
) -> None:
    kelvin = np.array([300.0, 280.0, 310.0, 290.0])
    for times in ("t", "time"):
        assert opened(tmp_path, MANY, u=U, T=kelvin, **{times: T}).params_of(1) == {"T": 280.0}
        assert opened(tmp_path, MANY, u=U, T=300.0, **{times: T}).params_of(1) == {"T": 300.0}
        both = opened(tmp_path, MANY, u=U, T=kelvin[:3], **{times: T})
        assert (both.times.tolist(), "array T (3) is not used" in both.notes[0]) == (T.tolist(), True)
    square = {"u": U[:3], "T": np.array([281.0, 282.0, 290.0])}
    with pytest.raises(DataError, match=r"T \(3\) could be the times or a parameter of each sample, .*\{time: T\}"):
        opened(tmp_path, MANY, **square)
    for datasets, times, params in (({"time": "T"}, [281, 282, 290], {}), ({"kelvin": "T"}, T, {"kelvin": 281.0})):
        source = open_source(tmp_path / "a.npz", TASKS, Definition(**{**vars(MANY), "datasets": datasets}))
        assert (source.times.tolist(), source.params_of(0)) == (list(times), params)
    assert "is read as the times, but could be a parameter" in opened(tmp_path, MANY, u=U[:3], T=T).notes[0]
    assert not any("T (" in note for note in opened(tmp_path, MANY, u=U, T=T).notes)
    with pytest.raises(DataError, match=r"T \(3\) could be the times or a parameter of each sample"):
        ups.Data(square, ["sample", "time", "x"]).source()
    with h5py.File(tmp_path / "dates.h5", "w") as file:
        file["u"], file["T"] = U[:3], [b"2020-01-01", b"2020-01-02", b"2020-01-03"]
    with open_source(tmp_path / "dates.h5", TASKS, MANY) as source:
        assert np.diff(source.times).tolist() == [1.0, 1.0]


def test_axes_in_another_order_are_offered_where_times_or_coordinates_fit_these(tmp_path: Path) -> None:
    for wrong, arrays in ((("time", "sample", "x"), {"t": T}), (("x", "time", "sample"), {"x": np.arange(8.0)})):
        task = Definition("flow", dims=wrong, fields={"u": ("u",)})
        with pytest.raises(
            DataError, match=r"in another order, say `dims: \[sample, time, x\]`, which fits; else give"
        ):
            opened(tmp_path, task, u=U, **arrays)


def test_data_without_an_axis_of_space_are_said_not_to_be_learnt(tmp_path: Path) -> None:
    task = Definition("ode", dims=("sample", "time"), fields={"u": ("u",)})
    with pytest.raises(
        DataError, match=r"names no axis of space, .* ordinary differential equations, cannot be learnt"
    ):
        opened(tmp_path, task, u=U[..., 0])
    with pytest.raises(ConfigError, match=r"names no axis of space, .* cannot be learnt by ups"):
        ups.Data(U[..., 0], ["sample", "time"]).source()
    opened(tmp_path, MANY, u=U[..., :1], t=T)
    assert "PROBLEM: there is one cell alone, and data without an extent in space" in describe(tmp_path / "a.npz", MANY)


def test_a_dt_that_contradicts_the_times_is_noted_and_never_a_parameter(tmp_path: Path) -> None:
    apart = "but the stored times are otherwise apart, and they hold"
    for dt in (0.1, [0.1, 1.0, 1.0, 1.0]):
        source = opened(tmp_path, MANY, u=U, t=T, dt=dt)
        assert (source.params_of(0), f"a dt is stored, {apart}" in source.notes) == ({}, True)
    source = opened(tmp_path, MANY, u=U, t=T.astype("f4"), dt=1.0)
    assert (source.params_of(0), any("dt" in note for note in source.notes)) == ({}, False)
    said = Definition(**{**vars(MANY), "dt": 0.1})
    assert f"the task says dt = 0.1, {apart}" in opened(tmp_path, said, u=U, t=T).notes
    assert "\ndt: 0.1" not in describe(tmp_path / "a.npz", said)
    source = opened(tmp_path, said, u=U, dt=1.0)
    assert (source.times[1], "another dt is stored than the task says" in source.notes[-1]) == (0.1, True)
    assert "\ndt: 0.1" in describe(tmp_path / "a.npz", said)
    with file_with(tmp_path / "a.h5", dt=0.5) as file:
        del file["t"]
    with open_source(tmp_path / "a.h5", TASKS, ONE) as source:
        assert source.times.tolist() == [0.0, 0.5, 1.0]
        assert any("frames are taken to be 0.5 apart, as the attribute dt says" in note for note in source.notes)


def test_a_split_in_time_of_too_few_frames_says_so() -> None:
    split = given_split(["a@train"], {"a@train": "train"}, "in time", (0.7, 0.15, 0.15))
    with pytest.raises(DataError, match=r"valid part .* is empty: there are too few frames for a share of 0\.15; give"):
        split.part("valid")


def test_a_number_that_is_a_parameter_of_one_file_is_taken_from_the_attributes_of_another(tmp_path: Path) -> None:
    file_with(tmp_path / "a.h5", nu=0.5).close()
    with file_with(tmp_path / "b.h5") as file:
        file["nu"] = 0.25
    for first, second in ("ab", "ba"):
        paths = [tmp_path / f"{name}.h5" for name in (first, second)]
        with open_together(tmp_path, paths, TASKS, ONE) as source:
            assert {source.ids[i]: source.params_of(i)["nu"] for i in range(2)} == {"a/000000": 0.5, "b/000000": 0.25}
            assert not source.problems
            assert not any("not used" in note for note in source.all_notes)


def test_a_parameter_that_the_task_replaces_is_said_and_a_problem_where_samples_then_look_alike(tmp_path: Path) -> None:
    given = Definition(**{**vars(MANY), "parameters": {"k": 3.0}})
    with opened(tmp_path, given, u=U, t=T, k=np.arange(4.0)) as source:
        (problem,) = source.problems
        assert problem.startswith("k has 4 values in the files and is 3.0 in the task, so that samples look alike")
    with opened(tmp_path, given, u=U, t=T, k=2.0) as source:
        assert (source.problems, source.params_of(0)) == ((), {"k": 3.0})
        assert "k is 3.0, as the task says, and 2.0 in the files" in source.notes
    with opened(tmp_path, given, u=U, t=T, k=3.0) as source:
        assert not any("task says" in note for note in source.notes)


def test_a_value_that_is_rounded_otherwise_is_the_same_and_a_label_of_nan_contradicts_nothing(tmp_path: Path) -> None:
    for i, value in enumerate((np.float32(0.1), np.float64(0.1))):
        file_with(tmp_path / f"{i}.h5", nu=value).close()
    given = Definition(**{**vars(ONE), "parameters": {"nu": 0.1}})
    with open_source(tmp_path, TASKS, given) as source:
        assert not source.problems
        assert not any("nu" in note for note in source.notes if "task says" in note)
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        for i in range(2):
            file[f"run_{i}/u"] = U[i]
            file[f"run_{i}"].attrs["seed"] = np.nan
    with open_source(tmp_path / "labels.h5", TASKS, ONE) as source:
        assert not any("seed" in note for note in source.all_notes)


def test_times_of_complex_numbers_are_refused_as_such(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["t"] = U[0], np.zeros(3, [("real", "f8"), ("imag", "f8")])
    with pytest.raises(DataError, match=r"t \(3\) is complex"):
        open_source(tmp_path / "a.h5", TASKS, ONE)
