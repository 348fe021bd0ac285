"""Numbers of samples that nothing names may be results: they are asked about before anything is trained."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import ups
from ups.config import load
from ups.data import open_source
from ups.definition import Definition
from ups.jobs.import_data import import_data
from ups.jobs.inspect import describe, notes, problems
from ups.jobs.recipe.data_profile import holdings
from ups.physics import TASKS
from ups.progress import Progress
from ups.run.check import check
from ups.run.config import run_config
from ups.types import ConfigError

TASK = "name: wake\ndims: [sample, time, x]\nfields: {u: [u]}\n"
ANSWERS = ("datasets: {drag: drag}\n", "ignore: [drag]\n", "parameters: {drag: 1.0}\n")
DRAG, X = np.linspace(0.2, 1, 12), np.arange(16) / 16
U = np.sin(2 * np.pi * (X - DRAG[:, None, None] * 0.1 * np.arange(6)[:, None]))


def silent(_: Progress) -> None:
    """Not shown."""


def checked(folder: Path, file: Path, begun: bool = False, **entry: object) -> None:
    data = {"file": str(file), "task": str(folder / "task.yaml"), **entry}
    check(load(run_config(), None, {"data": {"a": data}, "device": "cpu"}), begun=begun)


def one_file(folder: Path) -> Path:
    np.savez(folder / "a.npz", u=U, x=X, drag=DRAG, density=np.full(12, 1.2))
    return folder / "a.npz"


def files(folder: Path) -> Path:
    """The same as a file for each sample, the number among its attributes."""
    (folder / "many").mkdir()
    for i, drag in enumerate(DRAG):
        with h5py.File(folder / "many" / f"{i:02d}.h5", "w") as file:
            file["u"], file["x"], file["t"] = U[i][None], X, np.arange(6.0)
            file.attrs["drag"] = drag
    return folder / "many"


@pytest.mark.parametrize("write", [one_file, files])
def test_what_differs_from_sample_to_sample_and_nobody_names_is_asked_about(tmp_path: Path, write: object) -> None:
    file, task = write(tmp_path), tmp_path / "task.yaml"  # type: ignore[operator]
    task.write_text(TASK)
    asks = "drag differs from sample to sample, and nothing says what it is"
    answers = "say `datasets: {drag: drag}` in the task for the one, `ignore: [drag]` for the other"
    definition = Definition("wake", dims=("sample", "time", "x"), fields={"u": ("u",)})
    info = describe(file, definition)
    assert f"  QUESTION: {asks}" in info
    assert "density differs" not in info
    assert any(words.startswith(asks) for _, words in notes([file], definition))
    assert problems([file], definition) == []
    (holding,) = holdings([file], str(task))
    assert holding.notes[0].startswith(f"QUESTION: {asks}")
    with pytest.raises(ConfigError, match=asks) as error:
        checked(tmp_path, file)
    assert answers in str(error.value)
    with pytest.raises(ConfigError, match=asks):
        import_data([file], definition, tmp_path / "out", silent)
    assert not (tmp_path / "out").exists()
    checked(tmp_path, file, begun=True)
    checked(tmp_path, file, split={"hold_out": {"drag": {"low": 0.9, "high": 2.0}}})


@pytest.mark.parametrize("write", [one_file, files])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_answer_ends_the_question(tmp_path: Path, write: object, answer: str) -> None:
    file = write(tmp_path)  # type: ignore[operator]
    (tmp_path / "task.yaml").write_text(TASK + answer)
    checked(tmp_path, file)
    (holding,) = holdings([file], str(tmp_path / "task.yaml"))
    assert not any("QUESTION" in note for note in holding.notes)


def test_parameters_of_a_named_equation_and_those_given_as_such_are_not_asked_about(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", u=U, x=X, beta=DRAG)
    (tmp_path / "task.yaml").write_text(TASK + "equation: advection1d\nperiodic: [x]\n")
    checked(tmp_path, tmp_path / "a.npz")
    source = ups.Data(U, dims=["sample", "time", "x"], params={"drag": DRAG}).source()
    assert (source.unnamed, source.params_of(0)) == ({}, {"drag": 0.2})


def test_fit_refuses_a_column_that_nobody_names_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drag differs from sample to sample"):
        ups.fit(ups.Data({"u": U, "drag": DRAG}), out=tmp_path / "runs", device="cpu", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_a_definition_that_info_prints_ignores_what_the_users_does(tmp_path: Path) -> None:
    definition = Definition("wake", dims=("sample", "time", "x"), fields={"u": ("u",)}, ignore=("drag",))
    text = describe(one_file(tmp_path), definition)
    assert "ignore: [drag]" in text
    with open_source(tmp_path / "a.npz", TASKS, definition) as source:
        assert "drag" not in source.params_of(0)
