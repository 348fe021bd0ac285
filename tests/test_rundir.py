"""The run folder: it explains itself, two runs never mix, and only a run that says so has succeeded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

import pytest

from ups.config import Config, load
from ups.rundir import RunDir, write_atomic
from ups.types import ConfigError, DataError
from ups.verdict import Ending, Verdict


class Inner(Config):
    lr: float = 0.1


class Settings(Config):
    name: str = "x"
    train: Inner = Inner()


OTHER = Settings(train=Inner(lr=0.2))


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "a" / "run", Settings()) as run:
        assert "lr: 0.1" in run.config.read_text()
        facts = json.loads(run.environment.read_text())
        assert {"fingerprint", "versions", "device", "git", "cores", "command", "started"} <= set(facts)
        assert {"ups", "python", "torch"} <= set(facts["versions"])
        assert run.ended() is None
        run.succeed(score=0.5)
    assert run.ended() == Ending.SUCCESS
    assert json.loads(run.verdict.read_text())["score"] == 0.5
    assert RunDir.at(run.folder).ended() == Ending.SUCCESS


def test_no_success_without_a_word_of_it(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "silent", Settings()) as run:
        pass
    assert run.ended() == Ending.RANK_DIED
    with pytest.raises(ZeroDivisionError), RunDir.open(tmp_path / "crash", Settings()) as run:
        _ = 1 / 0
    assert run.ended() == Ending.CRASH
    assert "ZeroDivisionError: division by zero" in run.verdict.read_text()
    with pytest.raises(KeyboardInterrupt), RunDir.open(tmp_path / "stop", Settings()) as run:
        raise KeyboardInterrupt
    assert run.ended() == Ending.INTERRUPTED


def test_a_run_in_this_process_has_the_verdict_of_one_under_a_supervisor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunDir.open(tmp_path / "run", Settings()) as run:
        raise ConfigError("no such key; mend it.")
    written = json.loads(run.verdict.read_text())
    Verdict(Ending.HANG, "it stood still.", 1, "data", 5).write(tmp_path / "supervised.json")
    assert written.keys() == json.loads((tmp_path / "supervised.json").read_text()).keys()
    assert (written["verdict"], written["code"], written["cause"]) == ("USER", 2, "no such key; mend it.")
    assert "in test_a_run_in_this_process" in written["traceback"]


def test_a_crash_after_success_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="late"), RunDir.open(tmp_path, Settings()) as run:  # noqa: PT012
        run.succeed()
        raise ValueError("late")
    assert run.ended() == Ending.CRASH


def test_an_old_run_is_neither_mixed_with_nor_lost_by_accident(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunDir.open(folder, Settings()) as run:
        run.checkpoints("codec").mkdir(parents=True)
        run.succeed()
    with pytest.raises(ConfigError, match="holds a finished run with this config; --resume it, --overwrite it"):
        RunDir.open(folder, Settings())
    for resume in (True, False):
        with pytest.raises(ConfigError, match=r"another config \(train\.lr: 0\.1 → 0\.2\)"):
            RunDir.open(folder, OTHER, resume=resume)
    with pytest.raises(ConfigError, match="exclude each other"):
        RunDir.open(folder, Settings(), resume=True, overwrite=True)
    assert run.ended() == Ending.SUCCESS


def test_resuming_keeps_what_is_there_and_reopens_the_verdict(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, Settings()) as run:
        run.checkpoints("codec").mkdir(parents=True)
    with RunDir.open(tmp_path, Settings(), resume=True) as again:
        assert again.checkpoints("codec").is_dir()
        assert again.ended() is None
        again.succeed()
    assert again.ended() == Ending.SUCCESS


class Grown(Settings):
    """The same settings in a later program: a key more, and another default."""

    more: int = 3


class Changed(Settings):
    name: str = "y"


def test_a_run_begun_before_a_key_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", Settings()) as run:
        pass
    assert run.is_of(Grown())
    assert not run.is_of(Grown(more=4))
    assert not run.is_of(Changed())
    with RunDir.open(tmp_path / "run", Grown(), resume=True):
        pass
    run.config.write_text(run.config.read_text().replace("0.1", "0.2"))
    assert not run.is_of(Grown(train=Inner(lr=0.2))), "someone has changed what the run was begun with"


def test_a_run_with_a_key_that_is_no_more_is_refused_like_any_unknown_key(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", Grown()) as run:
        pass
    with pytest.raises(ConfigError, match=r"run/config\.yaml: 'more' is not a known key; "):
        load(Settings, run.config)
    assert not run.is_of(Settings())
    with pytest.raises(ConfigError, match=r"another config \(more: 3 → None\)"):
        RunDir.open(tmp_path / "run", Settings(), resume=True)


class Named(Settings):
    names: ClassVar[frozenset[str]] = frozenset({"name"})


def test_a_folder_that_was_renamed_is_resumed_under_its_new_name(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "old", Named(name="old")) as run:
        pass
    run.folder.rename(tmp_path / "new")
    with RunDir.open(tmp_path / "new", Named(name="new"), resume=True) as again:
        assert again.differences == []
    with pytest.raises(ConfigError, match=r"another config \(train\.lr: 0\.1 → 0\.2\); resume it with its own"):
        RunDir.open(tmp_path / "new", Named(name="new", train=Inner(lr=0.2)), resume=True)


def test_resuming_nothing_is_starting(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "new", Settings(), resume=True) as run:
        assert run.config.is_file()


def test_overwriting_begins_anew(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, Settings()) as run:
        run.checkpoints("codec").mkdir(parents=True)
        run.succeed()
    with RunDir.open(tmp_path, OTHER, overwrite=True) as again:
        assert "lr: 0.2" in again.config.read_text()
        assert not again.checkpoints("codec").exists()
        assert again.ended() is None


def test_a_folder_of_something_else_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="is not a run folder"):
            RunDir.open(tmp_path, Settings(), overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(DataError, match="is not a run folder"):
        RunDir.at(tmp_path)


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path, Settings())
    with pytest.raises(ConfigError, match="another process is writing"):
        RunDir.open(tmp_path, Settings(), resume=True)
    run.close()
    RunDir.open(tmp_path, Settings(), resume=True).close()


def test_a_path_that_is_a_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(DataError, match="cannot be used as a run folder"):
        RunDir.open(tmp_path / "run", Settings())


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_atomic(path, "old")

    def die(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", die)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("name", [".job.yaml", ".success.json", "statistics.json", "metrics.jsonl", "environment.json"])
def test_what_should_be_a_file_of_the_run_and_is_none_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """Not replaced, not waited for, not written through: somebody else's file stays as it is."""
    RunDir.open(tmp_path / "run", Settings()).close()
    path, other = tmp_path / "run" / name, tmp_path / "other"
    other.write_text("of somebody else")
    path.unlink(missing_ok=True)
    {"folder": path.mkdir, "link": lambda: path.symlink_to(other), "pipe": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(DataError, match=rf"{name}: is a .*; move it away"):
        RunDir.open(tmp_path / "run", Settings(), resume=True)
    assert other.read_text() == "of somebody else"


def test_folders_without_end_are_refused_and_not_passed_over(tmp_path: Path) -> None:
    RunDir.open(tmp_path / "run", Settings()).close()
    deep = tmp_path.joinpath("run", *["d"] * 25)
    deep.mkdir(parents=True)
    (deep / "link").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match="too deep a folder"):
        RunDir.open(tmp_path / "run", Settings(), resume=True)


WRITTEN = (
    ".lock",
    ".hashes.json",
    ".secret",
    ".reserve",
    ".job.yaml",
    "logs/stays-0.json",
    "csv/codec.csv",
    "checkpoints",
)


@pytest.mark.parametrize("name", [*WRITTEN, "checkpoints/codec", "cache/data/a.hdf5"])
@pytest.mark.parametrize("there", [True, False], ids=["to something", "dangling"])
def test_no_link_in_a_folder_has_a_run_write_elsewhere(tmp_path: Path, name: str, there: bool) -> None:
    RunDir.open(tmp_path / "run", Settings()).close()
    path, other = tmp_path / "run" / name, tmp_path / "other"
    if there:
        other.write_text("of somebody else")
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(other)
    with pytest.raises(DataError, match=rf"(run|{name}): (cannot be used|is a link)"):
        RunDir.open(tmp_path / "run", Settings(), resume=True)
    if name != ".lock":
        with RunDir.open(tmp_path / "run", Settings(), overwrite=True):
            assert not path.is_symlink()
    assert other.exists() == there
    assert not there or other.read_text() == "of somebody else"


@pytest.mark.parametrize(
    "text",
    [
        '{"verdict": []}',
        '{"verdict": {}}',
        '{"verdict": "NONE"}',
        "5",
        "[" * 50_000,
        '{"verdict": "OOM", "verdict": 1}',
    ],
)
def test_a_verdict_that_names_no_ending_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "verdict.json").write_text(text)
    assert Verdict.read(tmp_path / "verdict.json") is None


def test_what_makes_no_sense_in_a_verdict_is_left_out(tmp_path: Path) -> None:
    words = {"verdict": "OOM", "attempts": 5, "rank": [], "step": "x", "phase": 7, "cause": {}, "traceback": None}
    (tmp_path / "verdict.json").write_text(json.dumps(words))
    verdict = Verdict.read(tmp_path / "verdict.json")
    assert verdict is not None
    assert (verdict.ending, verdict.rank, verdict.step, verdict.attempts) == (Ending.OOM, None, None, ())
    assert json.loads(json.dumps(verdict.to_dict()))["verdict"] == "OOM"


def test_a_record_without_end_takes_no_memory(tmp_path: Path) -> None:
    """A file with a hole of a terabyte has a few kilobytes on its disk, and fits in any archive."""
    run = RunDir.open(tmp_path / "run", Settings())
    run.close()
    os.truncate(run.environment, 2**40)
    with pytest.raises(DataError, match=r"environment\.json: does not say what was begun here"):
        RunDir.open(tmp_path / "run", Settings(), resume=True)


def test_a_file_of_the_run_nested_without_end_is_refused_with_a_sentence(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", Settings())
    run.close()
    run.stages.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"is damaged \(it is nested too deeply\)"):
        run.read(run.stages)


def test_a_folder_that_another_user_laid_where_anyone_can_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files to another user")
    shared, ours = tmp_path / "shared", tmp_path / "ours"
    for place in (shared, ours):
        (place / "run").mkdir(parents=True)
        os.chown(place / "run", 65534, 65534)
    shared.chmod(0o1777)
    with pytest.raises(DataError, match="another user has made it where anyone could"):
        RunDir.open(shared / "run", Settings())
    assert list((shared / "run").iterdir()) == []
    RunDir.open(ours / "run", Settings()).close()
    (ours / "run").chmod(0o777)
    with pytest.raises(DataError, match="another user has made it where anyone could"):
        RunDir.open(ours / "run", Settings(), resume=True)


@pytest.mark.parametrize(("former", "then", "stays"), [
    (Ending.SUCCESS, Ending.PAUSED, True),
    (Ending.GATE_MISSED, Ending.USER, True),
    (Ending.PREEMPTED, Ending.PAUSED, False),
    (Ending.SUCCESS, Ending.GATE_MISSED, False),
])  # fmt: skip
def test_a_run_that_was_complete_is_so_after_a_command_that_ended_before_it(
    former: Ending, then: Ending, stays: bool, tmp_path: Path
) -> None:
    with RunDir.open(tmp_path / "a", Settings()) as run:
        run.succeed(former)
    with RunDir.open(tmp_path / "a", Settings(), resume=True) as run:
        run.succeed(then)
    assert RunDir(tmp_path / "a").ended() == (former if stays else then)
