"""Gates and phases: a result below its gate is no success, what is there is not done again, and each phase is told."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ups.config import fingerprint, load
from ups.eval.gates import Gate, against, decide, metric_of, missed
from ups.eval.metrics import METRICS, Metric
from ups.eval.results import read_results
from ups.eval.trajectories import PerTrajectory
from ups.eval.trajectories import read as read_trajectories
from ups.physics import TASKS
from ups.progress import Screen
from ups.provenance import code
from ups.run.config import RunConfig, run_config
from ups.run.journal import PHASES, PhaseJournal, Span, read_journal
from ups.run.judging.champion import Champion
from ups.run.judging.gates_check import require_measurable
from ups.run.rank_place import Alone
from ups.run.run import Run, finish_alone
from ups.run.start import Start
from ups.rundir import RunDir
from ups.types import ConfigError, DataError
from ups.verdict import Ending, Verdict

TINY = """
name: tiny
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 40}}
model:
  codec: {dim: 8}
  operator: {width: 16, depth: 1, heads: 2}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 4}}
evaluation: {ensemble: 0}
device: cpu
"""
WIDE = {"advection1d": {"nrmse": 50.0, "over_persistence": 50.0, "mass": 1e-4}}


def settings(folder: Path, gates: Mapping[str, Any] | None = None, **overrides: object) -> RunConfig:
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(run_config(), path, {"out": str(folder / "runs"), "gates": gates or {}, **keys})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose run `tiny` has passed wide gates."""
    folder = tmp_path_factory.mktemp("gates")
    _, finish = finish_alone(settings(folder, WIDE), Screen.silent())
    assert finish.ending == Ending.SUCCESS
    return folder


def again(config: RunConfig, span: Span | None = None) -> tuple[Any, Run]:
    """The run once more, as a rank does it: what is there is not judged again."""
    run = Run.open(config, start=Start(resume=True, span=span or Span()))
    with run.folder, run:
        finish = run.carry_out(Alone())
        assert finish is not None
        run.folder.succeed(finish.ending, finish.cause)
    return finish, run


def results_of(run: RunDir) -> dict[str, str]:
    """How each phase ended last."""
    return {row["phase"]: row["result"] for row in read_journal(run.journal) if row["event"] == "end"}


def test_every_phase_is_recorded_when_it_begins_and_when_it_ends(home: Path) -> None:
    rows = read_journal(RunDir(home / "runs/tiny").journal)[: 2 * 11]
    assert [row["event"] for row in rows] == ["begin", "end"] * 11
    assert list(dict.fromkeys(row["phase"] for row in rows)) == list(PHASES)
    assert [row["part"] for row in rows if row["phase"] == "train"] == ["codec", "codec", "operator", "operator"]


def test_gates_stand_in_the_results_and_on_the_page(home: Path) -> None:
    run = RunDir(home / "runs/tiny")
    rows = {r.metric: r for r in read_results(run.results) if r.mode.startswith("gate")}
    assert {r.mode for r in rows.values()} == {"gate passed"}
    assert {name: r.at for name, r in rows.items()} == {"nrmse": 50, "nrmse-over-persistence": 50, "law mass": 1e-4}
    measured = next(
        r for r in read_results(run.results) if (r.metric, r.mode, r.predictor) == ("nrmse", "strict", "ups")
    )
    assert rows["nrmse"].value == measured.value
    assert 0 <= rows["law mass"].value < 1e-5, "the simulator repairs the mass"
    assert ">Gates</h2>" in run.report.read_text()


def test_other_gates_are_decided_without_training_or_judging_again(home: Path) -> None:
    run, simulator = RunDir(home / "runs/tiny"), (home / "runs/tiny/artifacts/simulator.safetensors").read_bytes()
    strict = settings(home, {"advection1d": {"nrmse": 1e-9, "mass": 1e-4}})
    assert fingerprint(strict) == fingerprint(settings(home, WIDE)), "gates forbid no resume"
    for _ in range(2):
        finish, _ = again(strict)
        assert finish.ending == Ending.GATE_MISSED
        assert "advection1d: nrmse is " in finish.cause
        assert "above its gate 1e-09." in finish.cause
        verdict = Verdict.read(run.verdict)
        assert verdict is not None
        assert (verdict.ending, verdict.cause) == (Ending.GATE_MISSED, finish.cause)
    done = results_of(run)
    wanted = {"data": "skipped", "train": "skipped", "calibrate": "skipped", "evaluate": "skipped", "gates": "done"}
    assert wanted.items() <= done.items()
    assert done["report"] == "skipped", "the second time nothing is new on the page"
    assert run.artifact("simulator").read_bytes() == simulator
    page = run.report.read_text()
    assert page.count(">Gates</h2>") == 1
    assert "MISSED" in page
    assert "1e-09" in page
    assert {r.mode for r in read_results(run.results) if r.axis == "bound"} == {"gate passed", "gate missed"}
    finish, _ = again(settings(home, WIDE))
    assert finish.ending == Ending.SUCCESS
    assert "MISSED" not in run.report.read_text()


def test_a_resume_with_other_code_says_what_changed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences: list[str] = []
    screen = dataclasses.replace(Screen.silent(), say=sentences.append)
    Run.open(settings(home, WIDE), screen, start=Start(resume=True)).folder.close()
    assert sentences == [], "the same code has nothing to say"
    monkeypatch.setattr("ups.run.journal.code", lambda: {**code(), "torch": "9.9"})
    Run.open(settings(home, WIDE), screen, start=Start(resume=True)).folder.close()
    assert f"torch {code()['torch']} → 9.9" in sentences[0]
    monkeypatch.undo()
    again(settings(home, WIDE))


def test_what_is_no_longer_whole_is_made_again(home: Path) -> None:
    run = RunDir(home / "runs/tiny")
    run.results.write_text("[]")
    finish, _ = again(settings(home, WIDE))
    assert finish.report is not None
    assert results_of(run)["evaluate"] == "done"
    assert results_of(run)["train"] == "skipped"
    artifact = run.artifact("simulator")
    artifact.write_bytes(artifact.read_bytes()[:-8])
    again(settings(home, WIDE))
    assert (results_of(run)["train"], results_of(run)["calibrate"]) == ("resumed", "done")


def test_a_run_ends_after_the_phase_it_was_asked_for_and_goes_on_from_there(tmp_path: Path) -> None:
    config, seen = settings(tmp_path), list[str]()
    for until in ("check", "data", "dry-run", "train"):
        span = Span.of(None, until)
        finish, _run = again(config, span) if seen else (None, None)
        if not seen:
            _, finish = finish_alone(config, Screen.silent(), start=Start(span=span))
        assert finish is not None
        assert finish.ending == Ending.PAUSED
        assert until in finish.cause
        seen.append(until)
        run_dir = RunDir(tmp_path / "runs/tiny")
        assert read_journal(run_dir.journal)[-1]["phase"] == until
        assert run_dir.artifact("simulator").exists() == (until == "train")
        assert run_dir.data.exists() == (until != "check")
    facts = PhaseJournal(run_dir.journal).last("dry-run")["stages"]
    assert set(facts) == {"codec", "operator"}
    assert all(math.isfinite(a) for s in facts.values() for a in s["losses"][0])
    finish, _ = again(config, Span.of(None, "evaluate"))
    assert finish.ending == Ending.PAUSED
    finish, _ = again(settings(tmp_path, WIDE), Span.of("gates", None))
    assert finish.ending == Ending.SUCCESS
    assert results_of(run_dir)["evaluate"] == "skipped", "what the evaluation left is there"
    html = run_dir.report.read_text()
    assert "Every gate is passed." in html
    assert re.findall(r'<a href="#([^"]+)">', html) == re.findall(r'<section id="([^"]+)">', html), "its contents too"
    with pytest.raises(ConfigError, match="finished run"):
        Run.open(config)


def test_a_long_evaluation_is_not_repeated_after_a_kill_before_its_report(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "runs", tmp_path / "runs")
    config, run = settings(tmp_path, WIDE), RunDir(tmp_path / "runs/tiny")

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("ups.run.judging.conclusion.DEAR", 0.0)
    with monkeypatch.context() as death:
        death.setattr("ups.run.judging.conclusion.AfterTraining._report", killed)
        with pytest.raises(RuntimeError, match="killed"):
            again(config, Span.of("evaluate", None))
    finish, _ = again(config)
    assert (finish.ending, results_of(run)["evaluate"]) == (Ending.SUCCESS, "skipped")
    assert "Every gate is passed." in run.report.read_text()


def test_a_resume_that_asks_other_questions_is_judged_anew_where_force_says_so(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "runs", tmp_path / "runs")
    run = RunDir(tmp_path / "runs/tiny")
    weights, known = run.artifact("simulator").read_bytes(), run.known()
    other = settings(tmp_path, WIDE, evaluation__samples=8)
    with pytest.raises(ConfigError, match=r"\(evaluation\.samples: 16 → 8\); --resume --force goes on with this"):
        Run.open(other, start=Start(resume=True))
    learnt = settings(tmp_path, WIDE, evaluation__samples=8, operator__train__lr=0.1)
    with pytest.raises(ConfigError, match=r"\(operator\.train\.lr: .* → 0\.1\) that --force cannot replace"):
        Run.open(learnt, start=Start(resume=True, force=True))
    assert run.known() == known
    sentences: list[str] = []
    screen = dataclasses.replace(Screen.silent(), say=sentences.append)
    _, finish = finish_alone(other, screen, start=Start(resume=True, force=True))
    assert finish.ending == Ending.SUCCESS
    assert any("another config (evaluation.samples: 16 → 8)" in sentence for sentence in sentences)
    assert (results_of(run)["train"], results_of(run)["evaluate"]) == ("skipped", "done")
    assert run.artifact("simulator").read_bytes() == weights
    assert results_of(again(other)[1].folder)["evaluate"] == "skipped", "it is the run's config from now on"


def test_a_dry_run_changes_no_weight(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    finish_alone(settings(one), Screen.silent(), start=Start(span=Span.of(None, "train")))
    finish_alone(settings(two), Screen.silent(), start=Start(span=Span.of(None, "dry-run")))
    again(settings(two), Span.of(None, "train"))
    artifacts = [RunDir(folder / "runs/tiny").artifact("simulator").read_bytes() for folder in (one, two)]
    assert artifacts[0] == artifacts[1]


def test_a_dry_run_finds_a_loss_that_rises_wildly(tmp_path: Path) -> None:
    config = settings(tmp_path, operator__train__lr=1e6)
    with pytest.raises(Exception, match=r"the dry run, before any training: .*lower .*train.lr") as caught:
        finish_alone(config, Screen.silent(), start=Start(span=Span.of(None, "dry-run")))
    assert getattr(caught.value, "ending", None) == Ending.NOT_FINITE
    assert read_journal(RunDir(tmp_path / "runs/tiny").journal)[-1]["result"] == "failed"


@pytest.mark.parametrize(("first", "needs"), [("evaluate", "train"), ("gates", "evaluate")])
def test_no_phase_comes_first_whose_inputs_are_missing(tmp_path: Path, first: str, needs: str) -> None:
    config = settings(tmp_path)
    finish_alone(config, Screen.silent(), start=Start(span=Span.of(None, "data")))
    with pytest.raises(DataError, match=f"--from {first}: .*which phase {needs} leaves"):
        Run.open(config, start=Start(resume=True, span=Span.of(first, None)))


def test_phases_are_named_in_their_order() -> None:
    with pytest.raises(ConfigError, match="--until: there is no phase 'tran'; did you mean 'train'"):
        Span.of(None, "tran")
    with pytest.raises(ConfigError, match="--until data comes before --from train"):
        Span.of("train", "data")


def test_half_a_line_of_a_killed_run_hides_no_other(tmp_path: Path) -> None:
    journal = PhaseJournal(tmp_path / "phases.jsonl")
    with journal("data") as mark:
        mark.facts["files"] = "x"
    with (tmp_path / "phases.jsonl").open("a") as file:
        file.write("[" * 100_000 + '\n{"phase": "train", "ev')
    with pytest.raises(KeyError), journal("train", "codec"):
        raise KeyError
    rows = read_journal(journal.path)
    assert [(row["phase"], row["event"]) for row in rows] == [
        ("data", "begin"),
        ("data", "end"),
        ("train", "begin"),
        ("train", "end"),
    ]
    assert journal.last("data")["files"] == "x"
    assert journal.last("train", "codec") == {}
    assert (rows[-1]["result"], rows[-1]["ending"]) == ("failed", "CRASH")
    os.mkfifo(tmp_path / "pipe")
    assert read_journal(tmp_path / "pipe") == []


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ({"advection": {"nrmse": 1}}, "this run has no task 'advection'; did you mean 'advection1d'"),
        ({"advection1d": {"nmrse": 1}}, "gives no 'nmrse'; did you mean 'nrmse'"),
        ({"advection1d": {"energy": 1}}, "gives no 'energy'; its metrics are .*mass"),
        ({"advection1d": {"correlation-time": 1}}, "better when it is larger"),
        ({"champion": "nowhere"}, "nowhere is not a run folder"),
    ],
)
def test_a_gate_that_cannot_be_decided_is_refused_before_any_work(tmp_path: Path, gates: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Run.open(settings(tmp_path, gates))
    assert not (tmp_path / "runs").exists()


def test_a_new_metric_may_have_a_gate_unless_it_is_better_when_it_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "worst_cell", Metric("an error", lambda c: c.rmse))
    monkeypatch.setitem(METRICS, "skill", Metric("a success", lambda c: c.correlation, larger_is_better=True))
    tasks = [(TASKS["advection1d"], (True,))]
    require_measurable({"advection1d": {"worst_cell": 1.0}}, tasks)
    assert metric_of("worst_cell") == "worst_cell"
    with pytest.raises(ConfigError, match="skill: is better when it is larger"):
        require_measurable({"advection1d": {"skill": 1.0}}, tasks)
    with pytest.raises(ConfigError, match=r"its metrics are .*worst_cell") as error:
        require_measurable({"advection1d": {"energy": 1.0}}, tasks)
    assert "skill" not in str(error.value)
    assert "correlation-time" not in str(error.value)


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ({"advection1d": {"nrmse": "small"}}, "gates.advection1d.nrmse is 'small', but must be a finite number"),
        ({"advection1d": {"nrmse": float("nan")}}, "must be a finite number"),
        ({"advection1d": 0.1}, "gates.advection1d is 0.1, but must be bounds by metric"),
        ({"champion": 3}, "gates.champion is 3, but must be the folder of a run"),
    ],
)
def test_a_gate_is_a_number_and_a_champion_a_folder(tmp_path: Path, gates: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(tmp_path, gates)


def test_yaml_takes_1e_5_for_a_text_and_a_gate_for_a_number(tmp_path: Path) -> None:
    assert settings(tmp_path, {"advection1d": {"mass": "1e-5"}}).bounds == {"advection1d": {"mass": 1e-5}}


def test_a_champion_is_compared_on_the_same_trajectories_and_said_where_they_are_others(home: Path) -> None:
    best = str(home / "runs/tiny")
    with pytest.raises(ConfigError, match="this very run"):
        Run.open(settings(home, {"champion": best}), start=Start(resume=True))
    folder, finish = finish_alone(settings(home, {"champion": best}, name="rival"), Screen.silent())
    mine, theirs = read_trajectories(folder.folder), read_trajectories(Path(best))
    assert mine[0].marks == theirs[0].marks, "the same data, made in two runs"
    assert "champion" not in {row.predictor for row in mine}, "its errors on them were known"
    assert "cannot be told from" in finish.remarks[-1], "two trajectories tell nothing"
    assert finish.ending == Ending.SUCCESS
    other = settings(home, {"champion": best}, name="elsewhere", data__a__seed=5)
    _, finish = finish_alone(other, Screen.silent())
    assert finish.report is not None
    (gate,) = finish.report.gates
    assert gate.champion == best
    assert "its own test trajectories are others (0 in common)" in gate.note
    assert math.isfinite(gate.value)
    finish, run = again(other)
    assert finish.report is None
    assert results_of(run.folder)["evaluate"] == "skipped", "what its simulator makes of these is known"
    assert gate.note in finish.remarks[-1]


def errors(*nrmse: float, first: int = 0) -> PerTrajectory:
    marks = tuple(f"m{number}" for number in range(first, first + len(nrmse)))
    return PerTrajectory("t", "test", "ups", "A", 0.0, 0.0, 0.0, marks, marks, nrmse, "x")


def test_worse_means_with_an_interval_above_nothing() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.1, 1.0, 40)
    noise = against("best", errors(*(base + rng.normal(0, 0.1, 40))), errors(*base))
    worse = against("best", errors(*(base + 0.05 + rng.normal(0, 0.01, 40))), errors(*base))
    better = against("best", errors(*(base - 0.05)), errors(*base))
    assert noise.passed
    assert not worse.passed
    assert better.passed
    assert "significantly worse than best's" in missed([worse])


@pytest.mark.parametrize(("ours", "theirs", "passes"), [(math.inf, 0.1, False), (0.1, math.inf, True)])
def test_a_rollout_that_diverges_misses_the_gate_of_one_that_does_not(ours: float, theirs: float, passes: bool) -> None:
    assert against("best", errors(0.1, ours), errors(0.1, theirs)).passed is passes


def test_a_champion_is_compared_on_the_trajectories_that_both_have() -> None:
    base = np.linspace(0.1, 1.0, 12)
    ours, theirs = errors(*(base + 0.05)), errors(*base[4:], *base[:4], first=4)
    champion = Champion("best", "x", {"t": theirs})
    assert champion.was_judged_on("t", ours.marks), "eight of twelve are enough"
    (gate,) = champion.gates([ours])
    assert (gate.n, gate.passed) == (8, False)
    assert gate.value == pytest.approx(0.05)
    assert gate.note == "on the 8 of 12 test trajectories that both have"
    few = Champion("best", "x", {"t": errors(*base, first=8)})
    assert not few.was_judged_on("t", ours.marks), "four of twelve are not"
    assert few.gates([ours]) == ()
    judged = dataclasses.replace(errors(*base), predictor="champion")
    (gate,) = few.gates([ours, judged])
    assert (gate.n, gate.passed) == (12, False)
    assert "(4 in common)" in gate.note
    other = dataclasses.replace(judged, simulator="y")
    assert few.gates([ours, other]) == (), "errors of a simulator that is no longer there"


def test_too_few_trajectories_decide_nothing_and_that_is_said() -> None:
    gate = against("best", errors(0.5, 0.6, 0.7), errors(0.1, 0.1, 0.1))
    assert gate.passed
    assert "3 test trajectories are too few" in gate.sentence


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_misses_its_gate(value: float) -> None:
    gate = Gate("t", "nrmse", value, 1e9, value, value, 4)
    assert not gate.passed
    assert "not a finite number" in missed([gate])
    assert not decide({"t": {"nrmse": 1.0}}, [])[0].passed, "what was not measured is not passed"


def test_names_of_gates_are_those_of_records() -> None:
    names = {"over_persistence": "nrmse-over-persistence", "mass": "law mass", "one_step_nrmse": "one-step-nrmse"}
    assert {name: metric_of(name) for name in names} == names


def test_a_gate_missed_is_no_success_for_the_command(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from ups.cli.app import main

    assert json.loads((home / "runs/tiny/verdict.json").read_text())["verdict"] == "SUCCESS"
    words = ["run", str(home / "tiny.yaml"), "--out", str(home / "runs"), "--gates.advection1d.nrmse", "1e-9"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--resume", "--here"])
    assert left.value.code == int(Ending.GATE_MISSED) == 19
    printed = capfd.readouterr()
    assert "gate MISSED: advection1d: nrmse is" in printed.out
    assert "GATE_MISSED" in printed.err
