"""Data that were replaced between the beginning of a run and anything later are refused, and the file is named."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import h5py
import numpy as np
import pytest
from safetensors.torch import load_file

from ups.cli.app import main
from ups.config import dump, load
from ups.data.checksums import BLOCK, BLOCKS, Memory, sample
from ups.data.readers import READERS
from ups.data.readers.pdebench import FieldsSource
from ups.data.source import Reader
from ups.data.trajectories import Trajectories
from ups.engine.checkpoint.store import Snapshot, StateStore
from ups.engine.ranks.dist import DivergedError
from ups.eval.report import Report
from ups.files import sha256, sync
from ups.progress import Screen, TrainingProgress
from ups.run.config import RunConfig, run_config
from ups.run.data.data_config import GenerateConfig
from ups.run.data.data_identity import IdentifiedStore, Identity
from ups.run.data.datasets import open_sets
from ups.run.data.generate import generate
from ups.run.data.known_data import KnownData
from ups.run.run import Run, run_alone
from ups.run.start import Start
from ups.rundir import RunDir
from ups.types import DataError
from ups.verdict import Ending, StorageError

TINY = {
    "name": "tiny",
    "model": {"codec": {"dim": 8}, "operator": {"width": 16, "depth": 1, "heads": 2}},
    "codec": {"batch": 4, "train": {"steps": 2, "validate_every": 0}},
    "operator": {"batch": 4, "train": {"steps": 4, "validate_every": 0, "log_every": 1, "checkpoint_steps": 1}},
    "device": "cpu",
}
REDUCED = {"reduce": {"time": 40}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four files of one task, which differ in their seeds alone."""
    place, paths = tmp_path_factory.mktemp("made"), []
    for seed in range(4):
        config = load(
            GenerateConfig,
            overrides={
                "task": "advection1d",
                "scheme": "accurate",
                "samples": 8,
                "resolution": 32,
                "device": "cpu",
                "seed": seed,
            },
        )
        (path,) = generate(config, place / str(seed), lambda progress: None)  # noqa: ARG005
        paths.append(path)
    return paths


def folder_of(made: list[Path], place: Path) -> Path:
    """A folder with three of them: a, b and c."""
    folder = place / "data"
    folder.mkdir()
    for name, path in zip("abc", made, strict=False):
        shutil.copy(path, folder / f"{name}.hdf5")
    return folder


@pytest.fixture
def files(made: list[Path], tmp_path: Path) -> Path:
    return folder_of(made, tmp_path)


def settings(folder: Path, file: object, **changes: object) -> RunConfig:
    data = {"data": {"a": {"file": file, "task": "advection1d", **REDUCED}}} if file else {}
    return load(run_config(), None, {"out": str(folder / "runs"), **TINY, **data, **changes})


def screen(sentences: list[str]) -> Screen:
    """Remembers what is said; readers' remarks, which begin with the name of an entry, are left out."""
    return replace(Screen.silent(), say=lambda said: None if said.startswith("data.") else sentences.append(said))


def prepare(config: RunConfig, *, resume: bool = False, sentences: list[str] | None = None) -> RunDir:
    with Run.open(config, screen([] if sentences is None else sentences), start=Start(resume=resume)) as run:
        try:
            run.prepare()
        finally:
            run.folder.close()
    return run.folder


def swap(data: Path, other: Path) -> None:
    shutil.copy(other, data / "b.hdf5")


def edit(data: Path, other: Path) -> None:  # noqa: ARG001
    """One byte of the values, in place; size and mtime stay."""
    path = data / "b.hdf5"
    state, raw = path.stat(), bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)


def truncate(data: Path, other: Path) -> None:  # noqa: ARG001
    os.truncate(data / "b.hdf5", 1000)


def append(data: Path, other: Path) -> None:  # noqa: ARG001
    with (data / "b.hdf5").open("ab") as file:
        file.write(b"\0")


def link(data: Path, other: Path) -> None:
    (data / "b.hdf5").unlink()
    (data / "b.hdf5").symlink_to(other)


def exchange(data: Path, other: Path) -> None:  # noqa: ARG001
    (data / "b.hdf5").rename(data / "x")
    (data / "c.hdf5").rename(data / "b.hdf5")
    (data / "x").rename(data / "c.hdf5")


def add(data: Path, other: Path) -> None:
    shutil.copy(other, data / "d.hdf5")


def remove(data: Path, other: Path) -> None:  # noqa: ARG001
    (data / "b.hdf5").unlink()


CHANGES: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "swapped": (swap, r"b\.hdf5: has changed \(SHA-256"),
    "edited in place": (edit, r"b\.hdf5: has changed \(SHA-256"),
    "truncated": (truncate, r"b\.hdf5: has 1000 bytes and not the \d+ that it had"),
    "appended to": (append, r"b\.hdf5: has \d+ bytes and not the \d+ that it had"),
    "another by a link": (link, r"b\.hdf5: has changed \(SHA-256"),
    "exchanged": (exchange, r"b\.hdf5: holds what .*c\.hdf5 held"),
    "added": (add, r"d\.hdf5: has come since .*; take it away"),
    "removed": (remove, r"b\.hdf5: has gone since .*; put it back"),
}


@pytest.mark.parametrize(
    ("change", "kind"),
    [*((change, "folder") for change in CHANGES), *((change, "pattern") for change in ("swapped", "added", "removed"))],
)
def test_data_that_were_replaced_are_refused_and_the_file_is_named(
    files: Path, made: list[Path], tmp_path: Path, change: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.data.checksums.RECENT", -1)  # the first start remembers, so that memory is tried too
    config = settings(tmp_path, str(files) if kind == "folder" else str(files / "*.hdf5"))
    statistics = prepare(config).statistics.read_text()
    act, sentence = CHANGES[change]
    act(files, made[3])
    with pytest.raises(DataError, match=sentence) as refusal:
        prepare(config, resume=True)
    assert str(refusal.value).count("\n") == 0
    assert "--overwrite or another name" in str(refusal.value)
    assert (tmp_path / "runs/tiny/statistics.json").read_text() == statistics


def test_the_same_content_is_accepted_whatever_its_times_and_inodes_are(files: Path, tmp_path: Path) -> None:
    config, sentences = settings(tmp_path, str(files)), list[str]()
    record = prepare(config).data.read_text()
    os.utime(files / "a.hdf5", ns=(0, 0))
    shutil.copy(files / "b.hdf5", tmp_path / "copy")
    (tmp_path / "copy").rename(files / "b.hdf5")
    (files / "c.hdf5").rename(tmp_path / "elsewhere")
    (files / "c.hdf5").symlink_to(tmp_path / "elsewhere")
    prepare(config, resume=True, sentences=sentences)
    assert sentences == []
    assert (tmp_path / "runs/tiny/data.json").read_text() == record


def test_data_that_the_run_made_itself_are_compared_too_and_may_be_made_again(tmp_path: Path) -> None:
    data = {"data.a": {"task": "advection1d", "scheme": "accurate", "samples": 8, "resolution": 32, "device": "cpu"}}
    config = settings(tmp_path, None, **data)
    (path,) = [p for p in prepare(config).cache("data").iterdir() if p.suffix == ".hdf5"]
    before = path.read_bytes()
    path.unlink()
    prepare(config, resume=True)
    assert path.read_bytes() == before
    raw = bytearray(before)
    raw[-100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="has changed"):
        prepare(config, resume=True)


def test_a_recorded_split_is_part_of_the_data(made: list[Path], tmp_path: Path) -> None:
    file, record = tmp_path / "a.hdf5", tmp_path / "split.json"
    shutil.copy(made[0], file)
    with pytest.raises(SystemExit) as ending:
        main(["data", "split", str(file), "--out", str(record)])
    assert ending.value.code == 0
    config = settings(tmp_path, str(file), **{"data.a.split.record": str(record)})
    prepare(config)
    values = json.loads(record.read_text())
    parts = values.get("parts", values)
    parts["train"], parts["valid"] = [*parts["train"][1:], *parts["valid"]], parts["train"][:1]
    record.write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"split\.json: has"):
        prepare(config, resume=True)


def test_a_run_without_a_record_says_so_goes_on_and_records(files: Path, made: list[Path], tmp_path: Path) -> None:
    config, sentences = settings(tmp_path, str(files)), list[str]()
    folder = prepare(config, sentences=sentences)
    assert sentences == [], "a new run has nothing to say"
    folder.data.unlink()
    prepare(config, resume=True, sentences=sentences)
    assert [s for s in sentences if "has no data.json" in s and s.endswith("recorded now.")] == sentences != []
    swap(files, made[3])
    with pytest.raises(DataError, match="has changed"):
        prepare(config, resume=True)


def test_ranks_that_are_started_again_look_at_their_data_again(files: Path, made: list[Path], tmp_path: Path) -> None:
    config = settings(tmp_path, str(files))
    folder = prepare(config)
    folder.job.write_text(dump(config))
    with Run.join(folder.folder, Screen.silent()) as run:
        run.prepare()
    swap(files, made[3])
    with Run.join(folder.folder, Screen.silent()) as run, pytest.raises(DataError, match="has changed"):
        run.prepare()


def test_what_one_run_has_read_the_next_in_its_folder_knows_and_only_of_just_these_data(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(name: str, **changes: object) -> RunDir:
        return prepare(settings(tmp_path, str(files), **{"name": name, **changes}))

    reads: list[Path] = []
    sound, sample_of = Trajectories.sound, begun("first")
    first, known = json.loads(sample_of.statistics.read_text()), sample_of.known_data
    remembered = known.read_text()
    monkeypatch.setattr(Trajectories, "sound", lambda part: reads.append(part.origin) or sound(part))
    assert json.loads(begun("second").statistics.read_text()) == first
    assert reads == [], "nothing is read again"
    seeded = {"data": {"a": {"file": str(files), "task": "advection1d", **REDUCED, "seed": 1}}}
    assert json.loads(begun("other", **seeded).statistics.read_text()) != first
    assert reads, "another split has other statistics"
    for damaged in (remembered.replace(str(first["advection1d"]["values"]["mean"][0]), "5.0"), "[1]", "{"):
        assert damaged != remembered
        known.write_text(damaged)
        reads.clear()
        assert json.loads(begun(f"damaged{len(damaged)}").statistics.read_text()) == first
        assert reads, "what is damaged is not believed"
    (files / "b.hdf5").rename(files / "d.hdf5")
    reads.clear()
    begun("renamed")
    assert reads, "a split goes by names"
    with h5py.File(files / "a.hdf5", "r+") as file:
        file["tensor"][:, 40] = np.nan
    with pytest.raises(DataError, match=r"have values that are not finite"):
        begun("bad")


def test_what_a_run_has_read_is_known_to_the_code_that_read_it_alone(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    sound = Trajectories.sound
    monkeypatch.setattr(Trajectories, "sound", lambda part: reads.append(part.origin) or sound(part))
    entry = {"file": str(files), "task": "advection1d", "reduce": {"time": 10}, "split": {"time": [0.5, 0.25, 0.25]}}

    def begun(name: str, resume: bool = False) -> RunDir:
        reads.clear()
        return prepare(settings(tmp_path, str(files), name=name, data={"a": entry}), resume=resume)

    known = begun("first").known_data
    assert reads
    begun("second")
    assert reads == [], "trajectories that are cut in time are known as others are"
    known.unlink()
    begun("first", resume=True)
    assert not known.exists(), "what a run is resumed with may have been measured by other code"
    begun("third")
    monkeypatch.setattr("ups.run.data.known_data._code", lambda: "newer")
    begun("fourth")
    assert reads, "other code may read other numbers"


def test_a_change_through_a_memory_map_is_seen_though_another_one_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.data.checksums.RECENT", 0)
    path, other, memory = tmp_path / "a", tmp_path / "b", Memory(tmp_path / "hashes")

    def mapped(file: Path) -> np.memmap:
        file.write_bytes(bytes(64))
        sync(file)
        time.sleep(0.05)  # a clock of the file system ticks every few milliseconds
        return np.memmap(file, np.uint8, "r+")

    values, probe = mapped(path), mapped(other)
    before, probe[0] = other.stat().st_ctime_ns, 1
    if other.stat().st_ctime_ns == before:
        pytest.skip("a file system in memory stamps no such change")
    values[0] = 1
    time.sleep(0.05)
    first = memory.digest(path)
    values[0] = 2
    assert memory.digest(path)["sha256"] == sha256(path) != first["sha256"]


@pytest.mark.parametrize("edit", [0, 5, None])
def test_a_hash_that_was_edited_where_it_is_remembered_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: object
) -> None:
    monkeypatch.setattr("ups.data.checksums.RECENT", -1)
    data, hashes = tmp_path / "data", tmp_path / "hashes"
    data.write_bytes(b"numbers")
    memory = Memory(hashes)
    digest = memory.digest(data)
    memory.save()
    rows = json.loads(hashes.read_text())
    rows[str(data)]["sha256"] = "0" + digest["sha256"][1:] if edit == 0 else edit
    hashes.write_text(json.dumps(rows))
    assert Memory(hashes).digest(data) == digest == {"bytes": 7, "sha256": sha256(data)}


def test_a_large_file_that_was_touched_is_not_taken_for_the_one_that_was_read(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.data.checksums.WHOLE", 1000)  # larger ones are known by samples
    monkeypatch.setattr("ups.data.checksums.RECENT", 0)
    config = settings(tmp_path, str(files))
    folder = prepare(config)
    with ExitStack() as stack:
        sets = open_sets(config.data, tmp_path, lambda progress: None, stack)  # noqa: ARG005
        known = KnownData(folder.known_data, Identity(folder, print))
        assert known.get(sets[0]) is not None
        with monkeypatch.context() as theirs:
            theirs.setattr(FieldsSource, "__module__", "theirs.readers")
            assert known.get(sets[0]) is None, "a reader that is not ours may have changed"
        with monkeypatch.context() as theirs:
            theirs.setitem(READERS, "theirs", Reader(lambda path: False, lambda *_: sets[0].first.source))  # noqa: ARG005
            assert known.get(sets[0]) is None, "nobody knows which of ours it has made its source of"
        os.utime(files / "b.hdf5")
        assert known.get(sets[0]) is None
        monkeypatch.setattr("ups.data.checksums.RECENT", 10**18)
        folder.known_data.unlink()
        known.keep({"advection1d": {}}, {"advection1d": sets[0]})
        assert not folder.known_data.exists(), "a file of a moment ago may be touched again without a trace"


def test_statistics_are_of_what_the_files_hold_and_not_of_their_size(
    files: Path, made: list[Path], tmp_path: Path
) -> None:
    config = settings(tmp_path, str(files))
    folder = prepare(config)
    before = json.loads(folder.statistics.read_text())["advection1d"]["values"]
    assert (files / "b.hdf5").stat().st_size == made[3].stat().st_size
    swap(files, made[3])
    folder.data.unlink()
    prepare(config, resume=True)
    assert json.loads(folder.statistics.read_text())["advection1d"]["values"] != before


# A trained run.


def stopping(at: int) -> Screen:
    def watch(progress: TrainingProgress) -> None:
        if progress.stage == "operator" and progress.step == at:
            raise KeyboardInterrupt

    return replace(Screen.silent(), watch=watch)


@pytest.fixture
def stopped(files: Path, tmp_path: Path, cached: bool) -> RunConfig:
    config = settings(tmp_path, str(files), **{"cache.use": cached})
    with pytest.raises(KeyboardInterrupt):
        run_alone(config, stopping(3))
    return config


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are not evaluated, where that is not in question."""
    monkeypatch.setattr("ups.run.run.judge", lambda *_, **__: Report("", (), "", "", 0, ()))


@pytest.fixture(scope="module")
def undisturbed(made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], dict[str, np.ndarray]]:
    """What a run on those files learns, with a cache or without, if nothing happens to it."""

    @functools.cache
    def learnt(cached: bool) -> dict[str, np.ndarray]:
        place = tmp_path_factory.mktemp("undisturbed")
        config = settings(place, str(folder_of(made, place)), **{"cache.use": cached})
        return weights(run_alone(config, Screen.silent())[0].folder)

    return learnt


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in load_file(folder / "artifacts/simulator.safetensors").items()}


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("cached", [False, True])
def test_a_checkpoint_refuses_other_data_even_where_the_folder_has_lost_its_record(
    undisturbed: Callable[[bool], dict[str, np.ndarray]],
    stopped: RunConfig,
    files: Path,
    made: list[Path],
    tmp_path: Path,
) -> None:
    folder, before = RunDir(tmp_path / "runs/tiny"), (files / "b.hdf5").read_bytes()
    (checkpoint, *_) = sorted(folder.checkpoints("operator").glob("step-?????????"), reverse=True)
    facts = json.loads((checkpoint / "facts.json").read_text())["data"]
    assert facts == json.loads(folder.data.read_text())["files"]
    assert facts[str(files / "b.hdf5")]["sha256"] == sha256(files / "b.hdf5")
    swap(files, made[3])
    with pytest.raises(DataError, match=r"b\.hdf5: has changed"):
        run_alone(stopped, Screen.silent(), start=Start(resume=True))
    for rubbish in ("nonsense", "[]", '{"files": [1]}', '{"files": {"a": 1}}'):
        folder.data.write_text(rubbish)
        with pytest.raises(DataError, match=r"data\.json: is damaged"):
            run_alone(stopped, Screen.silent(), start=Start(resume=True))
    folder.data.unlink()
    with pytest.raises(DataError, match=r"b\.hdf5: has changed"):
        run_alone(stopped, Screen.silent(), start=Start(resume=True))
    folder.data.unlink(missing_ok=True)
    (files / "b.hdf5").write_bytes(before)
    run_alone(stopped, Screen.silent(), start=Start(resume=True))
    ours, theirs = weights(folder.folder), undisturbed(stopped.cache.use)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("cached", [False])
def test_a_checkpoint_of_before_says_that_it_does_not_know_its_data(
    stopped: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ups.engine.checkpoint.checkpoint_store import CheckpointStore

    newest, sentences = CheckpointStore.newest, list[str]()

    def without(self: CheckpointStore) -> object:
        checkpoint = newest(self)
        bare = {name: value for name, value in checkpoint.facts.items() if name != "data"} if checkpoint else {}
        return replace(checkpoint, facts=bare) if checkpoint else None

    monkeypatch.setattr(CheckpointStore, "newest", without)
    run_alone(stopped, screen(sentences), start=Start(resume=True))
    assert any("does not say which data it was trained on" in sentence for sentence in sentences)
    assert RunDir(tmp_path / "runs/tiny").report.exists()


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("changed", [pytest.param("codec", marks=pytest.mark.slow), "operator", "cache"])
def test_what_is_learnt_while_data_or_a_cache_change_is_refused_and_not_saved(
    undisturbed: Callable[[bool], dict[str, np.ndarray]],
    files: Path,
    made: list[Path],
    tmp_path: Path,
    changed: str,
) -> None:
    config = settings(tmp_path, str(files), **{"cache.use": changed == "cache"})
    before = (files / "b.hdf5").read_bytes()
    stage = "operator" if changed == "cache" else changed

    def watch(progress: TrainingProgress) -> None:
        if progress.stage == stage and changed != "cache":
            swap(files, made[3])
        elif progress.stage == stage:
            for shard in (tmp_path / "runs/tiny/cache").rglob("shard-*.safetensors"):
                edit_in_place(shard)

    with pytest.raises(DataError, match=r"changed"):
        run_alone(config, replace(Screen.silent(), watch=watch))
    assert not list((tmp_path / f"runs/tiny/checkpoints/{stage}").glob("step-*")), "nothing was saved"
    assert not (tmp_path / "runs/tiny/results.json").exists()
    (files / "b.hdf5").write_bytes(before)
    if changed == "cache":
        with pytest.raises(DataError, match=r"shard-.*is damaged; build it again"):
            run_alone(config, Screen.silent(), start=Start(resume=True))
        shutil.rmtree(tmp_path / "runs/tiny/cache/latents")
    run_alone(config, Screen.silent(), start=Start(resume=True))
    ours, theirs = weights(tmp_path / "runs/tiny"), undisturbed(changed == "cache")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def edit_in_place(path: Path) -> None:
    """As `edit`, of a file that others have open."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(64))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_evaluate_refuses_other_data_and_other_exams_and_another_simulator_to_start_from(
    files: Path, made: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "first").mkdir()
    run_alone(settings(tmp_path / "first", str(made[0])), Screen.silent())
    start = {"start_from": str(tmp_path / "first/runs/tiny"), "evaluation.zero_shot": [2], "evaluation.samples": 4}
    config = settings(tmp_path, str(files), **start)
    folder = run_alone(config, Screen.silent())[0]
    record = json.loads(folder.data.read_text())
    assert any(name.endswith("simulator.safetensors") for name in record["files"])
    (exam,) = [folder.folder / name.removeprefix("{run}/") for name in record["exams"]]

    def evaluated() -> tuple[int, str]:
        with pytest.raises(SystemExit) as ending:
            main(["evaluate", str(folder.folder)])
        return int(str(ending.value.code)), capsys.readouterr().err

    moved = tmp_path / "moved"
    folder.folder.rename(moved)
    shutil.move(moved, folder.folder)
    assert evaluated()[0] == 0
    for path in (files / "b.hdf5", exam, tmp_path / "first/runs/tiny/artifacts/simulator.safetensors"):
        before = path.read_bytes()
        raw = bytearray(before)
        raw[-9] ^= 1
        path.write_bytes(raw)
        code, said = evaluated()
        assert (code, said.count("\n")) == (2, 1), said
        assert f"{path.name}: has changed" in said
        path.write_bytes(before)
    assert evaluated()[0] == 0


# What is hashed, and how often.


def test_a_large_file_is_sampled_and_said_to_be_touched_where_its_samples_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups.data.checksums.RECENT", -1)
    path, size = tmp_path / "large", 5 * 10**9
    with path.open("wb") as file:
        file.truncate(size)
    folder, sentences = RunDir(tmp_path / "run"), list[str]()
    began = time.process_time()
    Identity(folder, sentences.append).settle([path])
    assert time.process_time() - began < 5, "a second, where all of it would take ten"
    assert json.loads(folder.data.read_text())["files"][str(path)].keys() == {"bytes", "sampled"}
    Identity(folder, sentences.append).require_unchanged()
    assert "only samples are hashed" in sentences.pop()
    assert sentences == []
    step = (size - BLOCK) // (BLOCKS - 1)
    with path.open("r+b") as file:  # between two blocks
        file.seek(step // 2 + BLOCK)
        file.write(b"1")
    Identity(folder, sentences.append).require_unchanged()
    assert len(sentences) == 1
    assert "was touched; it is too large to be compared whole" in sentences[0]
    for place in (0, 7 * step + 1000, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"1")
        with pytest.raises(DataError, match="has changed"):
            Identity(folder, sentences.append).require_unchanged()
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\0")


def test_data_that_were_named_by_a_relative_path_are_the_same_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for place in (home / "data", other):
        place.mkdir(parents=True)
    (home / "data" / "a").write_bytes(b"1")
    folder, said = RunDir(tmp_path / "run"), list[str]()
    monkeypatch.chdir(home)
    Identity(folder, said.append, str(home)).settle([Path("data/a")])
    assert [*json.loads(folder.data.read_text())["files"]] == ["data/a"]
    monkeypatch.chdir(other)
    Identity(folder, said.append, str(home)).settle([Path("../home/data/a")])
    assert [*Identity(folder, said.append, str(home)).by_path()] == [Path("../home/data/a")]
    (home / "data" / "a").write_bytes(b"2")
    with pytest.raises(DataError, match=r"home/data/a: has changed"):
        Identity(folder, said.append, str(home)).require_unchanged()
    assert said == []


def test_samples_cover_all_of_a_file_that_is_not_larger_than_they_are(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 1000
    digests = set()
    for place in range(size):
        raw = bytearray(size)
        raw[place] = 1
        path.write_bytes(raw)
        digests.add(sample(path, size, 8, 128))
    assert len(digests) == size
    path.write_bytes(b"")
    assert len(sample(path, 0)) == 64


def test_untouched_files_are_hashed_once_and_fresh_ones_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{n}" for n in range(50)]
    for path in paths:
        path.write_bytes(path.name.encode())
    reads: list[Path] = []
    monkeypatch.setattr("ups.data.checksums.sha256", lambda p: reads.append(p) or sha256(p))
    for _ in range(2):
        memory = Memory(tmp_path / "memory.json")
        digests = memory.digests(paths)
        memory.save()
    assert len(reads) == 100, "a file touched a moment ago may be touched again without a trace"
    monkeypatch.setattr("ups.data.checksums.RECENT", -1)
    for _ in range(2):
        memory = Memory(tmp_path / "memory.json")
        assert memory.digests(paths) == digests
        memory.save()
    assert len(reads) == 150
    (tmp_path / "memory.json").write_text('{"x": 3')
    assert Memory(tmp_path / "memory.json").digests(paths) == digests


def test_a_file_that_is_written_to_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")

    def growing(path: Path) -> str:
        with path.open("ab") as file:
            file.write(b"2")
        return sha256(path)

    monkeypatch.setattr("ups.data.checksums.sha256", growing)
    with pytest.raises(DataError, match="is written to while it is read"):
        Memory(tmp_path / "memory.json").digest(path)


def test_a_file_of_which_a_link_is_made_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "file", []
    path.write_bytes(b"1")

    def linked(path: Path) -> str:
        read.append(path)
        if len(read) == 1:
            os.link(path, tmp_path / "link")
        return sha256(path)

    monkeypatch.setattr("ups.data.checksums.sha256", linked)
    assert Memory(tmp_path / "memory.json").digest(path) == {"bytes": 1, "sha256": sha256(path)}
    assert len(read) == 2


class TwoRanks:
    """Rank 0 of two, of which the other sees `theirs`."""

    world, leads = 2, True

    def __init__(self, theirs: Callable[[object], object]) -> None:
        self.theirs = theirs

    def gather(self, value: object) -> list[object]:
        return [value, self.theirs(value)]

    def handshake(self, facts: dict[str, object]) -> None:
        raise DivergedError(", ".join(facts))


def test_ranks_that_see_other_files_are_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    path, folder = tmp_path / "a", RunDir(tmp_path / "run")
    path.write_bytes(b"1")
    identity = Identity(folder, lambda sentence: None)  # noqa: ARG005
    identity.settle([path])
    assert identity.agreed(TwoRanks(lambda value: value), [path]) == identity.recorded()  # type: ignore[arg-type]
    with pytest.raises(DivergedError, match=f"number of data files, data file {path}"):
        identity.agreed(TwoRanks(lambda value: "another"), [path])  # type: ignore[arg-type]  # noqa: ARG005


class Failing:
    """A store whose saves fail, each of which is known when the next begins."""

    def save(self, snapshot: Snapshot) -> OSError | None:
        return OSError(errno.EIO, str(snapshot.step))


def test_that_an_earlier_save_failed_is_passed_on_to_the_training() -> None:
    store = IdentifiedStore(cast("StateStore", Failing()), {}, print, lambda: None)
    earlier = store.save(Snapshot(7, {}, {}, {}))
    assert earlier is not None
    assert earlier.strerror == "7"


@pytest.mark.parametrize("content", ["a device", "a pipe", "no size", "a number", "another kind"])
def test_a_record_that_names_anything_but_files_is_refused_soon(files: Path, tmp_path: Path, content: str) -> None:
    folder = prepare(settings(tmp_path, str(files)))
    record = json.loads(folder.data.read_text())
    os.mkfifo(folder.folder.parent / "pipe")
    (name, row) = next(iter(record["files"].items()))
    record["files"] |= {
        "a device": {"/dev/zero": row},
        "a pipe": {str(folder.folder.parent / "pipe"): row},
        "no size": {name: {"sha256": row["sha256"]}},
        "a number": {name: {**row, "sha256": 5}},
        "another kind": {name: {"bytes": row["bytes"], "md5": "0"}},
    }[content]
    folder.data.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"is no file|data\.json: is damaged"):
        Identity(folder, print).require_unchanged()


def test_hashes_that_somebody_else_remembers_are_no_reason_to_wait(files: Path, tmp_path: Path) -> None:
    folder = prepare(settings(tmp_path, str(files)))
    for content in ("[" * 100_000, '{"a": 5}', "5"):
        folder.hashes.write_text(content)
        Identity(folder, print).require_unchanged()
    folder.hashes.unlink()
    os.mkfifo(folder.hashes)
    with pytest.raises(DataError, match=r"\.hashes\.json: is a link, a pipe, a device"):
        prepare(settings(tmp_path, str(files)), resume=True)


@pytest.mark.parametrize("what", ["moved", "removed", "another"])
def test_a_folder_that_is_taken_away_while_a_run_writes_to_it_is_no_success(
    files: Path, tmp_path: Path, what: str
) -> None:
    home, moved = tmp_path / "runs/tiny", list[Path]()

    def watch(progress: TrainingProgress) -> None:
        if progress.stage == "operator" and progress.step == 2 and not moved:
            moved.append(home)
            home.rename(tmp_path / "elsewhere")
            if what == "removed":
                shutil.rmtree(tmp_path / "elsewhere")
            if what == "another":
                home.mkdir()

    with pytest.raises(StorageError, match=r"tiny: was moved or removed while the run wrote to it"):
        run_alone(settings(tmp_path, str(files)), replace(Screen.silent(), watch=watch))
    assert not list(tmp_path.rglob("simulator.safetensors"))
    if what == "moved":
        (tmp_path / "elsewhere").rename(home)
        run_alone(settings(tmp_path, str(files)), Screen.silent(), start=Start(resume=True))
        assert RunDir(home).ended() == Ending.SUCCESS
