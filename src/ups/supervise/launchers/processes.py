"""The launcher `processes`: ranks as plain processes of this machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from typing import BinaryIO, ClassVar, Protocol

from ups.supervise import network
from ups.supervise.job import Start, parent_command
from ups.supervise.launchers.launcher import Exit, RecordedRanks, kill_group, read_exits


class Child(Protocol):
    """What is asked of a started process."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


class Processes(RecordedRanks):
    """Every rank is a process of its own, under a parent that this process starts; they meet on a free port here."""

    several_nodes: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._parents: list[Child] = []  # of the ranks, in their order
        self._gone: dict[int, float] = {}

    def start(self, start: Start) -> None:
        self._files = start.files
        self._gone.clear()
        world = start.job.ranks
        env = {**start.env, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        env["MASTER_PORT"] = str(network.free_port())
        with (start.logs / "launcher.log").open("ab") as log:
            self._parents = []  # one by one: what has been started is ended even if the next one cannot be started
            for rank in range(world):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                self._parents.append(self.child(self.command(start, rank), {**env, **own}, log))

    def command(self, start: Start, rank: int) -> tuple[str, ...]:  # noqa: ARG002
        """The command line of a rank; a launcher that puts something in front of it overrides this."""
        return start.job.command

    def child(self, command: tuple[str, ...], env: Mapping[str, str], log: BinaryIO) -> Child:
        """Start the parent of a rank, in a session of its own; the rank runs `command`."""
        words = parent_command("rank", command)
        return subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def poll(self) -> int | None:
        codes = [parent.poll() for parent in self._parents]
        if any(code is None for code in codes):
            return None
        return max((code or 0 for code in codes), key=abs, default=0)

    def exits(self) -> dict[int, Exit]:
        exits = super().exits()
        for rank, parent in enumerate(self._parents):  # one that was killed wrote nothing, and took its rank with it
            if rank not in exits and (code := parent.poll()) is not None:
                clock = self._gone.setdefault(rank, time.monotonic())
                exits[rank] = read_exits(self._files).get(rank, Exit(rank, code, clock))
        return exits

    def kill(self) -> None:
        for parent in self._parents:  # each takes its rank with it
            if parent.poll() is None:
                kill_group(parent.pid)
            parent.wait()
