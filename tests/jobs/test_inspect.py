"""What `info` says is true, and `validate` finds each fault that was put into a file, and no other."""

from __future__ import annotations

import dataclasses
import shutil
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ups.data import Source, open_source
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.definition import Definition
from ups.jobs import inspect
from ups.jobs.inspect import describe, notes, problems, task_table
from ups.models.grids import check_grid
from ups.physics import EQUATIONS, TASKS
from ups.progress import Progress
from ups.run.data.data_config import GenerateConfig
from ups.run.data.doubts import doubts_of, law_residuals
from ups.run.data.generate import generate
from ups.types import ConfigError, DataError


def quiet(progress: Progress) -> None:
    assert progress.total > 0


def advection(
    path: Path, beta: float = 0.4, samples: int = 6, nt: int = 41, nx: int = 64, scale_t: float = 1.0
) -> Path:
    """A PDEBench advection file written by hand from the formula."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x, t = (np.arange(nx) + 0.5) / nx, np.arange(nt) * 0.05
    rng = np.random.default_rng(0)
    values = np.zeros((samples, nt, nx))
    for i in range(samples):
        for k in (1, 2, 3):
            a, phase = rng.uniform(0.2, 1), rng.uniform(0, 2 * np.pi)
            values[i] += a * np.sin(2 * np.pi * k * (x[None] - beta * t[:, None]) + phase)
    with h5py.File(path, "w") as file:
        file["tensor"] = values.astype("f4")
        file["x-coordinate"] = x.astype("f4")
        file["t-coordinate"] = (np.append(t, t[-1] + 0.05) * scale_t).astype("f4")
    return path


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return advection(tmp_path / "1D_Advection_Sols_beta0.4.hdf5")


def found(path: Path, task: str | None = None) -> list[str]:
    return [sentence for _, sentence in problems([path], task)]


def changed(path: Path, change: Callable[[Any], None]) -> list[str]:
    with h5py.File(path, "a") as file:
        change(file)
    return found(path)


def test_a_sound_file_has_no_problems(sound: Path) -> None:
    assert found(sound) == []


def test_info_says_what_a_file_is_in_words_and_numbers(sound: Path) -> None:
    text = describe(sound)
    assert "1D advection (advection1d)" in text
    assert "6 trajectories × 41 frames × 64 cells × 1 channel (u)" in text
    assert "x from 0 to 1" in text
    assert "t from 0 to 2, dt = 0.05" in text
    assert "beta = 0.4" in text
    line = next(line for line in text.splitlines() if "claimed" in line)
    assert float(line.split()[1]) == pytest.approx(0.4, rel=0.01)


def test_nan_is_found(sound: Path) -> None:
    def poison(file: Any) -> None:
        file["tensor"][3, 7, 5] = np.nan

    assert changed(sound, poison) == ["NaN or infinity in 1 sample (000003)"]


def test_nan_in_what_is_given_is_found(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5"
    axis = (np.arange(8) + 0.5) / 8
    with h5py.File(path, "w") as file:
        file["tensor"], file["nu"] = rng.random((3, 1, 8, 8), "f4"), rng.random((3, 8, 8), "f4")
        file["x-coordinate"] = file["y-coordinate"] = axis.astype("f4")
        file["nu"][1, 2, 3] = np.nan
    assert found(path) == ["NaN or infinity in what is given with 1 sample (000001)"]


def test_numbers_and_parameters_that_no_run_can_use_are_found(tmp_path: Path) -> None:
    u = np.random.default_rng(0).random((3, 9, 8))
    np.savez(tmp_path / "a.npz", u=u * [[[1e-40]], [[1e39]], [[1.0]]], nu=[1.0, 2.0, np.nan])
    task = Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)})
    sentences = [sentence for _, sentence in problems([tmp_path / "a.npz"], task)]
    assert sentences == [
        "numbers that float32, in which all is read, cannot hold, in 1 sample (000001)",
        "no number that float32, in which all is read, holds with all its digits, in 1 sample (000000)",
        "the parameter nu is not a finite number in 1 sample (000002)",
    ]


def test_a_sample_in_which_no_cell_counts_is_named_and_not_read(tmp_path: Path) -> None:
    u = np.random.default_rng(0).random((3, 9, 8))
    u[:, :, :2], u[1] = np.nan, np.nan
    np.savez(tmp_path / "a.npz", u=u)
    task = Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)})
    sentences = [sentence for _, sentence in problems([tmp_path / "a.npz"], task)]
    assert sentences == ["a mask of 0 everywhere, so that no cell counts, in 1 sample (000001)"]
    with open_source(tmp_path / "a.npz", {}, task) as source:
        assert len(Trajectories(source, ["000000", "000002"], Reduction())) == 2
        with pytest.raises(DataError, match="no cell of sample 000001 counts: its mask is 0 everywhere; mend"):
            Trajectories(source, source.ids, Reduction())


def test_an_axis_of_one_cell_is_found_which_no_run_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, u=np.random.default_rng(0).random((3, 9, 8, 1)))
    task = Definition("a", dims=("sample", "time", "x", "y"), fields={"u": ("u",)}, dt=0.1)
    sentence = "the axis y has one cell, and nothing can be learnt along it; write the data without it"
    assert [problem for _, problem in problems([path], task)] == [sentence]
    assert notes([path], task) == []
    assert f"PROBLEM: {sentence}" in describe(path, task)
    with pytest.raises(ConfigError, match=r"a: along an axis of one cell \(8 × 1\) nothing can be learnt"):
        check_grid((8, 1), 1, "a")


def test_units_that_differ_are_found_in_a_folder_and_across_files_of_one_task(tmp_path: Path) -> None:
    task = Definition("flow", dims=("time", "x"), fields={"u": ("u",)})
    for name, unit in (("a", "K"), ("b", "kelvin"), ("c", "degC")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["u"] = np.random.default_rng(ord(name)).random((3, 8))
            file["u"].attrs["units"] = unit
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    said = f"its u is in 'degC', but in {a} of the same task it is in 'K'"
    assert [text.split(";")[0] for _, text in problems([tmp_path], task)] == [f"{c}: {said}"]
    assert [(path, text.split(";")[0]) for path, text in problems([a, b, c], task)] == [(c, said)]
    assert problems([a, b], task) == []
    with pytest.raises(DataError, match="its u is in 'degC'"):
        describe(tmp_path, task)


def test_values_that_could_be_one_per_frame_are_a_note_of_info_and_validate(tmp_path: Path) -> None:
    task = Definition("flow", dims=("sample", "time", "x"), fields={"u": ("u",)}, dt=0.1)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["drive"] = np.random.default_rng(0).random((21, 21, 8)), np.arange(21.0)
    said = "drive (21) is read as a parameter of each sample, but could be one value per frame as well"
    first, question = (note.split(", ")[0] for _, note in notes([tmp_path / "a.h5"], task))
    assert (f"{first}, but could be one value per frame as well", question) == (
        said,
        "drive differs from sample to sample",
    )
    info = describe(tmp_path / "a.h5", task)
    assert f"note: {said}" in info
    assert "each sample has its own drive" in info


def test_what_was_taken_for_granted_is_a_note_of_info_and_validate(tmp_path: Path) -> None:
    """Axes that fall, and times that are missing: both were read without a word."""
    values = np.random.default_rng(8).normal(size=(5, 4, 16))
    np.savez(tmp_path / "a.npz", u=values, x=np.linspace(1, 0, 16))
    task = Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)})
    said = [note for _, note in notes([tmp_path / "a.npz"], task)]
    assert said == [
        "x falls as it is stored, and is read from low to high: arrays that are given to a simulator run the same way",
        "no times are stored; frames are taken to be 1 apart (`dt` in the task says otherwise)",
    ]
    assert all(f"  note: {note}" in describe(tmp_path / "a.npz", task) for note in said)


@pytest.mark.parametrize("kind", ["twice", "once", "mirrored", "at rest", "walls"])
def test_the_end_of_a_box_that_wraps_stored_twice_is_a_note(tmp_path: Path, kind: str) -> None:
    draw, k = np.random.default_rng(3), np.arange(1, 4)
    x = np.arange(33) / 32 if kind != "mirrored" else (np.arange(32) + 0.5) / 32
    size = draw.normal(size=(2, 20, 6, 1, 3)) * ([[[[[1]]]], [[[[0]]]]] if kind == "mirrored" else 1)
    waves = size[0] * np.cos(2 * np.pi * k * x[:, None]) + size[1] * np.sin(2 * np.pi * k * x[:, None])
    u = waves.sum(-1)[..., : 32 if kind == "once" else None]
    u = u * np.exp(-(((x - 0.5) / 0.05) ** 2)) if kind == "at rest" else u
    np.savez(tmp_path / "a.npz", u=u, dt=0.1)
    task = Definition("a", dims=("sample", "time", "x"), periodic=() if kind == "walls" else ("x",))
    words = "the last cell of x equals the first in all frames looked at; x wraps, so leave out the one or the other"
    assert (words in [note for _, note in notes([tmp_path / "a.npz"], task)]) is (kind == "twice")
    assert (f"  note: {words}\n" in describe(tmp_path / "a.npz", task)) is (kind == "twice")


def test_times_are_those_of_all_samples(tmp_path: Path) -> None:
    for i, (frames, dt) in enumerate([(4, 0.5), (7, 0.5), (5, 0.25)]):
        np.savez(tmp_path / f"{i}.npz", u=np.random.default_rng(i).normal(size=(frames, 16)), t=dt * np.arange(frames))
    task = Definition("a", dims=("time", "x"), fields={"u": ("u",)})
    assert "  t from 0 to 3 (in the shortest to 1), dt from 0.25 to 0.5\n" in describe(tmp_path, task)
    (tmp_path / "2.npz").unlink()
    assert "  t from 0 to 3 (in the shortest to 1.5), dt = 0.5\n" in describe(tmp_path, task)
    np.savez(tmp_path / "3.npz", u=np.random.default_rng(3).normal(size=(4, 16)), t=[0, 0.1, 2, 2.5])
    text = describe(tmp_path, task)
    assert "dt from 0.1 to 1.9\n" in text, "not the mean of each"
    assert "the time between frames differs" not in text, "nor a second range"


def test_a_law_that_does_not_hold_is_one_sentence_for_info_and_validate(tmp_path: Path) -> None:
    u = 1 + np.linspace(0, 0.5, 6)[:, None] + 0.1 * np.sin(np.arange(16))
    task = Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)}, conserved=("u",), positive=("u",))
    np.savez(tmp_path / "a.npz", u=np.stack([u, 2 * u]), dt=0.1)
    ((_, sentence),) = problems([tmp_path / "a.npz"], task)
    assert sentence.startswith("it does not hold that u ")
    assert " is conserved: off by 3.3e-01 of its size" in sentence
    text = describe(tmp_path / "a.npz", task)
    assert f"  PROBLEM: {sentence}\n" in text
    assert "is conserved, but for" not in text
    assert "  u is never below 0, but for up to 0.0e+00 of its size\n" in text
    u[2, 3] = np.nan
    np.savez(tmp_path / "a.npz", u=np.stack([u, 2 * u]), dt=0.1)
    assert "is conserved could not be measured" in describe(tmp_path / "a.npz", task)


def test_a_field_that_float32_cannot_tell_apart_is_said_and_measured_as_it_is_stored(tmp_path: Path) -> None:
    p = 1e12 + 600 * np.random.default_rng(0).normal(size=(4, 5, 16))
    task = Definition("a", dims=("sample", "time", "x"), fields={"p": ("p",)})
    np.savez(tmp_path / "a.npz", p=p, dt=0.1)
    text = describe(tmp_path / "a.npz", task)
    assert f"  std {p.std():.4g}\n" in text
    ((_, sentence),) = problems([tmp_path / "a.npz"], task)
    assert f"  PROBLEM: {sentence}\n" in text
    assert "can hardly tell apart" in sentence


def test_read_only_arrays_are_measured_without_a_warning(tmp_path: Path) -> None:
    """Torch warns once in a process unless it is told to do so always."""
    np.savez(tmp_path / "a.npz", u=np.random.default_rng(5).uniform(1, 2, (5, 4, 16)), dt=0.1)
    task = Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)}, positive=("u",))
    with open_source(tmp_path / "a.npz", TASKS, task) as source, warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_warn_always(True)
        ((_, worst, _),) = law_residuals(source)
    torch.set_warn_always(False)
    assert worst == 0


def test_constant_and_frozen_trajectories_are_found(sound: Path) -> None:
    def flatten(file: Any) -> None:
        file["tensor"][1] = 0.25
        file["tensor"][2] = file["tensor"][2, :1]

    sentences = changed(sound, flatten)
    assert "one and the same number everywhere in 1 sample (000001)" in sentences
    assert "no change in time in 1 sample (000002)" in sentences


def test_duplicated_trajectories_are_found_within_a_file_and_across_files(sound: Path, tmp_path: Path) -> None:
    def copy(file: Any) -> None:
        file["tensor"][5] = file["tensor"][0]

    assert "duplicated trajectories: 1 pair (000005 equals 000000)" in changed(sound, copy)
    first = advection(tmp_path / "a" / "1D_Advection_Sols_beta0.4.hdf5")
    second = Path(shutil.copy(first, tmp_path / "1D_Advection_Sols_beta0.40.hdf5"))
    assert any("equals" in sentence for _, sentence in problems([first, second]))
    with h5py.File(second, "a") as file:
        wide = file["tensor"][...].astype(">f8") * (1 + 1e-12)
        del file["tensor"]
        file["tensor"] = wide
    assert any("6 pairs" in sentence for _, sentence in problems([first, second])), "in another precision too"


def test_pieces_of_one_simulation_are_found_across_files_and_in_a_folder(tmp_path: Path) -> None:
    whole = advection(tmp_path / "whole" / "1D_Advection_Sols_beta0.4.hdf5", samples=1, nt=121)
    with h5py.File(whole) as file:
        values, x, t = (file[name][:] for name in ("tensor", "x-coordinate", "t-coordinate"))
    values += 0.1 * np.random.default_rng(0).normal(size=values.shape).astype("f4")  # no wave comes back to the bit
    task = Definition(name="waves", dims=["sample", "time", "x"], fields={"u": ["u"]}, periodic=["x"])

    def cut(folder: str, share: int) -> list[Path]:
        """Twelve files, each of which begins with the last frame of the one before if they `share` it."""
        (tmp_path / folder).mkdir()
        for i in range(12):
            own = slice(10 * i, 10 * i + 10 + share)
            np.savez(tmp_path / folder / f"seg{i:02}.npz", values=values[:, own], x=x, t=t[:-1][own])
        return sorted((tmp_path / folder).iterdir())

    files = cut("pieces", 1)
    ((where, sentence),) = problems(files, task)
    assert where == files[-1]
    assert sentence.startswith("11 trajectories begin with the last frame of another (such as seg01.npz:")
    assert " after seg00.npz:" in sentence
    assert [sentence[:15] for _, sentence in problems([files[0].parent], task)] == ["11 trajectories"]
    assert problems(cut("apart", 0), task) == []
    for number, file in enumerate(files):  # what is tested comes after what is trained on
        part = tmp_path / "parts" / ("train" if number < 8 else "valid" if number < 10 else "test")
        part.mkdir(parents=True, exist_ok=True)
        file.rename(part / file.name)
    assert problems([tmp_path / "parts"], task) == []
    (tmp_path / "parts" / "train" / "seg03.npz").rename(tmp_path / "parts" / "test" / "seg03.npz")
    assert "1 trajectory begins with" in problems([tmp_path / "parts"], task)[0][1]


def test_a_wrong_time_axis_is_found(sound: Path) -> None:
    def backwards(file: Any) -> None:
        file["t-coordinate"][10] = 0.0

    assert any("the t axis" in sentence for sentence in changed(sound, backwards))


def test_a_time_axis_of_the_wrong_length_is_found(sound: Path) -> None:
    def shorten(file: Any) -> None:
        del file["t-coordinate"]
        file["t-coordinate"] = np.arange(30, dtype="f4")

    assert any("the t axis" in sentence for sentence in changed(sound, shorten))


def test_a_time_axis_off_by_a_factor_of_two_is_found_from_the_data(tmp_path: Path) -> None:
    path = advection(tmp_path / "1D_Advection_Sols_beta0.4.hdf5", scale_t=2.0)
    assert any("the data contradict beta = 0.4, by which velocity β is 0.4" in sentence for sentence in found(path))


def test_a_name_that_claims_a_wrong_parameter_is_found_from_the_data(tmp_path: Path) -> None:
    path = advection(tmp_path / "1D_Advection_Sols_beta0.7.hdf5", beta=0.4)
    assert any("they obey 0.4" in sentence for sentence in found(path))


def test_a_task_of_another_name_is_held_to_the_equation_that_it_says_it_obeys(tmp_path: Path) -> None:
    path = advection(tmp_path / "1D_Advection_Sols_beta0.7.hdf5", beta=0.4)
    mine = Definition(name="mine", equation="advection1d", parameters={"beta": 0.7})
    assert any("they obey 0.4" in sentence for _, sentence in problems([path], mine))
    assert "CONTRADICTS THE CLAIM" in describe(path, mine)


def test_what_float32_cannot_tell_apart_is_a_problem(tmp_path: Path) -> None:
    task = Definition("a", dims=("sample", "time", "x"), fields={"u": ("u",)})
    u, x, t = np.random.default_rng(0).normal(size=(4, 5, 8)), np.linspace(0, 1, 8), np.arange(5.0)

    def said(values: Any, **params: Any) -> str:
        np.savez(tmp_path / "a.npz", u=values, x=x, t=t, **params)
        return " ".join(sentence for _, sentence in problems([tmp_path / "a.npz"], task))

    assert said(u) == said((1e6 + u).astype(np.float32)) == said(1e3 + u) == ""
    words = said(1e6 + 1e-3 * u)
    assert "u varies by 0.00" in words
    assert "take 1e+06 away from it" in words
    assert said(u, p=1e5 + np.arange(4.0)) == ""
    assert "values of the parameter p are the same in float32" in said(u, p=1e12 + np.arange(4.0))
    assert "the parameter p is 1e+45, which float32 cannot hold" in said(u, p=10.0 ** np.array([1, 2, 3, 45]))


def test_an_attribute_that_contradicts_the_name_is_found(sound: Path) -> None:
    def mark(file: Any) -> None:
        file.attrs["beta"] = 0.1

    assert any("attribute beta says 0.1" in sentence for sentence in changed(sound, mark))


def test_broken_conservation_is_found(sound: Path) -> None:
    def leak(file: Any) -> None:
        file["tensor"][0, 20:] += np.float32(0.02)

    assert any("mass is conserved: off by" in sentence for sentence in changed(sound, leak))


def test_frames_that_were_never_written_are_found(sound: Path) -> None:
    def cut(file: Any) -> None:
        file["tensor"][4, 30:] = 0.0

    assert any("only zeros in the last frame of 1 sample (000004)" in sentence for sentence in changed(sound, cut))


def test_truncation_is_found(sound: Path) -> None:
    sound.write_bytes(sound.read_bytes()[: sound.stat().st_size // 2])
    (sentence,) = found(sound)
    assert "truncated" in sentence


@pytest.mark.parametrize("content", [b"", b"hello\n", bytes(range(256)) * 10])
def test_files_that_are_not_hdf5_are_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "1D_Burgers_Sols_Nu0.01.hdf5"
    path.write_bytes(content)
    (sentence,) = found(path)
    assert "\n" not in sentence


def test_a_burgers_file_without_its_factor_of_a_half_is_found(tmp_path: Path) -> None:
    """Data of u_t + (u²)_x = (ν/π) u_xx, as some published files hold, are those of Burgers with u doubled."""
    config = GenerateConfig(task="burgers1d", samples=4, resolution=64, device="cpu", params={"nu": 0.1}, frames=41)
    (path,) = generate(config, tmp_path, quiet)
    assert found(path) == []

    def halve(file: Any) -> None:
        file["tensor"][:] = file["tensor"][:] / 2

    assert any("factor of (u²/2)_x is 1: they obey 2" in s for s in changed(path, halve))


CELLS = {
    "reacdiff1d": 128,
    "cfd1d": 64,
    "darcy2d": 32,
    "poisson2d": 32,
    "reacdiff2d": 32,
    "swe2d": 32,
    "ks1d": 64,
    "kdv1d": 64,
    "diffsorp1d": 32,
}


@pytest.mark.parametrize(
    "task",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("cfd1d", "kdv1d", "ks1d") else name for name in CELLS],
)
def test_what_the_generator_makes_is_sound(task: str, tmp_path: Path) -> None:
    frames = {} if EQUATIONS[task].task.steady else {"frames": 21}
    config = GenerateConfig(task=task, samples=3, resolution=CELLS[task], device="cpu", scheme="accurate", **frames)
    (path,) = generate(config, tmp_path, quiet)
    assert found(path) == []
    assert EQUATIONS[task].task.title in describe(path)


@pytest.mark.slow
def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """A file of 50 GB, of which no block was ever written, is described within a gigabyte of memory."""
    path = tmp_path / "2D_CFD_Rand_M1.0_Eta0.1_Zeta0.1_periodic_512_Train.hdf5"
    with h5py.File(path, "w") as file:
        # All its room is there, without a number in it: a file that says more than it has room for is refused.
        whole, space = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5s.create_simple((568, 21, 512, 512))
        whole.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        whole.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        for name in (b"density", b"pressure", b"Vx", b"Vy"):
            h5py.h5d.create(file.id, name, h5py.h5t.IEEE_F32LE, space, whole)
        for axis in "xy":
            file[f"{axis}-coordinate"] = ((np.arange(512) + 0.5) / 512).astype("f4")
        file["t-coordinate"] = np.linspace(0, 1.05, 22).astype("f4")
    tracemalloc.start()
    try:
        assert "568 trajectories" in describe(path)
        assert tracemalloc.get_traced_memory()[1] < 2**30
    finally:
        tracemalloc.stop()


def test_the_task_table_names_every_task_and_parameter() -> None:
    text = task_table()
    for name, kind in EQUATIONS.items():
        assert name in text
        for p in kind.parameters():
            assert f"--{p.name}" in text


def test_a_file_whose_values_cannot_be_read_is_closed_too(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(source: Source, _: Source) -> list[str]:
        raise DataError(f"{source.path}: is cut")

    closed: list[Path] = []
    monkeypatch.setattr(inspect, "_file_problems", cut)
    monkeypatch.setattr(Source, "__exit__", lambda self, *_: closed.append(self.path))
    assert problems([sound]) == [(sound, "is cut")]
    assert closed == [sound]


def test_a_number_that_fills_cells_far_from_all_others_is_said_and_walls_are_not(tmp_path: Path) -> None:
    u = np.random.default_rng(0).normal(size=(8, 12, 16)).cumsum(1)
    filled, walls = u.copy(), u.copy()
    filled[:, :, 5:8], walls[:, :, [0, -1]] = -9999, 0
    task = Definition("q", dims=("sample", "time", "x"), fields={"u": ("u",)}, dt=0.1)
    words = "u is -9999 in 3 of 16 cells of all frames, far from all its other values: where these cells do not count, "
    for name, values, expected in (("filled", filled, [f"{words}write NaN there"]), ("walls", walls, []), ("u", u, [])):
        np.savez(tmp_path / f"{name}.npz", u=values)
        said = [text for _, text in notes([tmp_path / f"{name}.npz"], task)]
        assert said == expected, name
        assert not problems([tmp_path / f"{name}.npz"], task)
        with open_source(tmp_path / f"{name}.npz", TASKS, task) as source:
            assert doubts_of(source) == expected, "which a run says too"
    held = u.copy()
    held[:, :, [0, -1]] = 1000
    np.savez(tmp_path / "held.npz", u=held)
    mask = np.ones((8, 16))
    mask[:, 5:8] = 0
    np.savez(tmp_path / "masked.npz", u=filled, m=mask)
    masked = dataclasses.replace(task, inputs={"m": ("m",)}, mask="m")
    assert not notes([tmp_path / "held.npz"], task), "what a field is held at by walls"
    assert not notes([tmp_path / "masked.npz"], masked), "cells that do not count anyhow"


def test_what_is_not_used_of_a_file_is_said_by_validate_and_text_is_no_field(tmp_path: Path) -> None:
    u = np.random.default_rng(0).normal(size=(8, 12, 16))
    task = Definition("q", dims=("sample", "time", "x"), fields={"u": ("u",)}, dt=0.1)
    np.savez(tmp_path / "short.npz", u=u, nu=np.arange(7.0))
    ((_, said),) = notes([tmp_path / "short.npz"], task)
    assert said == "array nu (7) is not used; the task does not name it"
    np.savez(tmp_path / "text.npz", u=u.astype(str))
    ((_, wrong),) = problems([tmp_path / "text.npz"], task)
    assert wrong == "u (8 × 12 × 16) holds text, not numbers; write it as an array of numbers."
