"""Many parameter values: a file for each of a list, a value for each sample of a range, and both read back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ups.config import load
from ups.data import open_source
from ups.data.layouts import FileSpec
from ups.data.write import TrajectoryWriter
from ups.jobs.inspect import describe, problems
from ups.physics import EQUATIONS, TASKS
from ups.physics.fit import fit
from ups.physics.random import Draw
from ups.progress import Progress
from ups.run.data.data_config import GenerateConfig
from ups.run.data.generate import generate
from ups.run.data.params import ParamRange, files_of
from ups.types import ConfigError, Param


def made(folder: Path, task: str = "burgers1d", **changes: Any) -> list[Path]:
    wanted = {"task": task, "samples": 5, "batch": 2, "device": "cpu", "resolution": 32, "frames": 11, **changes}
    return generate(load(GenerateConfig, overrides=wanted), folder, lambda progress: None)  # noqa: ARG005


def test_a_value_depends_on_the_seed_and_the_number_of_the_sample_alone() -> None:
    for scale in ("linear", "log"):
        values = ParamRange(low=0.001, high=1.0, scale=scale)
        many = values.drawn("nu", 7, range(1000))  # type: ignore[arg-type]
        assert np.array_equal(values.drawn("nu", 7, [900, 3]), many[[900, 3]])
        assert not np.isclose(values.drawn("nu", 8, range(5)), many[:5]).any()
        assert not np.isclose(values.drawn("mu", 7, range(5)), many[:5]).any()
        assert many.min() >= 0.001
        assert many.max() <= 1.0
        middle = 0.5 if scale == "linear" else 10**-1.5
        assert np.mean(many < middle) == pytest.approx(0.5, abs=0.05)


def test_a_list_makes_a_file_for_each_combination(tmp_path: Path) -> None:
    params = {"nu": [0.5, 2.0], "rho": [1.0, 5.0]}
    paths = made(tmp_path, "reacdiff1d", samples=2, params=params)
    values = [(0.5, 1.0), (0.5, 5.0), (2.0, 1.0), (2.0, 5.0)]
    assert [p.name for p in paths] == [f"ReacDiff_Nu{nu}_Rho{rho}.hdf5" for nu, rho in values]
    for path, (nu, rho) in zip(paths, values, strict=True):
        with open_source(path, TASKS) as source:
            assert dict(source.params) == {"nu": nu, "rho": rho}
            assert len(source) == 2
    assert made(tmp_path, "reacdiff1d", samples=2, params=params) == paths


def test_words_are_listed_too_and_what_no_name_tells_apart_is_added_to_it(tmp_path: Path) -> None:
    shocks = made(tmp_path, "cfd1d", samples=1, params={"init": "rand,shock", "boundary": "trans"})
    assert [p.name.split("_")[2] for p in shocks] == ["Rand", "Shock"]
    flows = made(tmp_path, "nsincom2d", samples=1, resolution=16, frames=3, params={"nu": "0.01,0.05"})
    assert [p.name for p in flows] == ["ns_incom_inhom_2d_16-0_nu0.01.h5", "ns_incom_inhom_2d_16-0_nu0.05.h5"]
    with open_source(flows[1], TASKS) as source:
        assert source.params["nu"] == 0.05


def test_the_values_of_a_range_are_read_back_and_are_those_that_were_solved_with(tmp_path: Path) -> None:
    (path,) = made(tmp_path, params={"nu": "log:0.02..2.0"}, resolution=64, frames=61)
    assert path.name == "1D_Burgers_Sols_Nu0.02-2.0.hdf5"
    with open_source(path, TASKS) as source:
        assert source.problems == ()
        assert "nu" not in source.params
        stored = [float(source.params_of(i)["nu"]) for i in range(5)]
        assert (
            stored == files_of({"nu": ParamRange(low=0.02, high=2.0, scale="log")})[0].drawn(0, range(5))["nu"].tolist()
        )
        assert len(set(stored)) == 5
        for i, nu in enumerate(stored):
            equation = EQUATIONS["burgers1d"](nu=nu)
            draw = Draw(0, [i], dtype=torch.float32)
            alone = equation.simulate(draw, equation.grid(64), source.times, "pdebench")[0].numpy()
            assert np.abs(source[i].values - alone).max() < 1e-5
            diffusion = fit("burgers1d", [source[i]], source[i].params)[1]
            assert diffusion.value == pytest.approx(nu / np.pi, rel=0.05)
    assert "each sample has its own nu" in describe(path)
    assert problems([path]) == []


def test_a_range_that_is_not_what_was_solved_with_is_found(tmp_path: Path) -> None:
    (path,) = made(tmp_path, params={"nu": "0.5..1.0"}, resolution=64, frames=61)
    with h5py.File(path, "r+") as file:
        file["ups_params/nu"][2] *= 2
    ((_, problem),) = problems([path])
    assert "the data of sample 000002 contradict nu" in problem


def test_values_do_not_depend_on_the_batch_or_on_how_many_samples_there_are(tmp_path: Path) -> None:
    params = {"nu": "0.5..2.0", "rho": "1..5"}
    (one,) = made(tmp_path / "1", "reacdiff1d", batch=1, samples=3, params=params)
    (all_,) = made(tmp_path / "5", "reacdiff1d", batch=5, params=params)
    with h5py.File(one) as a, h5py.File(all_) as b:
        for name in ("nu", "rho"):
            assert np.array_equal(a[f"ups_params/{name}"], b[f"ups_params/{name}"][:3])
        assert np.allclose(a["tensor"], b["tensor"][:3], rtol=0, atol=1e-5)


def test_a_killed_range_goes_on_and_ends_with_the_same_file(tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.done >= 4:
            raise StoppedError

    config = load(
        GenerateConfig,
        overrides={"task": "burgers1d", "samples": 5, "batch": 2, "device": "cpu", "resolution": 32, "frames": 11}
        | {"params.nu": "0.1..2"},
    )
    with pytest.raises(StoppedError):
        generate(config, tmp_path, stop)
    seen: list[float] = []
    (resumed,) = generate(config, tmp_path, lambda progress: seen.append(progress.done))
    assert seen[0] > 0
    (whole,) = made(tmp_path / "whole", params={"nu": "0.1..2"})
    with h5py.File(resumed) as a, h5py.File(whole) as b:
        assert np.array_equal(a["tensor"], b["tensor"])
        assert np.array_equal(a["ups_params/nu"], b["ups_params/nu"])


def test_the_loader_of_pdebench_reads_a_range_as_any_file(tmp_path: Path) -> None:
    """As pdebench/models/fno/utils.py does: sorted keys, then `tensor` or the fields, then the coordinates."""
    (path,) = made(tmp_path, params={"nu": "0.1..2"})
    with h5py.File(path, "r") as file:
        keys = sorted(file.keys())
        assert "tensor" in keys
        data = np.array(file["tensor"], dtype=np.float32)
        assert data.shape == (5, 11, 32)
        assert np.array(file["x-coordinate"]).shape == (32,)
        assert "Nu" not in file.attrs
        assert json.loads(file.attrs["ups_identity"])["params"] == {"nu": {"low": 0.1, "high": 2.0, "scale": "linear"}}
    (gas,) = made(tmp_path, "cfd1d", samples=2, params={"eta": "0.01..0.1"})
    with h5py.File(gas, "r") as file:
        assert "tensor" not in file
        assert {"density", "pressure", "Vx", "x-coordinate", "t-coordinate", "ups_params"} == set(file)


def test_in_a_file_of_groups_each_sample_says_its_own(tmp_path: Path) -> None:
    k = Param("k", 1.0, "sorption")
    task = dataclasses.replace(TASKS["diffsorp1d"], parameters=(k,))
    grid, times = EQUATIONS["diffsorp1d"]().grid(8), np.asarray([0.0, 5.0])
    identity = {"task": "diffsorp1d", "params": {"k": {"low": 1.0, "high": 2.0, "scale": "linear"}}}
    spec = FileSpec(task, {}, grid, times, 3, identity, {"k": np.asarray([1.5, 1.1, 1.9])})
    writer = TrajectoryWriter(tmp_path / "1D_diff-sorp_NA_NA.h5", spec)
    with writer.open():
        writer.write(0, np.random.default_rng(0).random((3, 2, 8, 1)), np.zeros((3, 8, 0)), {})
        path = writer.publish({"ups_task": "diffsorp1d", "ups_identity": json.dumps(identity)})
    with h5py.File(path) as file:
        assert sorted(file) == ["0000", "0001", "0002"]
    with open_source(path, {"diffsorp1d": task}) as source:
        assert [source.params_of(i)["k"] for i in range(3)] == [1.5, 1.1, 1.9]
        assert "k" not in source.params


@pytest.mark.parametrize(
    ("task", "name", "value", "sentence"),
    [
        ("burgers1d", "nu", "0..1", "nu is 0, but must be above 0"),
        ("burgers1d", "nu", "log:0..1", "a log range must be above 0"),
        ("burgers1d", "nu", "1..0.1", "from low to a greater high"),
        ("burgers1d", "nu", "a..b", "'a..b' is no range"),
        ("burgers1d", "nu", "0.1,0.1", "each of them once"),
        ("burgers1d", "nu", "0.1,-2", "nu is -2, but must be above 0"),
        ("burgers1d", "nu", {"low": 1}, "two numbers, low and high"),
        ("cfd1d", "init", {"low": 1, "high": 2}, "is a word and has no range"),
        ("cfd1d", "init", "rand,shock", "a shock tube has open ends"),
    ],
)
def test_a_bad_list_or_range_is_one_sentence(task: str, name: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(GenerateConfig, overrides={"task": task, "params": {name: value}})


def test_how_long_it_takes_is_said_once_and_about_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("ups.run.data.generate.time.monotonic", lambda: float(next(clock)))
    notes: list[str] = []
    config = load(GenerateConfig, overrides={"task": "advection1d", "samples": 4, "batch": 2, "resolution": 16})
    generate(config, tmp_path, lambda progress: notes.append(progress.note))
    # One second per report: about 200 saved intervals in each of two batches.
    (note,) = filter(None, notes)
    minutes = float(note.removeprefix("about ").split()[0])
    assert note.endswith("min for 4 trajectories")
    assert 6 <= minutes <= 7
