"""What a launcher must do: start the ranks of a job, and know which of them are there and which are gone."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ups.parsing import read_json
from ups_fleet.supervise.job import RankStart
from ups_fleet.supervise.start_dir import StartDir


@dataclass(frozen=True)
class Exit:
    """A rank that is gone: its exit code (negative: the signal that killed it), when, and the end of its log."""

    rank: int
    code: int
    clock: float
    tail: str = ""


class Launcher(Protocol):
    """Made without arguments. One start at a time: `start`, then `poll` until it is not None, or `kill`."""

    several_nodes: ClassVar[bool]
    """Whether it can bring the ranks of several machines together."""

    @property
    def regrouping(self) -> bool:
        """Whether it has sent its ranks away so that another node can join: how they leave then means nothing, and
        the supervisor starts them again, from the checkpoint that they have just written."""
        ...

    def start(self, start: RankStart) -> None:
        """Start `start.job.ranks` processes, each with `start.env` and its own RANK, under `parent_command`."""
        ...

    def poll(self) -> int | None:
        """None while anything runs; then 0 if all was well and another number if not."""
        ...

    def pids(self) -> dict[int, int]:
        """The processes of the ranks that have begun, by rank."""
        ...

    def exits(self) -> dict[int, Exit]:
        """The ranks that are gone, by rank."""
        ...

    def kill(self) -> None:
        """SIGKILL to what it started, which takes the ranks with it."""
        ...

    def afresh(self) -> bool:
        """After a start in which no rank got to a step: whether it will start them in another way from now on, that
        carries over less from this process."""
        ...

    def close(self) -> None:
        """After the last start: give back what it holds over all starts."""
        ...


class RecordedRanks:
    """The part of a launcher that reads what the parents of the ranks have written down."""

    def __init__(self) -> None:
        self._files = StartDir(Path())

    @property
    def regrouping(self) -> bool:
        return False

    def pids(self) -> dict[int, int]:
        return read_pids(self._files)

    def exits(self) -> dict[int, Exit]:
        return read_exits(self._files)

    def afresh(self) -> bool:
        return False

    def close(self) -> None:
        """It holds nothing."""


def read_pids(files: StartDir) -> dict[int, int]:
    """What the parents of the ranks wrote: the process of each rank that has begun."""
    pids = {}
    for rank, path in files.pids().items():
        try:
            pids[rank] = int(path.read_text())
        except (OSError, ValueError):
            continue  # being replaced
    return pids


def read_exits(files: StartDir) -> dict[int, Exit]:
    """What the parents of the ranks wrote: how each rank ended."""
    records = [read_json(path) for path in files.exits()]
    return {r["rank"]: Exit(r["rank"], r["code"], r["clock"]) for r in records if r}


def kill_group(pid: int) -> None:
    """SIGKILL to a session's first process and its group, where it still exists."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
