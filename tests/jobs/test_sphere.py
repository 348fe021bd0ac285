"""Latitudes and longitudes: what wraps, what is an edge, and what is not weighed, said where boundaries are."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import yaml

import ups
from ups.config import load
from ups.data import open_source
from ups.data.write_well import write_data_set
from ups.jobs.inspect import describe, notes
from ups.jobs.recipe.data_profile import holdings
from ups.run.config import run_config
from ups.run.data.datasets import open_sets
from ups.run.data.outlines import outlines
from ups.run.data.sphere import Sphere
from ups.types import Array

STEP = 11.25
LAT, LON = -90 + STEP / 2 + np.arange(16) * STEP, np.arange(32) * STEP
WAY = "so write `periodic: [lon]` into the task; "
POLES = "the poles are taken for edges of a box, and "
AREAS = "every cell counts alike in errors and laws, whatever its area"


def sphere(lat: Array, lon: Array, names: tuple[str, str] = ("lat", "lon"), periodic: object = None) -> list[str]:
    values = np.random.default_rng(0).standard_normal((1, 2, len(lat), len(lon), 1))
    task = ups.Definition("globe", periodic=periodic)  # type: ignore[arg-type]
    coords, dims = dict(zip(names, (lat, lon), strict=True)), ("sample", "time", *names, "channel")
    with ups.Data(values, dims=dims, coords=coords, task=task).source() as source:
        return Sphere(source).words()


@pytest.mark.parametrize(
    ("lat", "lon", "names", "words"),
    [
        (LAT, LON, ("lat", "lon"), f"lon goes once around, {WAY}{POLES}{AREAS}"),
        (LAT[::-1], LON - 180, ("lat", "lon"), f"lon goes once around, {WAY}{POLES}{AREAS}"),
        (np.linspace(-90, 90, 17), LON, ("lat", "lon"), f"lon goes once around, {WAY}{POLES}{AREAS}"),
        (LAT[4:8], LON, ("lat", "lon"), f"lon goes once around, {WAY}{AREAS}"),
        (LAT, np.linspace(0, 360, 33), ("lat", "lon"), "lon has its first meridian twice, so leave the last one out"),
        (np.radians(LAT + 90), np.radians(LON), ("theta", "phi"), "phi goes once around, so write `periodic: [phi]`"),
        (35.0 + np.arange(30), np.arange(30) - 10.0, ("lat", "lon"), f"sphere: {AREAS}"),
    ],
)
def test_a_sphere_is_said_to_be_one(lat: Array, lon: Array, names: tuple[str, str], words: str) -> None:
    (sentence,) = sphere(lat, lon, names)
    assert sentence.startswith(f"{names[0]} and {names[1]} lie on a sphere: ")
    assert words in sentence
    assert POLES not in sentence or min(abs(lat.min()), abs(abs(lat.max()) - 90)) < 10


@pytest.mark.parametrize(
    ("lat", "lon", "names"),
    [
        (LAT, LON, ("x", "y")),  # of no such name
        (np.arange(8) * 0.1, np.arange(8) * 0.1, ("lat", "lon")),  # so small that all cells are as large
        (np.arange(16) / 16, np.arange(16) / 16, ("theta", "phi")),  # other angles
        (np.arange(8) * 100.0, LON, ("lat", "lon")),  # no degrees
    ],
)
def test_other_axes_are_no_sphere(lat: Array, lon: Array, names: tuple[str, str]) -> None:
    assert sphere(lat, lon, names) == []


def test_a_longitude_that_wraps_is_not_asked_for_again() -> None:
    assert sphere(LAT, LON, periodic=("lon",)) == [f"lat and lon lie on a sphere: lon wraps, {POLES}{AREAS}"]


def test_all_who_look_at_data_say_it_once_and_init_has_a_longitude_wrap(tmp_path: Path) -> None:
    p = np.random.default_rng(0).uniform(0, 6, (8, 1, 1, 1))
    t, lat, lon = np.arange(6)[:, None, None], np.radians(LAT)[:, None], np.radians(LON)
    values = np.cos(lat) * np.sin(2 * (lon - 0.1 * t) + p) + 0.3 * np.sin(lat) * np.cos(lon - 0.2 * t)
    file, task = tmp_path / "globe.npz", tmp_path / "globe.yaml"
    np.savez(file, h=values, lat=LAT, lon=LON, time=np.arange(6.0))
    task.write_text("dims: [sample, time, lat, lon]\nfields: {h: [h]}\n")
    definition = ups.Definition("globe", dims=("sample", "time", "lat", "lon"), fields={"h": ("h",)})
    for text in (describe(file, definition), " ".join(note for _, note in notes([file], definition))):
        assert text.count("lie on a sphere: lon goes once around") == 1
        assert "fit together" not in text, "once is enough"
    (here,) = holdings([file], str(task))
    assert sum("lie on a sphere: lon wraps (`periodic` in the config)" in note for note in here.remarks) == 1
    entry = yaml.safe_load(yaml.safe_dump(here.section("cpu")))
    (outline,) = outlines(run_config().model_validate({"data": {"globe": entry}}))
    assert outline.periodic == (False, True)
    assert (outline.task.name, outline.task.channels) == ("globe", ("h",))
    task.write_text("dims: [sample, time, lat, lon]\nfields: {h: [h]}\nperiodic: []\n")
    (here,) = holdings([file], str(task))
    assert here.section("cpu")["task"] == str(task), "who says that nothing wraps is believed"


def test_a_run_and_a_fit_say_what_a_sphere_is_taken_for(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 3, len(LAT), len(LON))).astype("f4")
    np.savez(tmp_path / "a.npz", u=values, lat=LAT, lon=LON, time=np.arange(3.0))
    task = ups.Definition("globe", dims=("sample", "time", "lat", "lon"), fields={"u": ("u",)})
    (tmp_path / "task.yaml").write_text(task.text())
    with open_source(tmp_path / "a.npz", {}, task) as source:  # as ups.fit writes what is given in memory
        parts = {"train": source.ids[:2], "test": source.ids[2:]}
        written = write_data_set(source, tmp_path, "written", parts)
        words = Sphere(source).words()
    for data in ({"file": str(tmp_path / "a.npz"), "task": str(tmp_path / "task.yaml")}, {"file": str(written)}):
        lines: list[str] = []
        config = load(run_config(), None, {f"data.globe.{key}": value for key, value in data.items()})
        with ExitStack() as stack:
            open_sets(config.data, tmp_path, lambda *_: None, stack, lines.append)
        assert [line for line in lines if "lie on a sphere" in line] == [f"data.globe: {words[0]}"]
