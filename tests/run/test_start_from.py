"""A trained simulator learns a further task: it starts where it was, and the report says what that cost the old."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ups
from ups.config import dump, load
from ups.progress import Screen
from ups.run.config import RunConfig, run_config
from ups.run.data.datasets import open_sets
from ups.run.judging.ancestors import seen_before
from ups.run.run import run_alone as run
from ups.types import ConfigError, DataError

FIRST = """
name: first
data:
  a: {task: advection1d, scheme: accurate, samples: 20, resolution: 32, device: cpu, reduce: {time: 20}}
model:
  codec: {dim: 16, patch: [4, 4, 2]}
  operator: {width: 16, depth: 1, heads: 2}
codec: {batch: 4, train: {steps: 2}}
operator: {batch: 4, train: {steps: 30, lr: 0.003}}
device: cpu
"""
FURTHER = FIRST.replace("name: first", "name: further").replace(
    "model:", "  d: {task: darcy2d, scheme: accurate, samples: 20, resolution: 16, device: cpu}\nmodel:"
)


def settings(folder: Path, text: str, **changes: object) -> RunConfig:
    path = folder / "config.yaml"
    path.write_text(text)
    return load(run_config(), path, {"out": str(folder), **{k.replace("__", "."): v for k, v in changes.items()}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("start")
    run(settings(home, FIRST), Screen.silent())
    return home


def test_untouched_it_still_answers_to_the_bit_and_knows_a_further_task(folder: Path) -> None:
    still = {"codec__train__steps": 0, "operator__train__steps": 0, "start_from": str(folder / "first")}
    run(settings(folder, FURTHER, name="still", **still), Screen.silent())
    u0 = np.sin(2 * np.pi * (np.arange(32) + 0.5) / 32).astype(np.float32)
    old, new = (
        ups.load(folder / name).rollout(u0, steps=4, task="advection1d", params={"beta": 0.4})
        for name in ("first", "still")
    )
    assert np.array_equal(old, new)
    assert {task.name for task in ups.load(folder / "still").tasks} == {"advection1d", "darcy2d"}


def test_the_report_holds_the_old_task_before_and_after(folder: Path) -> None:
    run(settings(folder, FURTHER, start_from=str(folder / "first")), Screen.silent())
    records = json.loads((folder / "further" / "results.json").read_text())
    found = {
        (r["task"], r["predictor"]): r["value"] for r in records if (r["metric"], r["mode"]) == ("nrmse", "strict")
    }
    before = json.loads((folder / "first" / "results.json").read_text())
    alone = next(r["value"] for r in before if (r["predictor"], r["metric"], r["mode"]) == ("ups", "nrmse", "strict"))
    assert found["advection1d", "before"] == pytest.approx(alone, rel=1e-6)
    assert ("advection1d", "ups") in found
    assert ("darcy2d", "before") not in found
    assert torch.isfinite(torch.tensor(list(found.values()))).all()


def test_a_start_that_does_not_fit_is_refused_before_anything_is_trained(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.operator\.depth is 2, but .* has 1"):
        run(
            settings(folder, FURTHER, name="x", start_from=str(folder / "first"), model__operator__depth=2),
            Screen.silent(),
        )
    with pytest.raises(DataError, match=r"no such simulator|not a run folder"):
        run(settings(folder, FURTHER, name="y", start_from=str(folder / "nowhere")), Screen.silent())


def test_a_known_task_goes_on_from_another_grid_and_another_step(folder: Path) -> None:
    other = FIRST.replace("resolution: 32", "resolution: 30").replace("{time: 20}", "{time: 10}")
    short = {"codec__train__steps": 1, "operator__train__steps": 2}
    run(settings(folder, other, name="other", start_from=str(folder / "first"), **short), Screen.silent())
    old, new = (ups.load(folder / name) for name in ("first", "other"))
    assert new.codec.shapes == {"advection1d": (30,)}
    assert new.ranges()["advection1d"]["dt"] == pytest.approx((0.1, 0.2))
    assert old.ranges()["advection1d"]["dt"] == pytest.approx((0.2, 0.2))
    records = json.loads((folder / "other" / "results.json").read_text())
    assert {"ups", "before", "persistence"} <= {r["predictor"] for r in records if r["metric"] == "nrmse"}


def test_trajectories_that_an_earlier_simulator_was_trained_on_are_not_called_unseen(folder: Path) -> None:
    first, home = folder / "first", folder / "elsewhere"
    home.mkdir()
    (made,) = (first / "cache" / "data").iterdir()

    def said(start: Path, **data: object) -> tuple[str, list[str], set[str]]:
        entry = f"  a: {data}\n".replace("'", '"') if data else FIRST.splitlines(True)[3]
        text = FIRST.replace(FIRST.splitlines(True)[3], entry)
        config = settings(home, text, start_from=str(start))
        with ExitStack() as stack:
            sets = open_sets(config.data, first / "cache" / "data", Screen.silent().following, stack)
            ids = {name for entry in sets[0].entries for name in entry.split.test}
            return *seen_before(config, sets, "test", Screen.silent().following), ids

    assert said(first)[:2] == ("on trajectories not seen in training", []), "the same data are cut into the same parts"
    on, (words,), ids = said(first, file=str(made), reduce={"time": 20}, seed=5)
    twice = ids - said(first)[2]
    assert twice
    assert on == "on trajectories SEEN IN TRAINING in part or whole"
    assert words.startswith(
        f"advection1d: {len(twice)} of {len(ids)} trajectories were trained or validated on by {first}"
    )
    assert said(first, file=str(made), seed=5)[1] == [words], "in whatever way they are thinned out"
    cut = Path(shutil.copy(made, home / made.name))
    with h5py.File(cut, "r+") as file:
        values, times = file["tensor"][:, :161], file["t-coordinate"][:162]
        del file["tensor"], file["t-coordinate"]
        file["tensor"], file["t-coordinate"] = values, times
    on, (cut_words,), _ = said(first, file=str(cut), reduce={"time": 20}, seed=5)
    assert on == "on trajectories SEEN IN TRAINING in part or whole"
    assert cut_words.startswith(f"advection1d: {len(twice)} of {len(ids)} trajectories begin or end with the first or")
    (second := home / "second").mkdir()
    (second / "config.yaml").write_text(dump(settings(home, FIRST, start_from=str(first))))
    _, found, _ = said(second, file=str(made), reduce={"time": 20}, seed=5)
    assert [f"{second}, from which this run goes on, are gone" in found[0], found[1]] == [True, words]
    (second / "config.yaml").write_text("a_key_of_another_version: 1\n")
    for unknown in (first / "artifacts" / "simulator.safetensors", second):
        (alone,) = said(unknown)[1]
        assert alone.startswith(f"{unknown}, from which this run goes on, is no run that can be read here: nobody can")
