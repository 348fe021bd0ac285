"""What is known of memory: limits, and whom the kernel killed for want of it, with real control groups and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ups import host_memory

HUNGRY = "import sys; sys.stdin.readline(); held = [bytes(range(256)) * 4096 for _ in range(400)]; print('all of it')"


def words_of(tmp_path: Path, code: str, kilobytes: int) -> str:
    """What a process prints whose address space is limited."""
    limited = f"ulimit -v {kilobytes}; exec {sys.executable} -c '{code}'"
    return subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False, cwd=tmp_path).stdout


def test_a_process_knows_that_its_address_space_is_full(tmp_path: Path) -> None:
    code = (
        'from ups import host_memory as h; print(bool(h.cramped())); a = bytearray(1 << 20); b = []\n'
        'try:\n while True: b.append(bytearray(16 << 20))\n'
        'except MemoryError: pass\n'
        'del b; print(h.cramped())'
    )  # fmt: skip
    first, second = words_of(tmp_path, code.replace("\n ", "\n "), 2_000_000).splitlines()
    assert first == "False"
    assert "of the 2.05 GB that ulimit -v allows" in second
    assert host_memory.cramped() == "", "this process has no limit"


def started(group: Path | None) -> subprocess.Popen[str]:
    """A process that takes 400 MB once it is told to, inside a control group."""
    child = subprocess.Popen([sys.executable, "-c", HUNGRY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if group is not None:
        (group / "cgroup.procs").write_text(str(child.pid))
    return child


def ended(child: subprocess.Popen[str]) -> float:
    """Tell it to, and wait; when it ended. A child that is dead already is told nothing."""
    child.communicate("\n")  # which takes a closed pipe for an answer
    return time.monotonic()


def test_a_kill_in_the_group_of_a_process_is_seen_although_it_is_not_ours(group: Path) -> None:
    kills = host_memory.KernelKills()
    before = host_memory.kills()
    child = started(group)
    kills.look([child.pid])
    clock = ended(child)
    assert child.returncode == -signal.SIGKILL
    assert kills.killed(child.pid, clock)
    assert host_memory.kills() == before, "nobody was killed in the group of this process"


def test_a_kill_is_seen_by_one_who_could_not_look_for_long(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory runs out, whoever watches may stand still too."""
    monkeypatch.setattr(host_memory, "INITIAL_PIDS", "another namespace")  # nothing but the time tells
    kills, child = host_memory.KernelKills(), started(group)
    kills.look([child.pid])
    clock = ended(child)
    time.sleep(1.1 * host_memory.AROUND)
    kills.look([])
    assert kills.killed(child.pid, clock)


@pytest.mark.parametrize("log", [True, False], ids=["named in the kernel's log", "the log not readable"])
def test_the_kernel_is_not_blamed_for_what_it_did_to_somebody_else(
    group: Path, log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not log:
        monkeypatch.setattr(host_memory, "INITIAL_PIDS", "another namespace")
    kills, ours, other = host_memory.KernelKills(), started(group), started(group)
    kills.look([ours.pid])
    ended(other)
    kills.look([ours.pid])
    if not log:
        time.sleep(1.1 * host_memory.AROUND)  # without names only the time tells the two apart
    os.kill(ours.pid, signal.SIGKILL)
    clock = ended(ours)
    assert (ours.returncode, other.returncode) == (-signal.SIGKILL, -signal.SIGKILL)
    assert not kills.killed(ours.pid, clock)


def test_what_is_left_is_what_the_tightest_group_around_leaves(group: Path) -> None:
    inner = group / "inner"
    inner.mkdir()
    code = "import sys; sys.stdin.readline(); from ups import host_memory as h; print(*h.available())"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    (inner / "cgroup.procs").write_text(str(child.pid))
    free, total = child.communicate("\n")[0].split()
    inner.rmdir()
    assert int(total) == 64 << 20
    assert 0 < int(free) <= int(total)


def test_groups_of_version_2_are_found_where_they_are_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container shows a part of the groups, and its own as the root."""
    mounts = f"30 20 0:30 /pod/one {tmp_path} rw - cgroup2 cgroup2 rw\n"
    real = Path.read_text

    def read_text(path: Path, *args: str) -> str:
        shown = {"/proc/self/mountinfo": mounts, "/proc/77/cgroup": "0::/pod/one/ranks\n"}
        return shown.get(str(path)) or real(path, *args)

    monkeypatch.setattr(Path, "read_text", read_text)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    host_memory._mounts.cache_clear()
    try:
        assert host_memory.kills(77) == 2
    finally:
        host_memory._mounts.cache_clear()
