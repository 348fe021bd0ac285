"""Files put to a simulator: read as those of training were where that fits, by what they say where not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ups.config import load
from ups.data import Source, open_source
from ups.data.splits import make_split
from ups.data.write_well import write_file
from ups.definition import Definition
from ups.jobs.evaluate import _ends
from ups.jobs.rollout import _steps, rollout
from ups.models import Simulator, build
from ups.physics import TASKS
from ups.run.config import run_config
from ups.run.data.data_config import DataConfig
from ups.run.data.datasets import DataEntry, DataSet, aligned
from ups.run.data.fitting import definitions_of, each_spaced, fitting, open_for
from ups.types import ConfigError, DataError

RNG = np.random.default_rng(3)
U = RNG.standard_normal((4, 6, 16)).astype("f4")
REN = Definition(
    "ren",
    dims=("sample", "time", "x"),
    fields={"a": ("a",)},
    datasets={"a": "sol/weird", "x": "g/xx", "time": "clock"},
    periodic=("x",),
)
CHAIN = Definition("chain", dims=("time", "x", "channel"), fields={"th": ("theta",), "w": ("omega",)}, dt=0.1)


def renamed_file(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["sol/weird"], file["other"] = U, np.zeros_like(U)
        file["g/xx"], file["clock"] = (np.arange(16) + 0.5) / 8, 0.25 * np.arange(6)
    return path


def trained(path: Path, *definitions: Definition, kept: bool = True) -> Simulator:
    """A simulator as one that was trained on a file by the first definition; the others are of further tasks."""
    specs = []
    for definition in definitions:
        with open_source(path, TASKS, definition) as source:
            specs.append(dataclasses.replace(source.task, name=definition.name))
    simulator = build(specs)
    for spec in specs:
        simulator.fit_dt(spec, 0.25, 0.25)
    simulator.provenance = {"definitions": [d.plain() for d in definitions]} if kept else {}
    return simulator


def opened(simulator: Simulator, path: Path, task: str | None = None) -> tuple[Any, list[str]]:
    said: list[str] = []
    return open_for(simulator, path, task, definitions_of(path, simulator), said.append), said


@pytest.mark.parametrize("task", [None, "ren"])
def test_a_file_is_read_by_the_datasets_dims_and_boundary_that_training_was_told(
    tmp_path: Path, task: str | None
) -> None:
    path = renamed_file(tmp_path / "r.h5")
    source, said = opened(trained(path, REN), path, task)
    assert np.array_equal(source[3].values[..., 0], U[3])
    assert (source.times[1], source.grid.bounds, source.grid.periodic) == (0.25, ((0.0, 2.0),), (True,))
    assert said == []


def test_dt_of_training_holds_for_files_without_times(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", RNG.standard_normal((7, 16, 2)))
    source, said = opened(trained(tmp_path / "c.npy", CHAIN), tmp_path / "c.npy")
    assert (len(source), source.times.tolist(), said) == (1, pytest.approx([0.1 * i for i in range(7)]), [])


def test_a_file_of_another_layout_is_read_by_what_it_says_and_that_is_said(tmp_path: Path) -> None:
    simulator = trained(renamed_file(tmp_path / "r.h5"), REN)
    np.savez(tmp_path / "plain.npz", a=U, t=0.5 * np.arange(6))
    source, said = opened(simulator, tmp_path / "plain.npz")
    assert np.array_equal(source[1].values[..., 0], U[1])
    assert source.times[1] == 0.5
    assert "is not laid out as the files of training were (has no array 'sol/weird'" in said[0]
    assert len(said) == 1


def test_arrays_of_other_axes_than_those_of_training_are_read_in_the_usual_order_with_its_dt(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", RNG.standard_normal((7, 16, 2)))
    many = RNG.standard_normal((3, 7, 16, 2))
    np.save(tmp_path / "many.npy", many)
    source, said = opened(trained(tmp_path / "c.npy", CHAIN), tmp_path / "many.npy")
    assert np.array_equal(source[2].values, many[2])
    assert source.times[1] == pytest.approx(0.1)
    assert "does not have the axes time, x, channel" in said[0]
    assert "read as [sample, time, x, channel] of chain; --task my.yaml says otherwise" in said[1]
    np.save(tmp_path / "none.npy", RNG.standard_normal(7))
    with pytest.raises(DataError, match="does not have the axes time, x, channel"):
        opened(trained(tmp_path / "c.npy", CHAIN), tmp_path / "none.npy")


def test_a_task_in_a_file_stands_above_what_training_was_told(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    (tmp_path / "my.yaml").write_text("name: ren\ndims: [sample, time, x]\nfields: {a: [a]}\ndatasets: {a: other}\n")
    source, said = opened(trained(path, REN), path, str(tmp_path / "my.yaml"))
    assert (float(np.abs(source[0].values).max()), said) == (0.0, [])


def test_a_file_that_describes_itself_speaks_for_itself(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    with open_source(path, TASKS, dataclasses.replace(REN, periodic=())) as source:
        write_file(source, tmp_path / "well.h5", "ren")
    source, said = opened(trained(path, REN), tmp_path / "well.h5")
    assert np.allclose(source[2].values[..., 0], U[2])
    assert (source.grid.periodic, source.times[1], said) == ((False,), 0.25, [])


def test_without_what_training_was_told_a_guess_is_said(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    source, said = opened(trained(path, REN, kept=False), path)
    assert float(np.abs(source[0].values).max()) == 0.0
    assert "read as [sample, time, x, channel] of ren" in said[0]
    assert any("array other (4 × 6 × 16) is taken to hold a" in sentence for sentence in said)


def test_parameters_and_the_box_of_a_file_hold_where_it_says_them(tmp_path: Path) -> None:
    task = Definition(
        "heat", dims=("time", "x"), fields={"u": ("u",)}, parameters={"nu": 0.1, "k": 2.0}, bounds={"x": (0.0, 1.0)}
    )
    np.savez(tmp_path / "a.npz", u=U[0])
    simulator = trained(tmp_path / "a.npz", task)
    source, said = opened(simulator, tmp_path / "a.npz")
    assert (source.params_of(0), source.grid.bounds, said) == ({"nu": 0.1, "k": 2.0}, ((0.0, 1.0),), [])
    np.savez(tmp_path / "b.npz", u=U[0], x=10 * (np.arange(16) + 0.5) / 16, nu=0.3)
    source, said = opened(simulator, tmp_path / "b.npz")
    assert (source.params_of(0), source.grid.bounds) == ({"nu": 0.3, "k": 2.0}, ((0.0, 10.0),))
    assert said == [f"{tmp_path / 'b.npz'}: its nu is 0.3, and the files of training were read with 0.1."]
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["u"], file.attrs["nu"] = U[0], 0.5
    source, said = opened(simulator, tmp_path / "c.h5")
    assert fitting(simulator, source, {}, 0).params_of(0) == {"nu": 0.5, "k": 2.0}
    assert said == [f"{tmp_path / 'c.h5'}: its nu is 0.5, and the files of training were read with 0.1."]
    assert _ends(("x", "y"), ((0.0, 10.0), (-1.0, 0.5))) == "x from 0 to 10, y from -1 to 0.5"


@pytest.mark.parametrize(("task", "name"), [("one", "one"), ("two", "two"), (None, "")])
def test_of_several_tasks_that_fit_the_user_chooses(tmp_path: Path, task: str | None, name: str) -> None:
    np.savez(tmp_path / "a.npz", u=U[0])
    tasks = [Definition(each, dims=("time", "x"), fields={"u": ("u",)}) for each in ("one", "two")]
    simulator = trained(tmp_path / "a.npz", *tasks)
    if task is None:
        with pytest.raises(ConfigError, match="could hold one or two; say which with --task"):
            opened(simulator, tmp_path / "a.npz")
    else:
        assert opened(simulator, tmp_path / "a.npz", task)[0].task.name == name


def test_a_task_whose_arrays_have_their_names_in_a_file_goes_before_one_that_would_take_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", u=U[0])
    tasks = [Definition(each, dims=("time", "x"), fields={each: (each,)}) for each in ("a", "u")]
    simulator = trained(tmp_path / "a.npz", *tasks)
    source, said = opened(simulator, tmp_path / "a.npz")
    assert (source.task.name, said) == ("u", [])
    source, said = opened(simulator, tmp_path / "a.npz", "a")
    assert (source.task.name, said) == ("a", [f"{tmp_path / 'a.npz'}: array u (6 × 16) is taken to hold a."])


def test_definitions_come_from_the_simulator_and_keep_what_holds_for_all_files_of_a_task(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    text = (
        "data:\n  a: {file: r.h5, params: {nu: 0.1, k: 1.0}, task: TASK}\n  b: {file: s.h5, params: {nu: 0.2, k: 1.0}"
    )
    whole = str({key: value for key, value in REN.plain().items() if key != "name"})
    (tmp_path / "config.yaml").write_text(f"{text}, task: TASK}}\n".replace("TASK", whole))
    config = load(run_config(), tmp_path / "config.yaml")
    assert len(config.definitions) == 2
    common = dataclasses.replace(REN, parameters={"k": 1.0})  # nu differs from entry to entry

    def known(kept: Sequence[Any]) -> tuple[Definition, ...]:
        simulator = trained(path, REN, kept=False)
        simulator.provenance = {"definitions": kept}
        return definitions_of(tmp_path, simulator)

    assert known(config.definitions) == (common, common)
    with pytest.raises(DataError, match="what its simulator says of the files of training is damaged"):
        known([3])


def test_a_rollout_of_a_simulator_alone_continues_the_array_of_training_and_says_each_thing_once(
    tmp_path: Path,
) -> None:
    path = renamed_file(tmp_path / "r.h5")
    with h5py.File(path, "r+") as file:  # steps of four lengths
        del file["clock"]
        file["clock"], file["nu"] = np.outer([0.1, 0.2, 0.3, 0.4], np.arange(6)), np.full(4, 9.0)
    simulator = trained(path, REN)
    simulator.operator.fit_ranges("ren", torch.zeros(1), torch.ones(1))
    simulator.fit_dt(simulator.tasks[0], 0.1, 0.5)
    saved = simulator.save(tmp_path / "simulator.safetensors")
    said: list[str] = []
    out = rollout(saved, path, 2, tmp_path / "o.h5", 4, None, say=said.append)
    with h5py.File(out) as file:
        assert np.allclose(file["t0_fields/a"][:, 0], U[:, 0], atol=1e-6)
    assert [sentence for sentence in said if "nu = 9 lies outside" in sentence] == said
    assert len(said) == 1


def test_a_rollout_writes_nan_into_cells_that_do_not_count_of_given_and_predicted_frames_and_of_inputs(
    tmp_path: Path,
) -> None:
    values, force = U.copy(), RNG.standard_normal((4, 16)).astype("f4")
    values[..., 10:], force[:, 10:] = np.nan, np.nan
    np.savez(tmp_path / "h.npz", a=values, f=force, t=0.25 * np.arange(6))
    held = Definition("held", dims=("sample", "time", "x"), fields={"a": ("a",)}, inputs={"f": ("f",)})
    simulator = trained(tmp_path / "h.npz", held)
    saved = simulator.save(tmp_path / "simulator.safetensors")
    out = rollout(saved, tmp_path / "h.npz", 3, tmp_path / "o.h5", 4, None)
    with open_source(tmp_path / "h.npz", TASKS, held) as given, open_source(out, TASKS) as source:
        assert source.task.mask == given.task.mask == "mask"
        for ours, theirs in zip(source, given, strict=True):
            assert np.array_equal(ours.inputs, theirs.inputs, equal_nan=True)
            assert (np.isnan(ours.values) == np.isnan(theirs.values[:4])).all()
            assert np.array_equal(ours.values[0], theirs.values[0], equal_nan=True)


def test_an_axis_of_unequal_cells_is_refused_by_a_simulator_as_by_a_run(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    simulator = trained(path, REN)
    with h5py.File(path, "r+") as file:
        file["g/xx"][:] = file["g/xx"][:] ** 2
    source, _ = opened(simulator, path)
    with pytest.raises(DataError, match=r"r\.h5: the cells along x are not equally wide; resample the data with `ups"):
        fitting(simulator, source, {}, 0)


def test_a_rollout_without_room_on_the_disk_is_refused_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = renamed_file(tmp_path / "r.h5")
    saved = trained(path, REN).save(tmp_path / "simulator.safetensors")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**6))
    monkeypatch.setattr(Simulator, "answer", lambda *_: pytest.fail("computed first"))
    with pytest.raises(DataError, match=r"has 0\.001 GB free, but the data need 0\.025\d+ GB; make room"):
        rollout(saved, path, 10**5, tmp_path / "o.h5", 4, None)


def test_a_parameter_of_a_file_that_the_simulator_does_not_know_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    simulator, said = trained(path, REN), list[str]()
    with h5py.File(path, "r+") as file:
        file["nu"] = np.arange(4.0)
    source, _ = opened(simulator, path)
    assert fitting(simulator, source, {}, 0, said.append).task.parameters == ()
    assert said == [f"{path}: its nu is not used, for the simulator was trained without it."]


def test_nan_in_the_first_frame_of_a_sample_is_named_where_the_simulator_knows_no_mask(tmp_path: Path) -> None:
    path = renamed_file(tmp_path / "r.h5")
    simulator = trained(path, REN)
    with h5py.File(path, "r+") as file:
        file["sol/weird"][2, 0, 3] = np.nan
    source, _ = opened(simulator, path)
    with pytest.raises(DataError, match=r"1 of 16 cells of sample 000002 do not count \(NaN in its first frame"):
        fitting(simulator, source, {}, 0)


def test_a_rollout_of_a_file_with_uneven_times_takes_its_steps_and_says_where_it_cannot(tmp_path: Path) -> None:
    path, clock = renamed_file(tmp_path / "r.h5"), np.array([0, 0.25, 0.75, 0.9, 1.3, 1.5])
    with h5py.File(path, "r+") as file:
        file["clock"][:] = clock
    simulator = trained(path, REN)
    simulator.fit_dt("ren", 0.1, 0.5)
    saved, said = simulator.save(tmp_path / "simulator.safetensors"), list[str]()
    for steps, times in ((5, clock), (6, 0.25 * np.arange(7))):
        out = rollout(saved, path, steps, tmp_path / f"{steps}.h5", 2, None, say=said.append)
        with open_source(out, TASKS) as source:
            assert np.allclose(source.times, times, atol=1e-6)
    tells = [words.partition("not uniform; ")[2] for words in said if "uniform" in words]
    assert tells == [
        "the steps are those of the file.",
        "the steps are all as long as the first of a trajectory, for the file has not so many.",
    ]
    truth = simulator.rollout(U[0, 0, :, None], 5, dt=np.diff(clock))
    with open_source(tmp_path / "5.h5", TASKS) as source:
        assert np.allclose(source[0].values[1:], truth, atol=1e-5)


def test_each_trajectory_is_thinned_by_its_own_times_whatever_the_order(tmp_path: Path) -> None:
    steps = [0.1, 0.31, 0.3]  # of which the first is a third of the trained one
    for name, order in (("first", [0, 1, 2]), ("last", [1, 2, 0])):
        t = np.array([np.arange(9) * steps[i] for i in order])
        np.savez(tmp_path / f"{name}.npz", u=RNG.standard_normal((3, 9, 16)), time=t)
        words = Definition("w", dims=("sample", "time", "x"), fields={"u": ("u",)}, periodic=("x",))
        with open_source(tmp_path / f"{name}.npz", TASKS, words) as source:
            parts = each_spaced(source, source.ids, 0.3, None)
            ids = {part.reduction.time: {steps[order[row]] for row in part.rows} for part in parts}
            assert ids == {3: {0.1}, 1: {0.31, 0.3}}, name
            assert each_spaced(source, source.ids[:0], 0.3, None) == []


def test_steps_of_a_rollout_are_those_of_each_sample_or_the_nearest_trained_ones() -> None:
    def steps(context: int, *lone: bool) -> tuple[list[float], list[tuple[float, float]]]:
        lone = lone or (False,) * 4
        given = SimpleNamespace(dt=torch.tensor([0.25, 0.5, 0.125, 0.75]), context=torch.zeros(4, context, 16, 1))
        taken, apart = _steps(given, 0.25, 0.5, torch.tensor(lone))  # type: ignore[arg-type]
        return taken.tolist(), apart

    assert steps(1) == ([0.25, 0.5, 0.25, 0.5], [(0.125, 0.25), (0.75, 0.5)])
    assert steps(2) == ([0.25, 0.5, 0.125, 0.75], []), "several frames must be told how far apart they are"
    assert steps(1, False, True, True, True) == ([0.25] * 4, []), "a lone frame has no step of its own"


def test_a_rollout_continues_trajectories_of_other_steps_and_lone_frames_as_each_alone(tmp_path: Path) -> None:
    path, steps = renamed_file(tmp_path / "r.h5"), [0.1, 0.3, 0.1]
    simulator = trained(path, REN)
    simulator.fit_dt("ren", 0.3, 0.3)
    saved, said = simulator.save(tmp_path / "simulator.safetensors"), list[str]()
    x, times = (np.arange(16) + 0.5) / 8, np.array([np.arange(6) * dt for dt in steps])
    np.savez(tmp_path / "several.npz", a=U[:3], x=x, time=times)
    out = rollout(saved, tmp_path / "several.npz", 3, tmp_path / "several.h5", 3, None, say=said.append)
    with open_source(out, TASKS) as source:
        for row in range(3):
            alone = simulator.rollout(U[row, 0, :, None], 3, dt=0.3)
            assert np.allclose(source[row].values[1:], alone, atol=1e-5), "in the order of the file"
            assert np.allclose(source.times_of(row), 0.3 * np.arange(4), atol=1e-6)
    np.savez(tmp_path / "lone.npz", a=U[:2, :1], x=x)
    with open_source(rollout(saved, tmp_path / "lone.npz", 2, tmp_path / "lone.h5", 2, None), TASKS) as source:
        assert np.allclose(source.times, 0.3 * np.arange(3), atol=1e-6)


def test_a_file_with_its_axes_in_another_order_is_rolled_out_as_the_same_data_and_that_is_said(tmp_path: Path) -> None:
    x, y, t = (np.arange(8) + 0.5) / 8, (np.arange(12) + 0.5) / 4, 0.25 * np.arange(4)
    values = RNG.standard_normal((2, 4, 8, 12, 2))
    np.savez(tmp_path / "xy.npz", w=values, x=x, y=y, time=t)
    np.savez(tmp_path / "yx.npz", w=values.swapaxes(2, 3), x=x, y=y, time=t)
    simulator, said = trained(tmp_path / "xy.npz", flow("xy")), list[str]()
    saved = simulator.save(tmp_path / "simulator.safetensors")
    runs = [rollout(saved, tmp_path / "xy.npz", 3, tmp_path / "xy.h5", 2, None, say=said.append)]
    assert said == []
    simulator.provenance = {"definitions": [flow("yx").plain()]}
    saved = simulator.save(tmp_path / "other.safetensors")
    runs.append(rollout(saved, tmp_path / "yx.npz", 3, tmp_path / "yx.h5", 2, None, say=said.append))
    assert said == [f"{tmp_path / 'yx.npz'}: its axes are y, x, and are read as x, y, the order of the task"]
    with open_source(runs[0], TASKS) as first, open_source(runs[1], TASKS) as other:
        for i in range(2):
            np.testing.assert_array_equal(first[i].values, other[i].values)
    with open_source(tmp_path / "yx.npz", TASKS, flow("yx")) as source:
        whole = DataEntry(DataConfig(task="burgers1d"), source, make_split(source.ids, "seeded", (1.0, 0.0, 0.0)))
        said.clear()
        (again,) = aligned([DataSet(source.task, (whole,))], simulator.codec.tasks, said.append)
        assert again.task.axes[:2] == ("x", "y")
        np.testing.assert_array_equal(again.entries[0].source.read(1, slice(0, 4)), values[1])
        assert said == ["flow: its axes are y, x, and are read as x, y, the order of the task"]


def flow(axes: str) -> Definition:
    return Definition("flow", dims=("sample", "time", *axes, "channel"), fields={"w": ("u", "v")}, periodic=("x", "y"))


def test_nothing_that_was_opened_to_choose_a_reading_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made, closed = renamed_file(tmp_path / "a.h5"), list[Any](), list[int]()
    simulator = trained(path, REN, dataclasses.replace(REN, name="other"))
    monkeypatch.setattr("ups.run.data.fitting.open_source", lambda *args: made.append(open_source(*args)) or made[-1])
    monkeypatch.setattr(Source, "__exit__", lambda self, *_: closed.append(id(self)))
    opened(simulator, path, "ren")
    with pytest.raises(ConfigError, match="could hold ren or other"):
        opened(simulator, path)
    assert len(made) == 3, "by one definition, and by both"
    assert {id(each) for each in made} == {*closed}


def test_a_saved_simulator_keeps_the_order_of_fields_by_which_files_are_read(tmp_path: Path) -> None:
    task = Definition("sir", dims=("sample", "time", "x"), fields={"S": ("S",), "I": ("I",), "R": ("R",)})
    np.savez(tmp_path / "a.npz", S=U, I=2 * U, R=3 * U)
    saved = trained(tmp_path / "a.npz", task).save(tmp_path / "simulator.safetensors")
    source, said = opened(Simulator.load(saved), tmp_path / "a.npz")
    assert (source.task.channels, said) == (("S", "I", "R"), [])
    assert np.array_equal(source[1].values[..., 2], 3 * U[1])
