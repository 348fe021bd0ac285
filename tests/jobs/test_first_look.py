"""`ups` alone proposes what fits what lies in the folder, and only commands that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.cli.app import app, main
from ups.jobs.first_look import first_look
from ups.presence import hold, release
from ups.rundir import RunDir
from ups.verdict import Ending

KNOWN = [name for name in app if not name.startswith("-")]


def proposed(folder: Path, known: list[str] = KNOWN) -> list[str]:
    return [line.split("   ")[0].strip() for line in first_look(folder, known) if line.startswith("  ups ")]


def a_run(folder: Path, name: str, ending: Ending | None) -> RunDir:
    run = RunDir(folder / "runs" / name)
    run.folder.mkdir(parents=True)
    run.config.write_text("name: x\n")
    run.environment.write_text("{}")
    if ending is not None:
        run.succeed(ending)
    return run


def test_an_empty_folder_begins_with_the_demo(tmp_path: Path) -> None:
    assert proposed(tmp_path)[0] == "ups demo"


def test_data_lead_to_init_and_a_config_to_a_run(tmp_path: Path) -> None:
    (tmp_path / "my waves.npy").touch()
    assert "ups init 'my waves.npy' --out my.yaml" in [line.split("  ")[0] for line in proposed(tmp_path)]
    (tmp_path / "my.yaml").write_text("data: [burgers1d]\n")
    (tmp_path / "other.yaml").write_text("name: a task\n")
    assert [line.split("  ")[0] for line in proposed(tmp_path)] == ["ups estimate my.yaml", "ups run my.yaml"]


def test_a_run_is_followed_while_it_lives_gone_on_with_when_it_died_and_used_when_it_is_done(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one", None)
    lock = hold(run.lock)
    assert proposed(tmp_path)[0].startswith("ups watch runs/one")
    release(lock)
    assert proposed(tmp_path)[0].startswith("ups run runs/one/config.yaml --resume")
    run.succeed(Ending.GATE_MISSED)
    assert proposed(tmp_path)[0].startswith("ups show runs/one")


def test_no_command_is_proposed_that_is_not_there(tmp_path: Path) -> None:
    a_run(tmp_path, "one", Ending.SUCCESS)
    assert [line.split()[1] for line in proposed(tmp_path, ["rollout", "run"])] == ["rollout"]


def test_the_command_alone_says_it_and_needs_no_more_than_ten_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([])
    lines = capsys.readouterr().out.splitlines()
    assert not ended.value.code
    assert len(lines) <= 10
    assert "This folder: nothing of ours yet." in lines[1]
