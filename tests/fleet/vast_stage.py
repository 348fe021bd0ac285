"""Machines of our own Vast server that really run their start scripts, and what a test asks of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vast_server import KEY, Rented, offer, serving
from vast_server import Vast as Server

from ups_fleet.submit.job import LaunchJob
from ups_fleet.submit.records import LaunchRecord, note
from ups_fleet.submit.vast.rent import Label, home
from ups_fleet.submit.vast.source import render
from ups_fleet.supervise.proc import stat_of

# Stands for Python with `ups` in it: the config says how the run ends. Other programs are Python's own.
STAND_IN = """#!/bin/sh
[ "$1 $2 $3" = "-m ups run" ] || exec {python} "$@"
for word; do case $word in --out=*) out=${{word#--out=}};; esac; done
mkdir -p "$out/wave"; cp "$4" "$out/wave/config.yaml"; env >"$out/wave/environment"
echo "the run says $*"
trap 'echo saved; exit 15' TERM
. ./"$4"
"""
ENDS = {
    "success": "exit 0",
    "lacking": "echo 's3://x: does not have all of this run'",
    "failure": "echo crash >&2; exit 14",
    "hang": "while :; do sleep 0.1; done",
    "full": "head -c 1000000 /dev/zero >$out/wave/big || exit 18",
}
RSYNC = """#!/bin/sh
for word; do source=$target; target=$word; done
id=${{source#*::C.}}; id=${{id%%/*}}
mkdir -p "$target" && cp -r {machines}/machine-$id/root/ups/runs/. "$target"
"""


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=u", "-c", "user.email=u@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Stage:
    """A server whose machines really run their scripts, and a repository with configs."""

    def __init__(self, folder: Path, configs: Mapping[str, str] = ENDS, program: str = STAND_IN) -> None:
        self.folder, self.server = folder, Server(folder / "vast", really=True)
        self.repo = folder / "repo"
        self.repo.mkdir()
        git(self.repo, "init", "-q")
        for name, text in configs.items():
            (self.repo / f"{name}.yaml").write_text(text)
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-qm", "configs")
        python = folder / "python"
        python.write_text(program.format(python=sys.executable))
        rsync = folder / "bin" / "rsync"
        rsync.parent.mkdir()
        rsync.write_text(RSYNC.format(machines=folder / "vast"))
        for path in (python, rsync):
            path.chmod(0o755)
        self.server.environment |= {"UPS_PYTHON": str(python), "UPS_PAUSE": "0"}

    @contextmanager
    def open(self, client: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
        """The server answers; this process and what it starts are a user's, and nobody waits long."""
        with serving(self.server):
            environment = {"UPS_VASTAI": str(client), "VAST_URL": self.server.url, "VAST_API_KEY": KEY}
            environment |= {"UPS_STATE": str(self.folder / "state")}
            for name, value in {**environment, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr("ups_fleet.submit.vast.rent.LOOK", 0.05)
            self.server.states = ["running"]
            yield self

    def serve_code(self) -> str:
        """The address of the repository, as the server gives it to anybody."""
        bare = self.server.folder / "git" / "code.git"
        git(self.repo, "clone", "-q", "--bare", str(self.repo), str(bare))
        git(bare, "update-server-info")
        return f"{self.server.url}/git/code.git"

    def job(
        self, name: str, *, seconds: float = 600.0, number: int = 0, flags: Mapping[str, str] | None = None, **more: str
    ) -> LaunchJob:
        options = {"repo": str(self.repo), "commit": git(self.repo, "rev-parse", "HEAD"), "at": "."}
        options |= {"config": f"{name}.yaml", "package": ".", "store": "", **more}
        key = f"{name}-{number:08x}"
        folder, config = self.folder / "home" / key / "wave", self.repo / f"{name}.yaml"
        shape = LaunchJob(key, "wave", config, folder, self.repo, ranks=2, gpus=1, seconds=seconds, grace=20.0)
        return replace(shape, flags=tuple((flags or {}).items()), options=options)

    def rent(self, name: str, **more: Any) -> tuple[LaunchJob, Rented]:
        """A machine that runs a config, with its record, as a launch makes them."""
        number = self.server.next
        job = self.job(name, number=number, **more)
        self.server.offers.append(offer(number, 0.5))
        label = str(Label(job.key, home(), int(time.time() + 900)))
        body = {"label": label, "image": "", "runtype": "args", "onstart": "bash", "args": ["-c", render(job)]}
        id = self.server.create(number, body)[1]["new_contract"]
        note(replace(LaunchRecord.of(job, "vast"), identity=str(id)))
        return job, self.server.machines[id]


def machine_with(vast: Server, key: str, until: float, where: str = "", **row: Any) -> int:
    """The number of a machine that the server says it has, with the label of a job; it runs nothing."""
    vast.offers.append(offer(vast.next, 0.5))
    body = {"label": str(Label(key, where or home(), int(until))), "image": "x", "runtype": "args", "onstart": "bash"}
    id = int(vast.create(vast.next, {**body, "args": ["-c", ""]})[1]["new_contract"])
    vast.machines[id].row |= {"states": [], "actual_status": "running", **row}
    return id


def record_machine(key: str, id: int, folder: Path, engine: str = "vast") -> None:
    """The record of a job with a machine."""
    note(LaunchRecord(key, engine, "wave", "wave.yaml", str(folder / key), 1, 1, "2026-01-01T00:00:00Z", str(id)))


def until(true: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def groups(machine: Rented) -> list[int]:
    """The leaders of the two process groups of a script: its work and its guard."""
    assert machine.process is not None
    children = [pid for pid in machine.pids() if (fields := stat_of(pid)) and int(fields[1]) == machine.process.pid]
    return sorted(pid for pid in children if os.getpgid(pid) == pid)


def given_back(machine: Rented, how: str = "PUT", seconds: float = 60.0) -> None:
    """Waits until a machine has nothing left that runs, and was given back once, in one way."""
    until(lambda: machine.ends and not machine.pids(), f"it is given back: {machine.log[-2000:]}", seconds)
    assert machine.ends == [how]
