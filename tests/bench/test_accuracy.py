"""`ups bench accuracy`: a ledger says what results.json says, data are made once, and nothing is spent in vain."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_rows import TINY, alone, in_this_process, never

from ups.cli.app import main
from ups.config import load
from ups.data import open_source
from ups.physics import TASKS
from ups.run.config import RunConfig, run_config
from ups.run.data.generate import generate
from ups.rundir import RunDir
from ups.types import ConfigError, DataError
from ups.verdict import Ending
from ups_bench import accuracy, ledger
from ups_bench.accuracy import AccuracyRequest, Way, bench_accuracy
from ups_bench.beyond import OVER_GRID
from ups_bench.rows import BenchRow, RowBudget, check_budget, rows_in
from ups_bench.variants import Few, InPrecision, Short, WholeRow
from ups_bench.verify import bench_verify, compared


@dataclasses.dataclass(frozen=True)
class Measured:
    """The tiny row, measured with two seeds."""

    row: BenchRow
    request: AccuracyRequest
    ending: Ending
    said: list[str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    home = tmp_path_factory.mktemp("bench")
    (home / "rows" / "tiny").mkdir(parents=True)
    (home / "rows" / "base.yaml").write_text(TINY)
    (home / "rows" / "tiny" / "first.yaml").write_text("base: ../base.yaml\nname: tiny\n")
    (home / "published.yaml").write_text("rows: {tiny/first: {paper: 0.5, retuned: 0.25, low: 0.2, high: 0.3}}\n")
    (row,) = rows_in(home / "rows", home / "published.yaml").values()
    said: list[str] = []
    budget = RowBudget(minutes=0.005)
    request = AccuracyRequest([row], budget, 2, home / "ledger.json", home / "runs", keep_data=True, commit="abc")
    return Measured(row, request, bench_accuracy(request, said.append, in_this_process), said)


def places(measured: Measured) -> list[RunDir]:
    return [RunDir(measured.request.out / f"tiny-first-0.005min-seed{seed}") for seed in (0, 1)]


def test_an_entry_says_what_the_results_of_its_run_say(measured: Measured) -> None:
    entries = ledger.read(measured.request.ledger)
    written = json.loads(measured.request.ledger.read_text())["entries"]
    assert (measured.ending, len(entries)) == (Ending.SUCCESS, 2)
    for seed, (entry, place) in enumerate(zip(entries, places(measured), strict=True)):
        rows = [r for r in json.loads(place.results.read_text()) if (r["split"], r["mode"]) == ("test", "strict")]
        rows = [{k: r[k] for k in ledger.Score.model_fields if k != "split"} for r in rows if not r["axis"]]
        assert written[seed]["numbers"] == rows
        predictors = {"ups", "persistence", "training-mean", "reconstruction"}
        assert {row["predictor"] for row in rows} == predictors == {*entry.predictors}
        stages = json.loads(place.stages.read_text())
        assert {name: spent.steps for name, spent in entry.stages.items()} == {n: s["steps"] for n, s in stages.items()}
        assert all(entry.stages[name].validation == s["score"] for name, s in stages.items())
        assert entry.predictors["ups"].steps == sum(s["steps"] for s in stages.values())
        facts = json.loads(place.environment.read_text())
        assert (entry.config, entry.run, entry.seed) == (facts["fingerprint"], facts["run"], seed)
        assert (entry.recipe, entry.commit, entry.kind) == (measured.row.recipe, "abc", "full")
        (data,) = entry.data
        assert (data.train, data.valid, data.test, data.grid, data.frames) == (16, 2, 2, (32,), 11)
        assert list(data.sha256.values()) == [
            row["sha256"] for row in json.loads(place.data.read_text())["files"].values()
        ]
        assert entry.published.retuned == 0.25
        ours = entry.score()
        assert ours is not None
        assert any(f"seed {seed}: nRMSE {ours.value:.3g}" in words for words in measured.said)


def test_an_entry_says_of_a_large_file_that_only_samples_of_it_are_hashed(measured: Measured, tmp_path: Path) -> None:
    """The same run, as one whose file is too large to be hashed whole."""
    place = RunDir(shutil.copytree(places(measured)[0].folder, tmp_path / "run"))
    (name, row), *_ = json.loads(place.data.read_text())["files"].items()
    place.write(place.data, {"files": {name: {"bytes": row["bytes"], "sampled": "f" * 64}}})
    (data,) = accuracy.entry_of(place, measured.row, RowBudget(), {"source": ""}).data
    assert data.sha256 == {Path(name).name: "sampled:" + "f" * 64}


def test_a_row_beyond_the_table_has_the_numbers_of_every_part_and_their_ratios(measured: Measured) -> None:
    """The same run, as that of a row in a folder `beyond`; its finer grid is of other trajectories than the test."""
    place, row = places(measured)[0], dataclasses.replace(measured.row, name="beyond/first")
    entry = accuracy.entry_of(place, row, RowBudget(), {"source": ""})
    finer = "new trajectories, 64 cells (zero-shot)"
    known = {(s.split, s.metric): s.value for s in entry.numbers if s.predictor == "ups"}
    assert entry.kind == "beyond"
    assert known[finer, OVER_GRID] == pytest.approx(known[finer, "nrmse"] / known["test", "nrmse"])
    assert ("new trajectories, beta = 0.7 (outside the trained range)", "nrmse") in known
    assert known["test", "2x size"] > 0
    assert known["test", "2x law mass"] < 1e-5, "they are kept so far ahead too"
    ours = entry.score()
    assert ours is not None
    assert ours.value == known["test", "nrmse"], "other parts are not in the row's own number"
    words = accuracy.sentence(entry)
    assert f"{finer}: {known[finer, OVER_GRID]:.2f} times the trained grid's" in words
    assert "2 times as long: " in words


def test_an_entry_says_how_often_each_of_several_tasks_was_drawn() -> None:
    spent = {"steps": 8, "seconds": 1.0, "score": 0.1}
    rows = [{"task": "a", "steps": 6, "of": 8}, {"task": "b", "steps": 2, "of": 8}]
    assert accuracy.stage_of({**spent, "drawn": rows})["drawn"] == {"a": 0.75, "b": 0.25}
    assert not accuracy.stage_of({**spent, "drawn": rows[:1]})["drawn"], "one task has no choice"
    untrained = [{**row, "steps": 0, "of": 0} for row in rows]
    assert not accuracy.stage_of({**spent, "drawn": untrained})["drawn"]


def test_data_are_made_once_for_all_seeds(measured: Measured) -> None:
    first, second = (next(place.cache("data").glob("*.hdf5")) for place in places(measured))
    assert first.stat().st_ino == second.stat().st_ino
    assert places(measured)[0].known() != places(measured)[1].known()


def test_data_beyond_training_are_solved_on_the_grid_of_what_was_stored_in_part(measured: Measured) -> None:
    """Stored are 32 of 64 cells: twice as many are those that were solved, and other parameters are stored alike."""
    place = places(measured)[0]
    splits = {row["split"] for row in json.loads(place.results.read_text())}
    assert {"new trajectories, 64 cells (zero-shot)"} < splits
    made = []
    for path in place.cache("beyond").rglob("*.hdf5"):
        with open_source(path, TASKS) as source:
            identity = json.loads(str(source.attributes()["ups_identity"]))
            made.append((source.params["beta"], identity["resolution"], source.grid.shape, len(source.times)))
    assert sorted(made) == [(0.4, 64, (64,), 11), (0.7, 64, (32,), 11)]


def test_each_task_of_an_entry_has_the_digests_of_its_own_files(tmp_path: Path) -> None:
    """Their names are those that were made; what is no file of a task, as the simulator to start from, is kept."""
    small = {"samples": 10, "resolution": 32, "frames": 3, "device": "cpu"}
    data = {
        "waves": {"task": "advection1d", "params": {"beta": [0.1, 0.4]}, "store": {"space": 2}, **small},
        "more": {"task": "advection1d", "params": {"beta": {"low": 1.0, "high": 2.0}}, **small},
        "calm": {"task": {"name": "calm", "equation": "burgers1d"}, **small},
    }
    np.savez(tmp_path / "mine.npz", u=np.zeros((10, 3, 32, 1), np.float32))
    dims = {"name": "mine", "dims": ["sample", "time", "x", "channel"]}
    data["mine"] = {"file": str(tmp_path / "mine.npz"), "task": dims}
    config = load(run_config(), overrides={"data": data})
    made = {
        label: [path.name for path in generate(asked.generation(), tmp_path / "d", lambda _: None)]
        for label, asked in config.data.items()
        if not asked.there
    }
    names = [*(name for files in made.values() for name in files), "simulator.safetensors"]
    files = {f"{{run}}/cache/data/{name}": {"bytes": 1, "sha256": name} for name in names}
    place = RunDir(tmp_path / "run")
    place.folder.mkdir()
    place.write(place.data, {"files": {**files, str(tmp_path / "mine.npz"): {"bytes": 1, "sha256": "mine.npz"}}})
    found = {row["task"]: set(row["sha256"]) for row in accuracy.data_of(config, place)}
    assert found == {
        "advection1d": {*made["waves"], *made["more"], "simulator.safetensors"},
        "calm": {*made["calm"], "simulator.safetensors"},
        "mine": {"mine.npz", "simulator.safetensors"},
    }
    assert [len(files) for files in made.values()] == [2, 1, 1]


def test_what_is_measured_is_not_measured_again(measured: Measured, tmp_path: Path) -> None:
    said: list[str] = []
    assert bench_accuracy(measured.request, said.append, never) == Ending.SUCCESS
    assert len(ledger.read(measured.request.ledger)) == 2, "an entry is there once"
    assert "is measured already" in said[0]
    elsewhere = dataclasses.replace(measured.request, ledger=tmp_path / "other.json")
    bench_accuracy(elsewhere, said.append, never)
    ours, theirs = (ledger.read(path) for path in (measured.request.ledger, elsewhere.ledger))
    assert [entry.key for entry in ours] == [entry.key for entry in theirs]


def test_the_data_of_a_measured_row_are_deleted_unless_they_are_to_be_kept(measured: Measured, tmp_path: Path) -> None:
    shutil.copytree(measured.request.out, tmp_path / "runs")
    moved = dataclasses.replace(measured.request, out=tmp_path / "runs", keep_data=False, ledger=tmp_path / "l.json")
    bench_accuracy(moved, str, never)
    assert list((tmp_path / "runs").glob("*/cache/data/*")) == []
    assert all(path.cache("data").is_dir() for path in places(measured))


def test_a_run_that_fails_is_named_and_the_next_row_goes_on(measured: Measured, tmp_path: Path) -> None:
    other = dataclasses.replace(measured.row, name="tiny/second")
    request = dataclasses.replace(measured.request, rows=[other, measured.row], ledger=tmp_path / "l.json")
    said: list[str] = []
    assert bench_accuracy(request, said.append, lambda *_: Ending.OOM) == Ending.OOM
    assert said[-1] == "not measured: tiny/second, seed 0 (OOM)."
    assert len(ledger.read(request.ledger)) == 2
    stopped = dataclasses.replace(request, ledger=tmp_path / "none.json")
    assert bench_accuracy(stopped, said.append, lambda *_: Ending.PREEMPTED) == Ending.PREEMPTED
    assert ledger.read(stopped.ledger) == [], "who stops one run wants no other"


def test_what_cannot_be_measured_is_said_before_anything_is_spent(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(**changes: object) -> str:
        request = dataclasses.replace(measured.request, out=tmp_path / "runs", **changes)  # type: ignore[arg-type]
        with pytest.raises((ConfigError, DataError)) as refused:
            bench_accuracy(request, str, never)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert "--minutes is 0" in refusal(budget=RowBudget(minutes=0))
    assert "--seeds is 0" in refusal(seeds=0)
    (tmp_path / "damaged.json").write_text(measured.request.ledger.read_text()[:-40])
    assert "damaged.json: is damaged" in refusal(ledger=tmp_path / "damaged.json")
    shutil.copytree(measured.row.path.parents[1], tmp_path / "rows")
    path = tmp_path / "rows" / "tiny" / "first.yaml"
    path.write_text(path.read_text() + "device: cuda\n")
    on_gpu = dataclasses.replace(measured.row, path=path)
    assert "is measured on a GPU, and there is none here" in refusal(rows=[on_gpu])
    assert "no GPU here; use cpu" in refusal(rows=[on_gpu], budget=RowBudget(device="cuda"))
    monkeypatch.setattr(accuracy, "has_gpu", lambda: True)
    with pytest.raises(AssertionError, match="tiny-first"):
        bench_accuracy(dataclasses.replace(measured.request, rows=[on_gpu], out=tmp_path / "gpu"), str, never)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    said: list[str] = []
    request = dataclasses.replace(measured.request, out=tmp_path / "runs")
    assert bench_accuracy(request, said.append, never) == Ending.STORAGE
    assert "GB of the disk for its data, and only 0.0 GB are free" in said[0]


def test_steps_take_the_place_of_the_clock_in_the_stage_that_has_one(measured: Measured, tmp_path: Path) -> None:
    configs: list[RunConfig] = []

    def carry(config: RunConfig, way: Way) -> Ending:  # noqa: ARG001
        configs.append(config)
        return Ending.OOM

    budget = dataclasses.replace(measured.request.budget, steps=7)
    request = dataclasses.replace(measured.request, budget=budget, seeds=1, out=tmp_path)
    assert bench_accuracy(request, str, carry) == Ending.OOM
    (config,) = configs
    assert (config.operator.train.steps, config.operator.train.seconds, config.codec.train.steps) == (7, None, 2)
    assert config.name == "tiny-first-0.005min-7steps-seed0", "another folder than that of the minutes"
    place = places(measured)[0]
    for steps, by_steps in ((7, True), ({"operator": 7}, False), (None, False)):
        entry = accuracy.entry_of(place, measured.row, RowBudget(steps=steps), {"source": ""})
        assert entry.by_steps is by_steps, "an entry says of itself that no clock ended it"
    few = accuracy.entry_of(place, measured.row, RowBudget(variant=Few(4)), {"source": ""})
    half = accuracy.entry_of(place, measured.row, RowBudget(variant=InPrecision("bf16")), {"source": ""})
    assert (few.kind, few.trajectories, half.kind, half.precision) == ("few", 4, "precision", "bf16")
    text = TINY.replace("train: {steps: 2}", "train: {seconds: 1}")
    (tmp_path / "both.yaml").write_text(text + "name: both\n")
    (both,) = rows_in(tmp_path).values()
    with pytest.raises(ConfigError, match="trains codec and operator by the clock, and --steps is for one stage"):
        bench_accuracy(dataclasses.replace(request, rows=[both]), str, never)
    with pytest.raises(ConfigError, match="--steps is 0, but nothing is learnt in fewer than 1"):
        check_budget(RowBudget(steps=0), 1)
    for other in (Short(), Few(16), InPrecision("bf16")):
        with pytest.raises(ConfigError, match="--steps is for whole rows, not with --short"):
            check_budget(RowBudget(steps=7, variant=other), 1)


def test_a_short_version_is_as_before_better_or_worse(measured: Measured) -> None:
    (entry, other) = ledger.read(measured.request.ledger)

    def at(value: float) -> ledger.LedgerEntry:
        score = ledger.Score(task="t", predictor="ups", metric="nrmse", value=value, low=value - 1, high=value + 1, n=9)
        return entry.model_copy(update={"numbers": (score,)})

    before = [at(5.0), at(5.5)]
    assert compared(at(6.4), before)[0]
    assert "had 4 – 6.5: as before" in compared(at(6.4), before)[1]
    assert compared(at(3.9), before) == (True, compared(at(3.9), before)[1])
    assert "better than before" in compared(at(3.9), before)[1]
    for bad in (6.6, float("nan"), float("inf")):
        passed, words = compared(at(bad), before)
        assert not passed
        assert words.endswith("WORSE than before.")
    file, out = measured.request.ledger, measured.request.out
    with pytest.raises(ConfigError, match="holds no short version of tiny/first; measure one with"):
        bench_verify(*alone(measured.row), RowBudget(variant=Short()), file, out, str, never)
    assert other.kind == "full"


@pytest.mark.slow
def test_a_short_version_is_recorded_and_verified(measured: Measured, tmp_path: Path) -> None:
    short = RowBudget(minutes=0.01, variant=Short())
    request = dataclasses.replace(measured.request, budget=short, seeds=1, out=tmp_path, ledger=tmp_path / "l.json")
    assert bench_accuracy(request, str, in_this_process) == Ending.SUCCESS
    said: list[str] = []
    asked = (
        {measured.row.name: measured.row},
        measured.row.name,
        RowBudget(variant=Short()),
        request.ledger,
        tmp_path,
        said.append,
    )
    assert bench_verify(*asked, in_this_process) == 0
    assert "an earlier run had" in said[-1]
    again = dataclasses.replace(request, overwrite=True)
    assert bench_accuracy(again, str, in_this_process) == Ending.SUCCESS
    entry, other = ledger.read(request.ledger)
    assert (entry.run != other.run, entry.config == other.config) == (True, True), "it was measured again"
    worse = entry.model_copy(update={"numbers": tuple(s.model_copy(update={"high": 0.0}) for s in entry.numbers)})
    (tmp_path / "worse.json").write_text(ledger.text_of([ledger.sealed(worse.model_dump())]))
    asked = (
        {measured.row.name: measured.row},
        measured.row.name,
        RowBudget(variant=Short()),
        tmp_path / "worse.json",
        tmp_path,
        said.append,
    )
    assert bench_verify(*asked, in_this_process) == 1
    assert bench_verify(*asked, lambda *_: Ending.OOM) == 3


@pytest.mark.slow
def test_an_fno_beside_it_has_as_many_parameters_and_as_much_time(measured: Measured, tmp_path: Path) -> None:
    pytest.importorskip("neuralop", reason="needs the `baselines` extra")
    budget = RowBudget(minutes=0.02, baselines=("fno",))
    request = dataclasses.replace(measured.request, budget=budget, seeds=1, out=tmp_path, ledger=tmp_path / "l.json")
    assert bench_accuracy(request, str, in_this_process) == Ending.SUCCESS
    (entry,) = ledger.read(request.ledger)
    ours, fno = entry.predictors["ups"], entry.predictors["fno"]
    assert fno.params == pytest.approx(ours.params, rel=0.05)
    assert fno.seconds == pytest.approx(ours.seconds, rel=0.5)
    assert fno.steps > 0
    assert entry.score("fno") is not None


def test_flags_of_the_command_become_the_budget_of_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []
    monkeypatch.setattr("ups_bench.accuracy.bench_accuracy", lambda request, say: asked.append(request) or 0)  # noqa: ARG005
    monkeypatch.setattr("ups_bench.verify.bench_verify", lambda *given: asked.append(given) or 0)

    def budget(*words: str) -> RowBudget:
        with contextlib.suppress(SystemExit):
            main(["bench", *words, "--out", str(tmp_path)])
        last = asked[-1]
        return last.budget if isinstance(last, AccuracyRequest) else last[2]  # type: ignore[index,no-any-return]

    row = "darcy2d/beta1"
    assert budget("accuracy", row, "--minutes", "2", "--steps", "70", "--seed", "3", "--fno") == RowBudget(
        minutes=2.0, seed=3, baselines=("fno",), steps=70
    )
    assert budget("accuracy", row, "--short", "--device", "cpu") == RowBudget(device="cpu", variant=Short())
    assert budget("accuracy", row, "--trajectories", "16") == RowBudget(variant=Few(16, None))
    assert budget("accuracy", row, "--precision", "bf16") == RowBudget(variant=InPrecision("bf16"))
    assert budget("verify", row) == RowBudget(variant=Short())
    assert budget("verify", row, "--whole", "--seed", "5") == RowBudget(seed=5, variant=WholeRow())
