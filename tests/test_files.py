"""Whole-file writing: only regular files are replaced, links are followed, and mode and owner stay."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rooms import run_in
from ups.data.splits import make_split
from ups.files import draft, write_atomic, write_named
from ups.models import artifact
from ups.types import DataError

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
SOURCE = Path(__file__).parent.parent / "src"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


STRANGERS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7)),
}
WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_named(path, "new", "choose another"),
    "artifact": lambda path: artifact.write(path, {"parts": {}}, {"a": torch.zeros(3)}),
    "split": lambda path: make_split(["a", "b", "c"], "seeded", (0.4, 0.3, 0.3), 0).save(path),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path, kind: str, writer: str) -> None:
    path = tmp_path / "out.safetensors"
    try:
        STRANGERS[kind](path)
    except PermissionError:
        pytest.skip("only root can make a device")
    before = os.lstat(path)
    with pytest.raises((OSError, DataError), match=f"it is {kind}, not a file"):
        WRITERS[writer](path)
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode, before.st_rdev) == (after.st_ino, after.st_mode, after.st_rdev)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_standard_output_of_this_process_is_no_file_to_replace() -> None:
    code = "from pathlib import Path\nfrom ups.files import write_named\nwrite_named(Path('/dev/stdout'), 'x', 'no')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DataError: /dev/stdout: cannot be written (it is a pipe, not a file)" in done.stderr
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_symlink_stays_and_the_file_behind_it_is_written(tmp_path: Path, writer: str) -> None:
    (tmp_path / "far").mkdir()
    first, second, target = tmp_path / "a.safetensors", tmp_path / "b", tmp_path / "far" / "file"
    first.symlink_to("b")
    second.symlink_to("far/file")
    WRITERS[writer](first)  # dangling
    assert first.is_symlink()
    assert second.is_symlink()
    once = target.read_bytes()
    assert once
    target.write_bytes(b"old")
    WRITERS[writer](first)
    assert target.read_bytes() == once
    assert not target.is_symlink()
    assert sorted(p.name for p in (tmp_path / "far").iterdir()) == ["file"]


def test_a_circle_of_symlinks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(DataError, match="Too many levels of symbolic links"):
        write_named(tmp_path / "a", "x", "choose another")


@ROOT
@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["sticky", "not sticky"])
def test_a_link_that_another_user_laid_in_a_folder_for_all_is_refused(tmp_path: Path, mode: int) -> None:
    """Otherwise anyone could have a file of this user overwritten through /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    link = shared / "results.json"
    link.symlink_to(precious)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(PermissionError):
        write_atomic(link, "theirs")
    assert precious.read_text() == "mine"
    os.chown(link, 0, 0, follow_symlinks=False)
    write_atomic(link, "new")
    assert precious.read_text() == "new"


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask_and_a_replaced_one_keeps_its_own(
    tmp_path: Path, umask: int, writer: str
) -> None:
    path = tmp_path / "out.safetensors"
    before = os.umask(umask)
    try:
        WRITERS[writer](path)
        assert mode_of(path) == 0o666 & ~umask
        path.chmod(0o640)
        WRITERS[writer](path)
        assert mode_of(path) == 0o640
    finally:
        os.umask(before)


def test_what_replaces_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    with draft(path) as beside:
        assert mode_of(beside) == 0o600


@ROOT
def test_a_replaced_file_keeps_owner_and_group(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 65534, 12)
    write_atomic(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 12)


@pytest.fixture
def everyones() -> Iterator[Path]:
    """A folder that every user can reach and write to; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="ups-test-files-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_nobody(code: str, *words: str) -> str:
    """What a program prints that has become nobody, of the group nobody alone, after its imports."""
    head = "import os, sys\nfrom pathlib import Path\nfrom ups.files import write_atomic\n"
    drop = "os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
    words = (sys.executable, "-c", head + drop + code, *words)
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@ROOT
def test_a_group_that_cannot_be_kept_gives_its_rights_to_no_other(everyones: Path) -> None:
    path = everyones / "file"
    path.write_text("old")
    os.chown(path, 65534, 12)
    path.chmod(0o660)
    as_nobody("write_atomic(Path(sys.argv[1]), 'new')\n", str(path))
    assert (path.read_text(), path.stat().st_uid, path.stat().st_gid) == ("new", 65534, 65534)
    assert mode_of(path) == 0o600


@ROOT
def test_a_file_that_may_not_be_written_is_not_replaced_either(everyones: Path) -> None:
    path = everyones / "file"
    path.write_text("old")
    attempt = "try:\n    write_atomic(Path(sys.argv[1]), 'new')\n"
    code = attempt + "except PermissionError as error:\n    print(error.strerror)\n"
    assert as_nobody(code, str(path)) == "Permission denied\n"
    assert path.read_text() == "old"
    assert len(list(everyones.iterdir())) == 1


def test_another_name_of_a_replaced_file_keeps_the_old_content(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("old")
    os.link(path, other)
    write_atomic(path, "new")
    assert (path.read_text(), other.read_text()) == ("new", "old")


def test_a_long_name_is_written_as_far_as_the_system_takes_it(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("ü" * 127), "content")
    assert (tmp_path / ("ü" * 127)).read_text() == "content"
    with pytest.raises(DataError, match=re.escape("cannot be written (File name too long); choose another")):
        write_named(tmp_path / ("x" * 256), "content", "choose another")


def test_a_read_only_disk_and_a_full_one_are_one_sentence(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom ups.files import write_named\n"
        "from ups.types import DataError\n"
        "place = Path(sys.argv[1])\n"
        "def attempt(content):\n"
        "    try:\n        write_named(place / 'file', content, 'choose another')\n"
        "    except DataError as error:\n        print(str(error).removeprefix(str(place)))\n"
        "attempt('x' * 1_000_000)\nassert not list(place.iterdir())\n"
        "subprocess.run(['mount', '-o', 'remount,ro', str(place)], check=True)\nattempt('x')\n"
    )
    said = run_in({tmp_path: "64k"}, code, str(tmp_path)).splitlines()
    assert said == [
        "/file: cannot be written (No space left on device); choose another.",
        "/file: cannot be written (Read-only file system); choose another.",
    ]


def test_what_was_there_stays_if_the_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with draft(path) as beside:
            beside.write_text("half")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        fail()
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
