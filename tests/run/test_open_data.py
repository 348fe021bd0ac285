"""Data of other people: tasks that nobody here has named, many parameter values, several files, grids and lengths."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import numpy as np
import pytest
import torch
from scipy.io import netcdf_file

import ups
from ups.config import load
from ups.data import open_source
from ups.data.splits import PARTS
from ups.data.trajectories import alike
from ups.data.windows import whole
from ups.data.write_well import write_data_set
from ups.engine.preemption import Preempted
from ups.eval.results import Cost
from ups.eval.rollout import evaluate, protocol
from ups.jobs.fit import fit
from ups.jobs.inspect import record_split
from ups.jobs.rollout import rollout
from ups.models import CodecConfig, OperatorConfig, build
from ups.physics import EQUATIONS, TASKS
from ups.progress import Screen
from ups.run.check import check
from ups.run.config import RunConfig, run_config
from ups.run.data.datasets import DataSet, aligned, as_known, open_files, open_sets
from ups.run.data.divide import starts_of
from ups.run.judging.ancestors import seen_before
from ups.run.judging.eval_sets import EvalSet, Maker, by_length, by_parameters, exams, labels_of
from ups.run.judging.judge import Judge, predictor_of
from ups.run.judging.leaks import leaks
from ups.run.order import fit_stage
from ups.run.run import Run, run_alone
from ups.tensors import numeric_params
from ups.types import ConfigError, DataError, Dynamics

SCREEN = Screen.silent()
SMALL: dict[str, Any] = {
    "device": "cpu",
    "model.codec.dim": 16,
    "model.operator.width": 32,
    "model.operator.depth": 2,
    "model.operator.heads": 2,
    "model.operator.modes": 8,
    "codec.train.steps": 20,
    "operator.train.steps": 60,
    "codec.batch": 16,
    "operator.batch": 16,
}
# Of a run whose simulator nobody asks anything.
FEW = {"codec__train__steps": 2, "operator__train__steps": 4}


def config(folder: Path, data: dict[str, Any], **changes: Any) -> RunConfig:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return load(run_config(), None, {**SMALL, "out": str(folder / "runs"), "name": "run", "data": data, **dotted})


def sets_of(settings: RunConfig, folder: Path) -> list[DataSet]:
    return open_sets(settings.data, folder / "made", SCREEN.following, ExitStack())


def waves(cells: int, frames: int, speeds: np.ndarray, dt: float = 0.05) -> np.ndarray:
    """sin 2π(x − c t) of each speed, `(N, T, X)`."""
    x, t = (np.arange(cells) + 0.5) / cells, dt * np.arange(frames)
    phase = x - speeds[:, None, None] * t[:, None]
    return np.sin(2 * np.pi * (phase + 0.1 * np.arange(len(speeds))[:, None, None]))


def npz(path: Path, speeds: np.ndarray, cells: int = 16, frames: int = 8, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    x, t = (np.arange(cells) + 0.5) / cells, 0.05 * np.arange(frames)
    np.savez(path, values=waves(cells, frames, speeds)[..., None], x=x, t=t, speed=speeds, **more)
    return path


WAVES: dict[str, Any] = {
    "name": "wavelets",
    "dims": ["sample", "time", "x", "channel"],
    "fields": {"height": ["h"]},
    "periodic": ["x"],
    "conserved": ["h"],
    "datasets": {"speed": "speed"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on arrays of a task that nobody has named here, its speed another in every sample."""
    folder = tmp_path_factory.mktemp("waves")
    file = npz(folder / "a.npz", np.linspace(-1, 1, 24))
    settings = config(folder, {"w": {"file": str(file), "task": WAVES}}, operator__train__steps=200)
    run_alone(settings, SCREEN)
    return folder / "runs" / "run"


def test_a_new_task_is_trained_and_its_simulator_carries_the_definition(trained: Path) -> None:
    simulator = ups.load(trained)
    (task,) = simulator.tasks
    assert (task.name, task.channels, task.conserved, task.equation) == ("wavelets", ("h",), ("h",), "")
    low, high = simulator.ranges()["wavelets"]["speed"]
    assert (low, high) == pytest.approx((-1, 1), abs=0.2)
    truth = waves(16, 8, np.array([0.5]))[0]
    answer = simulator.rollout(truth[0], steps=3, params={"speed": 0.5})
    still = np.abs(truth[1:4] - truth[0]).mean()
    assert answer.shape == (3, 16)
    assert np.abs(answer - truth[1:4]).mean() < 0.5 * still, "it has learnt to move"
    np.testing.assert_allclose(answer.mean(-1), truth[0].mean(), atol=1e-6)


def test_told_a_wrong_parameter_the_error_rises(trained: Path, tmp_path: Path) -> None:
    simulator = ups.load(trained)
    file = npz(tmp_path / "b.npz", np.linspace(-0.9, 0.9, 8))
    with open_source(file, TASKS, ups.Definition(**WAVES)) as source:
        (part,) = alike(source, source.ids, load(run_config(), None, {"data.w.file": "x"}).data["w"].reduce)
        right = list(whole([part], 1))
        part.params = part.params.flip(0)
        wrong = list(whole([part], 1))
    asked, ours = protocol("A", 1), predictor_of(simulator, simulator.dt.device)
    assert evaluate(ours, wrong, asked).score > 2 * evaluate(ours, right, asked).score


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name", "values"),
    [("advection1d", "beta", (0.5, 4.0)), ("burgers1d", "nu", (0.01, 1.0)), ("reacdiff1d", "rho", (1.0, 10.0))],
)
def test_of_every_family_a_wrong_parameter_is_felt(
    tmp_path: Path, task: str, name: str, values: tuple[float, float]
) -> None:
    data = {"task": task, "samples": 24, "resolution": 32, "frames": 21, "params": {name: list(values)}}
    settings = config(tmp_path, {"d": {**data, "scheme": "accurate"}}, operator__train__steps=400)
    run_alone(settings, SCREEN)
    simulator = ups.load(tmp_path / "runs" / "run")
    (found,) = sets_of(settings, tmp_path)
    (part,) = found.parts("test")
    right = list(whole([part], 1))
    column = part.numbers.index(name)
    part.params[:, column] = sum(values) - part.params[:, column]
    asked, ours = protocol("A", 1), predictor_of(simulator, simulator.dt.device)
    assert evaluate(ours, whole([part], 1), asked).score > 1.5 * evaluate(ours, right, asked).score


def test_files_of_several_values_grids_and_lengths_are_one_task(tmp_path: Path) -> None:
    npz(tmp_path / "d" / "slow.npz", np.full(6, 0.2))
    npz(tmp_path / "d" / "fast.npz", np.full(6, 0.9), frames=11)
    npz(tmp_path / "d" / "fine" / "fast.npz", np.full(6, 0.9), cells=32)
    settings = config(tmp_path, {"w": {"file": str(tmp_path / "d"), "task": WAVES}}, **FEW)
    (outline,) = check(settings)
    assert (outline.shape, sum(outline.counts.values())) == ((32,), 18)
    (data,) = sets_of(settings, tmp_path)
    assert {part.shape: len(part) for part in data.parts("train")} == {(32,): 4, (16,): 8}
    assert data.values() == {"speed": pytest.approx((0.2, 0.9))}
    for part in ("train", "valid", "test"):
        assert {s for p in data.parts(part) for s in p.params.flatten().tolist()} == set(
            np.array([0.2, 0.9], np.float32).tolist()
        )
    alone = {
        exam.split: (exam.count, exam.part.shape, set(exam.part.params.flatten().tolist()))
        for exam in by_parameters(data, 1)
        if isinstance(exam, EvalSet)
    }
    slow, fast = np.array([0.2, 0.9], np.float32).tolist()
    assert alone == {
        "test, speed = 0.2": (1, (16,), {slow}),
        "test, speed = 0.9, 16 cells": (1, (16,), {fast}),
        "test, speed = 0.9, 32 cells": (1, (32,), {fast}),
    }
    folder, report = run_alone(settings, SCREEN)
    splits = {r.split for r in report.records if r.mode == "strict"}
    assert len(splits) == 3, "two lengths on one grid, and another grid"
    assert {len(e.evaluation.ids) for e in (report.tasks[0].ours, *report.tasks[0].beyond)} == {1}
    (drawn,) = {row.task: row.share for row in report.drawn if row.stage == "operator"}.values()
    assert drawn == 1.0, "one task, whatever its grids"
    assert folder.report.is_file()


def test_a_set_of_parameters_is_judged_once_and_one_that_ends_with_its_context_is_a_sentence(tmp_path: Path) -> None:
    for name, speed, frames in (("slow", 0.2, 11), ("too", 0.2, 11), ("fast", 0.9, 4)):
        npz(tmp_path / f"{name}.npz", np.full(6, speed) if name != "too" else np.full(8, speed), frames=frames)
    entries = {name: {"file": str(tmp_path / f"{name}.npz"), "task": WAVES} for name in ("slow", "too", "fast")}
    (data,) = sets_of(config(tmp_path, entries), tmp_path)
    alone, said = by_parameters(data, 5)
    assert isinstance(alone, EvalSet)
    assert (alone.split, alone.count, len(alone.more)) == ("test, speed = 0.2", 2, 1)
    assert said == "wavelets (test, speed = 0.9) could not be judged: no frame follows the 5 given."
    settings = config(tmp_path, {name: entries[name] for name in ("slow", "too")})
    (same,) = sets_of(settings, tmp_path)
    assert list(by_parameters(same, 1)) == [], "all have the same parameters"
    cost, device = Cost(seconds=90.0), torch.device("cpu")
    judge = Judge(settings, build([same.task], CodecConfig(dim=16), OperatorConfig()), cost, device, SCREEN)
    assert judge.seconds == 90, "two entries are one task"


def test_a_stage_is_shown_every_entry_and_grid_of_a_task_before_it_is_trained(tmp_path: Path) -> None:
    entries = {}
    for name, speed, cells in (("slow", 0.2, 16), ("fast", 0.9, 16), ("fine", 0.5, 32)):
        file = npz(tmp_path / f"{name}.npz", np.full(8, speed), cells=cells)
        entries[name] = {"file": str(file), "task": WAVES}
    settings, shown = config(tmp_path, entries), []
    stage = SimpleNamespace(name="operator", fit=lambda *windows, inherited: shown.append((windows, inherited)))
    fit_stage(cast(Any, stage), settings, sets_of(settings, tmp_path), torch.device("cpu"), ("wavelets",))
    ((windows, inherited),) = shown
    seen = {w.context.shape[2]: sorted({round(v, 1) for v in w.params.flatten().tolist()}) for w in windows}
    assert (seen, inherited) == ({16: [0.2, 0.9], 32: [0.5]}, ("wavelets",))


def test_sets_of_parameters_are_named_in_the_order_in_which_their_equation_has_them(tmp_path: Path) -> None:
    """By these names a table finds the row of each set."""
    sets = [{"eta": 0.1, "boundary": "periodic"}, {"eta": 0.01, "boundary": "trans"}]
    few = {"task": "cfd1d", "samples": 4, "resolution": 16, "frames": 3, "split": {"fractions": [0.5, 0.25, 0.25]}}
    entries = {f"e{i}": {**few, "params": params} for i, params in enumerate(sets)}
    (data,) = sets_of(config(tmp_path, entries), tmp_path)
    equations = [EQUATIONS["cfd1d"](**params) for params in sets]
    said = [exam.split for exam in by_parameters(data, 1) if isinstance(exam, EvalSet)]
    assert said == labels_of([equation.params() for equation in equations])


def test_new_trajectories_on_a_finer_grid_say_for_which_of_several_parameters_they_are(tmp_path: Path) -> None:
    few = {
        "task": "advection1d",
        "samples": 4,
        "resolution": 16,
        "frames": 3,
        "split": {"fractions": [0.5, 0.25, 0.25]},
    }
    said = {}
    for name, beta in (("one", 0.4), ("two", [0.4, 1.0])):
        settings = config(tmp_path, {"a": {**few, "params": {"beta": beta}}})
        with ExitStack() as stack:
            (data,) = open_sets(settings.data, tmp_path / name, SCREEN.following, stack)
            maker = Maker(settings, data, cast("Any", None), tmp_path / "beyond", SCREEN, stack)
            exam = maker.at_resolution((32,), "test", data.entries, samples=2)
            said[name] = exam.split, set(exam.part.params.flatten().tolist())
    assert said["one"] == ("new trajectories, 32 cells (zero-shot)", {np.float32(0.4)})
    assert said["two"] == ("new trajectories, beta = 0.4, 32 cells (zero-shot)", {np.float32(0.4)})


def test_finer_grids_are_judged_of_every_entry_of_a_task(tmp_path: Path) -> None:
    """Two entries whose files are fine enough, one of another length and a coarse one of which new ones are made."""
    few = {"task": "advection1d", "samples": 4, "frames": 3, "split": {"fractions": [0.5, 0.25, 0.25]}}
    fine = {**few, "resolution": 32, "reduce": {"space": 2}}
    data = {
        "a": {**fine, "params": {"beta": 0.4}},
        "b": {**fine, "params": {"beta": 1.0}, "frames": 5},
        "c": {**few, "resolution": 16, "params": {"beta": 0.7}},
    }
    settings = config(tmp_path, data, evaluation__zero_shot=[2, 4], evaluation__samples=4)
    with ExitStack() as stack:
        (known,) = open_sets(settings.data, tmp_path / "made", SCREEN.following, stack)
        found = list(exams(settings, known, cast("Any", None), tmp_path / "beyond", SCREEN, stack))
        speeds = {
            e.split: [round(p, 2) for part in (e.part, *e.more) for p in part.params.flatten().tolist()]
            for e in found
            if not isinstance(e, str)
        }
        assert speeds == {
            "test, 32 cells (zero-shot)": [0.4, 1.0],
            "new trajectories, beta = 0.7, 32 cells (zero-shot)": [0.7] * 4,
            "new trajectories, beta = 0.4 and beta = 1 and beta = 0.7, 64 cells (zero-shot)": [0.4, 0.4, 1.0, 0.7],
        }
        assert {e.part.shape for e in found if not isinstance(e, str)} == {(32,), (64,)}


def test_finer_grids_that_nothing_can_give_are_refused_before_training(tmp_path: Path) -> None:
    file = npz(tmp_path / "waves.npz", np.linspace(0.5, 1.0, 8), cells=32)
    picked = {"w": {"file": str(file), "task": WAVES, "reduce": {"space": 2}}}
    check(config(tmp_path, picked, evaluation__zero_shot=[2]))
    said = (
        "asks for 4 times as many cells along each axis, but no file of wavelets has so many, and there is no built-in"
    )
    with pytest.raises(ConfigError, match=said):
        check(config(tmp_path, picked, evaluation__zero_shot=[2, 4]))
    check(config(tmp_path, picked, evaluation__zero_shot=[2, 4]), begun=True)  # its report says what it lacks
    solved = {"b": {"task": "burgers1d", "samples": 8, "resolution": 32}}
    check(config(tmp_path, {**picked, **solved}, evaluation__zero_shot=[2, 4]))


def test_a_request_to_stop_while_trajectories_are_made_for_judging_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"file": str(npz(tmp_path / "a.npz", np.full(6, 0.5))), "task": WAVES}
    settings = config(tmp_path, {"w": entry}, evaluation__zero_shot=[2])
    (data,) = sets_of(settings, tmp_path)

    def asked(error: Exception) -> list[Any]:
        def stopped(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Maker, "at_resolution", stopped)
        return list(exams(settings, data, cast("Any", None), tmp_path, SCREEN, ExitStack()))

    assert asked(DataError("no such file")) == ["wavelets at 32 cells could not be judged: no such file"]
    with pytest.raises(Preempted):
        asked(Preempted("stopped by SIGTERM"))


def test_several_entries_may_hold_one_task_and_its_values_are_held_out(tmp_path: Path) -> None:
    a, b = npz(tmp_path / "a.npz", np.repeat([0.2, 0.4], 6)), npz(tmp_path / "b.npz", np.full(6, 0.9))
    entry = {"task": WAVES, "split": {"hold_out": {"speed": [0.4]}}}
    data = {"a": {"file": str(a), **entry}, "b": {"file": str(b), "task": WAVES}}
    (joined,) = sets_of(config(tmp_path, data), tmp_path)
    first = joined.entries[0]
    held = {first.source.params_of(first.source.ids.index(name))["speed"] for name in first.split.test}
    assert held == {0.4}
    assert [len(part) for part in joined.parts("train")] == [5, 4]
    with pytest.raises(ConfigError, match="there is no parameter 'mass'; the parameters are speed"):
        sets_of(config(tmp_path, {"a": {**data["a"], "split": {"hold_out": {"mass": [1.0]}}}}), tmp_path)


def files_of_seeds(seeds: dict[str, int], forces: dict[str, int] | None = None, steady: bool = False) -> Any:
    """Four samples a file, whose first frames and forces are drawn from seeds; the last cell does not count."""
    drawn = [
        {file: np.random.default_rng(seed).random((4, 1, 8, 1)) for file, seed in these.items()}
        for these in (seeds, forces or {})
    ]
    drawn[0] = {file: np.where(np.arange(8)[:, None] == 7, np.nan, values) for file, values in drawn[0].items()}
    ids = [f"{file}/{n}" for file in seeds for n in range(4)]
    first, given = (lambda row, *_, of=of: of[ids[row][0]][row % 4] for of in drawn)
    task = SimpleNamespace(steady=steady, given=("force",) if forces else ())
    return SimpleNamespace(ids=ids, task=task, read=first, inputs=given)


def test_files_that_begin_otherwise_under_the_same_names_are_held_out_whole() -> None:
    out, same = [False] * 4 + [True] * 4, {"a": 1, "b": 1}
    own, shared = ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1", "b/2", "b/3"], ["0", "1", "2", "3"] * 2
    assert starts_of(files_of_seeds(same), out) == shared, "also where cells hold no number"
    assert starts_of(files_of_seeds({"a": 1, "b": 2}), out) == own
    assert starts_of(files_of_seeds(same, {"a": 1, "b": 2}), out) == own, "at rest, and driven otherwise"
    assert starts_of(files_of_seeds(same, same), out) == shared
    assert starts_of(files_of_seeds({"a": 1, "b": 2}, same, steady=True), out) == shared, "the same problem"


def test_a_run_says_how_many_samples_share_their_initial_states_with_training(tmp_path: Path) -> None:
    for speed in (0.2, 0.4):
        npz(tmp_path / f"{speed}.npz", np.full(10, speed))
    files = {"file": str(tmp_path / "*.npz"), "task": WAVES, "split": {"hold_out": {"speed": [0.4]}}}
    with ExitStack() as stack:
        said: list[str] = []
        open_sets(config(tmp_path, {"w": files}).data, tmp_path, SCREEN.following, stack, said.append)
    words = "data.w: 9 of the 10 samples that split.hold_out names are not tested, because other values are trained "
    assert f"{words}or validated from the same initial states." in said


def test_values_are_held_out_of_data_that_bring_a_split_and_shown_as_unseen(tmp_path: Path) -> None:
    speeds = np.repeat([0.2, 0.4, 0.6], 4)
    with open_files(str(npz(tmp_path / "a.npz", speeds)), ups.Definition(**WAVES)) as source:
        thirds = {"train": source.ids[::2], "valid": source.ids[1::4], "test": source.ids[3::4]}
        path = write_data_set(source, tmp_path, "wavelets", thirds)
    (given,) = sets_of(config(tmp_path, {"w": {"file": str(path)}}), tmp_path)
    assert [len(given.parts(part)[0]) for part in ("train", "valid", "test")] == [6, 3, 3], "its own split"
    for wanted in ([0.4], {"low": 0.3, "high": 0.5}):
        settings = config(tmp_path, {"w": {"file": str(path), "split": {"hold_out": {"speed": wanted}}}}, **FEW)
        (data,) = sets_of(settings, tmp_path)
        assert data.parts("test")[0].params.flatten().tolist() == pytest.approx([0.4] * 4)
        assert data.values() == {"speed": pytest.approx((0.2, 0.6))}
    _, report = run_alone(settings, SCREEN)
    (result,) = report.tasks
    assert result.was_trained("speed", np.array([0.2, 0.4, 0.6])).tolist() == [True, False, True]
    made = {"task": "advection1d", "samples": 8, "params": {"beta": [0.1, 0.4]}, "split": {"hold_out": {"beta": [0.5]}}}
    with pytest.raises(ConfigError, match=r"no sample has beta = 0\.5; there are 0\.4, 0\.1"):
        check(config(tmp_path, {"a": made}))  # before any of it is made
    with pytest.raises(ConfigError, match=r"no sample has speed = 0\.41; there are 0\.4, 0\.6, 0\.2"):
        sets_of(config(tmp_path, {"w": {"file": str(path), "split": {"hold_out": {"speed": [0.41]}}}}), tmp_path)


def words(path: Path, first: str, last: str) -> Path:
    """Waves to the right where the word is `right`, and to the left where it is `left`."""
    kinds = np.array([first, last] * 10)
    return npz(path, np.where(kinds == "right", 0.8, -0.8), kind=kinds)


@pytest.mark.slow
def test_a_word_means_what_it_meant_and_ranges_grow_in_further_training(tmp_path: Path) -> None:
    task = {**WAVES, "name": "sided"}
    data = {"w": {"file": str(words(tmp_path / "a.npz", "right", "left")), "task": task}}
    run_alone(config(tmp_path, data, name="first", **FEW), SCREEN)
    data = {"w": {"file": str(words(tmp_path / "b.npz", "left", "right")), "task": task}}
    parent = tmp_path / "runs" / "first"
    settings = config(
        tmp_path, data, name="second", start_from=str(parent), plan=["operator"], operator__train__steps=1
    )
    run_alone(settings, SCREEN)
    old, new = ups.load(parent), ups.load(tmp_path / "runs" / "second")
    assert new.tasks[0].parameters[-1].choices == old.tasks[0].parameters[-1].choices == ("right", "left")
    state = waves(16, 1, np.array([0.8]))[0, 0]
    ask = [{"speed": v, "kind": k} for k, v in (("right", 0.8), ("left", -0.8))]
    same = [np.abs(old.rollout(state, 1, p) - new.rollout(state, 1, p)).max() for p in ask]
    swapped = np.abs(old.rollout(state, 1, ask[0]) - new.rollout(state, 1, ask[1])).max()
    assert max(same) < 0.5 * swapped
    npz(tmp_path / "c.npz", np.linspace(3, 4, 20), kind=np.array(["right"] * 20))
    data = {"w": {"file": str(tmp_path / "c.npz"), "task": task}}
    run_alone(config(tmp_path, data, name="third", start_from=str(parent), operator__train__steps=1), SCREEN)
    low, high = ups.load(tmp_path / "runs" / "third").ranges()["sided"]["speed"]
    assert (low, high) == pytest.approx((-0.8, 4), abs=0.2)


def test_no_file_is_read_twice(tmp_path: Path) -> None:
    file = str(npz(tmp_path / "a.npz", np.linspace(0, 1, 12)))
    twice = {name: {"file": file, "task": WAVES, "seed": i} for i, name in enumerate("ab")}
    with pytest.raises(ConfigError, match=r"a.npz: is read by entry 1 of wavelets and by entry 2"):
        check(config(tmp_path, twice))
    files = {"train": file, "valid": str(npz(tmp_path / "b.npz", np.linspace(0, 1, 3))), "test": file}
    with pytest.raises(ConfigError, match=r"is read by split.files.train and by split.files.test"):
        check(config(tmp_path, {"w": {"task": WAVES, "split": {"files": files}}}))


def test_a_split_that_tears_a_simulation_is_said_before_training_and_in_the_report(tmp_path: Path) -> None:
    long = np.random.default_rng(0).normal(size=(1, 201, 16, 1)).astype(np.float32)
    x, t = (np.arange(16) + 0.5) / 16, 0.05 * np.arange(11)
    for i in range(20):
        np.savez(tmp_path / f"seg{i:02}.npz", values=long[:, 10 * i : 10 * i + 11], x=x, t=t)
    files, task = [str(path) for path in sorted(tmp_path.glob("*.npz"))], {**WAVES, "conserved": [], "datasets": {}}
    settings = config(tmp_path, {"w": {"file": files, "task": task, "seed": 1}})
    lines: list[str] = []
    with Run.open(settings, Screen(lines.append, SCREEN.following, SCREEN.watch)) as run, run.folder:
        run.prepare()
        (data,) = run.sets
        split = data.first.split
        parts = {int(name[3:5]): part for part in PARTS for name in getattr(split, part)}
        torn_there = [i for i in range(19) if PARTS.index(parts[i]) > PARTS.index(parts[i + 1])]
        on, (warning,) = seen_before(settings, run.sets, "test", SCREEN.following)
    assert {parts[i] for i in torn_there} == {"valid", "test"}
    (said,) = (line for line in lines if "pieces of one simulation" in line)
    ends = "end with the first frame of one for training"
    assert said.startswith(f"wavelets: {len(torn_there)} of 4 trajectories for validation and testing {ends}")
    tests = [i for i in torn_there if parts[i] == "test"]
    assert warning.startswith(f"wavelets: {len(tests)} of 2 trajectories for testing {ends}")
    assert f"such as seg{tests[0]:02}/" in warning
    assert on == "on trajectories SEEN IN TRAINING in part or whole"
    in_order = {"files": {"train": files[:16], "valid": files[16:18], "test": files[18:]}}
    (later,) = sets_of(config(tmp_path, {"w": {"split": in_order, "task": task}}), tmp_path)
    assert leaks(later) == [], "the future of what is trained on is a test"


def test_broken_laws_and_lost_digits_are_said_before_training_and_in_the_report(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    u = draw.normal(size=(12, 6, 16, 1)) + np.arange(6)[:, None, None]
    np.savez(tmp_path / "a.npz", values=1e9 + u, x=(np.arange(16) + 0.5) / 16, t=0.05 * np.arange(6))
    np.savez(tmp_path / "b.npz", values=5 + u, x=(np.arange(16) + 0.5) / 16, t=0.05 * np.arange(6))
    for name, words in (("a", "can hardly tell apart"), ("b", "it does not hold that h is conserved: off by ")):
        entry = {"file": str(tmp_path / f"{name}.npz"), "task": {**WAVES, "datasets": {}}}
        settings, lines = config(tmp_path, {"w": entry}, name=name), list[str]()
        with Run.open(settings, Screen(lines.append, SCREEN.following, SCREEN.watch)) as run, run.folder:
            run.prepare()
            on, (warning,) = seen_before(settings, run.sets, "test", SCREEN.following)
        assert on == "on trajectories not seen in training"
        assert warning in lines
        assert warning.startswith("wavelets: ")
        assert words in warning


def test_copies_of_what_is_trained_on_are_no_test_and_said_before_training_and_in_the_report(tmp_path: Path) -> None:
    first, second = (str(npz(tmp_path / name, np.linspace(low, 1, 12))) for name, low in (("a.npz", 0), ("b.npz", 0.1)))
    with np.load(first) as a, np.load(second) as b:
        arrays = dict(b) | {"values": b["values"].copy()}
        arrays["values"][2] = a["values"][5]  # the same frames, whatever is said of their speed
    np.savez(second, **arrays)
    files = {"train": first, "valid": str(npz(tmp_path / "c.npz", np.linspace(0.2, 0.9, 3))), "test": second}
    settings = config(tmp_path, {"w": {"task": WAVES, "split": {"files": files}}})
    (data,) = sets_of(settings, tmp_path)
    (words,) = leaks(data)
    what = "2 of 12 trajectories for testing are copies of those for training (such as test/000002 and train/000005)"
    assert words.startswith(f"wavelets: {what}, and NOT unseen;"), words
    assert leaks(data, ("valid",)) == []
    on, (warning,) = seen_before(settings, [data], "test", SCREEN.following)
    assert (on, warning) == ("on trajectories SEEN IN TRAINING in part or whole", words)


def test_files_that_came_since_make_it_unknown_what_an_earlier_simulator_was_trained_on(tmp_path: Path) -> None:
    npz(tmp_path / "d" / "a.npz", np.linspace(0, 1, 12))
    data = {"w": {"file": str(tmp_path / "d"), "task": WAVES}}
    few = {"codec__train__steps": 1, "operator__train__steps": 1}
    folder, _ = run_alone(config(tmp_path, data, name="first", **few), SCREEN)
    further = config(tmp_path, data, name="second", start_from=str(folder.folder), **few)

    def said() -> tuple[str, list[str]]:
        return seen_before(further, sets_of(further, tmp_path), "test", SCREEN.following)

    assert said() == ("on trajectories not seen in training", []), "the same files are cut into the same parts"
    npz(tmp_path / "d" / "b.npz", np.linspace(0.1, 1.1, 6))
    _, (words,) = said()
    assert words.startswith(f"The data of {folder.folder}, from which this run goes on, are gone, have changed or")


def test_folders_called_val_and_files_in_capitals_are_what_they_are_called(tmp_path: Path) -> None:
    for i, name in enumerate(("train/a.npz", "val/b.npz", "test/c.npz")):
        npz(tmp_path / "d" / name, np.linspace(0, 1, 3 + i))
    (tmp_path / "d" / "train" / "a.npz").rename(tmp_path / "d" / "train" / "a.NPZ")
    (data,) = sets_of(config(tmp_path, {"w": {"file": str(tmp_path / "d"), "task": WAVES}}), tmp_path)
    assert [len(data.parts(part)[0]) for part in ("train", "valid", "test")] == [3, 4, 5]


def test_what_is_no_number_and_what_is_no_parameter_is_not_taken_for_one(tmp_path: Path) -> None:
    speeds = np.linspace(0, 1, 12)
    file = npz(tmp_path / "a.npz", np.where(np.arange(12) == 5, np.nan, speeds), sample=np.arange(12))
    with open_files(str(file), ups.Definition(**WAVES)) as source:
        assert [p.name for p in source.task.parameters] == ["speed"]
    with pytest.raises(DataError, match="speed is nan in a sample"):
        check(config(tmp_path, {"w": {"file": str(file), "task": WAVES}}))
    good = npz(tmp_path / "b.npz", speeds)
    with pytest.raises(DataError, match="no frame 50 to begin at"):
        check(config(tmp_path, {"w": {"file": str(good), "task": WAVES, "reduce": {"start": 50}}}))
    for wrong in ({"dt": 0.0}, {"dt": -1.0}, {"bounds": {"x": [1.0, 0.0]}}):
        with pytest.raises(ConfigError, match="must be"):
            ups.Definition(**{**WAVES, **wrong})


def test_a_definition_of_own_fields_is_not_the_equation_it_is_called_after(tmp_path: Path) -> None:
    file = str(npz(tmp_path / "a.npz", np.linspace(0, 1, 3)))
    with open_files(file, ups.Definition(**{**WAVES, "name": "burgers1d"})) as source:
        assert (source.task.name, source.task.equation, source.task.conserved) == ("burgers1d", "", ("h",))


def test_a_list_of_files_of_which_some_have_holes_is_one_task(tmp_path: Path) -> None:
    values = waves(16, 6, np.linspace(0, 1, 6))
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", h=np.where((np.arange(16) == 3) & (i == 1), np.nan, values))
    task = ups.Definition(name="holes", dims=["sample", "time", "x"], fields={"h": ["h"]})
    with open_files([str(tmp_path / f"{i}.npz") for i in range(2)], task) as source:
        assert [source.inputs(i).sum() for i in (0, 6)] == [16, 15]
    entries = {str(i): {"file": str(tmp_path / f"{i}.npz"), "task": task} for i in range(2)}
    with pytest.raises(DataError, match=r"0\.npz: has no mask, .* add `mask: mask` to the task of both"):
        sets_of(config(tmp_path, entries), tmp_path)
    both = {i: {**entry, "task": dataclasses.replace(task, mask="mask")} for i, entry in entries.items()}
    (data,) = sets_of(config(tmp_path, both), tmp_path)
    assert [part.inputs[0].sum() for part in data.parts("train")] == [16, 15]


def test_a_short_trajectory_does_not_shorten_the_others(tmp_path: Path) -> None:
    for i in range(12):
        npz(tmp_path / "d" / f"{i:02d}.npz", np.array([0.5]), frames=3 if i % 3 == 0 else 11)
    settings = config(tmp_path, {"w": {"file": str(tmp_path / "d"), "task": WAVES}})
    (data,) = sets_of(settings, tmp_path)
    (main, *others), notes = by_length(data.parts("train"), "train", 1)
    assert (main.split, main.frames, [e.frames for e in others]) == ("train", 11, [3])
    assert notes == [
        "wavelets: its first error is of 6 of 10 trajectories (train), those of 16 cells, 11 frames; "
        "16 cells, 3 frames apart."
    ]
    (main, *others), notes = by_length(data.parts("train"), "train", 5)
    assert (main.frames, others, len(notes)) == (11, [], 1)


def test_parts_may_be_given_by_files(tmp_path: Path) -> None:
    paths = {part: str(npz(tmp_path / f"{part}.npz", np.linspace(0, 1, 3 + i))) for i, part in enumerate("abc")}
    files = dict(zip(("train", "valid", "test"), paths.values(), strict=True))
    (data,) = sets_of(config(tmp_path, {"w": {"task": WAVES, "split": {"files": files}}}), tmp_path)
    assert [len(data.parts(part)[0]) for part in ("train", "valid", "test")] == [3, 4, 5]
    assert data.first.source.path == tmp_path, "errors name the folder that the files are in"
    path, counts = record_split(Path(paths["c"]), None, "seeded", (0.4, 0.2, 0.4), 3, ups.Definition(**WAVES))
    recorded = {"w": {"file": paths["c"], "task": WAVES, "split": {"record": str(path)}}}
    (data,) = sets_of(config(tmp_path, recorded), tmp_path)
    assert {part: len(data.parts(part)[0]) for part in ("train", "valid", "test")} == counts
    with pytest.raises(ConfigError, match="names files for train and test"):
        config(tmp_path, {"w": {"task": WAVES, "split": {"files": {"train": "a"}}}})


def test_a_law_is_declared_and_never_comes_from_a_name(tmp_path: Path) -> None:
    file = npz(tmp_path / "nsincom2d.npz", np.linspace(0, 1, 3))
    bare = ups.Definition(**{key: WAVES[key] for key in ("dims", "fields")})
    with open_files(str(file), bare) as source:
        assert (source.task.name, source.task.equation, source.task.conserved) == ("nsincom2d", "", ())
    with pytest.raises(ConfigError, match="has no channel 'mass'"):
        check(config(tmp_path, {"w": {"file": str(file), "task": {**WAVES, "conserved": ["mass"]}}}))


def test_what_fits_no_file_and_what_has_too_few_frames_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fits no file"):
        check(config(tmp_path, {"w": {"file": str(tmp_path / "*.npz"), "task": WAVES}}))
    file = npz(tmp_path / "a.npz", np.linspace(0, 1, 12), frames=8)
    split = {"time": [0.7, 0.15, 0.15]}
    short = "1 frame in a part of its time, too few for 1 frame of context and 1 after them; give longer trajectories"
    with pytest.raises(ConfigError, match=f"{short}, or several of them.$"):
        check(config(tmp_path, {"w": {"file": str(file), "task": WAVES, "split": split}}))
    np.savez(tmp_path / "first.npz", u=np.random.default_rng(0).normal(size=(12, 1, 16)))
    first = {"name": "first", "dims": ["sample", "time", "x"], "fields": {"u": ["u"]}}
    with pytest.raises(ConfigError, match="nothing to predict it from; give at least two frames, or `inputs`"):
        check(config(tmp_path, {"w": {"file": str(tmp_path / "first.npz"), "task": first}}))


def test_fields_in_another_order_than_a_simulators_are_refused_and_parameters_put_into_its_order(
    tmp_path: Path,
) -> None:
    """Both happened with a Zarr store whose arrays came in another order: fields were taken for each other."""
    values = np.random.default_rng(0).normal(size=(2, 12, 8, 16))
    np.savez(tmp_path / "a.npz", u=values[0], v=values[1], feed=np.arange(12.0), kill=-np.arange(12.0))
    task = {"name": "two", "dims": ["sample", "time", "x"], "fields": {"u": ["u"], "v": ["v"]}, "dt": 0.1}
    (data,) = sets_of(config(tmp_path, {"w": {"file": str(tmp_path / "a.npz"), "task": task}}), tmp_path)
    feed, kill = data.task.parameters
    (turned,) = aligned([data], {"two": dataclasses.replace(data.task, parameters=(kill, feed))})
    assert numeric_params(turned.task) == numeric_params(turned.first.source.task) == ("kill", "feed")
    with pytest.raises(DataError, match="has the fields u, v, but the simulator was trained on v, u"):
        as_known([data], {"two": dataclasses.replace(data.task, fields=data.task.fields[::-1])})


@pytest.mark.parametrize("what", ["no cell of sample 000002 counts", "speed is nan in a sample"])
def test_fit_refuses_data_before_it_writes_them(tmp_path: Path, what: str) -> None:
    """With `overwrite` they would have taken the place of good ones."""
    values, speed = np.random.default_rng(0).normal(size=(6, 4, 16, 1)), np.arange(6.0)
    if what.startswith("speed"):
        speed[2] = np.nan
    else:
        values[2] = np.nan
    with pytest.raises(DataError, match=what):
        ups.fit(ups.Data(values, params={"speed": speed}), out=tmp_path, device="cpu", quiet=True)
    assert not list(tmp_path.iterdir())


class Labelled:
    """An array with names of its axes, as xarray has them."""

    name, coords = "u", ()

    def __init__(self, values: np.ndarray, dims: tuple[str, ...]) -> None:
        self.values, self.dims = values, dims


SHORT = np.random.default_rng(0).normal(size=(6, 4, 16))
AXES = ["sample", "time", "x"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (ups.Data([SHORT[0], SHORT[1, :3]]), "values is a list of arrays of different shapes, which make no"),
        (ups.Data(SHORT, params={"k": [[1], [2, 3]]}), "k is a list of arrays of different shapes"),
        (ups.Data(SHORT, params={"k": SHORT[:, :2, 0]}), "k has 6 × 2 values; give one, or one per sample, and each"),
        (ups.Data(SHORT * 1j), r"values \(6 × 4 × 16\) is complex; write its real and imaginary part as two channels"),
        (ups.Data({"a": SHORT, "b": SHORT * 1j}), r"b \(6 × 4 × 16\) is complex; write its real and imaginary part"),
        (ups.Data(SHORT, AXES[:2]), r"dims=\['sample', 'time'\] does not name the axes of 6 × 4 × 16 numbers"),
        (ups.Data(SHORT, ["sample", "x", "x"]), "does not name the axes of 6 × 4 × 16 numbers; name each of them once"),
        (ups.Data(SHORT, [*AXES, "y"]), r"name each of them once, .* such as dims=\['sample', 'time', 'x'\]"),
        (ups.Data(SHORT[..., None], AXES), r"such as dims=\['sample', 'time', 'x', 'channel'\]"),
        (ups.Data(SHORT, task=ups.Definition(dims=("sample", "time"))), "does not name the axes of 6 × 4 × 16 numbers"),
        (ups.Data(SHORT, AXES, inputs={"f": SHORT}), r"the input f \(6 × 4 × 16\) changes in time"),
        (ups.Data(SHORT, AXES, inputs={"f": SHORT[:, 0, :5]}), r"f \(6 × 5\) does not lie on the grid of 16 cells"),
        (ups.Data(Labelled(SHORT, ("case", "when", "x"))), "nothing says what the dimension 'when' is; rename it to"),
    ],
)
def test_arrays_that_cannot_be_read_are_one_sentence_that_speaks_of_arrays(data: ups.Data, words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words) as caught:
        data.source()
    assert not {"--task", "damaged", "\n"} & {*str(caught.value).split(" ")}


def test_fit_trains_one_simulator_for_several_tasks(tmp_path: Path) -> None:
    speeds = np.linspace(0.2, 1, 12)
    one, two = ups.Data(waves(16, 8, speeds)), ups.Data(waves(32, 6, speeds), task=ups.Definition(periodic=["x"]))
    few = {"model__operator__width": 32, "model__operator__depth": 1, "model__operator__heads": 2}
    simulator = ups.fit({"a": one, "b": two}, minutes=0.002, out=tmp_path, device="cpu", quiet=True, **few)
    assert [(task.name, task.periodic) for task in simulator.tasks] == [("a", (False,)), ("b", (True,))]
    frames = simulator.rollout(waves(32, 6, speeds)[0, 0, :, None], steps=2, task="b")
    assert frames.shape[-2:] == (32, 1)
    for wrong in ([one, two], {"a": one, "b": waves(16, 8, speeds)}):
        with pytest.raises(ConfigError, match=r"several tasks are a dict of ups\.Data by their names"):
            ups.fit(wrong, out=tmp_path, name="other", quiet=True)
    same = {"a": dataclasses.replace(one, task="mine"), "b": dataclasses.replace(one, task="mine")}
    with pytest.raises(ConfigError, match="two sets of data are called mine"):
        ups.fit(same, out=tmp_path, name="other", quiet=True)
    assert not (tmp_path / "other-data").exists()


def test_fit_takes_arrays_in_any_order_of_axes_with_parameters(tmp_path: Path) -> None:
    speeds = np.linspace(0.2, 1, 12)
    values = np.moveaxis(waves(16, 8, speeds)[:, None], 2, 0)  # (time, sample, channel, x)
    data = ups.Data(values, dims=["time", "sample", "channel", "x"], params={"speed": speeds}, task="mine")
    few = {"model__operator__width": 32, "model__operator__depth": 2, "model__operator__heads": 2}
    simulator = ups.fit(data, minutes=0.002, out=tmp_path, device="cpu", quiet=True, **few)
    assert simulator.tasks[0].name == "mine"
    assert simulator.ranges()["mine"]["speed"] == pytest.approx((0.2, 1.0), abs=0.2)
    with h5py.File(next((tmp_path / "fit-data" / "mine").rglob("train/*.hdf5"))) as file:
        stored = np.asarray(file["t0_fields/values"])
        first = np.asarray(file["scalars/speed"])[0]
    np.testing.assert_allclose(stored[0], waves(16, 8, speeds)[np.argmin(abs(speeds - first))], atol=1e-6)
    with pytest.raises(ConfigError, match="say with dims"):
        ups.fit(np.zeros((3, 4)), out=tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="12 × 5 × 16 × 16 numbers may be one field in 2D, or 16 channels: say which"):
        ups.fit(np.zeros((12, 5, 16, 16)), out=tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="overwrite=True"):
        ups.fit(data, out=tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="not a known key"):
        ups.fit(data, out=tmp_path, name="other", quiet=True, params={})
    assert not (tmp_path / "other-data").exists(), "nothing is written before the settings are checked"
    with pytest.raises(ConfigError, match="speed does not fit 12 samples"):
        ups.Data(values, dims=data.dims, params={"speed": speeds[:5]}).source()
    with pytest.raises(DataError, match=r"x \(8\) is called like an axis of length 16, but does not have that many"):
        ups.Data(values, dims=data.dims, coords={"x": np.arange(8.0)}).source()


def test_fit_cuts_one_long_trajectory_in_time_as_init_and_import_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = waves(16, 120, np.array([0.5]))
    with netcdf_file(tmp_path / "long.nc", "w") as file:
        for name, axis in {"time": np.arange(120) * 0.05, "x": (np.arange(16) + 0.5) / 16}.items():
            file.createDimension(name, len(axis))
            file.createVariable(name, "f8", (name,))[:] = axis
        file.createVariable("h", "f4", ("time", "x"))[:] = values[0]
    few = {"model__operator__width": 32, "model__operator__depth": 1, "model__operator__heads": 2}
    for i, data in enumerate((values, tmp_path / "long.nc")):
        simulator = ups.fit(data, minutes=0.002, name=f"fit{i}", out=tmp_path, device="cpu", **few)
        assert [task.name for task in simulator.tasks] == ["data", "long"][i : i + 1]
        assert "too few trajectories to divide: each is cut in time, its past for training" in capsys.readouterr().out
    (part,) = (tmp_path / "fit0-data" / "data").rglob("train/*.hdf5")
    with h5py.File(part) as file:
        assert len(file["dimensions/time"]) == 84, "the first 0.7 of its frames"


def test_a_number_called_dt_is_the_time_between_frames_and_others_are_asked_for(trained: Path, tmp_path: Path) -> None:
    for i, dt in enumerate((0.04, 0.05)):
        values = waves(16, 6, np.array([0.5]), dt)[0]
        np.savez(tmp_path / f"{i}.npz", h=values, x=(np.arange(16) + 0.5) / 16, dt=dt, speed=0.5)
    with open_files(str(tmp_path), ups.Definition(name="wavelets", dims=["time", "x"], periodic=["x"])) as source:
        assert [source.times_of(i)[1] for i in range(2)] == [0.04, 0.05]
        assert source.params_of(0) == {"speed": 0.5}
    simulator = ups.load(trained)
    simulator.fit_dt("wavelets", 0.04, 0.05)
    with pytest.raises(ConfigError, match=r"steps of time from 0.04 to 0.05; say which with dt"):
        simulator.rollout(values[0], steps=2, params={"speed": 0.5})
    rollout(trained, tmp_path / "1.npz", 2, tmp_path / "out.h5", 1, None)
    with open_files(str(tmp_path / "out.h5"), ups.Definition(name="wavelets", periodic=["x"])) as predicted:
        np.testing.assert_allclose(predicted.times_of(0), [0.0, 0.05, 0.1], atol=1e-6)
        assert predicted[0].values.shape == (3, 16, 1)


def test_an_axis_of_uneven_cells_is_refused_whatever_it_is_called(tmp_path: Path) -> None:
    uneven = np.cumsum(np.linspace(1, 2, 16))
    np.savez(tmp_path / "a.npz", h=np.random.default_rng(0).random((12, 5, 16)), lat=uneven)
    task = {"name": "uneven", "dims": ["sample", "time", "lat"], "fields": {"h": ["h"]}}
    with pytest.raises(DataError, match="the cells along lat are not equally wide"):
        check(config(tmp_path, {"w": {"file": str(tmp_path / "a.npz"), "task": task}}))


@pytest.mark.parametrize(("frames", "given"), [(1, 1), (2, 2), (5, 3)])
def test_one_frame_is_continued_of_a_task_that_looks_back_on_no_more(tmp_path: Path, frames: int, given: int) -> None:
    """Other tasks of the simulator look back on three, and are refused fewer."""
    names = ("burgers1d", "advection1d")
    config = OperatorConfig(width=16, depth=1, heads=2, context=3)
    grids, told = (
        dict.fromkeys(names, (32,)),
        dataclasses.replace(TASKS["burgers1d"], dynamics=Dynamics(memoryless=True)),
    )
    sim = build([told, TASKS["advection1d"]], CodecConfig(dim=8), config, shapes=grids)
    saved = sim.save(tmp_path / "simulator.safetensors")
    for name in ("1D_Burgers_Sols_Nu0.01.hdf5", "1D_Advection_Sols_beta0.4.hdf5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["tensor"] = np.random.default_rng(0).normal(size=(2, frames, 32)).astype("f4")
            file["x-coordinate"] = ((np.arange(32) + 0.5) / 32).astype("f4")
            file["t-coordinate"] = (np.arange(frames + 1) * 0.01).astype("f4")
    out = rollout(saved, tmp_path / "1D_Burgers_Sols_Nu0.01.hdf5", 4, tmp_path / "out.h5", 2, None)
    with h5py.File(out) as file:
        assert file.attrs["ups_given_frames"] == given
        assert file["t0_fields/u"].shape == (2, given + 4, 32)
    if frames < 3:
        with pytest.raises(DataError, match="and 3 are needed"):
            rollout(saved, tmp_path / "1D_Advection_Sols_beta0.4.hdf5", 4, tmp_path / "no.h5", 2, None)


def test_keys_of_data_that_are_made_are_said_to_be_of_no_use_beside_a_file(tmp_path: Path) -> None:
    file = npz(tmp_path / "a.npz", np.linspace(-1, 1, 24))
    entry = {"file": str(file), "task": WAVES, "samples": 3, "resolution": 8, "seed": 5}
    said: list[str] = []
    with ExitStack() as stack:
        (data,) = open_sets(config(tmp_path, {"w": entry}).data, tmp_path, SCREEN.following, stack, said.append)
        assert len(data.first.source) == 24
    assert "data.w: samples, resolution would say how data are made, and its files are there: not used." in said


def test_masked_arrays_are_read_with_nothing_where_they_are_masked() -> None:
    values, hole = waves(16, 8, np.linspace(-1, 1, 6)), np.zeros((6, 8, 16), bool)
    hole[..., 3:5] = True
    for masked in (np.ma.masked_array(values, hole), np.ma.masked_array((values * 100).astype(int), hole)):
        source = ups.Data(masked, ["sample", "time", "x"]).source()
        assert source.task.given == ("mask",)
        assert (source.inputs(2)[:, 0] == ~hole[0, 0]).all()
    plain = ups.Data(np.ma.masked_array(values, False), ["sample", "time", "x"]).source()
    assert plain.task.given == ()


def test_what_is_no_number_of_minutes_and_no_path_is_one_sentence() -> None:
    for minutes in ("5 min", True, None):
        with pytest.raises(ConfigError, match=r"minutes is .*, but must be a number"):
            ups.fit(SHORT, minutes=minutes)  # type: ignore[arg-type]
    for path in (None, 5):
        with pytest.raises(ConfigError, match="is loaded from the path of its run or file, not from"):
            ups.load(path)  # type: ignore[arg-type]


def test_fields_that_float32_cannot_hold_are_said_before_training(tmp_path: Path) -> None:
    said: list[str] = []
    screen = dataclasses.replace(SCREEN, say=said.append)
    data = {name: ups.Data(SHORT * 1e-300, task=name) for name in ("a", "b")}
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        fit(data, 1.0, "x", tmp_path, "cpu", {}, screen)
    assert any(sentence.startswith("PROBLEM: a: values is") and "smaller unit" in sentence for sentence in said)
