"""A run judged again: on its own parts, on unseen files, on other grids, at other parameters; and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ups
from ups.cli.app import main
from ups.config import fingerprint, load
from ups.data import Joined, open_source
from ups.data.reduction import Reduction
from ups.data.splits import make_split
from ups.data.trajectories import Trajectories
from ups.data.windows import Windows, whole
from ups.engine.train import Outcome
from ups.eval.baselines import BASELINES, Baseline
from ups.eval.report import Report
from ups.eval.results import Cost, read_results
from ups.eval.rollout import evaluate, persistence, protocol
from ups.jobs import demo
from ups.jobs.evaluate import Question, evaluate_run
from ups.jobs.relative_paths import found_config, relative_paths
from ups.models import Simulator, build
from ups.physics import TASKS
from ups.progress import Screen
from ups.run.check import check
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import GenerateConfig
from ups.run.data.datasets import joined, open_sets, opened
from ups.run.data.fitting import fitting, predicted_in
from ups.run.data.generate import generate
from ups.run.judging.conclusion import Finish
from ups.run.judging.judge import Judge, judge, predictor_of
from ups.run.load import config_of
from ups.rundir import RunDir
from ups.tensors import Window
from ups.types import ConfigError, DataError, Field, TaskSpec, UpsError
from ups.verdict import Ending

CONFIG = """
name: small
device: cpu
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 64, device: cpu, reduce: {time: 40, space: 2}}
  k: {task: kdv1d, samples: 10, resolution: 32, device: cpu, reduce: {time: 5}, frames: 21}
model:
  codec: {dim: 8}
  operator: {width: 16, depth: 1, heads: 2}
evaluation: {zero_shot: [2], samples: 4, unseen: {advection1d: [{beta: 2.0}]}}
"""
OUTCOME = Outcome(6, 1.5, 48, 0.25, 6, 0, 0, 0, "it had its steps").facts()


def silent(*_: object) -> None:
    """Nothing is shown."""


SCREEN = Screen(silent, silent, silent)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as training leaves it; what the weights are does not matter here."""
    base = tmp_path_factory.mktemp("made")
    (base / "small.yaml").write_text(CONFIG)
    config = load(run_config(), base / "small.yaml", {"out": str(base / "runs")})
    with RunDir.open(base / "runs" / "small", config) as folder:
        parts = []
        for data in config.data.values():
            with opened(data, folder.cache("data"), silent) as known:
                parts += known.parts("train")
        model = config.model
        grids = {part.task.name: part.shape for part in parts}
        simulator = build([p.task for p in parts], model.codec, model.operator, model.simulator, grids, 3)
        for part in parts:
            simulator.codec.fit_statistics(part.task, *part.statistics())
            simulator.operator.fit_ranges(part.task.name, part.params.amin(0), part.params.amax(0))
            simulator.fit_dt(part.task, part.dt, part.dt)
        with torch.no_grad():  # a little off what it starts as, so that it differs from persistence
            for weight in simulator.operator.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        simulator.save(folder.artifact("simulator"), {"config": fingerprint(config), "seed": 0})
        folder.write(folder.stages, {"codec": OUTCOME, "operator": OUTCOME})
        folder.write(folder.phases, {"data": 2.5, "evaluation": 1.0})
        folder.succeed()
    return folder.folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """The same run in a place of its own."""
    shutil.copytree(made, tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture(scope="module")
def again(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """The run, judged again on its own test part."""
    run = tmp_path_factory.mktemp("again") / "small"
    shutil.copytree(made, run)
    out, report = evaluate_run(run, Question(device="cpu"), SCREEN)
    assert out == run
    return run, report


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Advection on a finer grid, by another seed."""
    wanted = {"task": "advection1d", "samples": 5, "resolution": 96, "seed": 99, "scheme": "accurate", "device": "cpu"}
    return generate(load(GenerateConfig, overrides=wanted), tmp_path_factory.mktemp("unseen"), silent)[0]


def value(report: Report, who: str = "ups", split: str = "", task: str = "advection1d") -> float:
    return report.find(task, who, split=split).value


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_test_part_is_judged_again_into_the_run(again: tuple[Path, Report]) -> None:
    run, report = again
    assert read_results(run / "results.json") == report.records
    with open_source(next((run / "cache" / "data").glob("*Advection*")), TASKS) as source:
        test = make_split(source.ids).part("test")
        part = Trajectories(source, test, Reduction(time=40, space=2))
        asked = protocol("A", 1)
        found = evaluate(predictor_of(ups.load(run), torch.device("cpu")), whole([part], 1), asked)
        still = evaluate(persistence, whole([part], 1), asked)
    assert value(report) == pytest.approx(found.score, rel=1e-6)
    assert value(report, "persistence") == pytest.approx(still.score, rel=1e-6)
    assert report.tasks[0].ours.cost.steps == 12
    assert [(stage.name, stage.steps, stage.seconds) for stage in report.stages] == [
        ("codec", 6, 1.5),
        ("operator", 6, 1.5),
    ]
    assert report.phases == (("data", 2.5), ("evaluation", 1.0)), "what the run's own page had stays on it"
    assert (run / "report.html").is_file()


def test_zero_shot_and_unseen_parameters_stand_in_the_report_with_persistence_beside(
    again: tuple[Path, Report],
) -> None:
    run, report = again
    splits = {(r.task, r.split, r.predictor) for r in read_results(run / "results.json") if r.metric == "nrmse"}
    fine, far = "test, 64 cells (zero-shot)", "new trajectories, beta = 2 (outside the trained range)"
    assert {("advection1d", s, who) for s in (fine, far) for who in ("ups", "persistence")} <= splits
    made = "new trajectories, 64 cells (zero-shot)"
    assert {("kdv1d", made, who) for who in ("ups", "persistence")} <= splits
    advection = report.tasks[0]
    assert len(advection.beyond[0].evaluation) == 2, "the file is finer: the same test trajectories"
    assert [len(one.evaluation) for one in advection.beyond if one.evaluation.split == far] == [4, 4, 4]
    assert any("beta = 2 lies outside" in sentence for sentence in advection.unseen)
    page = report.page()
    assert "beta = 2 lies outside" in page.sections[0].verdict


def test_what_was_made_for_judging_is_kept(again: tuple[Path, Report]) -> None:
    run, report = again
    config = load(run_config(), run / "config.yaml", {"out": str(run.parent)})
    before = {p: p.stat().st_mtime_ns for p in (run / "cache" / "beyond").rglob("*.*")}
    with opened(config.data["k"], run / "cache" / "data", silent) as data:
        twice = judge(config, ups.load(run), joined([data]), {}, torch.device("cpu"), SCREEN)
    assert {p: p.stat().st_mtime_ns for p in (run / "cache" / "beyond").rglob("*.*")} == before != {}
    split = "new trajectories, 64 cells (zero-shot)"
    assert value(twice, split=split, task="kdv1d") == value(report, split=split, task="kdv1d")


def test_unseen_parameters_move_persistence_as_the_equation_says(again: tuple[Path, Report]) -> None:
    _, report = again
    slow = report.find("advection1d", "persistence", "nrmse-at-time").value
    far = "new trajectories, beta = 2 (outside the trained range)"
    fast = report.find("advection1d", "persistence", "nrmse-at-time", split=far).value
    assert fast > slow, "what is carried faster leaves its place sooner"


def test_what_cannot_be_made_is_said_and_costs_no_report(run: Path) -> None:
    config = load(run_config(), run / "config.yaml", {"evaluation.unseen": {"burgers1d": [{"nu": 0.1}]}})
    simulator = ups.load(run)
    with opened(config.data["k"], run / "cache" / "data", silent) as data:
        wrong = data.config.model_copy(update={"params": {"nowhere": 1.0}})
        sets = joined([dataclasses.replace(data, config=wrong)])
        report = judge(config, simulator, sets, {}, torch.device("cpu"), SCREEN)
    said = " ".join(report.warnings)
    assert "evaluation.unseen names burgers1d" in said


def test_frames_that_are_given_are_not_judged_however_short_the_look_back(run: Path) -> None:
    config = load(run_config(), run / "config.yaml", {"evaluation.given": 4})
    simulator = ups.load(run)
    assert simulator.context == 1
    with opened(config.data["k"], run / "cache" / "data", silent) as data:
        report = judge(config, simulator, joined([data]), {}, torch.device("cpu"), SCREEN)
        (window,) = whole(data.parts("test"), 4)
    truth = window.targets
    with torch.no_grad():
        answer = simulator.rollout(
            window.context[:, 3], truth.shape[1], window.params, float(window.dt[0]), task="kdv1d"
        )
        wrong = answer - truth
    size = [field.square().flatten(2, -2).mean(2).sqrt() for field in (wrong, truth)]
    assert report.find("kdv1d", "ups").value == pytest.approx(float((size[0] / size[1]).mean()), rel=1e-4)
    assert "A (4 given, to the end)" in {record.protocol for record in report.records}


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_part_is_named_and_the_trained_one_warned_of(run: Path, split: str) -> None:
    out, report = evaluate_run(run, Question(split=split, task="advection1d", device="cpu"), SCREEN)
    assert out == run / "evaluations" / f"{split}-advection1d"
    assert {r.split for r in report.records} == {split}
    assert ("trained on" in " ".join(report.warnings)) == (split == "train")
    assert ("SEEN IN TRAINING" in report.page().lead) == (split == "train")
    assert not (run / "results.json").exists(), "the run's own numbers stay what they are"


def test_a_file_nobody_has_seen_is_judged_whole_at_its_own_resolution(run: Path, unseen: Path, tmp_path: Path) -> None:
    out, report = evaluate_run(run, Question(file=unseen, out=tmp_path / "here", device="cpu"), SCREEN)
    assert out == tmp_path / "here"
    result = report.tasks[0].ours.evaluation
    assert (len(result), result.split) == (5, "unseen file, 96 cells")
    with open_source(unseen, TASKS) as source:
        part = Trajectories(source, source.ids, Reduction(time=40))
        found = evaluate(predictor_of(ups.load(run), torch.device("cpu")), whole([part], 1), protocol("A", 1))
    assert value(report) == pytest.approx(found.score, rel=1e-6)
    assert report.data[0].source == unseen.name
    assert not report.tasks[0].unseen


def test_a_file_is_thinned_to_the_resolution_asked_for(run: Path, unseen: Path) -> None:
    _, report = evaluate_run(run, Question(file=unseen, resolution=(48,), samples=3, device="cpu"), SCREEN)
    result = report.tasks[0].ours.evaluation
    assert (len(result), result.split) == (3, "unseen file, 48 cells")
    assert report.tasks[0].ours.evaluation.examples[0].truth.shape[1] == 48
    with pytest.raises(ConfigError, match="cannot be picked"):
        evaluate_run(run, Question(file=unseen, resolution=(50,), device="cpu"), SCREEN)


def test_the_files_frames_are_taken_at_the_trained_spacing(run: Path, unseen: Path) -> None:
    _, report = evaluate_run(run, Question(file=unseen, device="cpu"), SCREEN)
    times = [r.at for r in report.records if (r.predictor, r.metric) == ("ups", "nrmse-at-time")]
    assert times == pytest.approx([0.4 * t for t in range(1, 6)])


def test_training_trajectories_in_a_file_are_found_out(run: Path) -> None:
    own = next((run / "cache" / "data").glob("*Advection*"))
    _, report = evaluate_run(run, Question(file=own, device="cpu"), SCREEN)
    assert any("18 of 20" in sentence and "NOT unseen" in sentence for sentence in report.tasks[0].unseen)
    assert "partly SEEN IN TRAINING" in report.tasks[0].ours.evaluation.split


@pytest.mark.parametrize("frames", [slice(0, 161), slice(1, None), slice(0, 200, 2)])
def test_training_trajectories_that_are_cut_in_time_are_found_out(run: Path, tmp_path: Path, frames: slice) -> None:
    own = next((run / "cache" / "data").glob("*Advection*"))
    cut = Path(shutil.copy(own, tmp_path / own.name))
    with h5py.File(cut, "r+") as file:
        values, times = file["tensor"][:, frames], file["t-coordinate"][:201][frames]
        del file["tensor"], file["t-coordinate"]
        file["tensor"], file["t-coordinate"] = values, np.append(times, 2 * times[-1] - times[-2])
    _, report = evaluate_run(run, Question(file=cut, device="cpu"), SCREEN)
    (sentence,) = report.tasks[0].unseen
    assert sentence.startswith(
        "18 of 20 trajectories begin or end with the first or last frame of one that was trained"
    )
    assert report.tasks[0].ours.evaluation.split == "file partly SEEN IN TRAINING, 64 cells"


def test_the_initial_states_of_training_at_another_parameter_are_not_called_unseen(run: Path, tmp_path: Path) -> None:
    wanted = {"task": "advection1d", "samples": 3, "resolution": 64, "scheme": "accurate", "device": "cpu"}
    (path,) = generate(load(GenerateConfig, overrides={**wanted, "params": {"beta": 0.7}}), tmp_path, silent)
    own = next((run / "cache" / "data").glob("*Advection*"))
    with open_source(own, TASKS) as trained, open_source(path, TASKS) as other:
        assert np.array_equal(trained.read(0, slice(1)), other.read(0, slice(1)))
    _, report = evaluate_run(run, Question(file=path, device="cpu"), SCREEN)
    assert report.tasks[0].ours.evaluation.split == "file from initial states SEEN IN TRAINING, 64 cells"
    assert any("initial states are NOT unseen" in sentence for sentence in report.tasks[0].unseen)


def test_a_wrong_parameter_changes_the_answer_and_is_said_to_be_outside(run: Path, unseen: Path) -> None:
    true = evaluate_run(run, Question(file=unseen, device="cpu"), SCREEN)[1]
    wrong = evaluate_run(run, Question(file=unseen, params={"beta": 9.0}, device="cpu"), SCREEN)[1]
    assert value(true) != value(wrong)
    assert any("beta = 9 lies outside" in sentence for sentence in wrong.tasks[0].unseen)


def test_new_trajectories_are_made_at_a_resolution_and_parameters_that_no_file_has(run: Path) -> None:
    asked = Question(task="advection1d", resolution=(128,), params={"beta": 0.5}, samples=3, device="cpu")
    out, report = evaluate_run(run, asked, SCREEN)
    result = report.tasks[0].ours.evaluation
    assert (len(result), result.examples[0].truth.shape[1]) == (3, 128)
    assert "beta = 0.5" in result.split
    assert "128 cells" in result.split
    assert out.parent == run / "evaluations"
    with pytest.raises(ConfigError, match="--task"):
        evaluate_run(run, Question(resolution=(128,), device="cpu"), SCREEN)


def test_the_command_prints_a_table_and_the_path_of_the_report(
    run: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("evaluate", run, "--file", unseen, "--resolution", "48", "--out", tmp_path / "o", "--device", "cpu")
    assert command(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(tmp_path / "o" / "report.html")
    assert any(line.startswith("advection1d") for line in lines)
    assert read_results(tmp_path / "o" / "results.json")


def truncate(run: Path) -> None:
    path = run / "artifacts" / "simulator.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def newer(run: Path) -> None:
    path = run / "artifacts" / "simulator.safetensors"
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["ups"])
    save_file(load_file(path), path, metadata={"ups": json.dumps({**header, "version": 999})})


def unfinished(run: Path) -> None:
    (run / "artifacts" / "simulator.safetensors").unlink()


def no_run(run: Path) -> None:
    (run / "config.yaml").unlink()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate, "cut short"),
        (newer, "update the program"),
        (unfinished, "not finished"),
        (no_run, "not a run folder"),
    ],
)
def test_a_bad_run_is_one_sentence_and_nothing_is_written(
    run: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: object, words: str
) -> None:
    assert callable(harm)
    harm(run)
    out = tmp_path / "out"
    assert command("evaluate", run, "--out", out) == 2
    assert command("rollout", run, "--input", unseen, "--steps", 2, "--out", out) == 2
    for line in capsys.readouterr().err.splitlines():
        assert words in line
    with pytest.raises(UpsError, match=words):
        ups.load(run)
    assert not out.exists()


def foreign(folder: Path) -> Path:
    wanted = {"task": "ks1d", "samples": 2, "resolution": 32, "device": "cpu", "frames": 11}
    return generate(load(GenerateConfig, overrides=wanted), folder, silent)[0]


def few_frames(folder: Path) -> Path:
    wanted = {"task": "advection1d", "samples": 2, "resolution": 32, "device": "cpu", "frames": 11}
    return generate(load(GenerateConfig, overrides=wanted), folder, silent)[0]


def wrong_fields(folder: Path) -> Path:
    path = few_frames(folder)
    with h5py.File(path, "r+") as file:
        file["pressure"] = file["tensor"][:]
        del file["tensor"]
    return path


def nothing(folder: Path) -> Path:
    return folder / "1D_Advection_Sols_beta0.1.hdf5"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign, "not trained on; it knows advection1d, kdv1d"),
        (few_frames, "longer trajectories"),
        (wrong_fields, "'tensor' is missing"),
        (nothing, "there is no such file|does not exist|No such|not there"),
    ],
)
def test_a_bad_file_is_one_sentence_and_nothing_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: object, words: str
) -> None:
    assert callable(make)
    path, out = make(tmp_path / "data"), tmp_path / "out"
    before = sorted(run.rglob("*"))
    assert command("evaluate", run, "--file", path, "--out", out, "--device", "cpu") == 2
    said = capsys.readouterr().err
    assert re.search(words, said)
    assert said.count("\n") == 1
    if make is not few_frames:  # a rollout needs no truth
        assert command("rollout", run, "--input", path, "--steps", 2, "--out", out) == 2
        assert re.search(words, capsys.readouterr().err)
    assert not out.exists()
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--task", "burgers1d"), "not trained on 'burgers1d'"),
        (("--resolution", "wide"), "cells per axis"),
        (("--params", "beta"), "NAME=VALUE"),
        (("--params", "nu=1", "--task", "advection1d"), "no parameter 'nu'"),
        (("--baselines", "cnn"), "fno, uno"),
        (("--samples", "1"), "at least 2"),
        (("--split", "all"), "split"),
        (("--resolution", "32,32", "--task", "kdv1d"), "1 axis"),
    ],
)
def test_a_bad_question_is_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    assert command("evaluate", run, "--out", tmp_path / "out", "--device", "cpu", *flags) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_out_that_is_a_file_is_refused_before_work(run: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="choose another --out"):
        evaluate_run(run, Question(out=tmp_path / "f", device="cpu"), SCREEN)


def test_an_unfinished_config_key_of_unseen_is_refused_when_it_is_read() -> None:
    with pytest.raises(ConfigError, match="no parameter 'mu'"):
        load(run_config(), None, {"evaluation.unseen": {"burgers1d": [{"mu": 1.0}]}})
    with pytest.raises(ConfigError, match="names burger, which no data set holds"):
        check(load(run_config(), None, {"data.b.task": "burgers1d", "evaluation.unseen": {"burger": [{"nu": 1.0}]}}))
    with pytest.raises(ConfigError, match="greater than or equal to 2"):
        load(run_config(), None, {"evaluation.zero_shot": [1]})


def test_a_rollout_warns_of_a_parameter_outside_the_trained_range(
    run: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--input", unseen, "--steps", 2, "--out", tmp_path / "o.h5", "--device", "cpu")
    assert command("rollout", run, *words, "--params", "beta=7") == 0
    assert "beta = 7 lies outside" in capsys.readouterr().err
    with open_source(tmp_path / "o.h5", TASKS) as source:
        assert (len(source), source[0].values.shape, source.params) == (5, (3, 96, 1), {"beta": 7.0})
        assert np.isfinite(source[4].values).all()


def test_what_a_rollout_writes_is_read_by_info_validate_and_evaluate_and_replaced_only_when_told(
    run: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "prediction.h5"
    words = ("rollout", run, "--input", unseen, "--out", out, "--device", "cpu")
    assert command(*words, "--steps", 4) == 0
    with open_source(out, TASKS) as source, open_source(unseen, TASKS) as given:
        assert np.allclose(source[2].values[0], given[2].values[0], atol=1e-6), "the frame that was given"
        assert np.allclose(np.diff(source.times), np.diff(source.times)[0])
        sim = ups.load(run)
        beta = {"beta": float(source.params["beta"])}
        frames = sim.rollout(source[2].values[0], steps=4, task="advection1d", params=beta)
        assert np.allclose(source[2].values[1:, :, 0], np.asarray(frames).squeeze(-1), atol=1e-5)
    assert command("data", "info", out) == 0
    assert "5 trajectories × 5 frames × 96 cells × 1 channel (u)" in capsys.readouterr().out
    assert command("data", "validate", out) in (0, 1), "it is read; what an untrained simulator predicts may be wrong"
    assert command("evaluate", run, "--file", out, "--out", tmp_path / "judged", "--device", "cpu") == 0
    with open_source(out, TASKS) as source, open_source(unseen, TASKS) as given:
        (words_of_it,) = predicted_in(Joined(tmp_path, [given, source], ["true", "foretold"]))
        assert predicted_in(given) == []
    assert words_of_it.startswith(
        f"{out} was written by `ups rollout`: what follows its first 1 frame is what a simulator predicted"
    )
    assert "no truth to judge one by" in (tmp_path / "judged" / "report.html").read_text()
    own = next(r for r in read_results(tmp_path / "judged" / "results.json") if r.metric == "nrmse")
    assert own.value < 1e-4, "a simulator predicts what it has predicted"
    capsys.readouterr()
    before = out.read_bytes()
    assert command(*words, "--steps", 2) == 2
    assert "is there already; choose another --out, or replace it with --overwrite" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert command(*words, "--steps", 2, "--overwrite") == 0
    assert out.read_bytes() != before


def test_relative_paths_of_a_run_are_found_from_its_home_and_then_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "d").mkdir(parents=True)
    elsewhere.mkdir()
    (home / "d" / "a.h5").touch()
    changes = {"data.a.file": "d/*.h5", "data.a.task": "burgers1d", "out": str(tmp_path / "runs"), "name": "r"}
    monkeypatch.chdir(home)
    with RunDir.open(tmp_path / "runs" / "r", load(run_config(), None, changes)) as folder:
        assert relative_paths(config_of(folder)) == ["d/*.h5"]
        monkeypatch.chdir(elsewhere)
        config = config_of(folder)
        assert relative_paths(found_config(config)) == ["../home/d/*.h5"]
        (home / "d").rename(elsewhere / "d")
        assert relative_paths(found_config(config)) == ["d/*.h5"]
        (elsewhere / "d" / "a.h5").unlink()
        missing = (
            rf"d/\*.h5: the run's config names it, and it is neither in {home}, .* nor in {elsewhere}; put it back"
        )
        with pytest.raises(DataError, match=missing):
            found_config(config)


def test_a_rollout_neither_writes_over_its_input_nor_continues_what_is_not_finite(
    run: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copy(unseen, tmp_path))
    before = copy.read_bytes()
    assert command("rollout", run, "--input", copy, "--steps", 2, "--out", copy, "--device", "cpu") == 2
    assert "is the input itself" in capsys.readouterr().err
    assert copy.read_bytes() == before
    words = ("rollout", run, "--input", copy, "--steps", 2, "--out", tmp_path / "o.h5", "--device", "cpu")
    assert command(*words, "--params", "beta=fast") == 2
    assert "beta is 'fast', but must be a number" in capsys.readouterr().err
    with h5py.File(copy, "r+") as file:
        file["tensor"][1, 0, 3] = np.nan
    assert command(*words) == 2
    assert "its first frames have values that are not finite" in capsys.readouterr().err
    assert command("evaluate", run, "--file", copy, "--device", "cpu") == 2
    assert "sample 000001 has values that are not finite" in capsys.readouterr().err
    assert not (tmp_path / "o.h5").exists()


def test_a_rollout_that_leaves_what_training_saw_is_named_with_its_step_and_in_the_file(
    run: Path, unseen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Simulator.simulate

    def absurd(self: Simulator, *words: Any) -> torch.Tensor:
        frames = honest(self, *words)
        frames[2, 1:] = 1e3
        return frames

    monkeypatch.setattr(Simulator, "simulate", absurd)
    words = ("--input", unseen, "--steps", 3, "--out", tmp_path / "o.h5", "--device", "cpu")
    assert command("rollout", run, *words) == 0
    said = "".join(capsys.readouterr())
    assert "leaves what training has seen, first of sample 000002 at step 2: u is 1000, and training had" in said
    with h5py.File(tmp_path / "o.h5") as file:
        assert file.attrs["ups_left_range_at"][:3].tolist() == [0, 0, 2]


def test_a_run_folder_that_was_tampered_with_keeps_its_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(said: str) -> None:
        before = {path: path.read_bytes() for path in run.glob("re*.*")}
        assert command("evaluate", run, "--device", "cpu") == 2
        assert said in capsys.readouterr().err
        assert {path: path.read_bytes() for path in run.glob("re*.*")} == before

    simulator, config = run / "artifacts" / "simulator.safetensors", run / "config.yaml"
    whole, text = simulator.read_bytes(), config.read_text()
    other = Simulator.load(simulator)
    other.save(simulator, {"config": "of another run"})
    refused("was trained with another config (of another run)")
    simulator.write_bytes(whole)
    config.write_text("")
    refused("names no data")
    config.write_text(text)
    (run / "stages.json").write_text("[]")
    refused("stages.json: is damaged (it is no JSON object)")


def test_a_run_whose_data_are_gone_cannot_say_whether_a_file_was_seen(run: Path, unseen: Path) -> None:
    shutil.rmtree(run / "cache")
    _, report = evaluate_run(run, Question(file=unseen, device="cpu"), SCREEN)
    assert any("nobody knows" in sentence for sentence in report.tasks[0].unseen)


def test_a_source_with_other_fields_than_the_task_was_trained_on_is_refused(run: Path, unseen: Path) -> None:
    simulator = ups.load(run)
    with open_source(unseen, TASKS) as source:
        source.task = dataclasses.replace(source.task, fields=(Field.vector("velocity", "u", "v"),))
        with pytest.raises(UpsError, match=r"has the fields u, v on 1 axis, but the simulator was trained on u on 1"):
            fitting(simulator, source, {}, 1)


def test_a_parameter_that_the_file_does_not_say_must_be_given(run: Path, unseen: Path) -> None:
    simulator = ups.load(run)
    with open_source(unseen, TASKS) as source:
        source.params = {}
        with pytest.raises(ConfigError, match=r"give it with --params beta="):
            fitting(simulator, source, {}, 1)
        assumed = fitting(simulator, source, {"beta": 0.1}, 1)
        assert assumed.task.name == "advection1d"
        assert assumed.params_of(0) == {"beta": 0.1}
        assert source.params_of(0) == {}, "what was opened stays as it is"


@pytest.mark.parametrize("installed", [True, False])
def test_the_demo_trains_an_fno_beside_ours_where_it_can_and_says_how_where_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    asked: list[RunConfig] = []

    def run(settings: RunConfig, *_: object, **__: object) -> tuple[RunDir, Finish]:
        asked.append(settings)
        return RunDir(tmp_path), Finish(Ending.SUCCESS)

    monkeypatch.setattr(demo, "available", lambda: installed)
    monkeypatch.setattr(demo, "make_data", lambda config, out, _: (out, dict.fromkeys(config.data, out)))
    (tmp_path / "small.yaml").write_text("data: {a: {task: advection1d, samples: 4, resolution: 32, device: cpu}}")
    demo.demo(tmp_path / "demo", tmp_path / "small.yaml", SCREEN, carry_out=run)
    assert asked[0].evaluation.baselines == (("linear", "fno") if installed else ("linear",))
    monkeypatch.setattr("ups.eval.fourier.installed", lambda: installed)
    judge = Judge(asked[0], build([TASKS["advection1d"]]), Cost(seconds=60.0), torch.device("cpu"), SCREEN)
    said = judge.report("demo", [], [], "on nothing").notes[0]
    assert ("pip install" in said) == (not installed)


def test_a_baseline_gets_the_time_of_ours_shared_among_the_tasks(made: Path) -> None:
    config = load(run_config(), made / "config.yaml")
    judge = Judge(config, ups.load(made), Cost(seconds=60.0), torch.device("cpu"), SCREEN, ("fno",))
    assert judge.seconds == 30
    assert "each trained for 30 s" in judge.report("x", [], [], "").notes[0]


def test_a_baseline_learns_from_all_frames_that_are_given_by_the_seed_of_the_run(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}

    class Learner:
        recipe: ClassVar[dict[str, str]] = {}

        def fit(self, windows: Iterable[Window]) -> None:
            seen["fitted"] = next(iter(windows)).context.shape[1]

    def make(_: TaskSpec, context: int, __: int) -> Learner:
        seen["made"], seen["seed"] = context, torch.initial_seed()
        return Learner()

    def trainer(_: object, __: object, batches: Windows, *___: object, **____: object) -> None:
        seen["trained"] = batches.batch(0).context.shape[1]
        raise RuntimeError("trained")

    monkeypatch.setitem(BASELINES, "spy", Baseline(make, lambda: None))  # type: ignore[arg-type]
    monkeypatch.setattr("ups.run.judging.judge.Trainer", trainer)
    config = load(run_config(), made / "config.yaml", {"evaluation.given": 3, "seed": 11})
    judge = Judge(config, ups.load(made), Cost(seconds=60.0), torch.device("cpu"), SCREEN, ("spy",))
    assert judge.simulator.context < 3
    with ExitStack() as stack, pytest.raises(RuntimeError, match="trained"):
        judge._trained("spy", open_sets(config.data, RunDir(made).cache("data"), silent, stack)[0])
    assert seen == {"made": 3, "fitted": 3, "trained": 3, "seed": 11}


def test_a_linear_model_stands_beside_a_run_that_never_asked_for_it(run: Path) -> None:
    report = evaluate_run(run, Question(task="advection1d", baselines=("linear",), device="cpu"), SCREEN)[1]
    assert value(report, "linear") < value(report, "persistence")
    assert any(sentence.startswith("linear: a linear model") for sentence in report.remarks())
