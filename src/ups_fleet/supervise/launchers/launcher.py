"""What a launcher must do, and the launcher `processes`: ranks as plain processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol

from ups.parsing import read_json
from ups_fleet.supervise import children, network
from ups_fleet.supervise.children import Child, end_session
from ups_fleet.supervise.job import RankStart, parent_command
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
        """Called after a start in which no rank got to a step: whether it will now start them in another way, which
        carries over less from this process."""
        ...

    def close(self) -> None:
        """Give back what it holds over all starts, after the last of them."""
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


class ProcessLauncher(RecordedRanks):
    """Every rank is a process of its own, under a parent that this process starts.

    Ranks of one machine find each other through a file in the folder of their start, which nobody else can open, and
    listen on loopback alone.
    """

    several_nodes: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._parents: list[Child] = []  # of the ranks, in their order
        self._gone: dict[int, float] = {}
        self._first = 0  # rank of this machine

    def start(self, start: RankStart) -> None:
        self._files = start.files
        self._gone.clear()
        self.begin(start, network.private_meeting(start.files), 0, start.job.ranks)

    def begin(self, start: RankStart, place: Mapping[str, str], first: int, world: int) -> None:
        """Start this machine's ranks, from number `first` on, of `world`; `place` is where they meet."""
        count, self._first = start.job.ranks, first
        env = {**start.env, **place, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(count)}
        with self.log(start) as log:
            self._parents = []  # one by one: what has been started is ended even if the next one cannot be started
            for local in range(count):
                own = {"RANK": str(first + local), "LOCAL_RANK": str(local)}
                self._parents.append(self.child(self.command(start, first + local), {**env, **own}, log))

    def log(self, start: RankStart) -> BinaryIO:
        """What the launcher itself has to say of a start."""
        return (start.logs / f"launcher-{start.job.node}.log").open("ab")

    def command(self, start: RankStart, rank: int) -> tuple[str, ...]:  # noqa: ARG002
        """The command line of a rank; a launcher that puts something in front of it overrides this."""
        return start.job.command

    def child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        """Start the parent of a rank, in a session of its own; the rank runs `command`."""
        words = parent_command(command)
        return children.start(words, log, env=env)

    def poll(self) -> int | None:
        codes = [parent.poll() for parent in self._parents]
        if any(code is None for code in codes):
            return None
        return max((code or 0 for code in codes), key=abs, default=0)

    def exits(self) -> dict[int, Exit]:
        exits = super().exits()
        for rank, parent in enumerate(self._parents, self._first):
            # One that was killed wrote nothing, and took its rank with it.
            if rank not in exits and (code := parent.poll()) is not None:
                clock = self._gone.setdefault(rank, time.monotonic())
                exits[rank] = read_exits(self._files).get(rank, Exit(rank, code, clock))
        return exits

    def kill(self) -> None:
        for parent in self._parents:  # each takes its rank with it
            if parent.poll() is None:
                end_session(parent)
