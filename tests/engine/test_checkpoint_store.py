"""Checkpoint stores: what is saved is loaded, on any number of ranks; damage is found; a kill leaves a good one."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ranks import join_group, run_ranks, values
from ups.engine.checkpoint import manifest
from ups.engine.checkpoint.checkpoint_store import CheckpointStore
from ups.engine.checkpoint.manifest import verify
from ups.engine.checkpoint.shard_files import local
from ups.engine.checkpoint.store import CorruptError, NoStore, Snapshot, StateStore
from ups.engine.randomness import random_state, set_random_state
from ups.types import ConfigError
from ups.verdict import Ending, classify

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
LAST = ["step-000000001", "step-000000002"]
MODULES = ["manifest.json", "facts.json", "index.json", "own-0.json", "rank-0-0.safetensors"]


def plain(step: int) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(step)
    return {
        "module/w": torch.randn(7, 3, generator=noise),
        "module/wave": torch.randn(2, 3, generator=noise, dtype=torch.cfloat),
        "module/n": torch.tensor(step),
        "module/half": torch.randn(4, generator=noise).bfloat16(),
        "module/empty": torch.zeros(0, 3),
    }


def test_any_safetensors_reader_reads_a_shard(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    theirs = load_file(tmp_path / LAST[0] / "rank-0-0.safetensors")
    assert same(theirs, {name: t for name, t in plain(1).items() if t.numel()})


def blank(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(t) for name, t in tensors.items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return all(torch.equal(ours[n], t) and ours[n].dtype == t.dtype for n, t in theirs.items())


def saved(step: int) -> Snapshot:
    return Snapshot(step, plain(step), {"score": 0.1 + step, "worst": float("inf"), "names": ["ä"]}, {"rank": 0})


def filled(folder: Path, *steps: int, **options: Any) -> CheckpointStore:
    store = CheckpointStore(folder, **options)
    for step in steps:
        store.save(saved(step))
        store.wait()
    return store


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# One process.


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    store: StateStore = filled(tmp_path / "deep" / "er", 7)
    found, tensors = store.newest(), blank(plain(7))
    assert found is not None
    assert (found.step, found.facts, found.own, found.world) == (7, saved(7).facts, {"rank": 0}, 1)
    places = {name: t.data_ptr() for name, t in tensors.items()}
    store.load(found, tensors)
    assert same(tensors, plain(7))
    assert places == {name: t.data_ptr() for name, t in tensors.items()}, "in place"


def test_no_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").newest() is None
    nowhere: StateStore = NoStore()
    nowhere.save(saved(1))
    nowhere.wait()
    assert nowhere.newest() is None


def test_a_snapshot_does_not_see_later_changes(tmp_path: Path) -> None:
    go = threading.Event()
    store = CheckpointStore(tmp_path, at=lambda point: go.wait(600) and None if point == "before shard" else None)
    tensors = plain(3)
    store.save(Snapshot(3, tensors))
    for tensor in tensors.values():
        tensor.zero_()
    go.set()
    store.wait()
    back = blank(tensors)
    store.load(store.newest(), back)  # type: ignore[arg-type]
    assert same(back, plain(3))


def test_the_newest_verified_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path, 1, 2, 10, 9)
    assert names(tmp_path) == ["step-000000009", "step-000000010"]
    assert store.newest().step == 10  # type: ignore[union-attr]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (tmp_path / LAST[1]).iterdir()}
    store.save(Snapshot(2, {"other": torch.ones(3)}))
    store.wait()
    assert before == {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (tmp_path / LAST[1]).iterdir()}


def test_another_models_checkpoint_is_refused_in_a_sentence(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    found = store.newest()
    assert found is not None
    ours = blank(plain(1))
    for other, words in (
        ({**ours, "module/w": torch.zeros(3, 7)}, r"'module/w' is float32 \[7, 3\] there and float32 \[3, 7\] here"),
        ({**ours, "module/w": torch.zeros(7, 3).double()}, r"float64 \[7, 3\] here"),
        ({**ours, "new": torch.zeros(1)}, "'new' is absent there"),
        ({n: t for n, t in ours.items() if n != "module/n"}, r"'module/n' is int64 \[\] there and absent here"),
    ):
        with pytest.raises(ConfigError, match=words):
            store.load(found, other)
    assert same(ours, blank(plain(1))), "nothing was half loaded"


def flip(path: Path, name: str) -> None:
    content = bytearray((path / name).read_bytes())
    content[-2] ^= 4
    (path / name).write_bytes(content)


def cut(path: Path, name: str) -> None:
    (path / name).write_bytes((path / name).read_bytes()[:-3])


def remove(path: Path, name: str) -> None:
    (path / name).unlink()


def swap(path: Path, name: str) -> None:
    shutil.copy(path.parent / LAST[0] / name, path / name)


@pytest.mark.parametrize("damage", [flip, cut, remove, swap], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", MODULES)
def test_a_damaged_checkpoint_is_passed_over_and_kept(
    tmp_path: Path, damage: Callable[[Path, str], None], name: str
) -> None:
    if name in ("own-0.json", "index.json") and damage is swap:
        pytest.skip("the same in every checkpoint of this test")
    said: list[str] = []
    filled(tmp_path, 1, 2)
    damage(tmp_path / LAST[1], name)
    store = CheckpointStore(tmp_path, say=said.append)
    found, tensors = store.newest(), blank(plain(1))
    assert found is not None
    store.load(found, tensors)
    assert (found.step, found.facts) == (1, saved(1).facts)
    assert same(tensors, plain(1)), "never a mix of two steps"
    assert len(said) == 1
    assert "checkpoint step-000000002 is damaged (" in said[0]
    assert name in said[0] or "manifest" in said[0]
    assert [n[:22] for n in names(tmp_path)] == [LAST[0], "step-000000002.damaged"]


def test_a_foreign_file_is_found(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / LAST[0] / "rank-7-0.safetensors").write_bytes(b"of another run")
    assert verify(tmp_path / LAST[0]) == "rank-7-0.safetensors does not belong to it"


def test_a_checkpoint_under_another_steps_name_is_found(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / LAST[0]).rename(tmp_path / LAST[1])
    assert verify(tmp_path / LAST[1]) == "its manifest is of step 1"


def test_another_format_is_named_and_left_alone(tmp_path: Path) -> None:
    said: list[str] = []
    filled(tmp_path, 1, 2)
    path = tmp_path / LAST[1] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    assert CheckpointStore(tmp_path, say=said.append).newest().step == 1  # type: ignore[union-attr]
    assert said == [
        "checkpoint step-000000002 was passed over for the one before it: its format is 99 and this version reads 3."
    ]
    assert names(tmp_path) == LAST


def test_the_only_checkpoint_being_damaged_means_to_begin_again(tmp_path: Path) -> None:
    said: list[str] = []
    filled(tmp_path, 1)
    flip(tmp_path / LAST[0], "rank-0-0.safetensors")
    assert CheckpointStore(tmp_path, say=said.append).newest() is None
    assert "step-000000001 is damaged" in said[0]
    assert CheckpointStore(tmp_path).newest() is None, "what was set aside is not in the way"


def test_several_checkpoints_of_which_none_is_whole_are_an_end_and_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2)
    for name in LAST:
        flip(tmp_path / name, "rank-0-0.safetensors")
    for _ in range(2):  # asked again, it says the same again
        with pytest.raises(
            CorruptError, match=r"none can be read back \(step-000000002: rank-0-0.safetensors is not"
        ) as error:
            CheckpointStore(tmp_path).newest()
        assert "delete this folder" in str(error.value)
        assert names(tmp_path) == LAST
    assert classify(error.value).ending == Ending.CORRUPT


def test_what_was_set_aside_counts_as_work_that_was_there(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2)
    flip(tmp_path / LAST[1], "rank-0-0.safetensors")
    assert CheckpointStore(tmp_path).newest().step == 1  # type: ignore[union-attr]
    flip(tmp_path / LAST[0], "rank-0-0.safetensors")
    with pytest.raises(CorruptError, match="none can be read back"):
        CheckpointStore(tmp_path).newest()


def test_the_only_checkpoint_being_of_another_format_is_an_end(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    path = tmp_path / LAST[0] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CorruptError, match="its format is 99 and this version reads 3"):
        CheckpointStore(tmp_path).newest()


def test_retention_never_counts_a_damaged_one(tmp_path: Path) -> None:
    store = filled(tmp_path, 1, 2)
    flip(tmp_path / LAST[1], "rank-0-0.safetensors")
    store.save(saved(3))
    store.wait()
    assert verify(tmp_path / LAST[0]) is None
    store.save(saved(4))
    store.wait()
    assert names(tmp_path) == ["step-000000003", "step-000000004"]


def test_a_damaged_one_of_the_same_step_is_written_anew(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    flip(tmp_path / LAST[1], "rank-0-0.safetensors")
    store.save(saved(2))
    store.wait()
    assert store.newest().step == 2  # type: ignore[union-attr]
    assert [n[:22] for n in names(tmp_path)] == [LAST[1], "step-000000002.damaged"]


def test_verification_can_be_shared_and_needs_no_torch(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    flip(tmp_path / LAST[0], "rank-0-0.safetensors")
    problems = [verify(tmp_path / LAST[0], part, 3) for part in range(3)]
    assert sorted(map(str, problems)) == ["None", "None", "rank-0-0.safetensors is not what was written"]
    cut(tmp_path / LAST[0], "rank-0-0.safetensors")
    code = f"import sys, pathlib\nfrom ups.engine.checkpoint.manifest import newest_whole\nassert newest_whole(pathlib.Path({str(tmp_path)!r})) is None\nassert 'torch' not in sys.modules"  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(np.random.rand())

    draw()
    store = CheckpointStore(tmp_path)
    store.save(Snapshot(1, {}, {}, random_state(CPU)))
    expected = [draw() for _ in range(3)]
    found = store.newest()
    assert found is not None
    set_random_state(found.own, CPU)
    assert [draw() for _ in range(3)] == expected


# A disk that refuses.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False)
    if mounted.returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_said_and_the_old_checkpoint_stays(small_disk: Path) -> None:
    said: list[str] = []
    store, folder = filled(small_disk / "checkpoints", 1, say=said.append), small_disk / "checkpoints"

    def fill(point: str) -> None:
        if point == "before shard":
            (small_disk / "other").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))

    store.at = fill
    store.save(Snapshot(2, {"w": torch.ones(100_000)}))
    with pytest.raises(OSError, match=r"step 2 was not saved: .*No space left on device") as error:
        store.wait()
    assert error.value.errno == errno.ENOSPC
    assert len(said) == 1
    assert said[0].endswith("older ones are untouched.")
    assert names(folder) == LAST[:1], "nothing half-written is left"
    (small_disk / "other").unlink()
    store.at = lambda point: None  # noqa: ARG005
    store.save(saved(3))
    store.wait()
    assert store.newest().step == 3  # type: ignore[union-attr]


def test_the_need_for_disk_is_known_before_anything_is_written(small_disk: Path) -> None:
    said: list[str] = []
    store = CheckpointStore(small_disk, say=said.append)
    store.save(Snapshot(1, {"w": torch.ones(300_000)}))
    store.wait()
    assert said == [
        f"the disk of {small_disk} has 2.1 MB free and two checkpoints need 2.4 MB; free some space, or soon none "
        "can be saved."
    ]
    store.save(Snapshot(2, {"w": torch.ones(300_000)}))
    with pytest.raises(OSError, match=r"it needs 1.2 MB and the disk has \d+ kB free"):
        store.wait()
    assert store.newest().step == 1  # type: ignore[union-attr]


def test_a_read_only_folder_is_said_at_the_next_save_and_still_read(small_disk: Path) -> None:
    said: list[str] = []
    store = filled(small_disk, 1, 2, say=said.append)
    flip(small_disk / LAST[1], "rank-0-0.safetensors")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    store.save(saved(3))
    store.save(saved(4))
    assert "step 3 was not saved: Read-only file system" in said[0]
    with pytest.raises(OSError, match="step 4 was not saved"):
        store.wait()
    assert store.newest().step == 1  # type: ignore[union-attr]
    assert "left where it is" in said[-1]


def test_a_save_that_takes_too_long_is_said(tmp_path: Path) -> None:
    go = threading.Event()
    store = CheckpointStore(tmp_path, at=lambda point: go.wait(600) and None, patience=0.05)  # noqa: ARG005
    store.save(saved(1))
    with pytest.raises(OSError, match="step 1 has been written for too long"):
        store.wait()
    go.set()
    store.patience = 10
    store.wait()
    assert verify(tmp_path / LAST[0]) is None


# Several ranks.


def member(folder: Path, seconds: float = 140, **options: Any) -> CheckpointStore:
    """The checkpoint store of this rank, in a process group of its own."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world == 1:
        return CheckpointStore(folder, **options)
    join_group(60)
    return CheckpointStore(
        folder, rank, world, dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds)), **options
    )


def placed(ways: dict[str, list[Any]], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors of a mesh of this shape, each placed in one of these ways."""
    mesh = init_device_mesh("cpu", shape)
    whole = {name: torch.arange(42.0).reshape(7, 6) + n for n, name in enumerate(ways)}
    return {name: distribute_tensor(whole[name], mesh, way) for name, way in ways.items()}


def saved_by_a_mesh(folder: Path) -> list[int]:
    """Rows of ranks that hold the same, and of each row every rank a shard: along one axis, the other, or both."""
    store = member(folder)
    ways = {"rows": [Replicate(), Shard(0)], "columns": [Replicate(), Shard(1)], "both": [Shard(0), Shard(1)]}
    store.save(Snapshot(1, {**placed(ways, (2, 2)), "alike": torch.arange(4.0)}))
    store.wait()
    return [store.rank]


def read_otherwise(folder: Path) -> bool:
    store = member(folder)
    ways = {"rows": [Shard(1)], "columns": [Shard(0)], "both": [Replicate()]}
    tensors = {**placed(ways, (store.world,)), "alike": torch.zeros(4)}
    truth = {name: local(t).clone() for name, t in tensors.items()}
    for tensor in tensors.values():
        local(tensor).zero_()
    store.load(store.newest(), tensors)  # type: ignore[arg-type]
    truth["alike"] = torch.arange(4.0)
    return all(torch.equal(local(tensor), truth[name]) for name, tensor in tensors.items())


def test_what_a_mesh_saved_is_read_in_any_other_placement(tmp_path: Path) -> None:
    values(run_ranks(saved_by_a_mesh, 4, tmp_path))
    rows = json.loads((tmp_path / LAST[0] / "index.json").read_text())["tensors"]
    assert {name: len(row["chunks"]) for name, row in rows.items()} == {"rows": 2, "columns": 2, "both": 4, "alike": 1}
    assert all(values(run_ranks(read_otherwise, 3, tmp_path)))


def both(step: int) -> dict[str, Tensor]:
    """Plain tensors, and sharded ones of even, uneven and tiny sizes: some ranks hold nothing of those."""
    whole = {f"shard/{n}": torch.randn(n, 2, generator=torch.Generator().manual_seed(step + n)) for n in (8, 5, 1)}
    if not dist.is_initialized():
        return {**plain(step), **whole}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {**plain(step), **{name: distribute_tensor(t, mesh, [Shard(0)]) for name, t in whole.items()}}


def full(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}


def keep_and_load(folder: Path) -> tuple[list[str], bool, Any]:
    store = member(folder)
    store.save(Snapshot(4, both(4), {"step": 4}, {"rank": store.rank, "rng": torch.arange(store.rank + 1)}))
    store.wait()
    found = store.newest()
    assert found is not None
    tensors = blank(both(4))
    store.load(found, tensors)
    return names(found.path), same(full(tensors), full(both(4))), found.own


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_rank_gets_back_its_part_and_its_own(tmp_path: Path, world: int) -> None:
    results = values(run_ranks(keep_and_load, world, tmp_path))
    for rank, (files, equal, own) in enumerate(results):
        assert equal
        assert own["rank"] == rank
        assert torch.equal(own["rng"], torch.arange(rank + 1))
        assert len(files) == 2 * world + 3
    assert verify(tmp_path / "step-000000004") is None


def load_only(folder: Path) -> tuple[dict[str, Tensor], int, list[str]]:
    said: list[str] = []
    store = member(folder, say=said.append)
    found = store.newest()
    assert found is not None
    tensors = blank(both(0))
    store.load(found, tensors)
    set_random_state(found.own, CPU)
    return full(tensors), int(torch.randint(2**62, ())), said


def save_only(folder: Path, *steps: int) -> None:
    store = member(folder)
    for step in steps:
        store.save(Snapshot(step, both(step), {"step": step}, random_state(CPU)))
    store.wait()


def test_what_two_ranks_saved_any_number_loads(tmp_path: Path) -> None:
    values(run_ranks(save_only, 2, tmp_path, 1, 2, 3))
    assert names(tmp_path) == ["step-000000002", "step-000000003"]
    for world in (1, 3, 4):
        results = values(run_ranks(load_only, world, tmp_path))
        assert all(same(tensors, both(3)) for tensors, _, _ in results)
        assert len({drawn for _, drawn, _ in results}) == world, "ranks do not draw the same random numbers"
        assert "was saved by 2 ranks and goes on with" in results[0][2][0]
        assert all(said == [] for _, _, said in results[1:])


def die(point: str, rank: int) -> Callable[[str], None]:
    def at(here: str) -> None:
        if here == point and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def save_and_die(folder: Path, point: str, victim: int) -> tuple[int | None, float]:
    store = member(folder, seconds=140)
    for step in (1, 2):
        store.save(Snapshot(step, both(step), {"step": step}))
        store.wait()
    store.at = die(point, victim)
    start = time.monotonic()
    store.save(Snapshot(3, both(3), {"step": 3}))
    try:
        store.wait()
    except OSError as error:
        return error.errno, time.monotonic() - start
    return None, time.monotonic() - start


POINTS = ["shard", "manifest", "rename", "retention"]
KILLS = [f"{when} {what}" for what in POINTS for when in ("before", "after") if (when, what) != ("before", "rename")]


@pytest.mark.parametrize(("world", "victim"), [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize("point", KILLS)
def test_a_kill_at_any_point_leaves_a_whole_checkpoint(tmp_path: Path, point: str, world: int, victim: int) -> None:
    if victim and "shard" not in point:
        pytest.skip("rank 0 does this alone")
    results = run_ranks(save_and_die, world, tmp_path, point, victim)
    assert results[victim].exitcode == -signal.SIGKILL
    for rank, result in enumerate(results):
        if rank != victim and result.value is not None:  # it noticed, soon, or the checkpoint was published already
            assert result.value[0] in (errno.ECONNABORTED, None)
            assert result.value[1] < 100, "it has not waited for who cannot come"
    said: list[str] = []
    store = CheckpointStore(tmp_path, say=said.append)
    found = store.newest()
    assert found is not None
    assert found.step == (3 if point in ("after rename", "before retention", "after retention") else 2)
    tensors = blank(both(0))
    store.load(found, tensors)
    assert same(tensors, both(found.step)), "never a mix of two steps"
    assert found.facts == {"step": found.step}
    assert not [s for s in said if "damaged" in s]
    assert not [n for n in names(tmp_path) if "." in n], "leftovers are cleared"


def damage_one_way(folder: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    store = member(folder, say=said.append)
    return store.newest().step, said  # type: ignore[union-attr]


def test_all_ranks_pass_over_what_one_finds_damaged(tmp_path: Path) -> None:
    values(run_ranks(save_only, 2, tmp_path, 1, 2))
    flip(tmp_path / LAST[1], "rank-1-0.safetensors")
    (first, said), (second, silent) = values(run_ranks(damage_one_way, 2, tmp_path))
    assert (first, second, silent) == (1, 1, [])
    assert "rank-1-0.safetensors is not what was written" in said[0]


def nothing_whole(folder: Path) -> str:
    try:
        member(folder).newest()
    except CorruptError as error:
        return str(error)
    return ""


def test_all_ranks_stop_where_nothing_is_whole(tmp_path: Path) -> None:
    values(run_ranks(save_only, 2, tmp_path, 1, 2))
    for name, shard in zip(LAST, ("rank-0-0.safetensors", "rank-1-0.safetensors"), strict=True):
        flip(tmp_path / name, shard)
    first, second = values(run_ranks(nothing_whole, 2, tmp_path))
    assert first == second
    assert "(step-000000002: rank-1-0.safetensors is not what was written)" in first
    assert names(tmp_path) == LAST


def one_disk_fails(folder: Path, number: int) -> tuple[str, str, int]:
    store = member(folder)
    store.save(Snapshot(1, both(1)))
    store.wait()

    def refuse(descriptor: int, content: memoryview) -> None:  # noqa: ARG001
        raise OSError(number, os.strerror(number))

    if store.rank == 1:
        from ups.engine.checkpoint import shard_files

        shard_files.write_all = shard_files.write_all if number == errno.EXDEV else refuse
    store.save(Snapshot(2 + store.rank * (number == errno.EXDEV), both(2)))
    try:
        store.wait()
    except OSError as error:
        return str(error), errno.errorcode[error.errno or 0], store.newest().step  # type: ignore[union-attr]
    return "saved", "", 0


def test_a_full_disk_on_one_rank_is_known_on_all(tmp_path: Path) -> None:
    for words, name, step in values(run_ranks(one_disk_fails, 2, tmp_path, errno.ENOSPC)):
        assert "step 2 was not saved: rank 1: No space left on device" in words
        assert (name, step) == ("ENOSPC", 1)
    assert names(tmp_path) == LAST[:1]


def test_ranks_at_different_steps_save_nothing(tmp_path: Path) -> None:
    for words, _, step in values(run_ranks(one_disk_fails, 2, tmp_path, errno.EXDEV)):
        assert "the ranks save different steps: 2, 3" in words
        assert step == 1


def two_folders(folder: Path) -> str:
    store = member(folder / os.environ["RANK"])
    store.save(Snapshot(1, both(1)))
    try:
        store.wait()
    except OSError as error:
        return str(error)
    return "saved"


def test_a_folder_that_ranks_do_not_share_is_named(tmp_path: Path) -> None:
    for words in values(run_ranks(two_folders, 2, tmp_path)):
        assert "rank 1: No such file or directory" in words


def silent_peer(folder: Path) -> str:
    store = member(folder, seconds=1)
    given_up = folder.with_name(f"{folder.name}-given-up")
    if store.rank == 1:
        end = time.monotonic() + 100
        while not given_up.exists():
            assert time.monotonic() < end, "it is waited for for ever"
            time.sleep(0.05)
        return ""
    store.save(Snapshot(1, plain(1)))
    try:
        store.wait()
    except OSError as error:
        return str(error)
    finally:
        given_up.touch()
    return "saved"


def test_a_rank_that_does_not_come_is_waited_for_only_so_long(tmp_path: Path) -> None:
    assert "the ranks lost each other" in values(run_ranks(silent_peer, 2, tmp_path))[0]


def test_saving_does_not_wait_for_the_disk_and_keeps_what_the_tensors_were(tmp_path: Path) -> None:
    store, may_write, in_time = CheckpointStore(tmp_path), threading.Event(), list[bool]()
    store.at = lambda point: in_time.append(may_write.wait(600))  # type: ignore[assignment]  # noqa: ARG005
    tensors = {n: t.clone() for n, t in plain(1).items()}
    store.save(Snapshot(1, tensors))
    for tensor in tensors.values():
        tensor.zero_()
    may_write.set()
    store.wait()
    assert in_time
    assert all(in_time), "what saves has gone on before anything was written"
    found, back = store.newest(), blank(plain(1))
    assert found is not None
    store.load(found, back)
    assert same(back, plain(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_a_gpu_holds_is_copied_through_pinned_memory_and_comes_back(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    tensors = {**{n: t.to(device) for n, t in plain(1).items()}, "host": torch.ones(5)}
    store = CheckpointStore(tmp_path)
    store.save(Snapshot(1, tensors, {}, random_state(device)))
    tensors["module/w"].mul_(2)  # after the snapshot
    expected = torch.rand(3, device=device)
    store.wait()
    assert store._staging.copies["module/w"].is_pinned()
    places = {name: t.data_ptr() for name, t in store._staging.copies.items()}
    store.save(Snapshot(2, tensors))
    store.wait()
    assert places == {name: t.data_ptr() for name, t in store._staging.copies.items()}, "memory is reused"
    shutil.rmtree(tmp_path / LAST[1])
    found, back = store.newest(), blank(tensors)
    assert found is not None
    store.load(found, back)
    set_random_state(found.own, device)
    assert same({n: t.cpu() for n, t in back.items()}, {**plain(1), "host": torch.ones(5)})
    assert torch.equal(torch.rand(3, device=device), expected)


def test_names_of_steps_sort_as_numbers() -> None:
    assert manifest.step_name(9) < manifest.step_name(10)
