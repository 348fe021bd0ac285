"""The latent cache: built whole or not at all by any number of builders, refused unless made of just what is asked."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from rooms import run_in
from ups.data import open_source
from ups.data.cache import MANIFEST, Latents, StaleError, key_of, read_manifest, verified, verify
from ups.data.cache_builder import Builder, discard, leftovers
from ups.data.checksums import checksum
from ups.data.reduction import Reduction
from ups.data.trajectories import Trajectories
from ups.files import sha256, sum_of
from ups.physics import TASKS
from ups.types import DataError

CODEC = {"codec weights": "1" * 64, "normalisation": "2" * 64}


def encode(frames: Tensor) -> Tensor:
    """A stand-in for a codec: patches of two cells, each as two numbers and their sine."""
    pairs = frames.reshape(len(frames), -1, 2)
    return torch.cat((pairs, torch.sin(pairs)), -1)


@pytest.fixture
def part(tmp_path: Path) -> Trajectories:
    return small_part(tmp_path)


def small_part(folder: Path, samples: int = 10) -> Trajectories:
    path = folder / "1D_Advection_Sols_beta0.4.hdf5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file["tensor"] = np.random.default_rng(0).standard_normal((samples, 11, 8)).astype("f4")
            file["x-coordinate"] = ((np.arange(8) + 0.5) / 8).astype("f4")
            file["t-coordinate"] = (np.arange(12) * 0.1).astype("f4")
    source = open_source(path, TASKS)
    return Trajectories(source, source.ids, Reduction())


def key(part: Trajectories, dtype: str = "fp32", **codec: str) -> dict[str, str]:
    return key_of(part, {**CODEC, **codec}, "3" * 64, dtype)


def builder(part: Trajectories, folder: Path, dtype: str = "fp32", **more: Any) -> Builder:
    more = {"shard": 3 * 11 * 4 * 4 * 4 + 64, "key": key(part, dtype), **more}
    return Builder(part, more.pop("encode", encode), folder=folder / "train", dtype=dtype, **more)


def test_a_window_of_the_cache_holds_what_encoding_its_frames_gives_to_the_bit(
    part: Trajectories, tmp_path: Path
) -> None:
    folder = builder(part, tmp_path / "cache").run()
    cached = Latents(folder, key(part), part.task, part)
    samples, first = [7, 0, 9], [3, 0, 8]
    raw, found = part.window(samples, first, 2, 1), cached.window(samples, first, 2, 1)
    frames = torch.cat((raw.context, raw.targets), 1)
    assert torch.equal(found.tokens.flatten(0, 1), encode(frames.flatten(0, 1)))
    assert torch.equal(found.targets, raw.targets)
    for name in ("params", "inputs", "dt"):
        assert torch.equal(getattr(found, name), getattr(raw, name))
    assert (found.ids, found.grid) == (raw.ids, raw.grid)
    assert found.context.shape == (3, 2, 8, 0)
    assert (len(cached), cached.clock.dt[0], cached.shape) == (len(part), part.dt, part.shape)
    assert found.rows(1, 2).tokens.shape[0] == 1
    assert Latents(folder, key(part), part.task).window(samples, first, 2, 1).targets.shape == (3, 1, 8, 0)


def test_shards_are_plain_safetensors_and_the_manifest_says_what_they_hold(part: Trajectories, tmp_path: Path) -> None:
    folder = builder(part, tmp_path).run()
    manifest = read_manifest(folder)
    assert [s["samples"] for s in manifest["shards"]] == [3, 3, 3, 1]
    assert (manifest["samples"], manifest["frames"], manifest["tokens"]) == (10, 11, [4, 4])
    assert manifest["rounding"] == {"relative": 0.0, "worst": 0.0}
    with safe_open(folder / "shard-00001.safetensors", "pt") as file:
        tokens = file.get_tensor("tokens")
    frames = part.frames([3, 4, 5], [0] * 3, 11)
    assert torch.equal(tokens.flatten(0, 1), encode(frames.flatten(0, 1)))
    assert {p.name for p in folder.iterdir()} == {MANIFEST, *(s["file"] for s in manifest["shards"])}
    assert verify(folder) is None


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 8), ("fp16", 11)])
def test_storage_in_half_precision_states_the_rounding_that_is_there(
    part: Trajectories, tmp_path: Path, dtype: str, bits: int
) -> None:
    folder = builder(part, tmp_path, dtype).run()
    found = Latents(folder, key(part, dtype), part.task).tokens(range(10), [0] * 10, 11)
    true = encode(part.frames(range(10), [0] * 10, 11).flatten(0, 1)).reshape(found.shape)
    told = read_manifest(folder)["rounding"]
    relative = float((found - true).double().norm() / true.double().norm())
    assert told["relative"] == pytest.approx(relative, rel=1e-6)
    assert told["worst"] == pytest.approx(float((found - true).abs().max()), rel=1e-6)
    assert 2.0 ** -(bits + 2) < relative < 2.0**-bits
    assert found.dtype == torch.float32


def test_tokens_too_large_for_fp16_are_refused_and_nothing_is_published(part: Trajectories, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too large for fp16; store it as bf16"):
        builder(part, tmp_path, "fp16", encode=lambda x: encode(x) * 1e6).run()
    assert not (tmp_path / "train").exists()
    with pytest.raises(DataError, match="not finite; look for bad values"):
        builder(part, tmp_path, encode=lambda x: encode(x) / 0).run()


def test_whatever_a_cache_depends_on_is_named_where_it_changed(part: Trajectories, tmp_path: Path) -> None:
    folder = builder(part, tmp_path).run()
    source = part.source
    others = {
        "codec weights": key(part, **{"codec weights": "9" * 64}),
        "normalisation": key(part, **{"normalisation": "9" * 64}),
        "data file": {**key(part), "data file": "9" * 64},
        "dtype (fp32 → bf16)": key(part, "bf16"),
        "samples": key(Trajectories(source, source.ids[1:], Reduction())),
        "reduction (every 1. frame": key(Trajectories(source, source.ids, Reduction(time=2))),
        "task": {**key(part), "task": "9" * 64},
    }
    for name, other in others.items():
        with pytest.raises(StaleError) as caught:
            Latents(folder, other, part.task)
        assert name in str(caught.value)
        assert str(caught.value).count("→") == 1, "nothing else is said to have changed"
        with pytest.raises(StaleError):
            Builder(part, encode, other, folder).run()
    Builder(part, encode, others["data file"], folder, rebuild=True).run()
    Latents(folder, others["data file"], part.task)
    assert not list(tmp_path.glob(".train.*old*"))


def test_a_changed_byte_of_the_data_file_is_seen_and_untouched_files_are_not_read_again(
    part: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, path = tmp_path / "cache" / "files.json", part.source.path
    os.utime(path, ns=(0, 0))
    monkeypatch.setattr("ups.data.checksums.RECENT", -1)
    before = checksum(part.source, memory)
    reads: list[Path] = []
    monkeypatch.setattr("ups.data.checksums.sha256", lambda p: reads.append(p) or sha256(p))
    assert checksum(part.source, memory) == before
    assert reads == []
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert checksum(part.source, memory) != before
    assert reads == [path]


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "flipped":
        raw[-5] ^= 1
    elif how == "cut":
        raw = raw[:-7]
    elif how == "header":
        raw[:8] = (2**40).to_bytes(8, "little")
    elif how == "empty":
        raw = bytearray()
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["flipped", "cut", "header", "empty", "gone"])
def test_a_damaged_shard_is_one_sentence_and_is_built_again_when_told(
    part: Trajectories, tmp_path: Path, how: str
) -> None:
    folder = builder(part, tmp_path).run()
    path = folder / "shard-00002.safetensors"
    whole = path.read_bytes()
    path.unlink() if how == "gone" else damage(path, how)
    said = verify(folder)
    assert said is not None
    assert "shard-00002" in said
    assert said.count(". ") <= 1
    if how != "flipped":
        with pytest.raises(DataError, match="shard-00002"):
            Latents(folder, key(part), part.task).tokens([6], [0], 1)
    discard(folder)
    assert (builder(part, tmp_path).run() / path.name).read_bytes() == whole
    assert verify(folder) is None


def test_a_shard_cut_or_taken_away_while_it_is_read_is_a_sentence_and_not_a_crash(
    part: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.data.cache.OPEN", 2)
    folder = builder(part, tmp_path).run()
    cached = Latents(folder, key(part), part.task)
    whole = cached.tokens(range(10), [0] * 10, 11)
    assert len(cached._open) == 2, "files are closed again"
    assert torch.equal(cached.tokens(range(10), [0] * 10, 11), whole)
    path = folder / "shard-00003.safetensors"
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(DataError, match=r"shard-00003\.safetensors: has become shorter while it was read"):
        cached.tokens([9], [0], 11)
    (folder / "shard-00001.safetensors").unlink()
    with pytest.raises(DataError, match=r"shard-00001\.safetensors: cannot be read \(No such file"):
        cached.tokens([3], [0], 1)


def test_only_the_files_that_were_verified_are_read(part: Trajectories, tmp_path: Path) -> None:
    folder = builder(part, tmp_path).run()
    cached = Latents(folder, key(part), part.task, seals=verified(folder))
    whole = cached.tokens(range(10), [0] * 10, 11)
    first, second = folder / "shard-00001.safetensors", folder / "shard-00002.safetensors"
    shutil.copy(first, folder / "copy")
    (folder / "copy").replace(first)  # the same in another file
    os.utime(second)
    cached.require_unchanged()
    again = pickle.loads(pickle.dumps(cached))
    assert torch.equal(again.tokens(range(10), [0] * 10, 11), whole)
    damage(second, "flipped")
    for use in (cached.require_unchanged, lambda: pickle.loads(pickle.dumps(cached)).tokens([6], [0], 1)):
        with pytest.raises(DataError, match=r"shard-00002\.safetensors: was replaced or changed while it was in use"):
            use()
    second.unlink()
    with pytest.raises(DataError, match=r"shard-00002\.safetensors: cannot be read any more"):
        cached.require_unchanged()


def test_a_cache_that_is_read_is_neither_deleted_nor_replaced(part: Trajectories, tmp_path: Path) -> None:
    folder = builder(part, tmp_path).run()
    readers = [Latents(folder, key(part), part.task) for _ in range(2)]
    other = {**key(part), "codec weights": "of another run"}
    with pytest.raises(DataError, match="a run is training from it; wait for that, or name another"):
        discard(folder)
    with pytest.raises(DataError, match="a run is training from it"):
        Builder(part, encode, other, folder, rebuild=True).run()
    assert verify(folder) is None
    pickle.loads(pickle.dumps(readers[0])).tokens([6], [0], 1)
    del readers
    Builder(part, encode, other, folder, rebuild=True).run()
    assert read_manifest(folder)["key"] == other
    discard(folder)
    assert not folder.exists()


def test_a_manifest_that_is_foreign_or_damaged_is_one_sentence(part: Trajectories, tmp_path: Path) -> None:
    folder = builder(part, tmp_path).run()
    manifest = json.loads((folder / MANIFEST).read_text())
    newer = {**manifest, "version": 99}
    wrong: dict[str, tuple[bytes, str]] = {
        "version": (json.dumps({**newer, "sum": sum_of(newer)}).encode(), "is of version 99, and this program reads 3"),
        "digit": (json.dumps({**manifest, "samples": 11}).encode(), "is not what was written"),
        "foreign": (b'{"a": 1}', "is no manifest"),
        "list": (b"[]", "is no manifest"),
        "cut": ((folder / MANIFEST).read_bytes()[:100], "is no manifest"),
        "binary": (b"\xff\xfe\x00", "is no manifest"),
    }
    for text, sentence in wrong.values():
        (folder / MANIFEST).write_bytes(text)
        with pytest.raises(DataError, match=sentence):
            Latents(folder, key(part), part.task)
        assert sentence in str(verify(folder))
    (folder / MANIFEST).unlink()
    with pytest.raises(DataError, match="holds no latent cache"):
        Latents(folder, key(part), part.task)


def test_a_full_disk_is_one_sentence_publishes_nothing_and_keeps_what_is_finished(
    part: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 100))
        with pytest.raises(DataError, match="has 1e-07 GB free, but the cache needs"):
            builder(part, tmp_path / "a").run()
    assert list((tmp_path / "a").iterdir()) == []
    seen: list[int] = []

    def filling(frames: Tensor) -> Tensor:
        seen.append(len(frames))
        if sum(seen) > 1 + 11 * 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        return encode(frames)

    with pytest.raises(DataError, match="the disk became full while the cache was built; nothing was published"):
        builder(part, tmp_path / "b", encode=filling).run()
    assert not (tmp_path / "b" / "train").exists()
    kept = list((tmp_path / "b").glob(".train.*.draft/*"))
    assert sorted(p.name for p in kept if p.suffix == ".safetensors") == [
        "shard-00000.safetensors",
        "shard-00001.safetensors",
    ]
    folder = builder(part, tmp_path / "b").run()
    assert verify(folder) is None


FULL = """
import os, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/data"]
from pathlib import Path
from test_cache import Latents, builder, encode, key, small_part, verify
from ups.types import DataError
home, disk = Path({home!r}), Path({disk!r})
part, ballast = small_part(home), disk / "ballast"

def fill():
    with open(ballast, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == 28, error

def attempt(after):
    calls = []
    def filling(frames):
        calls.append(1)
        if len(calls) == after:
            fill()
        return encode(frames).repeat(1, 1, 64)
    def report(done, total):
        if after == 0 and done == total and not ballast.exists():
            fill()  # the last numbers are written: what is missing is the entry that says so, and the manifest
    try:
        builder(part, disk / "cache", encode=filling, shard=1, report=report).run()
        return "built", len(calls)
    except DataError as error:
        return str(error), len(calls)

for after in (2, 6, 0):
    said, calls = attempt(after)
    draft = [p.name for p in (disk / "cache").glob(".train.*.draft/*.safetensors")]
    print(calls, len(draft), (disk / "cache" / "train").exists(), said, sep="|")
    ballast.unlink()
print(*attempt(-1), verify(disk / "cache" / "train"), sep="|")
"""


def test_on_a_disk_that_really_fills_up_nothing_is_published_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    code = FULL.format(tests=str(Path(__file__).parent.parent), home=str(tmp_path), disk=str(disk))
    *failed, last = (line.split("|") for line in run_in({disk: "1m"}, code).splitlines())
    for calls, shards, published, said in failed:
        assert said.startswith(f"{disk}/cache/train: the disk became full while the cache was built; nothing was")
        assert (said.count(". "), published) == (0, "False"), (calls, shards)
    assert [int(shards) for _, shards, _, _ in failed] == [0, 4, 10], "what was finished is kept"
    assert last[::2] == ["built", "None"]
    assert int(last[1]) == 2, "a probe and the shard without an entry"


def test_finished_shards_are_kept_and_damaged_or_half_ones_made_again(part: Trajectories, tmp_path: Path) -> None:
    def dying(frames: Tensor) -> Tensor:
        if len(done) > 2:
            raise KeyboardInterrupt
        return encode(frames)

    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        builder(part, tmp_path, encode=dying, report=lambda n, _: done.append(n)).run()
    draft = next(tmp_path.glob(".train.*.draft"))
    damage(draft / "shard-00000.safetensors", "flipped")
    calls: list[int] = []
    fresh = builder(part, tmp_path, encode=lambda x: calls.append(len(x)) or encode(x))  # type: ignore[func-returns-value]
    folder = fresh.run()
    assert verify(folder) is None
    assert sum(calls) - 1 < 11 * 10, "what was whole is not encoded again"
    clean = builder(part, tmp_path / "clean").run()
    for shard in sorted(clean.iterdir()):
        assert (folder / shard.name).read_bytes() == shard.read_bytes()


def slowly(frames: Tensor) -> Tensor:
    time.sleep(0.02)
    return encode(frames)


def build_here(folder: str) -> None:
    builder(small_part(Path(folder)), Path(folder) / "cache", encode=slowly, shard=1).run()


def test_killed_builders_and_builders_at_once_leave_one_whole_cache(part: Trajectories, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")

    def start() -> Any:
        process = context.Process(target=build_here, args=(str(tmp_path),))
        process.start()
        return process

    for delay in (0.05, 0.12, 0.1):
        process = start()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    processes = [start() for _ in range(3)]
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    folder = tmp_path / "cache" / "train"
    assert verify(folder) is None
    frames = part.frames(range(10), [0] * 10, 11)
    found = Latents(folder, key(part), part.task).tokens(range(10), [0] * 10, 11)
    assert torch.equal(found.flatten(0, 1), encode(frames.flatten(0, 1)))
    assert leftovers(tmp_path / "cache") == []


def test_builders_share_the_work(part: Trajectories, tmp_path: Path) -> None:
    """A shard that another process holds is left to it."""
    mine = builder(part, tmp_path, shard=1)
    mine.draft.mkdir(parents=True)
    lock = str(mine.draft / "4.lock")
    code = f"import fcntl,sys\nf=open({lock!r},'w')\nfcntl.flock(f,2)\nprint(1,flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        release = other.stdin.close
        other.stdout.readline()
        told: list[int] = []

        def report(done: int, _: int) -> None:
            told.append(done)
            if told.count(9) > 1:  # it waits for the tenth
                release()

        mine.report = report
        mine.run()
        assert other.wait() == 0
    assert told.count(9) > 1
    assert verify(mine.folder) is None


def test_a_steady_task_is_cached_as_nothing_and_its_solution(tmp_path: Path) -> None:
    path = tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5"
    with h5py.File(path, "w") as file:
        file["nu"] = np.random.default_rng(0).random((5, 8, 8), np.float32)
        file["tensor"] = np.random.default_rng(1).random((5, 1, 8, 8), np.float32)
        file["x-coordinate"] = file["y-coordinate"] = (np.arange(8, dtype=np.float32) + 0.5) / 8
    source = open_source(path, TASKS)
    part = Trajectories(source, source.ids, Reduction())
    folder = Builder(part, encode, key(part), tmp_path / "cache").run()
    found = Latents(folder, key(part), part.task, part).window([4, 1], [0, 0], 3, 1)
    raw = part.window([4, 1], [0, 0], 3, 1)
    assert torch.equal(found.tokens.flatten(0, 1), encode(torch.cat((raw.context, raw.targets), 1).flatten(0, 1)))
    assert torch.equal(found.inputs, raw.inputs)
    assert torch.equal(found.targets, raw.targets)


MEMORY = """
import sys
from pathlib import Path
import numpy as np, safetensors, torch
sys.path.insert(0, {tests!r})
from ups.data.cache import Latents, read_manifest
from ups.physics import TASKS
def private():
    rows = dict(line.split(":") for line in open("/proc/self/smaps_rollup") if line.count(":") == 1)
    return sum(int(rows[n].split()[0]) for n in ("Private_Clean", "Private_Dirty")) / 1024
before = private()
folder = Path({folder!r})
task = TASKS["advection1d"]
cached = Latents(folder, read_manifest(folder)["key"], task)
draw = np.random.default_rng(int(sys.argv[1]))
def read(n):
    for _ in range(n):
        samples = draw.integers(0, len(cached), 32).tolist()
        cached.window(samples, draw.integers(0, 8, 32).tolist(), 2, 1)
most = 0.0
for _ in range(20):
    read(10)
    most = max(most, private() - before)
print(most)
"""


def test_private_memory_stays_small_however_much_is_read(tmp_path: Path) -> None:
    part = small_part(tmp_path, 40)
    wide = lambda frames: torch.randn(len(frames), 512, 64)  # noqa: E731  (128 KB a frame)
    folder = Builder(part, wide, key(part), tmp_path / "cache" / "train", shard=8 * 2**20).run()
    assert read_manifest(folder)["bytes"] > 50 * 2**20
    code = MEMORY.format(tests=str(Path(__file__).parent), folder=str(folder))
    found = subprocess.run([sys.executable, "-c", code, "1"], capture_output=True, text=True, timeout=600, check=True)
    assert 0 < float(found.stdout) < 32, "megabytes"


def test_a_cache_travels_to_other_processes_without_its_maps(part: Trajectories, tmp_path: Path) -> None:
    import pickle

    cached = Latents(builder(part, tmp_path).run(), key(part), part.task)
    tokens = cached.tokens([1], [0], 3)
    again = pickle.loads(pickle.dumps(cached))
    assert torch.equal(again.tokens([1], [0], 3), tokens)
