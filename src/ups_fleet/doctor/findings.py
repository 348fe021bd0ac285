"""Findings of the doctor: a line per check, good, doubtful or bad, with one sentence of advice if it is not good."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ups.files import write_named
from ups.verdict import now
from ups.version import __version__


class State(StrEnum):
    """How a check ended. Only BAD makes the doctor's exit code 1."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """The result of a check: `found` in words; `facts` are its numbers, for programs."""

    state: State
    found: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def good(words: str, **facts: Any) -> Finding:
    return Finding(State.GOOD, words, "", facts)


def doubtful(words: str, advice: str, **facts: Any) -> Finding:
    return Finding(State.DOUBTFUL, words, advice, facts)


def bad(words: str, advice: str, **facts: Any) -> Finding:
    return Finding(State.BAD, words, advice, facts)


@dataclass(frozen=True)
class DoctorLine:
    """A check that was made, and its finding."""

    group: str
    name: str
    state: State
    found: str
    advice: str
    seconds: float
    facts: Mapping[str, Any]


def run_check(group: str, name: str, work: Callable[[], Finding]) -> DoctorLine:
    """Make a check and time it; `work` must guard itself against crashes and hangs."""
    began = time.monotonic()
    try:
        finding = work()
    except OSError as error:
        finding = bad(str(error), "repair what is named here; without it this cannot be looked at.")
    seconds = round(time.monotonic() - began, 3)
    return DoctorLine(group, name, finding.state, finding.found, finding.advice, seconds, dict(finding.facts))


def passed(lines: Sequence[DoctorLine]) -> bool:
    return all(line.state != State.BAD for line in lines)


def write(path: Path, lines: Sequence[DoctorLine], **facts: Any) -> None:
    """All lines as JSON, whole or not at all."""
    counts = {str(state): sum(line.state == state for line in lines) for state in State}
    values = {
        "time": now(),
        "ups": __version__,
        "host": platform.node(),
        **facts,
        "passed": passed(lines),
        "counts": counts,
        "checks": [asdict(line) for line in lines],
    }
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str) + "\n"
    write_named(path, text, "choose another --json")
