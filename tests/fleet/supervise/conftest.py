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
# No rank that is well meets one of these, however busy the machine is: it beats every 10 ms.
LIMITS = {
    "floor": 100.0,
    "start": 200.0,
    "first": 100.0,
    "phase": 100.0,
    "grace": 100.0,
    "echo": 0.6,
    "teardown": 100.0,
}
# What ends those that are not well.
HANGS = ("hang", "gil", "signal-once STOP")
SOON = {"floor": 3.0, "first": 5.0, "phase": 5.0}


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, str(FAKE), *words)


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    """supervise(*words, ranks=2, …) → the verdict of fake ranks under plain processes, in tmp_path/run."""
    monkeypatch.setattr("ups_fleet.supervise.supervisor.PAUSE", 0.01)

    def run(*words: str, ranks: int = 2, limits: dict[str, Any] | None = None, **more: Any) -> Verdict:
        job = RankJob(command(*words), ranks=ranks)
        soon = SOON if " ".join(words) in HANGS else {"teardown": 1.0} if words[0] in ("linger", "abort") else {}
        more = {"launcher": ProcessLauncher(), "say": lambda _: None, **more}
        return Supervisor(job, tmp_path / "run", Limits(**{**LIMITS, **soon, **(limits or {})}), **more).supervise()

    return run
