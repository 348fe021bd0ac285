"""Supervising ranks that misbehave on request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ups.verdict import Verdict
from ups_fleet.supervise.job import RankJob
from ups_fleet.supervise.launchers.launcher import ProcessLauncher
from ups_fleet.supervise.limits import Limits
from ups_fleet.supervise.supervisor import Supervisor

FAKE = Path(__file__).parent / "fake_rank.py"
# Short enough for a test, long enough for a loaded machine: a rank that is well beats every 10 ms.
LIMITS = {"floor": 1.0, "start": 20.0, "first": 1.5, "phase": 1.5, "grace": 3.0, "echo": 0.6, "teardown": 1.0}


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, str(FAKE), *words)


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    """supervise(*words, ranks=2, …) → the verdict of fake ranks under plain processes, in tmp_path/run."""
    monkeypatch.setattr("ups_fleet.supervise.supervisor.PAUSE", 0.01)

    def run(*words: str, ranks: int = 2, limits: dict[str, Any] | None = None, **more: Any) -> Verdict:
        job = RankJob(command(*words), ranks=ranks)
        more = {"launcher": ProcessLauncher(), "say": lambda _: None, **more}
        return Supervisor(job, tmp_path / "run", Limits(**{**LIMITS, **(limits or {})}), **more).supervise()

    return run
