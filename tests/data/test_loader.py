"""Loader: workers build the same windows in the same order, from any step, and say what went wrong."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ups.data import open_source
from ups.data.cache import Latents, key_of
from ups.data.cache_builder import Builder
from ups.data.loader import Loader, loaded
from ups.data.reduction import Reduction
from ups.data.sampler import Mix
from ups.data.trajectories import Trajectories
from ups.data.windows import Samples, Windows
from ups.physics import TASKS
from ups.tensors import TENSORS, Window
from ups.types import DataError
from ups.verdict import Ending, classify


class Rank(NamedTuple):
    rank: int
    world: int


def advection(folder: Path, beta: str, samples: int) -> Trajectories:
    path = folder / f"1D_Advection_Sols_beta{beta}.hdf5"
    with h5py.File(path, "w") as file:
        file["tensor"] = np.random.default_rng(samples).standard_normal((samples, 11, 8)).astype("f4")
        file["x-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
        file["t-coordinate"] = (np.arange(12) * 0.1).astype("f4")
    source = open_source(path, TASKS)
    return Trajectories(source, source.ids, Reduction())


def same(a: Window, b: Window) -> bool:
    plain = all(getattr(a, f.name) == getattr(b, f.name) for f in dataclasses.fields(a) if f.name not in TENSORS)
    pairs = [(getattr(a, name), getattr(b, name)) for name in TENSORS]
    return plain and all(x is y is None or torch.equal(x, y) for x, y in pairs)


def test_any_number_of_workers_gives_the_same_sequence_from_any_step_from_files_and_from_a_cache(
    tmp_path: Path,
) -> None:
    raw = advection(tmp_path, "0.4", 6)
    key = key_of(raw, {"codec weights": "1"}, "2", "fp32")
    folder = Builder(raw, lambda x: x.reshape(len(x), 4, 2), key, tmp_path / "cache" / "train").run()
    parts: list[Samples] = [raw, Latents(folder, key, raw.task, raw)]
    windows = Windows(parts, [raw], 5, 2, 2, seed=1, ranks=Rank(1, 2), mix=Mix(policy="proportional"))
    for workers in (1, 3):
        with loaded(windows, workers) as loader:
            assert isinstance(loader, Loader)
            for step in (0, 1, 2, 3, 4, 5, 6, 40, 41, 7):
                assert same(loader.batch(step), windows.batch(step)), (workers, step)
            assert loader.count(0) == 5
    with loaded(windows, 0) as plain:
        assert plain is windows


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch looks every 0.2 s whether a worker that is silent still lives, not every 5 s."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


def kill_worker(loader: Loader, number: int = signal.SIGKILL) -> None:
    worker = loader._batches._workers[0]  # type: ignore[union-attr]
    os.kill(worker.pid, number)
    worker.join()


@pytest.mark.usefixtures("soon")
def test_a_worker_that_the_kernel_kills_for_want_of_memory_is_out_of_memory_and_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = advection(tmp_path, "0.4", 6)
    windows = Windows([raw], [raw], 5, 2, ranks=Rank(0, 1))
    counts = itertools.count()
    monkeypatch.setattr("ups.data.loader.kills", lambda: next(counts))
    with loaded(windows, 1) as loader:
        assert isinstance(loader, Loader)
        loader.batch(0)
        kill_worker(loader)
        with pytest.raises(MemoryError) as caught:  # what it had built ahead may still come
            all(loader.batch(step) for step in range(1, 9))
        assert classify(caught.value).ending == Ending.OOM
        assert same(loader.batch(4), windows.batch(4)), "asked again, new workers build it"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.usefixtures("soon")
def test_a_worker_that_somebody_kills_is_started_anew_and_the_sequence_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    raw = advection(tmp_path, "0.4", 6)
    windows = Windows([raw], [raw], 5, 2, ranks=Rank(0, 1))
    with loaded(windows, 1) as loader:
        assert isinstance(loader, Loader)
        assert same(loader.batch(0), windows.batch(0))
        kill_worker(loader, number)
        assert all(same(loader.batch(step), windows.batch(step)) for step in range(1, 9))
    assert capsys.readouterr().err.count("the workers are started anew for step") == 1


@pytest.mark.usefixtures("soon")
def test_workers_that_die_at_every_start_end_the_rank_as_one_that_may_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = advection(tmp_path, "0.4", 6)
    windows = Windows([raw], [raw], 5, 2, ranks=Rank(0, 1))
    start = Loader._start

    def dying(loader: Loader, first: int) -> object:
        loader._batches = batches = start(loader, first)
        kill_worker(loader)
        return batches

    monkeypatch.setattr(Loader, "_start", dying)
    with loaded(windows, 1) as loader, pytest.raises(RuntimeError, match="DataLoader worker") as caught:
        loader.batch(0)
    assert classify(caught.value).ending == Ending.RANK_DIED
    assert classify(RuntimeError("Caught KeyError in DataLoader worker process 0.")).ending == Ending.CRASH


def test_what_a_worker_cannot_read_is_the_sentence_of_one_process(tmp_path: Path) -> None:
    raw = advection(tmp_path, "0.4", 6)
    windows = Windows([raw], [raw], 5, 2, ranks=Rank(0, 1))
    raw.source.path.write_bytes(b"no longer")
    with loaded(windows, 1) as loader, pytest.raises(DataError) as caught:
        loader.batch(0)
    said = "is not an HDF5 file, or is damaged; check what it is and fetch it again."
    assert str(caught.value) == f"{raw.source.path}: {said}", "one sentence, and no traceback of a worker"
