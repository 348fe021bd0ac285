"""The second copy: verified, taken when the first is damaged or gone; that it cannot be made stops nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ranks import join_group, run_ranks, values
from ups.engine.checkpoint import manifest
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.checkpoint.manifest import step_name, verify
from ups.engine.checkpoint.second_copy import SecondCopy
from ups.engine.checkpoint.store import CorruptError, Snapshot

SHARD = "rank-0-0.safetensors"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path: Path, name: str) -> None:
    content = bytearray((path / name).read_bytes())
    content[-2] ^= 4
    (path / name).write_bytes(content)


def filled(store: CheckpointStore, *steps: int) -> CheckpointStore:
    for step in steps:
        store.save(Snapshot(step, {"w": torch.full((5, 2), float(step))}, {"step": step}))
        store.wait()
    return store


def resumed(store: CheckpointStore) -> tuple[int, float]:
    checkpoint, w = store.newest(), torch.zeros(5, 2)
    assert checkpoint is not None
    store.load(checkpoint, {"w": w})
    return checkpoint.step, float(w.mean())


def test_the_newest_alone_is_kept_there_and_is_whole(tmp_path: Path) -> None:
    filled(CheckpointStore(tmp_path / "first", second=tmp_path / "second"), 1, 2, 3)
    assert names(tmp_path / "first") == [step_name(2), step_name(3)]
    assert names(tmp_path / "second") == [step_name(3)]
    assert verify(tmp_path / "second" / step_name(3)) is None


def test_a_checkpoint_that_is_gone_before_it_is_copied_stops_no_later_copy(tmp_path: Path) -> None:
    notes: list[str] = []
    filled(CheckpointStore(tmp_path / "first"), 1)
    copies = SecondCopy(tmp_path / "second", notes.append)
    copies.take(tmp_path / "first" / "step-gone")  # deleted as outdated, or set aside as damaged
    copies.wait()
    damaged = tmp_path / "first" / step_name(2)
    damaged.mkdir()
    copies.take(damaged)
    copies.wait()
    copies.take(tmp_path / "first" / step_name(1))
    copies.wait()
    assert names(tmp_path / "second") == [step_name(1)]
    assert [f"checkpoint {step_name(2)} could not be made" in note for note in notes] == [True]


def test_the_names_of_new_folders_outlive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable: list[Path] = []
    monkeypatch.setattr(manifest, "sync", durable.append)
    filled(CheckpointStore(tmp_path / "checkpoints/codec", second=tmp_path / "copies/codec"), 1)
    assert {tmp_path, tmp_path / "checkpoints", tmp_path / "copies"} <= set(durable)
    durable.clear()
    filled(CheckpointStore(tmp_path / "checkpoints/codec"), 2)
    assert tmp_path not in durable


def test_it_is_taken_where_the_first_is_damaged_or_gone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    filled(CheckpointStore(first, second=second), 1, 2, 3)

    def sentences() -> list[str]:
        said: list[str] = []
        assert resumed(CheckpointStore(first, second=second, say=said.append)) == (3, 3.0)
        return said

    assert sentences() == []
    flip(first / step_name(3), SHARD)
    (sentence,) = sentences()
    assert sentence == (
        f"checkpoint {step_name(3)} is damaged ({SHARD} is not what was written); its second copy in {second} was "
        "taken instead."
    )
    assert sum(".damaged-" in name for name in names(first)) == 1
    assert sentences() == [], "it has been put back"
    for path in first.glob("step-*"):
        flip(path, SHARD)  # all that there is
    assert "its second copy" in sentences()[0]
    shutil.rmtree(first)
    assert sentences() == [f"checkpoint {step_name(3)} is gone; its second copy in {second} was taken instead."]


def test_an_older_copy_does_not_replace_a_newer_checkpoint(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    filled(CheckpointStore(first, second=second), 1)
    filled(CheckpointStore(first), 2, 3)
    assert resumed(CheckpointStore(first, second=second)) == (3, 3.0)


def test_a_damaged_copy_is_not_taken(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    filled(CheckpointStore(first, second=second), 1, 2)
    for path in (*first.iterdir(), *second.iterdir()):
        flip(path, SHARD)
    with pytest.raises(CorruptError, match="none can be read back"):
        CheckpointStore(first, second=second).newest()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_copy_that_fails_is_said_once_and_stops_nothing(tmp_path: Path, tiny_disk: Path) -> None:
    said: list[str] = []
    store = filled(CheckpointStore(tmp_path / "first", second=tiny_disk / "second", say=said.append), 1)
    assert said == []
    (tiny_disk / "filler").write_bytes(bytes(4000))
    filled(store, 2, 3)
    assert len(said) == 1
    assert "the second copy of checkpoint step-000000002 could not be made (" in said[0]
    assert names(tiny_disk / "second") == [step_name(1)], "the older one stays, and nothing half-made"
    (tiny_disk / "filler").unlink()
    shutil.rmtree(tiny_disk / "second")
    filled(store, 4)
    assert names(tiny_disk / "second") == [step_name(4)]
    assert len(said) == 1


def test_a_place_that_is_no_folder_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    store = filled(CheckpointStore(tmp_path / "first", second=tmp_path / "file" / "in", say=said.append), 1, 2)
    assert len(said) == 1
    assert resumed(store) == (2, 2.0)


def save_on_all(folder: Path, private: bool) -> None:
    store = seated(folder, private)
    store.save(Snapshot(4, {"w": torch.full((5, 2), 4.0), "b": torch.ones(3)}))
    store.wait()


def resume_on_all(folder: Path, private: bool) -> tuple[int, float]:
    store = seated(folder, private)
    checkpoint, tensors = store.newest(), {"w": torch.zeros(5, 2), "b": torch.zeros(3)}
    assert checkpoint is not None
    store.load(checkpoint, tensors)
    return checkpoint.step, float(tensors["w"].mean())


def seated(folder: Path, private: bool) -> CheckpointStore:
    """A rank whose second place is its machine's own, or everyone's."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join_group(20)
    second = folder / (f"second-{rank}" if private else "second")
    return CheckpointStore(folder / "first", rank, world, dist.group.WORLD, second=second)


@pytest.mark.parametrize("private", [False, True], ids=["shared", "of rank 0 alone"])
def test_ranks_take_it_whether_or_not_all_see_it(tmp_path: Path, private: bool) -> None:
    values(run_ranks(save_on_all, 2, tmp_path, private))
    shutil.rmtree(tmp_path / "first")
    assert values(run_ranks(resume_on_all, 3, tmp_path, private)) == [(4, 4.0)] * 3
