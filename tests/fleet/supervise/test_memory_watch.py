"""Ranks that die for want of memory and cannot say so: each is told from those that die of something else."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ups import host_memory
from ups.verdict import Verdict
from ups_fleet.supervise import causes
from ups_fleet.supervise.causes import MemoryWatch
from ups_fleet.supervise.launchers.launcher import Exit

NOW = time.monotonic()


def watch(monkeypatch: pytest.MonkeyPatch, space: tuple[int, int] | None = None, killed: bool = False) -> MemoryWatch:
    monkeypatch.setattr(causes, "address_space", lambda pid: space)  # noqa: ARG005
    monkeypatch.setattr(host_memory.KernelKills, "killed", lambda *_: killed)
    memory = MemoryWatch()
    memory.look([7, 0])
    return memory


@pytest.mark.parametrize("code", [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, 1])
def test_a_death_at_the_limit_of_the_address_space_is_for_want_of_memory(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    full, roomy = (1_750_000_000, 1_800_000_000), (700_000_000, 1_800_000_000)
    assert "ulimit -v allows" in watch(monkeypatch, full).cause(Exit(0, code, NOW), 7)
    assert watch(monkeypatch, roomy).cause(Exit(0, code, NOW), 7) == ""
    assert watch(monkeypatch).cause(Exit(0, code, NOW), 7) == ""
    assert watch(monkeypatch, full).cause(Exit(0, -signal.SIGTERM, NOW), 7) == ""
    assert watch(monkeypatch, full).cause(Exit(0, 2, NOW), 7) == "", "a code that says what it means"


def test_the_last_words_of_a_log_count_where_nothing_else_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert "'std::bad_alloc'" in watch(monkeypatch).cause(Exit(0, -signal.SIGABRT, NOW, tail=words), 7)
    assert watch(monkeypatch).cause(Exit(0, -signal.SIGABRT, NOW, tail="corrupted size vs. prev_size"), 7) == ""
    assert watch(monkeypatch).cause(Exit(0, -signal.SIGKILL, NOW, tail=words), 7) == "", "somebody else killed it"
    assert "killed by the kernel" in watch(monkeypatch, killed=True).cause(Exit(0, -signal.SIGKILL, NOW), 7)
    assert watch(monkeypatch, killed=True).cause(Exit(0, -signal.SIGSEGV, NOW), 7) == ""


def test_a_bus_error_counts_where_shared_memory_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory, end = watch(monkeypatch), Exit(0, -signal.SIGBUS, NOW)
    monkeypatch.setattr(causes, "SHARED", str(tmp_path))
    assert memory.cause(end, 7) == ""
    monkeypatch.setattr(causes, "_full", lambda folder: folder == str(tmp_path))
    assert f"while {tmp_path} was full" in memory.cause(end, 7)


def test_a_rank_that_the_kernel_kills_in_a_group_of_its_own_starts_again_with_half_the_microbatch(
    supervise: Callable[..., Verdict], group: Path
) -> None:
    verdict = supervise("hungry", str(group), ranks=1)
    assert [a["verdict"] for a in verdict.attempts] == ["OOM", "OOM", "SUCCESS"]
    assert "was killed by the kernel because the host ran out of memory in forward of step 5" in str(
        verdict.attempts[0]
    )
    assert verdict.attempts[0]["memory"] == "host"
