"""What ranks really draw, read off the frames they are given; judged by a script that knows counts and batch alone."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch

from ups.data import open_source
from ups.data.loader import loaded
from ups.data.reduction import Reduction
from ups.data.sampler import Mix
from ups.data.trajectories import Trajectories
from ups.data.windows import Samples, Windows
from ups.physics import TASKS

BATCH, CONTEXT, FRAMES = 6, 1, 5
FILES = {
    "advection1d": "1D_Advection_Sols_beta0.4.hdf5",
    "burgers1d": "1D_Burgers_Sols_Nu0.01.hdf5",
    "reacdiff1d": "ReacDiff_Nu0.5_Rho1.0.hdf5",
}
SAMPLES = {"advection1d": 9, "burgers1d": 4, "reacdiff1d": 1}  # 36, 16 and 4 windows: fewer than a batch of the last
WINDOWS = {name: samples * (FRAMES - CONTEXT) for name, samples in SAMPLES.items()}

Drawn = tuple[str, list[int]]  # the task of a step, and the windows one rank was given


class Rank(NamedTuple):
    rank: int
    world: int


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    """Trajectories whose every frame says which sample and which frame it is."""
    found: list[Samples] = []
    for task, name in FILES.items():
        path, samples = tmp_path_factory.mktemp(task) / name, SAMPLES[task]
        with h5py.File(path, "w") as file:
            told = 100 * np.arange(samples)[:, None] + np.arange(FRAMES)
            file["tensor"] = np.repeat(told[..., None], 8, -1).astype("f4")
            file["x-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
            file["t-coordinate"] = (np.arange(FRAMES + 1) * 0.1).astype("f4")
        source = open_source(path, TASKS)
        found.append(Trajectories(source, source.ids, Reduction()))
    return found


def recorded(parts: list[Samples], world: int, workers: int, steps: range, policy: str) -> list[list[Drawn]]:
    """By step, what each rank found in its windows: numbers read off the frames, not asked of the sampler."""
    weights = {"advection1d": 5.0, "burgers1d": 2.0, "reacdiff1d": 1.0} if policy == "weights" else {}
    mix = Mix(policy=policy, weights=weights)  # type: ignore[arg-type]
    rows: list[list[Drawn]] = [[] for _ in steps]
    for rank in range(world):
        windows = Windows(parts, [], BATCH, CONTEXT, seed=11, ranks=Rank(rank, world), mix=mix)
        with loaded(windows, workers) as batches:
            for row, step in zip(rows, steps, strict=True):
                window = batches.batch(step)
                told = window.context[:, 0, 0, 0].int()
                assert torch.equal(window.targets[:, 0, 0, 0].int(), told + 1), "the frame after it"
                row.append((window.task.name, (told // 100 * (FRAMES - CONTEXT) + told % 100).tolist()))
    return rows


def judge(rows: list[list[Drawn]], world: int) -> dict[str, list[int]]:
    """The sequence of each task, after checking that ranks were together, disjoint and even; of two epochs at least."""
    streams: dict[str, list[int]] = {name: [] for name in WINDOWS}
    for shares in rows:
        assert len(shares) == world
        (task,) = {name for name, _ in shares}
        sizes = [len(given) for _, given in shares]
        assert (sum(sizes), max(sizes) - min(sizes) <= 1) == (BATCH, True)
        given = [window for _, share in shares for window in share]
        if WINDOWS[task] >= 2 * BATCH:  # within a batch only a smaller task, or one between epochs, repeats
            assert max(Counter(given).values()) <= 2
        streams[task] += given
    for task, count in WINDOWS.items():
        assert len(streams[task]) >= 2 * count, f"the record of {task} is too short to prove anything"
        for first in range(0, len(streams[task]) - count + 1, count):
            assert sorted(streams[task][first : first + count]) == list(range(count)), (task, first)
    return streams


@pytest.mark.parametrize("policy", ["uniform", "proportional", "weights"])
def test_two_epochs_of_any_number_of_ranks_are_one_sequence_with_every_window_once_an_epoch(
    parts: list[Samples], policy: str
) -> None:
    steps = range(60)
    alone = judge(recorded(parts, 1, 0, steps, policy), 1)
    for world in (2, 4):
        assert judge(recorded(parts, world, 0, steps, policy), world) == alone
    resumed = recorded(parts, 1, 0, range(23), policy) + recorded(parts, 4, 0, range(23, 41), policy)
    rest = recorded(parts, 2, 0, range(41, 60), policy)
    flat = [[(row[0][0], [window for _, given in row for window in given])] for row in (*resumed, *rest)]
    assert judge(flat, 1) == alone, "stopped twice within an epoch, and gone on with other numbers of ranks"
    epochs = [alone["advection1d"][at : at + WINDOWS["advection1d"]] for at in (0, WINDOWS["advection1d"])]
    assert epochs[0] != epochs[1]


def test_workers_and_a_resume_within_an_epoch_change_nothing(parts: list[Samples]) -> None:
    plain = recorded(parts, 2, 0, range(12), "proportional")
    assert recorded(parts, 2, 3, range(4, 12), "proportional") == plain[4:]
