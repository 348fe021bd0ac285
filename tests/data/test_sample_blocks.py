"""All samples read at once, straight from the file or not, by way of a buffer or not: the numbers of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ups.data import open_source, sample_blocks
from ups.data.joined import Joined
from ups.data.reduction import Reduction
from ups.data.source import View
from ups.data.trajectories import Trajectories
from ups.physics import TASKS
from ups.types import Array, DataError

NAMES = ("density", "pressure", "Vx", "Vy")
CPU = torch.device("cpu")
ROWS = [0, 1, 2, 5, 6, 9, 4, 3]  # runs, gaps and a step back
STRAIGHT = ("contiguous",)
STORED: dict[str, dict[str, Any]] = {
    "chunked": {"chunks": (2, 3, 4, 4)},
    "packed": {"compression": "gzip"},
    "contiguous": {},
    ">f4": {},
    "<f8": {},
}


def gas(folder: Path, kind: str = "contiguous", seed: int = 0) -> tuple[Path, Array]:
    """A file of 10 samples, and its frames `(N, T, *S, C)`."""
    path, rng = folder / f"2D_CFD_Rand_M1.0_Eta0.1_Zeta0.1_periodic_{8 + seed}_Train.hdf5", np.random.default_rng(seed)
    values = rng.standard_normal((10, 5, 8, 4, 4)).astype("f4")
    with h5py.File(path, "w") as file:
        for c, name in enumerate(NAMES):
            dtype = kind if kind[0] in "<>" else "<f4"
            file.create_dataset(name, data=values[..., c].astype(dtype), **STORED[kind])
        for axis, cells in (("x", 8), ("y", 4)):
            file[f"{axis}-coordinate"] = ((np.arange(cells) + 0.5) / cells).astype("f4")
        file["t-coordinate"] = np.linspace(0, 1, 6, dtype="f4")
    return path, values


@pytest.mark.parametrize("kind", STORED)
def test_however_a_file_is_stored_a_device_gets_its_numbers(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, values = gas(tmp_path, kind)
    source = open_source(path, TASKS)
    into = np.empty((10, 5, 8, 4, 4), np.float32)
    assert source.read_into(range(10), slice(None), into) == (kind in STRAIGHT)
    assert View(source).read_into(range(10), slice(None), into) == (kind in STRAIGHT)
    assert not source.read_into([0, 10], slice(None), into[:2]), "there is no sample 10"
    monkeypatch.setattr(sample_blocks, "BLOCK", 3 * values[0].nbytes)  # three samples at a time
    reductions = [Reduction(), Reduction(start=2), Reduction(time=2), Reduction(space=2)]
    for reduction in reductions:
        part = Trajectories(source, [source.ids[i] for i in ROWS], reduction, resident=0)
        step = reduction.space
        expected = values[ROWS][:, reduction.frames, ::step, ::step]
        for staged in (True, False):
            read = part._read_all(CPU, staged)
            assert read.is_contiguous()
            np.testing.assert_array_equal(read.numpy(), expected, err_msg=f"{reduction}, {staged}")
        np.testing.assert_array_equal(part.on(CPU)._frames, expected)


def test_samples_of_several_files_are_each_read_from_their_own(tmp_path: Path) -> None:
    (a, first), (b, second) = gas(tmp_path, seed=0), gas(tmp_path, seed=1)
    source = Joined(tmp_path, [open_source(a, TASKS), open_source(b, TASKS)])
    assert source.channels_apart
    into = np.empty((3, 5, 8, 4, 4), np.float32)
    assert source.read_into([12, 10, 11], slice(None), into)
    np.testing.assert_array_equal(into, second[[2, 0, 1]])
    assert not source.read_into([9, 10, 11], slice(None), into), "they are of two files"
    everything = Trajectories(source, source.ids, Reduction(), resident=0)._read_all(CPU, True)
    np.testing.assert_array_equal(everything.numpy(), np.concatenate([first, second]))


@pytest.mark.parametrize("staged", [True, False])
def test_a_file_that_has_become_shorter_is_one_sentence_that_names_the_sample(
    tmp_path: Path, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, values = gas(tmp_path)
    monkeypatch.setattr(sample_blocks, "BLOCK", 1)  # a sample at a time, so that several fail at once,
    monkeypatch.setattr(sample_blocks, "STAGED", 1)  # with one buffer for all threads
    source = open_source(path, TASKS)
    part = Trajectories(source, source.ids, Reduction(), resident=0)
    with h5py.File(path) as file:
        end = file["Vy"].id.get_offset() + 7 * values[0, ..., 0].nbytes + 100  # within the eighth
    source.read(0)  # the file is open
    with path.open("r+b") as raw:
        raw.truncate(end)
    with pytest.raises(DataError, match="sample 000007 cannot be read, the file is damaged") as caught:
        part._read_all(CPU, staged)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
