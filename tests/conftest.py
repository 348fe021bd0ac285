"""All tests of a worker fork their processes from one server: the first to start it says what it has imported."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import warm_up

GROUPS = Path("/sys/fs/cgroup/memory")
# Files that take a worker longest: begun first, so that none of them is alone at the end.
LONGEST = ("test_streams.py", "test_supervise.py", "test_howto_add_a_stage.py", "test_run.py", "test_learning.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    warm_up()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine says no more on standard error than a quick one."""
    monkeypatch.setattr("ups.screen.AT_FIRST", 600.0)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group (version 1) of 64 MB in which the kernel really kills."""
    if os.geteuid() != 0 or not (GROUPS / "memory.oom_control").exists() or not os.access(GROUPS, os.W_OK):
        pytest.skip("needs root and the memory controller of control groups, version 1")
    folder = GROUPS / f"ups-test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield folder
    for _ in range(50):
        if not (folder / "cgroup.procs").read_text().split():
            break
        time.sleep(0.1)
    folder.rmdir()
