"""A start harms no neighbour: not one in another container, nor one that has the same paths or numbers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from supervise.test_survival import LIMITS, SUPERVISE, beating, command, start, until

from ups.files import hold, holder, release
from ups.types import ConfigError
from ups.verdict import Ending
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.proc import alive, of_run, owned
from ups_fleet.supervise.start_dir import DRAFT, OLD, SEMAPHORES, StartDir
from ups_fleet.supervise.supervisor import Supervisor

in_a_container = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="namespaces are made with unshare, by root"
)


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of starts are made here, and not where other runs of this machine have theirs."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(StartDir, "parent", staticmethod(lambda: folder))
    return folder


@contextmanager
def contained(home: Path, *words: str, before: str = "true") -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor in PID and mount namespaces of its own, whose /dev/shm is ours; `before` runs there first."""
    job = json.dumps({"command": command(*words), "ranks": 2})
    inner = [sys.executable, str(SUPERVISE), str(home), job, json.dumps(LIMITS), "processes"]
    line = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
    process = subprocess.Popen([*line, "sh", "-c", f'{before} && exec "$@"', "sh", *inner], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ranks(home: Path) -> list[int]:
    return [pid for pid in of_run(home) if "fake_rank" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1]]


def supervise(home: Path) -> Ending:
    return Supervisor(RankJob(command("ok")), home, say=lambda _: None).supervise().ending


def test_a_file_is_held_by_its_process_alone_and_for_as_long_as_it_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert holder(lock) is None
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        hold(lock)
        copy = os.fork()  # like a rank that is forked: it has the same descriptor, and lives on
        os.write(writing, f"{copy or 0}\n".encode()) if copy else None
        time.sleep(100)
    copy = int(os.read(reading, 20))
    try:
        assert holder(lock) == keeper
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        assert holder(lock) is None
        assert alive(copy)
    finally:
        os.kill(copy, signal.SIGKILL)
    mine = hold(tmp_path / "mine")
    assert [holder(tmp_path / "mine") for _ in range(2)] == [os.getpid()] * 2, "looking does not release it"
    release(mine)
    assert holder(tmp_path / "mine") is None


def test_only_folders_that_nobody_holds_are_swept(shm: Path) -> None:
    mine, left = StartDir.create(1), StartDir.create(2)
    assert left._lock is not None
    release(left._lock)
    (shm / "ups-1-1-foreign").mkdir()  # without a lock: nothing that this program would have left
    (shm / "ups-²-1").mkdir()  # a digit, and no number
    (shm / f"{DRAFT}young").mkdir()
    (shm / f"{DRAFT}old").mkdir()
    os.utime(shm / f"{DRAFT}old", (time.time() - 2 * OLD,) * 2)
    victim = shm.parent / "victim"
    victim.mkdir()
    (victim / "lock").touch()
    (shm / "ups-2-1-link").symlink_to(victim)
    StartDir.sweep()
    kept = {mine.folder.name, "ups-1-1-foreign", "ups-²-1", f"{DRAFT}young", "ups-2-1-link"}
    assert {path.name for path in shm.iterdir()} == kept
    assert (victim / "lock").exists()
    mine.remove()
    assert not mine.folder.exists()


LEFT = """
import multiprocessing, os, signal
from multiprocessing.resource_tracker import _resource_tracker as tracker
from ups_fleet.supervise.start_dir import StartDir
start = StartDir.create(1)
start.name_semaphores()
locks = [multiprocessing.get_context("forkserver").Lock() for _ in range(3)]
os.kill(tracker._pid, signal.SIGKILL)
print(start.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_semaphores_of_a_start_that_was_killed_as_a_whole_are_swept_with_its_folder() -> None:
    printed = subprocess.run([sys.executable, "-c", LEFT], stdout=subprocess.PIPE, text=True, check=False).stdout
    folder = Path(printed.strip())
    assert len(list(SEMAPHORES.glob(f"sem.{folder.name}-*"))) == 3
    StartDir.sweep()
    assert not folder.exists()
    assert list(SEMAPHORES.glob(f"sem.{folder.name}-*")) == []


def test_a_user_without_a_name_sweeps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(StartDir, "parent", staticmethod(lambda: Path(folder)))
        os.chmod(folder, 0o777)
        other = StartDir.create(1)
        child = os.fork()
        if child == 0:
            os.setuid(54321)  # in no list of users
            left, made = StartDir.create(1), StartDir.create(2)
            assert left._lock is not None
            release(left._lock)
            StartDir.sweep()
            os._exit(made.folder.exists() and not left.folder.exists() and other.folder.exists())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        StartDir.sweep()
        assert len(list(Path(folder).glob("ups-*"))) == 2, "another user's is not ours, even if nobody holds it"


@in_a_container
def test_a_start_beside_a_container_that_shares_memory_folders_sweeps_nothing_of_it(tmp_path: Path) -> None:
    """Its supervisor has another number there, and processes here have that number or nobody has."""
    home = tmp_path / "inside"
    with contained(home, "slow"):
        until(beating(home))
        folders = {Path(env["UPS_RUN"]) for env in of_run(home).values()}
        assert supervise(tmp_path / "outside") == Ending.SUCCESS
        assert [folder.is_dir() for folder in folders] == [True]
        assert len(ranks(home)) == 2
        with pytest.raises(ConfigError, match=r"process \d+ is running it"):
            supervise(home)
        assert len(ranks(home)) == 2


@in_a_container
def test_a_start_in_a_container_sweeps_nothing_of_the_machine_around_it(tmp_path: Path) -> None:
    home = tmp_path / "outside"
    supervisor = start(home, command("slow"))
    try:
        until(beating(home))
        folders = {Path(env["UPS_RUN"]) for env in of_run(home).values()}
        with contained(tmp_path / "inside", "ok") as inside:
            assert inside.wait(timeout=600) == 0
        assert [folder.is_dir() for folder in folders] == [True]
        assert len(ranks(home)) == 2
        assert supervisor.poll() is None
    finally:
        supervisor.kill()
        supervisor.wait()


@in_a_container
def test_another_folder_with_the_same_path_is_another_run(tmp_path: Path) -> None:
    """A container has mounted a folder of its own where this machine has another one."""
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    with contained(home, "slow", before=f"mount --bind {other} {home}"):
        until(beating(other))
        assert [sorted(ranks(folder)) == [] for folder in (home, other)] == [True, False]
        assert supervise(home) == Ending.SUCCESS
        assert len(ranks(other)) == 2


def test_orphans_are_those_whose_supervisor_holds_nothing_whatever_number_it_had(tmp_path: Path) -> None:
    """The number of a dead supervisor may long be another process's: here it is this one's parent's."""
    env = {**os.environ, "UPS_HOME": str(tmp_path), "UPS_SUPERVISOR": str(os.getppid()), "UPS_RUN": str(tmp_path)}
    orphan = subprocess.Popen(["sleep", "100"], env={**env, "UPS_TOKEN": "earlier"})
    stranger = subprocess.Popen(["sleep", "100"], env={**os.environ, "UPS_TOKEN": "earlier"})
    try:
        assert supervise(tmp_path) == Ending.SUCCESS
        assert orphan.wait(timeout=600) == -signal.SIGKILL
        assert stranger.poll() is None, "it is not of this run"
        assert list(owned("UPS_TOKEN", "earlier")) == [stranger.pid]
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/python3").exists(), reason="only root starts processes of another user"
)
def test_what_another_user_runs_or_holds_is_neither_a_run_nor_its_supervisor() -> None:
    """A stranger's process names our run and a folder of its own, whose lock it holds; an orphan of ours names that."""
    holds = "import fcntl, os, sys, time; fcntl.lockf(os.open('lock', os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX); "
    holds += "open('held', 'w'); time.sleep(100)"
    with tempfile.TemporaryDirectory() as place:
        home, theirs = Path(place) / "home", Path(place) / "theirs"
        home.mkdir()
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
        os.chmod(place, 0o755)
        env = {"UPS_HOME": str(home), "UPS_RUN": str(theirs), "UPS_TOKEN": "earlier"}
        stranger = subprocess.Popen(["/usr/bin/python3", "-c", holds], env=env, cwd=theirs, user=65534, group=65534)
        orphan = subprocess.Popen(["sleep", "100"], env={**os.environ, **env})
        try:
            until((theirs / "held").exists)
            assert supervise(home) == Ending.SUCCESS
            assert orphan.wait(timeout=600) == -signal.SIGKILL
            assert stranger.poll() is None
        finally:
            for process in (stranger, orphan):
                process.kill()
                process.wait()


def test_a_shell_that_names_the_run_is_nobodys_rank(tmp_path: Path) -> None:
    shell = subprocess.Popen(["sleep", "100"], env={**os.environ, "UPS_HOME": str(tmp_path)})
    try:
        assert supervise(tmp_path) == Ending.SUCCESS
        assert shell.poll() is None
    finally:
        shell.kill()
        shell.wait()


def test_a_refused_start_leaves_the_words_of_the_running_one(tmp_path: Path) -> None:
    supervisor = start(tmp_path, command("slow"))
    try:
        until(beating(tmp_path))
        (tmp_path / ".success.json").write_text("{}")
        with pytest.raises(ConfigError, match="is running it"):
            supervise(tmp_path)
        assert (tmp_path / ".success.json").exists()
    finally:
        supervisor.kill()
        supervisor.wait()
