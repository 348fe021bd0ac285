"""A run, end to end and tiny: every file it promises, honest verdicts, and a simulator that survives its process."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ups
from ups.cli.app import main
from ups.config import load
from ups.data import open_source
from ups.eval.report import Report
from ups.jobs.demo import demo
from ups.jobs.rollout import rollout
from ups.physics import TASKS
from ups.progress import Screen, TrainingProgress
from ups.run.config import RunConfig, run_config
from ups.run.run import run_alone as run
from ups.run.start import Start
from ups.types import ConfigError, DataError
from ups.verdict import Ending

TINY = """
name: tiny
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 20}}
  k: {task: kdv1d, samples: 10, resolution: 32, device: cpu, reduce: {time: 4}, frames: 21}
model:
  codec: {dim: 8}
  operator: {width: 16, depth: 1, heads: 2}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 6}}
device: cpu
"""


def silent(*_: object) -> None:
    """Nothing is shown."""


SCREEN = Screen(silent, silent, silent)


def settings(folder: Path, **overrides: object) -> RunConfig:
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    return load(
        run_config(), path, {"out": str(folder / "runs"), **{k.replace("__", "."): v for k, v in overrides.items()}}
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return run(settings(folder), SCREEN)[0].folder


def test_a_run_leaves_everything_it_promises(finished: Path) -> None:
    for name in ("config.yaml", "environment.json", "metrics.jsonl", "report.html", "results.json", "verdict.json"):
        assert (finished / name).stat().st_size > 0, name
    assert json.loads((finished / "verdict.json").read_text())["verdict"] == "SUCCESS"
    records = json.loads((finished / "results.json").read_text())
    wanted = {(task, who) for task in ("advection1d", "kdv1d") for who in ("ups", "persistence", "reconstruction")}
    assert wanted <= {(r["task"], r["predictor"]) for r in records if r["metric"] == "nrmse"}
    assert "http" not in (finished / "report.html").read_text().replace("http://www.w3.org", "")


def test_the_simulator_gives_the_same_bits_in_another_process(finished: Path) -> None:
    u0 = np.sin(2 * np.pi * (np.arange(32) + 0.5) / 32).astype(np.float32)
    here = ups.load(finished).rollout(u0, steps=3, task="advection1d", params={"beta": 0.4})
    code = (
        "import sys, numpy as np, ups\n"
        "u0 = np.sin(2 * np.pi * (np.arange(32) + 0.5) / 32).astype(np.float32)\n"
        "out = ups.load(sys.argv[1]).rollout(u0, steps=3, task='advection1d', params={'beta': 0.4})\n"
        "assert 'torch._dynamo' not in sys.modules, 'two seconds of imports that a simulator has no need of'\n"
        "sys.stdout.buffer.write(np.ascontiguousarray(out).tobytes())\n"
    )
    there = subprocess.run([sys.executable, "-c", code, str(finished)], capture_output=True, check=True, timeout=600)
    assert np.ascontiguousarray(here).tobytes() == there.stdout


def test_rollouts_of_a_file_are_written_with_their_times(finished: Path, tmp_path: Path) -> None:
    (source,) = (finished / "cache" / "data").glob("*Advection*")
    out = rollout(finished, source, steps=4, out=tmp_path / "out.h5", samples=3, task=None)
    with open_source(out, TASKS) as predicted:
        assert (len(predicted), predicted[2].values.shape) == (3, (5, 32, 1)), "one frame was given"
        assert np.allclose(predicted.times, 0.2 * np.arange(5))
    said: list[str] = []
    uneven = Path(shutil.copy(source, tmp_path))
    with h5py.File(uneven, "a") as file:
        file["t-coordinate"][len(file["t-coordinate"]) // 2 :] += 0.1
    for path in (source, uneven):
        rollout(finished, path, 4, tmp_path / "out.h5", 99, None, say=said.append, overwrite=True)
    assert [sentence.split(": ")[1].split(";")[0] for sentence in said] == ["its times are not uniform"]
    with h5py.File(slow := Path(shutil.copy(source, tmp_path)), "a") as file:
        file["t-coordinate"][:] *= 30
    rollout(finished, slow, 4, tmp_path / "out.h5", 99, None, say=said.append, overwrite=True)
    assert said[-1] == f"{slow}: its frames are 0.3 apart; steps of 0.2 are taken, as in training."
    with pytest.raises(DataError):
        rollout(finished / "nowhere", source, 4, tmp_path / "x.h5", 3, None)


def test_a_folder_that_holds_a_run_is_not_written_over_unasked(finished: Path) -> None:
    with pytest.raises(ConfigError, match="holds a finished run"):
        run(settings(finished.parent.parent), SCREEN)
    with pytest.raises(ConfigError, match="another config"):
        run(settings(finished.parent.parent, seed=5), SCREEN)


def test_an_interrupted_run_resumes_to_the_same_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ups.run.run.judge", lambda *_, **__: Report("", (), "", "", 0, ()))  # is not in question
    budget = {"operator__train__log_every": 1, "operator__train__checkpoint_steps": 2}

    def stop(progress: TrainingProgress) -> None:
        if progress.stage == "operator" and progress.step == 5:
            raise KeyboardInterrupt

    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    whole = run(settings(straight, **budget), SCREEN)[0]
    with pytest.raises(KeyboardInterrupt):
        run(settings(broken, **budget), Screen(silent, silent, stop))
    assert json.loads((broken / "runs/tiny/verdict.json").read_text())["verdict"] == "INTERRUPTED"
    resumed = run(settings(broken, **budget), SCREEN, Start(resume=True))[0]
    weights = [load_file(folder.artifact("simulator")) for folder in (whole, resumed)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_what_a_parameter_carries_is_known_before_anything_is_learnt(tmp_path: Path) -> None:
    _, report = run(settings(tmp_path, operator__train__lr=1e-12), SCREEN)
    assert {task.ours.evaluation.task.name: task.verdict[0].startswith("NOT LEARNT") for task in report.tasks} == {
        "advection1d": False,
        "kdv1d": True,
    }


def test_a_run_that_learnt_nothing_says_so(tmp_path: Path) -> None:
    nothing = {"operator__train__lr": 1e-12, "data__a__task": {"name": "advection1d", "advected_by": []}}
    folder, report = run(settings(tmp_path, **nothing), SCREEN)
    assert all(task.verdict[0].startswith("NOT LEARNT") for task in report.tasks)
    assert "NOT LEARNT" in folder.report.read_text()


def test_a_run_without_data_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no data"):
        run(load(run_config(), None, {"out": str(tmp_path)}), SCREEN)
    assert not list(tmp_path.iterdir())


def test_the_demo_makes_checks_trains_and_shows(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    one = "\n".join(line for line in TINY.splitlines() if "kdv1d" not in line).replace("time: 20", "time: 40")
    path.write_text(one)
    more = tmp_path / "more.yaml"
    onward = "name: more\nstart_from: nowhere\nplan: [residual]\nresidual: {batch: 4, train: {steps: 4}}"
    network = "evaluation: {ensemble: 2}\nmodel:\n  residual: {width: 16, depth: 1, heads: 2}"
    more.write_text(one.replace("name: tiny", onward).replace("model:", network))
    (folder, first), (further, second) = demo(tmp_path / "runs" / "demo", path, SCREEN, more)
    report, drawn = first.report, second.report
    assert report is not None
    assert drawn is not None
    assert further.folder == tmp_path / "runs" / "demo-ensemble"
    assert all(task.ensemble is not None for task in drawn.tasks)
    assert any("in the 90 % interval" in sentence for sentence in drawn.remarks())
    assert folder.report.exists()
    assert (tmp_path / "runs" / "demo-data" / "data.html").exists()
    assert len(report.headline()) == 2


@pytest.mark.slow
def test_the_demo_replaces_itself(tmp_path: Path) -> None:
    path, out = tmp_path / "tiny.yaml", tmp_path / "runs" / "demo"
    before = ""
    for seed in (3, 4):
        path.write_text(f"{TINY}seed: {seed}\n")
        ((place, finish),) = demo(out, path, SCREEN)
        assert (place.folder, finish.ending) == (out, Ending.SUCCESS)
        assert load(run_config(), out / "config.yaml").seed == seed
        assert not (out / "of the first").exists(), "nothing of the run before is left"
        (out / "of the first").touch()
        weights = (out / "artifacts" / "simulator.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() != before
        before = hashlib.sha256(weights).hexdigest()
        (row,) = {json.dumps(row["seed"]) for row in json.loads((out / "results.json").read_text())}
        assert row == str(seed)


@pytest.mark.slow
def test_the_run_command_prints_a_table_and_the_path_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--out", str(tmp_path), "--operator.train.steps", "2"])
    out = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert out[-1] == str(tmp_path / "tiny" / "report.html")
    assert any(line.startswith("advection1d") for line in out)
