"""What is recorded of the surroundings of a run, without touching them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ups.provenance import ROOMS, SOURCE, changes, code, command, environment


def commit_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with one commit, in which this process stands."""
    monkeypatch.chdir(folder)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (folder / "file").write_text("content")
    for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], check=True, capture_output=True)


def test_asking_for_the_state_of_a_repository_writes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`git status` refreshes the index under a lock, and a kill at that moment would leave the lock for good."""
    commit_in(tmp_path, monkeypatch)
    index = (tmp_path / ".git" / "index").read_bytes()
    os.utime(tmp_path / "file", (1e9, 1e9))  # what the index remembers of it is outdated
    state = environment()["git"]
    assert state is not None
    assert state["changed"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == index


@pytest.mark.parametrize("where", ["config", "config.worktree"])
def test_a_repository_that_somebody_sent_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    commit_in(tmp_path, monkeypatch)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\ncat\n")
    program.chmod(0o755)
    (tmp_path / ".gitattributes").write_text("* filter=theirs\n")
    settings = f'[core]\n\tfsmonitor = {program}\n[filter "theirs"]\n\tclean = {program}\n'
    subprocess.run(["git", "config", "extensions.worktreeConfig", "true"], check=True)
    with (tmp_path / ".git" / where).open("a") as file:
        file.write(settings)
    (tmp_path / "file").write_text("changes")
    state = environment()["git"]
    assert not (tmp_path / "started").exists()
    assert state is not None
    assert len(state["commit"]) == 40
    assert "changed" not in state


def test_a_command_says_nothing_of_where_its_machine_keeps_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    words = ["bench", "speed", "--note", "beside two others", "--json", f"{here}/out/a.json", f"--out={tmp_path}/runs"]
    said = "ups bench speed --note 'beside two others' --json out/a.json --out=../runs"
    assert command(["/usr/local/bin/ups", *words]) == command(["/opt/site-packages/ups/__main__.py", *words]) == said
    assert command(["ups", "data", "fetch", "s3://a/b", "x=1", "-"]) == "ups data fetch s3://a/b x=1 -"
    assert environment()["command"] == command(sys.argv)


def test_a_changed_source_is_named_by_its_folder() -> None:
    now = code()
    assert changes(now, now) == []
    before = {**now, SOURCE: "0" * 12, ROOMS: {**now[ROOMS], "stages": "0" * 12}}
    assert changes(before, now) == ["the source of ups/stages has changed"]
    del before[ROOMS]
    assert changes(before, now) == [f"{SOURCE} {'0' * 12} → {now[SOURCE]}"], "a record without folders"
