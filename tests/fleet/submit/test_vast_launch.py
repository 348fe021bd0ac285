"""`ups launch vast` and `ups launch reap`, as a user gives them: what is refused, what is rented, what is left."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from vast_server import KEY
from vast_server import Vast as Server
from vast_stage import machine_with, record_machine

from planted_secrets import PLANTED, VALUES
from ups.cli.app import main
from ups_fleet.submit.records import all_records, file_of, jobs_folder, note

CONFIG = "name: wave\ndevice: cuda\ndata: {a: {task: advection1d, samples: 4, resolution: 16}}\n"
SECRET = "planted-secret-7c21"
NOTHING = "ups launch: ended with code 3, left 0 files\n"
WORDS = ["launch", "vast", "wave.yaml", "--time", "1h"]
Ups = Callable[..., tuple[int, str, str]]


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=u", "-c", "user.email=u@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(vast: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose one commit is on a remote that anybody can read."""
    place, bare = tmp_path / "project", vast.folder / "git" / "project.git"
    place.mkdir()
    git(place, "init", "-q")
    (place / "wave.yaml").write_text(CONFIG)
    git(place, "add", "-A")
    git(place, "commit", "-qm", "a wave")
    bare.mkdir(parents=True)
    git(bare, "init", "-q", "--bare")
    git(place, "remote", "add", "origin", f"{vast.url}/git/project.git")
    git(place, "push", "-q", str(bare), "HEAD:refs/heads/main")
    git(bare, "update-server-info")
    monkeypatch.chdir(place)
    for name, value in {**PLANTED, "VAST_API_KEY": KEY, "WANDB_API_KEY": SECRET}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ups_fleet.cli.launch._outlook", lambda *_: [])  # what `ups estimate` says takes its time
    return place


@pytest.fixture
def ups(capsys: pytest.CaptureFixture[str]) -> Ups:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return call


def test_what_is_printed_is_submitted_recorded_asked_after_and_stopped(vast: Server, project: Path, ups: Ups) -> None:
    vast.states = ["running"]
    code, text, remarks = ups(*WORDS, "--dry-run")
    assert code == 0
    assert "offer 12: 1 x RTX 4090" in remarks
    assert f"COMMIT={git(project, 'rev-parse', 'HEAD')}" in text
    assert "create" not in vast.kinds()
    code, key, remarks = ups(*WORDS)
    assert code == 0, remarks
    (machine,) = vast.machines.values()
    (record,) = all_records()
    assert (record.key, record.engine, record.identity) == (key.strip(), "vast", str(machine.row["id"]))
    assert [line for line in machine.script.splitlines() if not line.startswith("JOB=")] == [
        line for line in text.splitlines() if not line.startswith("JOB=")
    ]
    machine.row["log"] = f"all is well, {SECRET}\n{NOTHING}"
    assert ups("launch", "status")[1].count("costs $0.400/h") == 1
    assert ups("launch", "logs", key.strip())[1].startswith("all is well, ***\nups launch: ended")
    code, answer, _ = ups("launch", "stop", key.strip())
    assert code == 0
    assert "code 3" in answer
    assert not vast.machines
    artefacts = "".join(path.read_text() for path in jobs_folder().iterdir()) + text + remarks + machine.script
    for secret in (KEY, SECRET, machine.key, *VALUES):
        assert secret not in artefacts
        assert secret not in json.dumps([machine.row["label"], machine.row["image_uuid"]])


def test_what_a_machine_would_not_find_is_said_before_anything_is_rented(
    vast: Server, project: Path, ups: Ups, tmp_path: Path
) -> None:
    def refused(sentence: str, *words: str) -> None:
        code, _, problem = ups(*(words or WORDS))
        assert code == 2
        assert sentence in problem, problem
        assert problem.count("\n") == 1

    refused("needs an end; say after what time", "launch", "vast", "wave.yaml")
    refused("single machines, not 2 nodes", *WORDS, "--nodes", "2")
    refused("--max-price is -1.0, but must be a number above 0", *WORDS, "--max-price", "-1")
    refused("--gpu is 'x; rm', which is no name", *WORDS, "--gpu", "x; rm")
    (project / "wave.yaml").write_text(CONFIG + "seed: 1\n")
    refused("wave.yaml differ from the last commit")
    git(project, "commit", "-qam", "a seed")
    refused("no branch there holds the commit")
    git(project, "reset", "-q", "--hard", "HEAD~1")
    (project / "other.yaml").write_text("base: wave.yaml\n")
    refused("other.yaml: is on this computer only", "launch", "vast", "other.yaml", "--time", "1h")
    (tmp_path / "x.hdf5").touch()
    refused("x.hdf5: is on this computer only", *WORDS, "--data.a.file", str(tmp_path / "x.hdf5"))
    (project / "runs" / "wave").mkdir(parents=True)
    refused("runs/wave: is there, and a rented machine would begin anew")
    (project / "runs" / "wave").rmdir()
    git(project, "remote", "set-url", "origin", f"http://u:{SECRET}@example.org/x.git")
    refused("the address of its remote origin holds a login")
    git(project, "remote", "set-url", "origin", f"https://example.org/x.git?private_token={SECRET}")
    refused("the address of its remote origin holds a login")
    git(project, "remote", "set-url", "origin", "/srv/x.git")
    refused("its remote is /srv/x.git, which a rented machine cannot reach")
    git(project, "remote", "remove", "origin")
    refused("has no remote")
    os.chdir(tmp_path)
    refused("is in no git repository", "launch", "vast", "project/wave.yaml", "--time", "1h")
    assert not vast.machines
    assert not all_records()


def test_a_reap_destroys_what_should_be_gone_and_says_what_the_rest_costs(
    vast: Server, ups: Ups, tmp_path: Path
) -> None:
    now = time.time()
    running = machine_with(vast, "running-00000001", now + 600)
    past = machine_with(vast, "past-00000001", now - 120)
    ended = machine_with(vast, "ended-00000001", now + 600, actual_status="exited", intended_status="stopped")
    orphan = machine_with(vast, "orphan-00000001", now + 600)
    twin = machine_with(vast, "running-00000001", now + 600)
    vast.faults["stop"] = [500]
    stuck = machine_with(vast, "stuck-00000001", now - 60, actual_status="loading")
    elsewhere = machine_with(vast, "elsewhere-00000001", now + 600, where="0123abcd")
    foreign = machine_with(vast, "x", now - 600)
    vast.machines[foreign].row["label"] = "somebody's own"
    for key, id in (("running-00000001", running), ("past-00000001", past), ("ended-00000001", ended)):
        record_machine(key, id, tmp_path)
    for machine in vast.machines.values():
        machine.row["log"] = NOTHING
    code, text, problem = ups("launch", "reap", "--dry-run")
    assert code == 1
    assert problem.count("would be destroyed") == 5
    assert "its lease is over for 2 min" in text
    assert len(vast.machines) == 8
    vast.faults["destroy"] = [500, "lie"]
    code, text, problem = ups("launch", "reap")
    assert (code, problem) == (0, "")
    assert text.count("is destroyed.") == 5
    assert "2 machines of ours by right, $1.000/h." in text
    assert sorted(vast.machines) == sorted([running, elsewhere, foreign])
    assert {past, ended, orphan, twin, stuck} == set(vast.gone)
    assert "ended with code 3" in file_of("ended-00000001", ".log").read_text()


def test_a_reap_that_cannot_end_a_machine_says_so_by_its_code(
    vast: Server, ups: Ups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ups_fleet.submit.vast.rent.GONE", 0.5)
    id = machine_with(vast, "past-00000001", time.time() - 120)
    record_machine("past-00000001", id, tmp_path)
    vast.machines[id].row["log"] = NOTHING
    vast.faults["destroy"] = ["lie"] * 50
    code, _, problem = ups("launch", "reap")
    assert code == 1
    assert f"machine {id} is still there and is paid for" in problem
    vast.faults["machines"] = [500] * 50
    code, _, problem = ups("launch", "reap")
    assert code == 2
    assert "Vast answers 500" in problem


def test_a_launch_that_was_killed_before_it_wrote_the_number_is_found_by_its_label(
    vast: Server, ups: Ups, tmp_path: Path
) -> None:
    id = machine_with(vast, "lost-00000001", time.time() + 600)
    record_machine("lost-00000001", id, tmp_path)
    note(replace(all_records()[0], identity=""))
    assert f"machine {id} costs" in ups("launch", "status", "lost-00000001")[1]
    assert all_records()[0].identity == str(id)
